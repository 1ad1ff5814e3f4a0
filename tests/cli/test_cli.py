"""The command line, in this process: `main` is all that the script calls."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import steadygrad
from steadygrad import experiments
from steadygrad.cli.common import dotted
from steadygrad.cli.evaluate import variants
from steadygrad.cli.main import VERBS, main
from steadygrad.experiments import observer
from steadygrad.files import parse_value
from steadygrad.layers import LAYERS
from steadygrad.models import MODELS
from steadygrad.report import tables
from steadygrad.tasks import TASKS
from steadygrad.training import RunDirectory, ShowProgress, Train, loop
from steadygrad.training.kinds import networks_for
from steadygrad.training.typed import keyword_options
from tests import cached

TINY = [
    *("--layer.hidden_size", "6"),
    *("--task.delay", "4", "--task.length", "3"),
    *("--train.steps", "6", "--train.batch", "4", "--train.log_every", "2"),
    *("--train.evaluate_every", "3", "--train.evaluate_examples", "8"),
    *("--threads", "1"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A command that forgets its --out writes here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(loop, "commit", cached.commit)
    monkeypatch.setattr(observer, "SEQUENCES", 2)  # the gradients of 32 take most of a short run


@pytest.fixture
def run(capsys):
    """``code, out, err = run("show", "nnrnn")``"""

    def call(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of each of two layers."""
    folder = tmp_path_factory.mktemp("runs")
    for layer in ("lstm", "nnrnn"):
        assert main(["train", layer, "copy", *TINY, "--out", str(folder / layer)]) == 0
    return folder


def is_png(path):
    content = path.read_bytes()
    return content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > 10_000


def collapse_whitespace(text):
    return " ".join(text.split())


# help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_in_its_help(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(rf"^ *steadygrad {verb}\b", out.split("usage:")[1].split("\n", 1)[1], re.MULTILINE)


def test_help_lists_all_verbs(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for verb in VERBS:
        assert re.search(rf"^ +{verb}\s+[A-Z]", out, re.MULTILINE), verb


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"steadygrad {steadygrad.__version__}\n"


def test_python_dash_m_with_closed_stdout_prints_no_error():
    root = Path(steadygrad.__file__).parent.parent
    command = [sys.executable, "-m", "steadygrad", "show"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # long before it has anything to say
        assert process.stderr.read() == ""


# show


def test_show_lists_all_layers_models_tasks_and_papers(run):
    code, out, err = run("show")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 200
    for name, thing in [*LAYERS.items(), *MODELS.items(), *TASKS.items()]:
        assert re.search(rf"^{name} ", out, re.MULTILINE), name
        assert thing.__doc__.strip().splitlines()[0].replace("``", "") in out
    for name in experiments.names():
        assert re.search(rf"^{name} ", out, re.MULTILINE), name


@pytest.mark.parametrize("name", LAYERS)
def test_show_prints_a_layers_equation_and_options(run, name):
    code, out, err = run("show", name)
    assert (code, err) == (0, "")
    assert LAYERS[name].__doc__.strip().splitlines()[0] in out
    assert re.search(r"--layer.hidden_size +required", out)
    assert re.search(r"--layer.num_layers +1\b", out)


@pytest.mark.parametrize("name", MODELS)
def test_show_prints_a_relational_networks_equation_and_options(run, name):
    code, out, err = run("show", name)
    assert (code, err) == (0, "")
    assert MODELS[name].__doc__.strip().splitlines()[0] in out
    among_objects = out.split(f"{name} among objects: ")[1]
    for key, option in keyword_options(MODELS[name]).items():
        assert re.search(rf"--layer.{key} +{re.escape(str(option.default))}", among_objects)


@pytest.mark.parametrize("name", TASKS)
def test_show_prints_task_example_options_and_guessing_loss(run, name):
    code, out, err = run("show", name)
    assert (code, err) == (0, "")
    assert "input " in out
    for field in fields(TASKS[name]):
        assert re.search(rf"--task.{field.name} +{field.default}\b", out)


@pytest.mark.parametrize("name", TASKS)
def test_show_guessing_prints_loss_of_guessing(run, name):
    code, out, err = run("show", name, "--guessing")
    assert (code, out, err) == (0, f"guessing has a loss of {TASKS[name]().guessing_loss:.4g}\n", "")


def test_show_guessing_uses_given_task_settings(run):
    loss = TASKS["copy"](delay=7, symbols=3).guessing_loss
    assert run("show", "copy", "--guessing", "--task.delay", 7, "--task.symbols=3")[1].split()[-1] == f"{loss:.4g}"


@pytest.mark.parametrize("name", experiments.names())
def test_show_prints_every_row_of_a_paper(run, name):
    code, out, err = run("show", name)
    assert (code, err) == (0, "")
    paper = experiments.load(name)
    assert paper.title in collapse_whitespace(out)
    tables = {part.split(":")[0]: part.splitlines()[1:] for part in out.split(f"\n{name}/")[1:]}
    assert tables.keys() == {recipe.table for recipe in paper.recipes}
    for table, lines in tables.items():
        recipes = [recipe for recipe in paper.recipes if recipe.table == table]
        rows = [line for line in lines if line.startswith("  ")]
        assert [row.split()[0] for row in rows] == [recipe.row for recipe in recipes]
        for row, recipe in zip(rows, recipes, strict=True):
            assert all(f"{key} {value:g}" in row for key, value in recipe.published.items())


@pytest.mark.parametrize("name", experiments.names())
def test_show_bibtex_prints_citation_or_error(run, name):
    bibtex = experiments.load(name).header.get("bibtex")
    code, out, err = run("show", name, "--bibtex")
    if bibtex:
        assert (code, out.strip(), err) == (0, bibtex.strip(), "")
    else:
        assert (code, out) == (2, "")
        assert err.startswith("steadygrad: bibtex expects one of ")
        assert err.endswith(f", or a layer; got {name}\n")


def test_show_kernels_and_show_train_print_output(run):
    code, out, err = run("show", "kernels")
    assert (code, err) == (0, "")
    assert out.strip()
    code, out, err = run("show", "train")
    assert (code, err) == (0, "")
    for field in fields(Train):
        assert re.search(rf"^--train.{field.name} +{field.default}\b", out, re.MULTILINE)


@pytest.mark.parametrize("settings", [["--task.glyphs", "own"], ["--task.game=between"]])
def test_show_picture_writes_deterministic_png_of_object_task(run, tmp_path, settings):
    name = "relational-game" if "game" in settings[0] else "rmts"
    pictures = []
    for seen in ("one", "other"):
        code, out, err = run("show", name, "--picture", f"new/{seen}.png", *settings)
        assert (code, out, err) == (0, f"written to new/{seen}.png\n", "")
        pictures.append((tmp_path / "new" / f"{seen}.png").read_bytes())
    assert pictures[0] == pictures[1]
    assert is_png(tmp_path / "new" / "one.png")


# bad input


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show nnrn", "nothing is called 'nnrn'; known: rnn, "),
        ("show nnrnn --colour", "unknown argument '--colour'"),
        ("show rmts --task.held_out 3", "unknown argument '--task.held_out'"),
        ("show copy --picture x.png", "--picture expects a task of objects, out of same-different, "),
        ("show nnrnn --picture x.png", "relational-game; got nnrnn"),
        ("show --picture x.png", "relational-game; got no name"),
        ("show rmts --picture x.gif", "a figure expects a file name that ends in .png, .svg, .pdf; got x.gif"),
        ("show rmts --picture x.png --task.n 3", "unknown setting --task.n; --task has held_out, "),
        ("show rmts --picture x.png --layer.full true", "unknown argument '--layer.full'; settings are --task.KEY"),
        ("train lstmm copy", "no layer 'lstmm'; known: rnn, "),
        ("train lstm copying", "no task 'copying'; known: copy, "),
        ("train corelnet copy", "layer corelnet expects a task out of same-different, same-different-6, rmts, "),
        ("train corelnet rmts --layer.units 5", "unknown setting --layer.units; --layer has hidden_size, full, "),
        (
            "train corelnet rmts --task.held_out 97",
            "RMTS expects held_out to be at most 95, as training needs 5 shapes; got 97",
        ),
        ("train lstm copy --layer.units 5", "unknown setting --layer.units; --layer has hidden_size, "),
        ("train lstm copy --task.T 5", "unknown setting --task.T; --task has delay, "),
        ("train lstm copy --train.rate 5", "unknown setting --train.rate; --train has steps, "),
        ("train lstm copy --model.rate 5", "unknown argument '--model.rate'; settings are --layer.KEY, --task.KEY, "),
        ("train lstm copy --train.lr fast", "expects lr to be a number; got 'fast'"),
        ("train lstm copy --train.lr -1", "Train expects lr above 0; got -1.0"),
        ("train lstm copy --train.lr", "--train.lr expects a value"),
        ("train lstm copy --train.steps 1e3", "expects steps to be an integer; got 1000.0"),
        ("train lstm copy --task.delay 0", "Copy expects delay to be an integer of at least 1; got 0"),
        ("train lstm copy --train.optimizer lion", "Train expects optimizer to be one of adam, "),
        ("train lstm copy --layer.hidden_size 0", "expects hidden_size to be an integer of at least 1; got 0"),
        ("train rnn copy --layer.recurrent shur", "no matrix 'shur'; choose from cayley, "),
        ("train lstm adding --train.window 5", "truncated back-propagation expects targets at every step"),
        ("train lstm copy --threads 0", " here; got 0"),
        ("train lstm copy --threads 100000", " here; got 100000"),
        ("train lstm copy extra", "unknown argument 'extra'"),
        ("train lstm copy --res", "unknown argument '--res'"),
        ("evaluate nowhere", "nowhere is no run's directory: it has no settings.toml"),
        ("evaluate nowhere --layer.hidden_size 3", "unknown argument '--layer.hidden_size'; settings are --task.KEY"),
        ("evaluate nowhere --examples 0", "--examples expects at least 1; got 0"),
        ("reproduce nobody-2020", "no paper 'nobody-2020'; known: "),
        ("reproduce demo/copying", "no table 'copying' in demo; known: copy"),
        ("reproduce demo/copy/gru", "no row 'gru' in demo/copy; known: nnrnn, lstm, rnn"),
        ("reproduce demo/a/b/c", "expected PAPER[/TABLE[/ROW]]; got 'demo/a/b/c'"),
        ("reproduce demo --seeds 0", "reproduce expects at least one seed; got 0"),
        ("reproduce demo --train.lr 1", "unknown argument '--train.lr'"),
        ("report nowhere", "report expects folders with runs; nowhere is not a folder"),
        ("report .", "no runs in .: a run has a result.json"),
        ("report . -o page.pdf", "report expects -o FILE.html or FILE.md; got page.pdf"),
    ],
)
def test_invalid_input_exits_2_with_one_line_and_writes_no_files(run, tmp_path, command, words):
    code, out, err = run(*command.split())
    assert code == 2
    assert err.startswith("steadygrad: ")
    assert err.count("\n") == 1
    assert words in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--out", "the following arguments are required: VERB"),
        ("trian", "argument VERB: invalid choice: 'trian' (choose from "),
        ("train lstm", "the following arguments are required: TASK"),
        ("train lstm copy --seed x", "argument --seed: invalid int value: 'x'"),
        ("reproduce demo --scale huge", "argument --scale: invalid choice: 'huge' (choose from "),
        ("evaluate x --weights worst", "argument --weights: invalid choice: 'worst'"),
    ],
)
def test_argparse_error_exits_2_and_writes_no_files(capsys, tmp_path, command, words):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command", ["reproduce demo --out file", "report . -o file/x.html", "theory fisher -o file/x.png"]
)
def test_unwritable_output_path_exits_2_before_work_starts(run, tmp_path, command):
    (tmp_path / "file").write_text("mine")
    code, out, err = run(*command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "file is a file" in err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("device", ["nonsense", "cuda", "cpu:x", "meta"])
def test_unavailable_device_exits_2_with_one_line(run, tmp_path, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    code, out, err = run("train", "lstm", "copy", *TINY, "--device", device)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"training expects a device that {'holds data' if device == 'meta' else 'is here'}; got {device}" in err
    assert list(tmp_path.iterdir()) == []


def test_non_string_layer_name_exits_2(run):
    assert run("train", "lstm", "copy", "--layer.name", "[1]")[0] == 2


# train


def test_train_prints_summary_and_writes_result(run, tmp_path):
    code, out, err = run("train", "nnrnn", "copy", *TINY, "--seed", "3", "--out", "mine")
    assert code == 0
    assert re.fullmatch(r"settings: .+, with your changes\n", err)
    first, last, following = out.splitlines()
    assert re.match(
        r"done after 6 updates, \d+ s; best on validation: accuracy [\d.]+, loss [\d.]+ \(guessing [\d.]+\); \d+ par",
        first,
    )
    assert last == "in mine"
    assert following.startswith("next: steadygrad evaluate mine, or steadygrad report mine -o ")
    result = json.loads((tmp_path / "mine" / "result.json").read_text())
    assert (result["status"], result["steps"], result["seed"], result["threads"]) == ("done", 6, 3, 1)
    assert (result["layer"]["hidden_size"], result["task"]["delay"]) == (6, 4)


def test_train_writes_separate_directory_per_seed(run, tmp_path):
    for seed in ("0", "1"):
        assert run("train", "gru", "adding", *TINY[:2], "--task.length=5", *TINY[6:], "--seed", seed)[0] == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["gru-adding-0", "gru-adding-1"]


@pytest.mark.parametrize("task", TASKS)
def test_nearest_recipe_exists_for_every_layer_and_task(task, monkeypatch):
    monkeypatch.setattr("steadygrad.experiments.defaults.work", cached.work)
    for layer in networks_for(task):
        found = experiments.nearest(layer, task).tables
        assert (found["layer"]["name"], found["task"]["name"]) == (layer, task)


def test_relational_network_trains_evaluates_and_reports(run, tmp_path):
    short = ["--train.steps", "4", "--train.evaluate_every", "2", "--train.evaluate_examples", "8", "--threads", "1"]
    code, out, err = run("train", "corelnet", "rmts", "--task.glyphs", "own", *short)
    assert (code, err) == (0, "settings: corelnet-2022/basic/rmts-corelnet, at desk scale, with your changes\n")
    assert re.match(
        r"done after 4 updates, \d+ s; best on validation: accuracy [\d.]+, loss [\d.]+ \(guessing 0.693\); 205,026 pa",
        out,
    )
    folder = tmp_path / "runs" / "corelnet-rmts-0"
    code, out, err = run("evaluate", folder, "--task.held_out", "95,50", "--examples", "20")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["95", "50"]
    code, out, err = run("diagnose", folder)
    assert (code, out) == (2, "")
    assert err == "steadygrad: looking inside expects a network with a recurrent layer; got CoRelNet\n"
    assert run("report", "runs", "-o", "report.html")[0] == 0
    assert "corelnet" in (tmp_path / "report.html").read_text("utf-8")


def test_none_option_is_passed_as_string_where_it_is_a_choice(run, tmp_path):
    short = ["--train.steps", "2", "--train.evaluate_examples", "4", "--task.glyphs", "own", "--threads", "1"]
    code, _, err = run("train", "corelnet", "rmts", "--layer.normalisation", "none", *short, "--out", "mine")
    assert (code, err.count("\n")) == (0, 1)
    assert 'normalisation = "none"' in (tmp_path / "mine" / "settings.toml").read_text("utf-8")
    assert run("evaluate", "mine", "--examples", "4")[0] == 0
    code, _, err = run("train", "corelnet", "rmts", "--layer.encoder", "none", *short)
    assert (code, err) == (2, "steadygrad: CoRelNet expects encoder to be one of learned, random; got 'none'\n")


def test_a_run_that_exists_is_not_overwritten(run, trained):
    content = {path: path.read_bytes() for path in (trained / "lstm").iterdir()}
    code, _, err = run("train", "lstm", "copy", *TINY, "--out", trained / "lstm")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds a run already: go on with --resume, or choose another --out" in err
    assert {path: path.read_bytes() for path in (trained / "lstm").iterdir()} == content


def test_resume_with_different_settings_names_them(run, trained):
    code, _, err = run("train", "lstm", "copy", *TINY, "--out", trained / "lstm", "--resume", "--train.lr", "0.5")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"belongs to other settings: train.lr [\d.]+, asked 0.5$", err)


def test_resume_with_more_updates_continues_run(run):
    assert run("train", "lstm", "copy", *TINY, "--out", "mine")[0] == 0
    code, out, err = run("train", "lstm", "copy", *TINY, "--out", "mine", "--resume", "--train.steps", "9")
    assert code == 0
    assert err.splitlines()[1:] == ["lstm copy: going on from update 6"]
    assert "done after 9 updates" in out
    code, out, err = run("train", "lstm", "copy", *TINY, "--out", "mine", "--resume", "--train.steps=9")
    assert (code, err) == (0, "")  # nothing left to do
    assert "done after 9 updates" in out


def test_restart_begins_anew_and_keeps_old_run(run, tmp_path):
    out = tmp_path / "mine"
    words = ("train", "gru", "copy", "--train.steps", "2", "--task.delay", "1", "--out", out)
    assert run(*words)[0] == 0
    assert run(*words, "--restart", "--seed", "1")[0] == 0
    seeds = [json.loads((tmp_path / name / "result.json").read_text())["seed"] for name in ("mine", "mine.before-1")]
    assert seeds == [1, 0]


def test_output_path_that_is_a_file_exits_2_with_one_line(run, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/run"):
        code, _, err = run("train", "lstm", "copy", *TINY, "--out", out)
        assert (code, err.count("\n")) == (2, 1)
        assert "file" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_that_diverges_exits_with_one(run, tmp_path):
    command = ["train", "lstm", "copy", *TINY, "--out", "mine", "--train.lr", "1e30", "--train.max_loss", "100"]
    for again in ([], ["--resume"]):
        code, out, err = run(*command, *again)
        assert code == 1
        *notes, reason = err.splitlines()
        assert [note.split(":")[0] for note in notes] == ([] if again else ["settings"])
        assert re.match(r"steadygrad: diverged at update 2 the loss is .*; try a smaller train.lr", reason)
        assert "diverged after 1 updates" in out
    assert json.loads((tmp_path / "mine" / "result.json").read_text())["status"] == "diverged"


def test_ctrl_c_saves_and_exits_with_130(run, monkeypatch):
    def update(self, trainer, loss):
        if trainer.step == 4:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ShowProgress, "update", update)
        code, out, _ = run("train", "lstm", "copy", *TINY, "--out", "mine")
    assert code == 130
    assert "interrupted after 4 updates" in out
    code, out, err = run("train", "lstm", "copy", *TINY, "--out", "mine", "--resume")
    assert code == 0
    assert err.splitlines()[1:] == ["lstm copy: going on from update 4"]
    assert "done after 6 updates" in out


def test_second_ctrl_c_stops_with_one_line(run, monkeypatch):
    def update(self, trainer, loss):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ShowProgress, "update", update)
    code, _, err = run("train", "lstm", "copy", *TINY, "--out", "mine")
    assert code == 130
    assert err.splitlines()[1:] == ["steadygrad: stopped"]


@pytest.mark.parametrize("name", ["[ab]", "[/ab]"])
def test_out_directory_name_may_contain_rich_markup(run, name):
    code, out, _ = run("train", "lstm", "copy", *TINY, "--out", f"x{name}")
    assert code == 0
    assert f"\nin x{name}\nnext: steadygrad evaluate 'x{name}', or " in out


# evaluate


def test_evaluate_prints_a_row_a_setting(run, trained):
    code, out, err = run("evaluate", trained / "nnrnn", "--task.delay", "5,10", "--examples", "20", "--threads", "1")
    assert (code, err) == (0, "")
    assert collapse_whitespace(out).startswith("nnrnn on copy, test split of 20 sequences, best weights delay loss ")
    header, *rows = out.splitlines()[-3:]
    assert header.split() == ["delay", "loss", "accuracy", "guessing_loss"]
    assert [row.split()[0] for row in rows] == ["5", "10"]


def test_evaluate_json_has_one_object_per_setting(run, trained):
    command = ["evaluate", trained / "nnrnn", "--examples=20", "--json", "--weights", "last"]
    code, out, err = run(*command, "--task.delay", "5,10")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["task"]["delay"] for row in found] == [5, 10]
    for row in found:
        assert row["task"]["name"] == "copy"
        assert row["task"]["length"] == 3  # as trained
        assert (row["split"], row["weights"]) == ("test", "last")
        assert row.keys() == {"split", "weights", "task", "loss", "accuracy", "guessing_loss"}
        assert row["guessing_loss"] == TASKS["copy"](delay=row["task"]["delay"], length=3).guessing_loss
    assert found[0]["loss"] != found[1]["loss"]
    (own,) = (json.loads(line) for line in run(*command)[1].splitlines())
    assert own["task"]["delay"] == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--task.symbols 5", "was trained for 10 inputs, 9 outputs; this task has 7 inputs, 6 outputs"),
        ("--task.T 5", "unknown setting --task.T; --task has delay, "),
        ("--task.delay 5,x", "task copy expects delay to be an integer; got 'x'"),
        ("--task.delay 5,10 --task.length 1,2,3", "lists of settings expect one length; got 2, 3"),
    ],
)
def test_evaluate_with_incompatible_task_settings_exits_2(run, trained, options, words):
    code, _, err = run("evaluate", trained / "nnrnn", "--examples", "5", *options.split())
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


def test_evaluate_uses_whole_test_split_of_data_sets(run, tmp_path, monkeypatch):
    small = ["--layer.hidden_size", "4", "--layer.embedding_size", "4", "--train.steps", "1", "--train.batch", "2"]
    window = ["--train.window", "20", "--train.evaluate_batch", "2", "--threads", "1", "--out", tmp_path / "text"]
    assert run("train", "gru", "char-ptb", *small, *window)[0] == 0
    monkeypatch.setattr("steadygrad.training.progress.QUIET_SECONDS", -1.0)
    code, out, err = run("evaluate", tmp_path / "text")
    assert code == 0
    assert out.startswith("gru on char-ptb, test split, best weights\n")
    assert all(re.fullmatch(r"evaluate: (\d+)/100  \1 % tested  .* left", line) for line in err.splitlines())
    assert err.splitlines()[-1].startswith("evaluate: 100/100")
    code, out, err = run("evaluate", tmp_path / "text", "--examples", "1000")
    assert (code, out) == (2, "")
    assert err == "steadygrad: char-ptb is evaluated on all its data and expects no --examples\n"


def test_result_file_table_evaluate_and_report_agree_on_score(run, tmp_path):
    """As the files, the table, the report and a new evaluation say it."""
    code, out, _ = run("reproduce", "demo/copy/lstm", "--scale", "smoke", "--out", tmp_path, "--threads", "1")
    assert code == 0
    assert "Our numbers: the evaluation with the lowest validation loss." in out
    folder = tmp_path / "demo/copy/lstm/seed-0"
    best = json.loads((folder / "result.json").read_text())["best"]
    (row,) = json.loads((tmp_path / "demo/copy/table.json").read_text())
    assert row["runs"][0]["value"] == row["runs"][0]["score"]["value"] == best["accuracy"]
    (again,) = map(json.loads, run("evaluate", folder, "--split", "valid", "--json", "--threads", "1")[1].splitlines())
    assert (again["loss"], again["accuracy"]) == (best["loss"], best["accuracy"])
    assert f"accuracy {tables.score(best['accuracy'])}" in collapse_whitespace(run("report", folder)[1])


def test_variants_zips_comma_separated_settings():
    assert variants({}) == [{}]
    assert variants({"delay": 5}) == [{"delay": 5}]
    assert variants({"delay": "5,10", "recall": "at"}) == [{"delay": 5, "recall": "at"}, {"delay": 10, "recall": "at"}]
    assert variants({"delay": "5,10", "recall": "at,after"}) == [
        {"delay": 5, "recall": "at"},
        {"delay": 10, "recall": "after"},
    ]


def test_evaluate_json_prints_null_for_nan_loss(run, trained, tmp_path):
    from safetensors.torch import load_file, save_file

    for path in (trained / "lstm").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["readout.bias"][0] = torch.nan
    save_file(weights, tmp_path / "model.safetensors")
    code, _, error = run("evaluate", tmp_path, "--examples", "5", "--json")
    assert code == 2
    assert "model.safetensors was altered: its SHA-256 differs from manifest.json" in error
    (tmp_path / "manifest.json").unlink()
    code, out, _ = run("evaluate", tmp_path, "--examples", "5", "--json")

    def refuse(word):
        raise ValueError(word)

    assert code == 0
    assert json.loads(out, parse_constant=refuse)["loss"] is None


# reproduce


def test_reproduce_prints_and_writes_table(run, tmp_path):
    code, out, err = run("reproduce", "demo/copy/lstm", "--scale", "smoke", "--out", "there", "--threads", "1")
    assert (code, err) == (0, "")
    assert out.startswith("demo/copy: Copy task")
    row = next(line for line in out.splitlines() if line.startswith("lstm "))
    assert "(18.7K)" in row
    folder = tmp_path / "there" / "demo" / "copy"
    assert out.splitlines()[-1] == "table.md, table.json, curves.png, report.html in there/demo/copy"
    written = ["curves.png", "lstm", "report.html", "table.json", "table.md"]
    assert sorted(path.name for path in folder.iterdir()) == written
    assert "| lstm | " in (folder / "table.md").read_text("utf-8")
    (found,) = json.loads((folder / "table.json").read_text("utf-8"))
    assert (found["row"], found["scale"], found["metric"]) == ("lstm", "smoke", "accuracy")
    assert [one["status"] for one in found["runs"]] == ["done"]
    assert is_png(folder / "curves.png")
    metrics = folder / "lstm" / "seed-0" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns
    code, again, _ = run("reproduce", "demo/copy/lstm", "--scale", "smoke", "--out", "there", "--threads", "1")
    assert (code, again) == (0, out)
    assert metrics.stat().st_mtime_ns == before  # not done again


def test_reproduce_shows_transfer_evaluations_and_caches_them(run, tmp_path):
    command = ("reproduce", "relrnn-2020/transfer-copy/lstm", "--scale", "smoke", "--out", "there", "--threads", "1")
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    place = lines.index("The same weights on other settings")
    assert lines[place + 1].split() == ["accuracy", "trained:", "delay", "10", "delay", "12"]
    folder = tmp_path / "there" / "relrnn-2020" / "transfer-copy"
    (found,) = json.loads((folder / "table.json").read_text("utf-8"))
    numbers = found["ours"], found["runs"][0]["transfer"][0]["value"]
    assert lines[place + 2].split() == ["lstm", *map(tables.number, numbers)]
    assert "| accuracy | trained: delay 10 | delay 12 |" in (folder / "table.md").read_text("utf-8")
    tested = folder / "lstm" / "seed-0" / "transfer.json"
    before = tested.stat().st_mtime_ns
    assert run(*command)[:2] == (0, out)
    assert tested.stat().st_mtime_ns == before  # not done again


def test_reproduce_reports_failed_row_and_runs_the_others(run, tmp_path):
    in_the_way = tmp_path / "there" / "demo" / "copy" / "rnn" / "seed-0" / "notes.txt"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("mine")
    code, out, err = run("reproduce", "demo/copy/[lr]*", "--scale", "smoke", "--out", "there", "--threads", "1")
    assert (code, err) == (1, "steadygrad: some rows failed, see above\n")
    reason = "seed-0 expects to be a run's directory or empty; it has files but no settings.toml"
    assert f"rnn, seed 0: failed: there/demo/copy/rnn/{reason}" in out
    found = json.loads((tmp_path / "there" / "demo" / "copy" / "table.json").read_text("utf-8"))
    assert [(row["row"], row["runs"][0]["status"]) for row in found] == [("lstm", "done"), ("rnn", "failed")]


def test_reproduce_reports_locked_run_as_running_elsewhere(run, tmp_path):
    command = ("reproduce", "demo/copy/lstm", "--scale", "smoke", "--out", "there", "--threads", "1")
    directory = RunDirectory(tmp_path / "there" / "demo" / "copy" / "lstm" / "seed-0")
    directory.path.mkdir(parents=True)
    with directory.locked():
        code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert "0, 1 running elsewhere" in out
    assert out.splitlines()[-1] == "table.md, table.json in there/demo/copy"
    assert run(*command)[0] == 0
    with directory.locked():  # done, but its command is not
        code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert "elsewhere" not in out + (directory.path.parents[1] / "table.md").read_text("utf-8")


def test_reproduce_merges_rows_of_separate_calls_into_one_table(run, tmp_path):
    for row, seeds in (("rnn", 2), ("lstm", 1), ("rnn", 1)):
        options = ("--scale", "smoke", "--seeds", seeds, "--out", "there", "--threads", "1")
        code, out, _ = run("reproduce", f"demo/copy/{row}", *options)
        assert code == 0
    folder = tmp_path / "there" / "demo" / "copy"
    found = json.loads((folder / "table.json").read_text("utf-8"))
    assert [(row["row"], [one["seed"] for one in row["runs"]]) for row in found] == [("lstm", [0]), ("rnn", [0, 1])]
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["lstm", "rnn"]
    assert "| lstm | " in (folder / "table.md").read_text("utf-8")
    section = (folder / "report.html").read_text("utf-8").split("Published numbers and ours")[-1].split("</table>")[0]
    assert ">lstm<" in section
    assert ">rnn<" in section


def test_failed_transfer_evaluation_keeps_run_result(run, tmp_path, monkeypatch):
    def evaluate(*options, **others):
        raise MemoryError("too long")

    monkeypatch.setattr("steadygrad.experiments.transfer.evaluate_run", evaluate)
    command = ("reproduce", "relrnn-2020/transfer-copy/lstm", "--scale", "smoke", "--out", "there", "--threads", "1")
    code, out, err = run(*command)
    assert (code, err) == (1, "steadygrad: some rows failed, see above\n")
    why = "lstm, seed 0, delay 12: not tested: MemoryError: too long"
    assert why in out.splitlines()
    folder = tmp_path / "there" / "relrnn-2020" / "transfer-copy"
    assert f"- {why}" in (folder / "table.md").read_text("utf-8")
    (found,) = json.loads((folder / "table.json").read_text("utf-8"))
    assert (found["runs"][0]["status"], found["ours"]) == ("done", found["runs"][0]["value"])
    assert found["ours"] is not None
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(*command)
    assert (code, "not tested" in out) == (0, False)


def test_reproduce_checks_all_recipes_before_training(run, tmp_path, monkeypatch):
    (good,) = experiments.select("demo/copy/lstm")
    bad = replace(good, row="bad", layer={"name": "lstm", "hidden_size": 5, "units": 3})
    monkeypatch.setattr(experiments, "select", lambda pattern: [good, bad])
    code, out, err = run("reproduce", "demo", "--scale", "smoke", "--out", "there", "--threads", "1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "layer lstm: unknown key 'units'; known: hidden_size, " in err
    assert list(tmp_path.iterdir()) == []


# report


def test_report_writes_markdown_and_png(run, trained, tmp_path):
    code, out, err = run("report", trained, "-o", "there/page.md")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "written to there/page.md"
    text = (tmp_path / "there" / "page.md").read_text("utf-8")
    assert text.startswith("# Runs\n\n## copy\n\n| run | parameters |")
    assert "| lstm | " in text
    assert "| nnrnn | " in text
    (picture,) = (tmp_path / "there").glob("*.png")
    assert is_png(picture)
    assert f"]({picture.name})" in text


def test_report_without_a_file_only_prints(run, trained, tmp_path):
    code, out, err = run("report", trained / "lstm", trained / "nnrnn")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["copy", "run", "lstm", "nnrnn", "next:"]
    assert list(tmp_path.iterdir()) == []


# dotted settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("-3", -3),
        ("1_000", 1000),
        ("1e-3", 1e-3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("true", True),
        ("false", False),
        ("none", None),
        ("[1, 2]", [1, 2]),
        ('{ name = "schur", in_block = true }', {"name": "schur", "in_block": True}),
        ('"none"', "none"),
        ("adam", "adam"),
        ("rmsprop-tf", "rmsprop-tf"),
        ("True", "True"),
        ("5,10", "5,10"),
        ("a b", "a b"),
        ("", ""),
    ],
)
def test_parse_reads_toml_values_and_falls_back_to_strings(text, value):
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_dotted_arguments_become_nested_dicts():
    words = ["--layer.hidden_size", "64", "--task.delay=100", "--layer.recurrent={name='schur'}", "--train.lr", "-1"]
    assert dotted(words) == {
        "layer": {"hidden_size": 64, "recurrent": {"name": "schur"}},
        "task": {"delay": 100},
        "train": {"lr": -1},
    }
    assert dotted([]) == {}
    assert dotted(["--train.lr", "1", "--train.lr=2"]) == {"train": {"lr": 2}}  # the last word counts
    assert dotted(["--train.lr="]) == {"train": {"lr": ""}}
    assert dotted(["--layer.a.b=c=d"]) == {"layer": {"a.b": "c=d"}}


@pytest.mark.parametrize("word", ["lr", "-train.lr", "--train", "--train.", "--.lr", "--model.lr", "train.lr=3", "--"])
def test_unknown_argument_raises_value_error_with_its_name(word):
    with pytest.raises(ValueError, match=rf"^unknown argument '{word}'; settings are --layer.KEY, --task.KEY, --train"):
        dotted([word, "3"])


def test_a_setting_needs_a_value():
    with pytest.raises(ValueError, match=r"^--train.lr expects a value$"):
        dotted(["--task.delay", "3", "--train.lr"])


def test_show_bibtex_of_layer_prints_its_paper(run):
    assert run("show", "nnrnn", "--bibtex") == run("show", "nnrnn-2019", "--bibtex")


def test_settings_may_precede_positional_arguments(run, tmp_path):
    code, out, _ = run(
        "train", "--train.steps", "5", "--task.delay", "5", "rnn", "copy", "--out", str(tmp_path / "run")
    )
    assert (code, "done after 5 updates" in out) == (0, True)


@pytest.mark.parametrize("words", ["fly", "--out", "train", "train rnn copy --seed x", "reproduce demo --scale huge"])
def test_argparse_error_is_one_line(capsys, words):
    with pytest.raises(SystemExit) as error:
        main(words.split())
    assert error.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("steadygrad: ")) == ("", 1, True)


# report, as a page and as figures


def test_report_writes_one_page(run, trained, tmp_path):
    code, out, err = run("report", trained, "-o", "there/page.html")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "written to there/page.html"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["page.html"]
    page = (tmp_path / "there" / "page.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert f"<h1>Runs: {trained.name}</h1>" in page
    for name in ("lstm", "nnrnn"):
        assert f"<summary>{name}</summary>" in page
        assert re.search(
            rf"<code>steadygrad train {name} copy --layer\.[^<]* --task.delay 4 [^<]*--seed 0</code>", page
        )
    assert "Gradient of the loss along time" in page  # `train` has looked at them
    assert run("report", trained, "-o", "page.html", "--title", "<mine>")[0] == 0
    assert "<h1>&lt;mine&gt;</h1>" in (tmp_path / "page.html").read_text("utf-8")


def test_report_draws_figures(run, trained, tmp_path):
    some = tmp_path / "some"  # of what it has to show: a figure takes a while
    some.mkdir()
    for name in ("result.json", "metrics.jsonl"):
        (some / name).write_bytes((trained / "nnrnn" / name).read_bytes())
    portrait = json.loads((trained / "nnrnn" / "portrait.json").read_text("utf-8"))
    (some / "portrait.json").write_text(json.dumps({key: portrait[key] for key in ("output_gradients", "schur")}))
    code, out, err = run("report", some, "--figures", "there", "--format", "png")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "3 figures in there"
    names = ["copy-curves.png", "nnrnn-gradients.png", "nnrnn-schur.png"]
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == names
    assert all(is_png(path) for path in (tmp_path / "there").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some", "there"]


@pytest.mark.parametrize("name", ["page.htm", "page", "page.HTML", "page.html.gz", "page.json"])
def test_report_rejects_unknown_file_suffix_before_writing(run, trained, tmp_path, name):
    code, out, err = run("report", trained, "-o", name, "--figures", "there")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"report expects -o FILE.html or FILE.md; got {name}" in err
    assert list(tmp_path.iterdir()) == []


def test_report_rejects_unknown_figure_format_before_writing(capsys, trained, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["report", str(trained), "--figures", "there", "--format", "gif"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "invalid choice: 'gif'" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[3]", '[{"paper": "p"}]'])
def test_report_names_invalid_table_json_and_draws_the_runs(run, tmp_path, trained, content):
    (tmp_path / "table.json").write_text(content)
    code, out, err = run("report", trained, tmp_path, "-o", "page.html")
    assert (code, err) == (0, "")
    for text in (out, (tmp_path / "page.html").read_text("utf-8")):
        assert "table.json is not a table of reproduce: " in text


def test_report_names_file_that_blocks_output_path(run, trained, tmp_path):
    (tmp_path / "file").write_text("mine")
    for options in (["-o", "file/page.html"], ["--figures", "file"]):
        code, _, err = run("report", trained, *options)
        assert (code, err.count("\n")) == (2, 1)
        assert "file" in err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "mine")]
