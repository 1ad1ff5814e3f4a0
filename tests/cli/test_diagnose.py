"""`steadygrad diagnose` of a layer, a run, and somebody's own file."""

import json
import sys

import pytest

from steadygrad.cli.main import main

USER_MODULE = """
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


def test_diagnose_untrained_layer_prints_findings(run):
    code, out, err = run("diagnose", "exprnn", "--layer.hidden_size", 8, "--steps", 30)
    assert (code, err) == (0, "")
    assert "Nothing is lost" in out


def test_diagnose_run_uses_its_task(run, tmp_path):
    settings = ["--layer.hidden_size", 8, "--task.delay", 5, "--train.steps", 3]
    assert run("train", "lstm", "copy", *settings, "--out", tmp_path / "run")[0] == 0
    code, out, _ = run("diagnose", tmp_path / "run", "--json")
    found = json.loads(out)
    assert (code, found["name"], found["numbers"]["steps"]) == (0, "LSTM", 25)
    assert "shrink" in found["findings"][0]["what"]


def test_diagnose_user_file_and_its_errors(run, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USER_MODULE)
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
        (["lstm", "--layer.hiden", "3"], "unknown setting --layer.hiden; --layer has hidden_size, "),
        (["x.py:make", "--layer.hidden_size", "3"], "goes with the name of a layer"),
        (["lstm", "--inputs", "0"], "--inputs expects at least 1; got 0"),
        (["lstm", "--layer.hidden_size", "--json"], "--layer.hidden_size expects a value"),
    ],
)
def test_invalid_input_exits_2_with_one_line(run, words, message):
    code, out, err = run("diagnose", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


UNSUITABLE_MODULES = """
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
def test_unsuitable_module_exits_2_with_one_line(run, tmp_path, words, message):
    (tmp_path / "others.py").write_text(UNSUITABLE_MODULES, "utf-8")
    code, out, err = run("diagnose", f"{tmp_path}/others.py:{words[0]}", "--steps", "5", *words[1:])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


RAISING_MODULES = """
import torch

class Own(torch.nn.Module):
    input_size = 3
    def forward(self, x, state=None):
        return self.inner(x)

class Early(Own):
    def inner(self, x):
        return {}["early"]

class Wrong(Own):
    def inner(self, x):
        return torch.ones(2, 2) @ x

class Late(Own):
    def inner(self, x):
        if torch.is_grad_enabled():
            raise KeyError("late \\x1b[31m")
        return x, x[-1:]

def leaves():
    raise SystemExit("bye")

def deep():
    return deep()
"""


@pytest.mark.parametrize(
    ("name", "shown", "last"),
    [
        ("Early", ["in forward", "in inner", "KeyError: 'early'"], "raised KeyError; see the lines above"),
        ("Late", ["in inner", "KeyError: 'late \\x1b[31m'"], "raised KeyError; see the lines above"),
        ("Wrong", ["in inner", "RuntimeError: "], "a module that is called as torch.nn.GRU is; with 3 inputs: "),
        ("leaves", ["in leaves", "SystemExit: bye"], "raised SystemExit; see the lines above"),
        ("deep", ["in deep", "RecursionError: "], "raised RecursionError; see the lines above"),
    ],
)
def test_errors_in_user_files_show_their_own_lines_only(run, tmp_path, name, shown, last):
    (tmp_path / "raising.py").write_text(RAISING_MODULES, "utf-8")
    code, out, err = run("diagnose", f"{tmp_path}/raising.py:{name}", "--steps", "5")
    *lines, final = err.splitlines()
    assert (code, out) == (2, "")
    assert final.startswith("steadygrad: ")
    assert last in final
    assert lines[0] == "Traceback, lines of your files only:"
    assert {line.split('"')[1] for line in lines if line.startswith("  File")} == {f"{tmp_path}/raising.py"}
    assert len(lines) < 50
    for words in shown:
        assert any(words in line for line in lines)


@pytest.mark.parametrize("text", ["import nothing_like_this", "def make(:", "1 / 0"])
def test_user_file_that_cannot_be_imported_shows_its_own_lines(run, tmp_path, text):
    (tmp_path / "broken.py").write_text(text, "utf-8")
    code, out, err = run("diagnose", f"{tmp_path}/broken.py:make")
    assert (code, out) == (2, "")
    assert text in err
    assert "importlib" not in err
    assert "broken.py raised " in err.splitlines()[-1]


MODULE_WITH_SIBLING_IMPORTS = """
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
def test_user_file_may_use_dataclasses_and_sibling_imports(run, tmp_path, monkeypatch, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / f"{name}.py").write_text(MODULE_WITH_SIBLING_IMPORTS)
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

EXPLODING_MODULE = """
import torch

def make():
    layer = torch.nn.RNN(3, 4, nonlinearity="relu", bias=False)
    torch.nn.init.constant_(layer.weight_hh_l0, 2.0)
    return layer
"""


def read_page(path):
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    block = text.split('id="data">')[1].split("</script>")[0]
    return text, [chart["title"] for chart in json.loads(block).values()]


def test_diagnose_layer_writes_html_page(run, tmp_path):
    target = tmp_path / "new" / "page.html"
    code, out, err = run("diagnose", "lstm", "--layer.hidden_size", 6, "--steps", 20, "-o", target)
    assert (code, err) == (0, f"written to {target}\n")
    assert out.startswith("LSTM\n- ")
    text, titles = read_page(target)
    assert "<h1>Diagnosis: LSTM</h1>" in text
    assert titles[0] == "Gradient of the last output along time"
    assert any(title.startswith("What the state still knows") for title in titles)
    assert "Eigenvalues of the recurrent matrices" in titles
    assert "Gradients shrink" in text  # the finding stands there too


def test_html_option_does_not_change_json_output(run, tmp_path):
    words = ["diagnose", "nnrnn", "--layer.hidden_size", 6, "--steps", 20, "--json"]
    code, out, err = run(*words, "-o", tmp_path / "page.html")
    assert (code, err.count("\n")) == (0, 1)
    assert json.loads(out) == json.loads(run(*words)[1])
    assert any(title.startswith("|T| of NNRNN") for title in read_page(tmp_path / "page.html")[1])


def test_diagnose_run_writes_html_page(run, tmp_path):
    settings = ["--layer.hidden_size", 6, "--task.delay", 5, "--train.steps", 3]
    assert run("train", "gru", "copy", *settings, "--out", tmp_path / "run")[0] == 0
    code, _, err = run("diagnose", tmp_path / "run", "-o", tmp_path / "new" / "page.html")
    assert (code, err.count("\n")) == (0, 1)
    text, titles = read_page(tmp_path / "new" / "page.html")
    assert "Gain of one step and its bound: GRU" in titles


def test_diagnose_user_module_writes_html_page(run, tmp_path):
    (tmp_path / "mine.py").write_text(USER_MODULE)
    target = tmp_path / "new" / "page.html"
    code, _, err = run("diagnose", f"{tmp_path / 'mine.py'}:Own", "--inputs", 3, "--steps", 20, "-o", target)
    assert (code, err.count("\n")) == (0, 1)
    assert "Own: inner.weight_hh_l0[2]" in read_page(target)[0]


def test_html_page_reports_exploding_gradients(run, tmp_path):
    """Eight times as much with every step: what the page is for."""
    (tmp_path / "explodes.py").write_text(EXPLODING_MODULE)
    target = tmp_path / "new" / "page.html"
    code, out, err = run("diagnose", f"{tmp_path / 'explodes.py'}:make", "--steps", 60, "-o", target)
    assert (code, err.count("\n")) == (0, 1)
    assert "Gradients grow tenfold" in out
    assert "Gradients grow tenfold" in read_page(target)[0]


@pytest.mark.parametrize("name", ["page.md", "page", "page.htm", "page.png", ".html/page.HTML"])
def test_unknown_file_suffix_is_rejected_before_writing(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("diagnose", "lstm", "-o", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"diagnose expects -o FILE.html; got {name}" in err
    assert list(tmp_path.iterdir()) == []
