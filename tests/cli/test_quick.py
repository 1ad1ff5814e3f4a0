"""The guide, help, `show` and errors of typos answer without torch and numpy; typos get the closest name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import steadygrad
from steadygrad.cli.main import VERBS, main
from steadygrad.layers import LAYERS, RecurrentLayer
from steadygrad.models import MODELS
from steadygrad.tasks import TASKS

ROOT = Path(steadygrad.__file__).parent.parent

TYPOS = {
    "trian": "train",
    "dianose lstm": "diagnose",
    "train lstmm copy": "lstm",
    "train nnrn copy": "nnrnn",
    "train lstm copying": "copy",
    "train LSTM copy": "lstm",
    "train transformr rmts": "transformer",
    "train lstm copy --train.lrr 1": "--train.lr",
    "train lstm copy --train.learning_rate 1": "--train.lr",
    "train lstm copy --train.batch_size 1": "--train.batch",
    "train lstm copy --train.hidden_size 1": "--layer.hidden_size",
    "train lstm copy --lr 1": "--train.lr",
    "train lstm copy --hidden_size 1": "--layer.hidden_size",
    "train lstm copy --hidden-size=1": "--layer.hidden_size",
    "train lstm copy --layers.hidden_size 1": "--layer.hidden_size",
    "train lstm copy --layer.hidden 1": "--layer.hidden_size",
    "train lstm copy --task.dealy 1": "--task.delay",
    "train lstm copy --thread 1": "--threads",
    "train lstm copy --resum": "--resume",
    "train corelnet rmts --layer.hiddensize 1": "--layer.hidden_size",
    "show nnrn": "nnrnn",
    "show nnrnn-2018": "nnrnn or nnrnn-2019",
    "show nnrnn2019 --bibtex": "nnrnn-2019",
    "show nnrnn --bibtext": "--bibtex",
    "show copy --picture x.png": None,
    "show copi --guessing": "copy",
    "show rmtss --picture x.png": "rmts",
    "evaluate nowhere --exampels 3": "--examples",
    "evaluate RUN --task.dely 3": "--task.delay",
    "reproduce nnrn-2019": "nnrnn-2019",
    "reproduce demo/copi": "copy",
    "reproduce demo/copy/lstmm": "lstm",
    "reproduce demo --scale dsek": "desk",
    "reproduce demo --seed 3": "--seeds",
    "diagnose lsmt": "lstm",
    "diagnose lstm --layer.hiddn_size 3": "--layer.hidden_size",
    "export lsmt -o x.onnx": "lstm",
    "export lstm -o x.onnx --layer.hiddn_size 3": "--layer.hidden_size",
    "generate RUN --temprature 3": "--temperature",
    "listen RUN --file 3": "--files",
    "theory fischer": "fisher",
    "theory fisher --sise 3": "--size",
    "report . --formt png": "--format",
}
"""command → what the error proposes; None for nothing"""

PROGRAM = """
import contextlib, io, json, sys
from steadygrad.cli.main import main
found = []
for command in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(command)
        except SystemExit as ended:
            code = ended.code
    loaded = [name for name in ("torch", "numpy", "matplotlib") if name in sys.modules]
    found.append((code, out.getvalue(), err.getvalue(), loaded))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory):
    """``code, out, err, loaded = without_torch[command]``; loaded are the slow packages that are imported by then."""
    folder = tmp_path_factory.mktemp("quick")
    (folder / "RUN").mkdir()
    (folder / "RUN" / "settings.toml").write_text('[layer]\nname = "lstm"\n[task]\nname = "copy"\n', "utf-8")
    shown = [*LAYERS, *MODELS, *TASKS, "nnrnn-2019", "demo", "train", "nnrnn-2019 --bibtex"]
    commands = ["", "--help", "--version", "show", *(f"{verb} --help" for verb in VERBS), "theory fisher --help"]
    commands += [*(f"show {name}" for name in shown), *TYPOS]
    given = json.dumps([command.split() for command in commands])
    path = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder, env=path, input=given, capture_output=True, text=True, check=True
    )
    assert sorted(path.name for path in folder.iterdir()) == ["RUN"]
    return dict(zip(commands, json.loads(run.stdout), strict=True))


def test_guide_help_show_and_typos_do_not_import_torch(without_torch):
    assert [command for command, (*_, loaded) in without_torch.items() if loaded] == []


@pytest.mark.parametrize("command", TYPOS)
def test_typo_exits_2_with_one_line_and_closest_name(without_torch, command):
    code, out, err, _ = without_torch[command]
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("steadygrad: ")
    expected = TYPOS[command]
    assert err.endswith(f"; did you mean {expected}?\n") if expected else "did you mean" not in err


def test_commands_without_typos_exit_0(without_torch):
    failed = {command: found for command, found in without_torch.items() if command not in TYPOS and found[0] != 0}
    assert failed == {}


def test_without_arguments_a_guide_is_printed(without_torch):
    code, out, err, _ = without_torch[""]
    assert (code, err) == (0, "")
    commands = [line.split("  ")[1] for line in out.splitlines() if line.startswith("  steadygrad ")]
    assert len(commands) == 4
    assert {command.split()[1] for command in commands} <= set(VERBS)


def test_output_equals_that_with_torch_imported(without_torch, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("show", "show gru", "show lstm", "show minigrid", "show demo", "show train"):
        assert main(command.split()) == 0
        assert capsys.readouterr().out == without_torch[command][1]


def test_layer_of_the_user_is_known_to_the_command_line(capsys, monkeypatch, tmp_path):
    """The registry, once it is imported, decides which names there are."""
    monkeypatch.chdir(tmp_path)
    own = type("OwnGRU", (LAYERS["gru"],), {"__doc__": LAYERS["gru"].__doc__})
    monkeypatch.setitem(LAYERS, "own-gru", own)
    assert issubclass(own, RecurrentLayer)
    assert main(["diagnose", "own-gru", "--layer.hidden_size", "4", "--steps", "5"]) == 0
    capsys.readouterr()
    assert main(["diagnose", "own-gruu"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean own-gru?\n")
