"""Nested values, terminal commands in names, and numbers that no memory holds: one line, exit code 2, nothing else."""

import json
from pathlib import Path

import pytest

from steadygrad.cli.common import DEEPEST, UNSAFE, fail, note, parsed, printable, say, show_table
from steadygrad.cli.main import main

CLEAR = "\x1b[2J\x1b]0;owned\x07"  # clears the screen and sets the title of the window


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    sizes = ["--layer.hidden_size=4", "--task.delay=3", "--train.steps=2", "--train.batch=2"]
    assert main(["train", "rnn", "copy", *sizes, "--train.evaluate_examples=2", f"--out={folder}"]) == 0
    return folder


def one_line(capsys, *words):
    """The error line of a command that exits with 2."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not UNSAFE.search(err)
    return err


# nested values


@pytest.mark.parametrize("value", ["[" * 2000, "[" * 21 + "]" * 21, "{a=" * 2000, f"{{ {'a.' * 3000}a = 1 }}"])
def test_nested_values_have_a_limit(capsys, trained, value):
    for words in (["train", "lstm", "copy"], ["evaluate", trained]):
        err = one_line(capsys, *words, "--task.delay", value)
        assert "--task.delay expects at most 20 lists or tables inside each other; got more" in err


def test_nested_value_in_a_list_of_settings_is_one_line(capsys, trained):
    assert "nested" in one_line(capsys, "evaluate", trained, "--task.delay", "4," + "[" * 2000)


def test_values_up_to_the_limit_are_read():
    value = "[" * DEEPEST + "]" * DEEPEST
    assert json.dumps(parsed("--layer.a", value)) == value


def test_nested_settings_file_is_one_line(capsys, trained, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for path in trained.iterdir():
        if path.is_file():
            (run / path.name).write_bytes(path.read_bytes())
    (run / "settings.toml").write_text(f"a = {'[' * 5000}")
    assert "nested" in one_line(capsys, "evaluate", run)


# terminal commands


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CLEAR, r"\x1b[2J\x1b]0;owned\x07"),
        ("a\r\x08b", r"a\r\x08b"),
        ("\x9b31m", r"\x9b31m"),  # ESC [ in one character
        ("\u202etxt.exe", r"\u202etxt.exe"),  # shown from right to left
        ("\udcff", r"\udcff"),  # a byte of a file name that is no text
        ("two\nlines\tθ ×\u00a0ü 漢", "two\nlines\tθ ×\u00a0ü 漢"),
    ],
)
def test_printable_escapes_what_terminals_obey(text, shown):
    assert printable(text) == shown


def test_nothing_that_is_printed_contains_terminal_commands(capsys):
    say(CLEAR)
    note(CLEAR)
    fail(CLEAR)
    show_table(CLEAR, ["a" + CLEAR], [["b" + CLEAR]])
    out, err = capsys.readouterr()
    assert (out.count("owned"), err.count("owned")) == (4, 2)
    assert not UNSAFE.search(out + err)


def test_names_in_stored_files_and_paths_do_not_reach_the_terminal(capsys, trained, tmp_path):
    run = tmp_path / f"run{CLEAR.replace('/', '')}"
    run.mkdir()
    for path in trained.iterdir():
        if path.is_file():
            (run / path.name).write_bytes(path.read_bytes())
    for words in (["report", tmp_path], ["evaluate", run, "--examples", "2"], ["diagnose", run]):
        main([*map(str, words)])
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"status": CLEAR, "score": CLEAR}))
    main(["report", str(tmp_path)])
    main(["evaluate", str(Path("nowhere") / CLEAR)])
    out, err = capsys.readouterr()
    assert "rnn" in out
    assert not UNSAFE.search(out + err)


# sizes


@pytest.mark.parametrize("size", [10**12, 10**18, 10**30])
def test_sizes_that_no_memory_holds_are_one_line(capsys, size):
    one_line(capsys, "diagnose", "lstm", "--layer.hidden_size", size, "--steps", 5)
    one_line(capsys, "diagnose", "lstm", "--layer.hidden_size", 4, "--inputs", size)


@pytest.mark.parametrize("setting", [("--layer.short", 10**30), ("--task.length", 2**63), ("--train.steps", -(2**63))])
def test_integers_that_torch_does_not_take_are_one_line(capsys, tmp_path, setting):
    one_line(capsys, "train", "relrnn", "adding", *setting, "--out", tmp_path / "run")


def test_list_in_place_of_an_optimizer_is_one_line(capsys, tmp_path):
    one_line(capsys, "train", "svdrnn", "copy", "--train.optimizer_constrained", "[1, 2]", "--out", tmp_path / "run")
