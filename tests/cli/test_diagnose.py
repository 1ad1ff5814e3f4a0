"""`steadygrad diagnose` of a layer, a run, and somebody's own file."""

import json
import sys

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
        (["lstm", "--inputs", "0"], "--inputs expects at least 1; got 0"),
        (["lstm", "--layer.hidden_size", "--json"], "--layer.hidden_size expects a value"),
    ],
)
def test_bad_input_is_one_line(run, words, message):
    code, out, err = run("diagnose", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


OTHERS = """
import torch

def gru():
    return torch.nn.GRU(10, 8)

def linear():
    return torch.nn.Linear(10, 8)

def needs(x):
    return torch.nn.GRU(10, 8)
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gru", "--inputs", "7"], "diagnose expects --inputs 10, which the module has; got 7"),
        (["linear", "--inputs", "10"], "diagnose expects a module that is called as torch.nn.GRU is; with 10 inputs: "),
        (["linear", "--inputs", "3"], "diagnose expects a module that is called as torch.nn.GRU is; with 3 inputs: "),
        (["needs"], "expects to be called without arguments: missing a required argument: 'x'"),
    ],
)
def test_a_module_that_does_not_fit_is_explained_in_a_line(run, tmp_path, words, message):
    (tmp_path / "others.py").write_text(OTHERS, "utf-8")
    code, out, err = run("diagnose", f"{tmp_path}/others.py:{words[0]}", "--steps", "5", *words[1:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


CAREFUL = """
from __future__ import annotations

from dataclasses import dataclass

import torch

from helper_beside import SIZE

@dataclass
class Config:
    hidden: int = SIZE

def make():
    import other_beside
    return torch.nn.GRU(3, Config().hidden + other_beside.MORE)
"""


@pytest.mark.parametrize("name", ["careful", "torch", "json"])  # a name that others have is no matter
def test_a_file_may_have_dataclasses_and_import_what_stands_beside_it(run, tmp_path, monkeypatch, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / f"{name}.py").write_text(CAREFUL)
    for module, text in (("helper_beside", "SIZE = 4"), ("other_beside", "MORE = 1")):
        (folder / f"{module}.py").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    path, torch_before = list(sys.path), sys.modules["torch"]
    code, out, err = run("diagnose", f"mine/{name}.py:make", "--steps", 10)
    assert (code, err) == (0, "")
    assert out.startswith("GRU\n- ")
    assert sys.path == path
    assert sys.modules["torch"] is torch_before


# as a page

EXPLODES = """
import torch

def make():
    layer = torch.nn.RNN(3, 4, nonlinearity="relu", bias=False)
    torch.nn.init.constant_(layer.weight_hh_l0, 2.0)
    return layer
"""


def page_of(path):
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    block = text.split('id="data">')[1].split("</script>")[0]
    return text, [chart["title"] for chart in json.loads(block).values()]


def test_a_layer_as_a_page(run, tmp_path):
    target = tmp_path / "new" / "page.html"
    code, out, err = run("diagnose", "lstm", "--layer.hidden_size", 6, "--steps", 20, "-o", target)
    assert (code, err) == (0, f"written to {target}\n")
    assert out.startswith("LSTM\n- ")
    text, titles = page_of(target)
    assert "<h1>Diagnosis: LSTM</h1>" in text
    assert titles[0] == "Gradient of the last output along time"
    assert any(title.startswith("What the state still knows") for title in titles)
    assert "Eigenvalues of the recurrent matrices" in titles
    assert "Gradients shrink" in text  # the finding stands there too


def test_a_page_leaves_json_alone(run, tmp_path):
    words = ["diagnose", "nnrnn", "--layer.hidden_size", 6, "--steps", 20, "--json"]
    code, out, err = run(*words, "-o", tmp_path / "page.html")
    assert (code, err.count("\n")) == (0, 1)
    assert json.loads(out) == json.loads(run(*words)[1])
    assert any(title.startswith("|T| of NNRNN") for title in page_of(tmp_path / "page.html")[1])


def test_a_trained_run_as_a_page(run, tmp_path):
    settings = ["--layer.hidden_size", 6, "--task.delay", 5, "--train.steps", 3]
    assert run("train", "gru", "copy", *settings, "--out", tmp_path / "run")[0] == 0
    code, _, err = run("diagnose", tmp_path / "run", "-o", tmp_path / "new" / "page.html")
    assert (code, err.count("\n")) == (0, 1)
    text, titles = page_of(tmp_path / "new" / "page.html")
    assert "Gain of one step and its bound: GRU" in titles


def test_ones_own_module_as_a_page(run, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    target = tmp_path / "new" / "page.html"
    code, _, err = run("diagnose", f"{tmp_path / 'mine.py'}:Own", "--inputs", 3, "--steps", 20, "-o", target)
    assert (code, err.count("\n")) == (0, 1)
    assert "Own: inner.weight_hh_l0[2]" in page_of(target)[0]


def test_a_network_that_explodes_as_a_page(run, tmp_path):
    """Eight times as much with every step: what the page is for."""
    (tmp_path / "explodes.py").write_text(EXPLODES)
    target = tmp_path / "new" / "page.html"
    code, out, err = run("diagnose", f"{tmp_path / 'explodes.py'}:make", "--steps", 60, "-o", target)
    assert (code, err.count("\n")) == (0, 1)
    assert "Gradients grow tenfold" in out
    assert "Gradients grow tenfold" in page_of(target)[0]


@pytest.mark.parametrize("name", ["page.md", "page", "page.htm", "page.png", ".html/page.HTML"])
def test_other_endings_are_refused_before_anything_is_written(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("diagnose", "lstm", "-o", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"diagnose expects -o FILE.html; got {name}" in err
    assert list(tmp_path.iterdir()) == []
