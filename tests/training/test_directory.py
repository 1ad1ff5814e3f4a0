"""Run directories: what is refused, and that nothing is ever half there."""

import errno
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from steadygrad.files import METRICS, RESULT, SETTINGS
from steadygrad.manifest import MANIFEST
from steadygrad.training import Callback, RunDirectory, RunError, loop, train
from steadygrad.training.directory import CHECKPOINT

TENSORS = {"a": torch.arange(6.0).view(2, 3), "empty": torch.empty(0), "flag": torch.tensor(True), "n": torch.tensor(3)}


@pytest.fixture
def directory(tmp_path, tiny):
    return begin(tmp_path / "run", tiny())


def begin(path, settings, resume=False):
    """Return the directory of a run that is checked and has its settings, as `train` prepares it."""
    directory = RunDirectory(path)
    directory.refuse(settings, resume)
    directory.create()
    directory.begin(settings)
    return directory


def parse_strict_json(text):
    """JSON as the standard has it."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def files(directory):
    return sorted(path.name for path in directory.path.iterdir())


def contents(folder):
    """Return the content of every file of a run by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# taking a directory


def test_a_new_directory_holds_its_settings(directory, tiny):
    assert files(directory) == [MANIFEST, SETTINGS]
    assert directory.settings().resolved() == tiny().resolved()
    assert directory.exists()
    assert directory.result() is None
    assert directory.checkpoint() is None
    assert directory.rows() == []


def test_begin_creates_parents_and_accepts_empty_directory(tmp_path, tiny):
    begin(tmp_path / "a" / "b" / "c", tiny(), resume=False)
    assert (tmp_path / "a" / "b" / "c" / SETTINGS).exists()
    (tmp_path / "empty").mkdir()
    begin(tmp_path / "empty", tiny(), resume=True)
    assert (tmp_path / "empty" / SETTINGS).exists()


def test_begin_overwrites_settings_of_run_without_updates(directory, tiny):
    directory.write("notes.jsonl", "mine")
    begin(directory.path, tiny("lstm"), resume=False)
    assert directory.settings().layer["name"] == "lstm"
    assert directory.file("notes.jsonl").read_text() == "mine"


def test_begin_without_resume_refuses_existing_run(directory, tiny):
    directory.log({"step": 1})
    with pytest.raises(RunError, match=r"run holds a run already: go on with --resume, or choose another --out$"):
        directory.refuse(tiny(), resume=False)
    begin(directory.path, tiny(), resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_begin_refuses_directory_with_foreign_files(tmp_path, tiny, resume):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"expects to be a run's directory or empty; it has files but no settings.toml"):
        RunDirectory(tmp_path).refuse(tiny(), resume)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_begin_ignores_leftover_temporary_settings_file(tmp_path, tiny):
    (tmp_path / f".{SETTINGS}.123.tmp").write_text("seed")
    begin(tmp_path, tiny(), resume=True)
    assert RunDirectory(tmp_path).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": "lstm"}, "layer.name 'gru', asked 'lstm'"),
        ({"layer": {"name": "gru", "hidden_size": 9}}, "layer.hidden_size 8, asked 9"),
        ({"task": {"name": "copy", "delay": 6, "length": 3}}, "task.delay 5, asked 6$"),
        ({"lr": 0.5}, "train.lr 0.001, asked 0.5$"),
        ({"clip": 1.0}, "train.clip 'not given', asked 1.0$"),
        ({"seed": 1}, "seed 0, asked 1$"),
        ({"seed": 1, "lr": 0.5}, "seed 0, asked 1; train.lr 0.001, asked 0.5$"),
    ],
)
def test_resume_with_different_settings_names_keys(directory, tiny, change, words):
    before = directory.file(SETTINGS).read_bytes()
    with pytest.raises(RunError, match=f"belongs to other settings: .*{words}"):
        directory.refuse(tiny(**change), resume=True)
    assert directory.file(SETTINGS).read_bytes() == before


def test_resume_with_different_matrix_options_is_refused(tmp_path, tiny):
    one, other = (
        tiny({"name": "gru", "recurrent": {"candidate": {"name": "cayley", "reflections": count}}}) for count in (2, 3)
    )
    directory = RunDirectory(tmp_path / "run")
    begin(directory.path, one, resume=False)
    begin(directory.path, one, resume=True)
    with pytest.raises(RunError, match=r"layer.recurrent .*'reflections': 2.*asked .*'reflections': 3"):
        directory.refuse(other, resume=True)


def test_resume_with_more_updates_is_allowed(directory, tiny):
    begin(directory.path, tiny(steps=300), resume=True)
    assert directory.settings().train.steps == 300


@pytest.mark.parametrize("steps", [20, 300])
def test_resume_of_cosine_schedule_with_other_length_is_refused(tmp_path, tiny, steps):
    directory = RunDirectory(tmp_path / "run")
    begin(directory.path, tiny(schedule="cosine"), resume=False)
    begin(directory.path, tiny(schedule="cosine"), resume=True)
    with pytest.raises(RunError, match=rf"train.steps 30, asked {steps} \(a cosine is made for its length\)$"):
        directory.refuse(tiny(schedule="cosine", steps=steps), resume=True)
    with pytest.raises(RunError, match=r"train.schedule 'cosine', asked 'constant'; train.steps 30, asked 300 \(a cos"):
        directory.refuse(tiny(steps=300), resume=True)
    assert directory.settings().train.steps == 30


@pytest.mark.parametrize("content", [b"seed = ", b"\xff\xfe", b'seed = 0\nseed = 1\n[layer]\nname = "gru"'])
def test_unreadable_settings_file_raises_run_error(directory, tiny, content):
    directory.file(MANIFEST).unlink()
    directory.file(SETTINGS).write_bytes(content)
    with pytest.raises(RunError, match=r"settings.toml is not readable: "):
        directory.refuse(tiny(), resume=True)


@pytest.mark.parametrize("depth", [25, 200, 400, 900, 20_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_deeply_nested_settings_name_the_file(directory, tiny, depth, brackets):
    """Some depths are read, and fail later in code that does not know the file."""
    deep = "[" * depth + "]" * depth if brackets == "[]" else "{ a = " * depth + "1" + " }" * depth
    directory.file(MANIFEST).unlink()
    directory.file(SETTINGS).write_text(f'[layer]\nname = "lstm"\nrecurrent = {deep}\n')
    words = (
        r"settings.toml is not readable: expected at most 20 lists or tables inside each other in a value; got more$"
    )
    for use in (directory.settings, directory.tables, lambda: directory.refuse(tiny(), resume=True)):
        with pytest.raises(RunError, match=words):
            use()


def test_a_directory_without_settings_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"is no run's directory: it has no settings.toml$"):
        RunDirectory(tmp_path).settings()


def test_unreadable_result_file_raises_run_error(directory):
    directory.file(RESULT).write_text('{"status": "do')
    with pytest.raises(RunError, match=r"result.json is not a run's result: "):
        directory.result()


# checkpoints


def test_checkpoint_round_trips(directory):
    state = {"step": 7, "best": {"loss": 0.1 + 0.2}, "final": None}
    directory.save_checkpoint(TENSORS | {"turned": torch.arange(6).view(2, 3).T}, state)
    tensors, found = directory.checkpoint()
    assert found == state
    assert torch.equal(tensors.pop("turned"), torch.arange(6).view(2, 3).T)
    assert tensors.keys() == TENSORS.keys()
    for key, value in TENSORS.items():
        assert tensors[key].dtype == value.dtype
        assert torch.equal(tensors[key], value)
    assert files(directory) == [CHECKPOINT, MANIFEST, SETTINGS]


@pytest.mark.parametrize("keep", [0, 5, 8, 60, -100, -1])
def test_a_truncated_checkpoint_is_refused(directory, keep):
    directory.save_checkpoint(TENSORS, {"step": 1})
    path = directory.file(CHECKPOINT)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RunError, match=r"checkpoint.safetensors was altered: its SHA-256 differs from manifest.json"):
        directory.checkpoint()
    directory.file(MANIFEST).unlink()
    with pytest.raises(RunError, match=r"checkpoint.safetensors is truncated or altered: "):
        directory.checkpoint()


def test_a_changed_number_in_a_checkpoint_is_noticed(directory):
    directory.save_checkpoint({"a": torch.arange(6.0)}, {"step": 1})
    path = directory.file(CHECKPOINT)
    content = bytearray(path.read_bytes())
    assert content[-24:] == torch.arange(6.0).numpy().tobytes()
    content[-6] ^= 1
    path.write_bytes(content)
    directory.file(MANIFEST).unlink()
    with pytest.raises(RunError, match=r"was altered: its digest does not match"):
        directory.checkpoint()


@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_change_anywhere_in_a_checkpoint_is_noticed(directory, with_manifest):
    directory.save_checkpoint({"a": torch.arange(3.0)}, {"step": 1, "best": None})
    if not with_manifest:
        directory.file(MANIFEST).unlink()
    path = directory.file(CHECKPOINT)
    content = path.read_bytes()
    for place in range(len(content)):
        altered = bytearray(content)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        with pytest.raises(RunError, match="altered"):
            directory.checkpoint()


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:-9] + b"\x55" + b[-8:]])
def test_resume_from_damaged_checkpoint_raises_run_error(tmp_path, tiny, damage):
    train(tiny(steps=10), tmp_path / "run")
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(damage(path.read_bytes()))
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match=r"checkpoint.safetensors was altered: its SHA-256 differs from manifest.json"):
        train(tiny(steps=20), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    (tmp_path / "run" / MANIFEST).unlink()
    with pytest.raises(RunError, match=r"checkpoint.safetensors .*altered.*; begin anew with --restart, which keeps"):
        train(tiny(steps=20), tmp_path / "run", resume=True)
    del before[MANIFEST]
    assert contents(tmp_path / "run") == before


def test_a_checkpoint_of_another_model_is_refused(tmp_path, tiny):
    for layer in ("gru", "lstm"):
        train(tiny(layer, steps=10), tmp_path / layer)
    (tmp_path / "lstm" / CHECKPOINT).replace(tmp_path / "gru" / CHECKPOINT)
    (tmp_path / "gru" / MANIFEST).unlink()
    with pytest.raises(RunError, match=r"checkpoint.safetensors does not fit these settings: "):
        train(tiny("gru", steps=20), tmp_path / "gru", resume=True)


def test_checkpoint_with_state_of_older_version_is_refused(tmp_path, tiny):
    train(tiny("relrnn", steps=10, window=3), tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    tensors, state = directory.checkpoint()
    directory.save_checkpoint({key: value for key, value in tensors.items() if key != "state.3"}, state)
    with pytest.raises(RunError, match="the recurrent state has 6 tensors, and 7 are expected"):
        train(tiny("relrnn", steps=20, window=3), tmp_path / "run", resume=True)


def test_missing_weights_file_raises_run_error(directory):
    with pytest.raises(RunError, match=r"model.safetensors does not exist$"):
        directory.load_weights("model.safetensors")


# rows


def test_rows_ignore_truncated_last_line(directory):
    for step in range(3):
        directory.log({"step": step, "loss": 0.1 * step})
    with directory.file(METRICS).open("a") as file:
        file.write('{"step": 3, "lo')
    assert [row["step"] for row in directory.rows()] == [0, 1, 2]
    directory.keep_rows(3)
    assert directory.file(METRICS).read_text().count("\n") == 3
    directory.keep_rows(1)
    assert directory.rows() == [{"step": 0, "loss": 0.0}]


@pytest.mark.parametrize("damage", ['{"step": 0}\n{"st\n{"step": 2}\n', '{"step": 0}\n', "", '{"step": 0}\n[1]\n2\n'])
def test_keep_rows_with_missing_rows_raises_run_error(directory, damage):
    directory.file(METRICS).write_text(damage)
    with pytest.raises(RunError, match=r"metrics.jsonl expects at least 3 rows; got [01]: it was altered"):
        directory.keep_rows(3)


def test_resume_with_missing_rows_raises_run_error(tmp_path, tiny):
    train(tiny(steps=10), tmp_path / "run")
    path = tmp_path / "run" / METRICS
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunError, match=r"metrics.jsonl was altered: its SHA-256 differs from manifest.json"):
        train(tiny(steps=20), tmp_path / "run", resume=True)
    (tmp_path / "run" / MANIFEST).unlink()
    with pytest.raises(RunError, match=r"metrics.jsonl expects at least 3 rows; got 2: it was altered"):
        train(tiny(steps=20), tmp_path / "run", resume=True)


def test_nan_and_infinity_are_written_as_null(directory):
    odd = {"nan": math.nan, "deep": {"list": [1.5, math.inf, (-math.inf, 2)]}, "flag": True, "none": None, "word": "x"}
    plain = {"nan": None, "deep": {"list": [1.5, None, [None, 2]]}, "flag": True, "none": None, "word": "x"}
    directory.log(odd)
    directory.write_result(odd)
    assert parse_strict_json(directory.file(METRICS).read_text()) == plain
    assert parse_strict_json(directory.file(RESULT).read_text()) == plain
    assert directory.rows() == [plain]


# a full disk


@pytest.mark.parametrize("what", ["fsync", "replace", "open"])
def test_full_disk_keeps_old_checkpoint(directory, monkeypatch, what):
    directory.save_checkpoint(TENSORS, {"step": 1})
    before = files(directory)
    with monkeypatch.context() as patch:
        if what == "fsync":
            patch.setattr(os, "fsync", full_disk)
        else:
            patch.setattr(f"pathlib.Path.{what}", full_disk)
        with pytest.raises(RunError, match=r"(manifest.json|checkpoint.safetensors) could not be written: No space"):
            directory.save_checkpoint({"a": torch.zeros(2)}, {"step": 2})
    assert files(directory) == before
    assert directory.checkpoint().state == {"step": 1}
    directory.save_checkpoint({"a": torch.zeros(2)}, {"step": 2})
    assert directory.checkpoint().state == {"step": 2}


def test_unwritable_row_raises_run_error(directory, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", full_disk)
        with pytest.raises(RunError, match=r"metrics.jsonl could not be written: No space left on device"):
            directory.log({"step": 1})
    assert directory.rows() == []


def test_run_resumes_to_same_outcome_after_full_disk(tmp_path, tiny, monkeypatch, outcome):
    class Fill(Callback):
        def update(self, trainer, loss):
            if trainer.step == 17:
                patch.setattr(os, "fsync", full_disk)

    train(tiny(), tmp_path / "alone")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)  # after every update
        with pytest.raises(RunError, match="No space left on device"):
            train(tiny(), tmp_path / "full", callbacks=[Fill()])
    left = files(RunDirectory(tmp_path / "full"))
    assert not [name for name in left if name.endswith(".tmp")]
    assert RESULT not in left
    assert RunDirectory(tmp_path / "full").checkpoint().state["step"] == 16
    assert train(tiny(), tmp_path / "full", resume=True)["status"] == "done"
    assert outcome(tmp_path / "full") == outcome(tmp_path / "alone")


def test_a_finished_run_leaves_no_temporary_files(tmp_path, tiny):
    train(tiny(), tmp_path / "run")
    assert files(RunDirectory(tmp_path / "run")) == [
        ".lock",
        CHECKPOINT,
        "last.safetensors",
        MANIFEST,
        METRICS,
        "model.safetensors",
        RESULT,
        SETTINGS,
    ]


# one at a time

LOCK_SCRIPT = """
import sys
from steadygrad.training import RunDirectory
with RunDirectory(sys.argv[1]).locked():
    print(flush=True)
    input()
"""


def test_directory_locked_by_other_process_is_refused_until_it_dies(tmp_path, tiny):
    run = tmp_path / "run"
    run.mkdir()
    command = [sys.executable, "-c", LOCK_SCRIPT, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(RunError, match=r"run is in use: another process trains in it$"):
            train(tiny(), run)
        assert [path.name for path in run.iterdir()] == [".lock"]
        holder.kill()
    assert train(tiny(steps=1), run)["status"] == "done"


def test_directory_in_use_by_same_process_is_refused(tmp_path, tiny):
    class Twice(Callback):
        def begin(self, trainer):
            with pytest.raises(RunError, match="is in use"):
                train(tiny(), tmp_path / "run", resume=True)
            self.tried = True

    callback = Twice()
    assert train(tiny(steps=2), tmp_path / "run", callbacks=[callback])["status"] == "done"
    assert callback.tried


def test_train_leaves_refused_directory_unchanged(tmp_path, tiny):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"it has files but no settings.toml"):
        train(tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
