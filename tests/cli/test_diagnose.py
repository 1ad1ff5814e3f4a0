"""`steadygrad diagnose` of a layer, a run, and somebody's own file."""

import json

import pytest

from steadygrad.cli.main import main

MINE = """
import torch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.GRU(3, 4)

    def forward(self, x, h=None):
        return self.inner(x, h)

def number():
    return 3
"""


@pytest.fixture
def run(capsys):
    def call(*words):
        code = main([*map(str, words), "--threads", "1"])
        return code, *capsys.readouterr()

    return call


def test_a_layer_as_it_starts(run):
    code, out, err = run("diagnose", "exprnn", "--layer.hidden_size", 8, "--steps", 30)
    assert (code, err) == (0, "")
    assert "Nothing is lost" in out


def test_a_trained_run_on_its_own_task(run, tmp_path):
    settings = ["--layer.hidden_size", 8, "--task.delay", 5, "--train.steps", 3]
    assert run("train", "lstm", "copy", *settings, "--out", tmp_path / "run")[0] == 0
    code, out, _ = run("diagnose", tmp_path / "run", "--json")
    found = json.loads(out)
    assert (code, found["name"], found["numbers"]["steps"]) == (0, "LSTM", 25)
    assert "shrink" in found["findings"][0]["what"]


def test_a_file_of_ones_own(run, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    code, out, err = run("diagnose", f"{path}:Own", "--inputs", 3, "--steps", 20)
    assert (code, err) == (0, "")
    assert out.startswith("Own\n- Gradients shrink")
    for what, message in (
        ("Own", "expects --inputs N"),
        ("number", "got int"),
        ("nothing", "has no function 'nothing'"),
    ):
        code, out, err = run("diagnose", f"{path}:{what}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lstmm"], "expects a run's directory, FILE.py:FUNCTION or a layer out of rnn,"),
        (["nowhere.py:make"], "nowhere.py does not exist"),
        (["lstm", "--steps", "1"], "--steps expects at least 2; got 1"),
        (["lstm", "--layer.hiden", "3"], "unknown key 'hiden'"),
        (["x.py:make", "--layer.hidden_size", "3"], "goes with the name of a layer"),
    ],
)
def test_bad_input_is_one_line(run, words, message):
    code, out, err = run("diagnose", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
