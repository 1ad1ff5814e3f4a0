"""Resuming, extending and restarting a run: everything is checked before a file changes."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import steadygrad
from steadygrad.files import METRICS, RESULT, SETTINGS
from steadygrad.manifest import MANIFEST
from steadygrad.training import Callback, RunDirectory, RunError, loop, train
from steadygrad.training.directory import BEST, CHECKPOINT, LAST
from steadygrad.training.provenance import commit


@pytest.fixture(autouse=True)
def no_automatic_checkpoints(monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)


@pytest.fixture
def run(tmp_path, tiny):
    """The folder of a finished run of 10 updates."""
    train(tiny(steps=10), tmp_path / "run")
    return tmp_path / "run"


def contents(folder):
    """Return the content of every file of a run by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


# check, then write


@pytest.mark.parametrize("with_manifest", [False, True])
def test_finished_run_without_checkpoint_is_refused_and_unchanged(run, tiny, with_manifest):
    (run / CHECKPOINT).unlink()
    if not with_manifest:
        (run / MANIFEST).unlink()
    before = contents(run)
    words = r"run cannot be resumed: it has result.json, but no checkpoint.safetensors; begin anew with --restart"
    with pytest.raises(RunError, match=words):
        train(tiny(steps=20), run, resume=True)
    assert contents(run) == before
    assert train(tiny(steps=10), run, resume=True)["steps"] == 10  # the result is still valid


def test_killed_run_without_its_checkpoint_is_refused(tmp_path, tiny, stop_at, stopped):
    with pytest.raises(stopped):
        train(tiny(), tmp_path, callbacks=[stop_at(5, 9)])
    (tmp_path / CHECKPOINT).unlink()
    with pytest.raises(RunError, match=r"it has model.safetensors, but no checkpoint.safetensors; begin anew"):
        train(tiny(), tmp_path, resume=True)


def test_refused_extension_leaves_settings_so_that_first_command_still_works(run, tiny):
    whole = (run / CHECKPOINT).read_bytes()
    (run / CHECKPOINT).write_bytes(whole[: len(whole) // 2])
    before = contents(run)
    with pytest.raises(RunError, match=r"checkpoint.safetensors was altered"):
        train(tiny(steps=22), run, resume=True)
    assert contents(run) == before
    (run / CHECKPOINT).write_bytes(whole)
    assert train(tiny(steps=10), run, resume=True)["steps"] == 10


def test_invalid_metrics_row_is_refused_before_anything_changes(run, tiny):
    (run / MANIFEST).unlink()
    (run / METRICS).write_text((run / METRICS).read_text().replace('"split"', '"splat"', 1))
    before = contents(run)
    with pytest.raises(RunError, match=r"metrics.jsonl is not a run's metrics: .*has no split"):
        train(tiny(steps=20), run, resume=True)
    assert contents(run) == before


class RefuseFiles(Callback):
    def check(self, trainer):
        raise RunError("my file is damaged")


def test_callback_can_refuse_before_anything_changes(run, tiny):
    before = contents(run)
    with pytest.raises(RunError, match="my file is damaged"):
        train(tiny(steps=20), run, resume=True, callbacks=[RefuseFiles()])
    assert contents(run) == before


# extending


def test_extended_run_keeps_old_result_until_new_one_is_written(run, tiny, stop_at, stopped, outcome):
    old = (run / RESULT).read_bytes()
    with pytest.raises(stopped):
        train(tiny(steps=30), run, resume=True, callbacks=[stop_at(15, 17)])
    assert (run / RESULT).read_bytes() == old
    directory = RunDirectory(run)
    assert directory.checkpoint().state["step"] == 15
    assert directory.settings().train.steps == 30
    assert directory.result() is None  # the longer run has not ended
    with pytest.raises(RunError, match=r"train\.steps 30, asked 10"):
        train(tiny(steps=10), run, resume=True)
    assert train(tiny(steps=30), run, resume=True)["steps"] == 30
    train(tiny(steps=30), run.with_name("alone"))
    assert outcome(run) == outcome(run.with_name("alone"))


def test_resumed_run_keeps_interrupted_result_until_new_one_is_written(tmp_path, tiny, stop_at, stopped):
    class Stop(Callback):
        def update(self, trainer, loss):
            if trainer.step == 5:
                trainer.asked.set()

    assert train(tiny(), tmp_path, callbacks=[Stop()])["status"] == "interrupted"
    with pytest.raises(stopped):
        train(tiny(), tmp_path, resume=True, callbacks=[stop_at(8, 9)])
    assert RunDirectory(tmp_path).result()["status"] == "interrupted"
    assert train(tiny(), tmp_path, resume=True)["status"] == "done"


# beginning anew


def test_restart_keeps_old_run_under_another_name(run, tiny):
    before = contents(run)
    assert train(tiny("lstm", steps=4), run, restart=True)["layer"]["name"] == "lstm"
    assert contents(run.with_name("run.before-1")) == before
    assert RunDirectory(run).settings().layer["name"] == "lstm"
    train(tiny(steps=2), run, restart=True)
    assert RunDirectory(run.with_name("run.before-2")).result()["layer"]["name"] == "lstm"
    assert contents(run.with_name("run.before-1")) == before


def test_restart_of_damaged_run_works(run, tiny):
    (run / SETTINGS).write_bytes(b"\xff")
    assert train(tiny(steps=2), run, restart=True)["status"] == "done"
    assert (run.with_name("run.before-1") / SETTINGS).read_bytes() == b"\xff"


def test_restart_without_run_begins_one(tmp_path, tiny):
    assert train(tiny(steps=2), tmp_path / "new", restart=True)["status"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_restart_leaves_foreign_directory_and_running_run_alone(tmp_path, run, tiny):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"it has files but no settings.toml"):
        train(tiny(), tmp_path / "notes", restart=True)
    with RunDirectory(run).locked(), pytest.raises(RunError, match="is in use"):
        train(tiny(), run, restart=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "run"]
    with pytest.raises(ValueError, match="expects either resume or restart; got both"):
        train(tiny(), run, restart=True, resume=True)


# files that prove themselves

COVERED = (SETTINGS, METRICS, RESULT, BEST, LAST, CHECKPOINT, MANIFEST)


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("steps", [10, 20])
def test_resume_names_file_with_changed_bit(run, tiny, name, place, steps):
    content = bytearray((run / name).read_bytes())
    content[round(place * (len(content) - 1))] ^= 1
    (run / name).write_bytes(content)
    before = contents(run)
    with pytest.raises(RunError, match=rf"{name} was altered"):
        train(tiny(steps=steps), run, resume=True)
    assert contents(run) == before


def test_run_without_manifest_loads_and_gets_one_when_extended(run, tiny, outcome):
    (run / MANIFEST).unlink()
    assert train(tiny(steps=10), run, resume=True)["steps"] == 10
    assert not (run / MANIFEST).exists()
    train(tiny(steps=20), run, resume=True)
    assert json.loads((run / MANIFEST).read_text())["files"].keys() == set(COVERED) - {MANIFEST}
    train(tiny(steps=20), run.with_name("alone"))
    assert outcome(run) == outcome(run.with_name("alone"))


# provenance


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def repository(folder, *names):
    git(folder, "init", "-q")
    git(folder, "add", *names)
    git(folder, "commit", "-qm", "first")


@pytest.fixture
def package(tmp_path):
    """A copy of the package beside its pyproject.toml, not under git."""
    source = Path(steadygrad.__file__).parents[1]
    (tmp_path / "tree" / "steadygrad").mkdir(parents=True)
    shutil.copy(source / "pyproject.toml", tmp_path / "tree")
    shutil.copy(source / "steadygrad" / "__init__.py", tmp_path / "tree" / "steadygrad")
    return tmp_path / "tree" / "steadygrad"


def test_commit_is_that_of_own_repository(package):
    assert commit(package) is None
    repository(package.parent, ".")
    found = commit(package)
    assert len(found) == 40
    (package / "__init__.py").write_text("changed")
    assert commit(package) == f"{found}+"


def test_commit_ignores_repository_that_contains_installed_package(package):
    """As a virtual environment inside an unrelated project."""
    (package.parent.parent / "notes.txt").write_text("mine")
    repository(package.parents[1], "notes.txt")
    assert commit(package) is None
    git(package.parents[1], "add", ".")  # even if the package is committed there
    git(package.parents[1], "commit", "-qm", "second")
    assert commit(package) is None


@pytest.mark.parametrize("text", ["[project]\nname = 'other'\n", "[tool]\n", "project = 1\n", "not toml", "\0"])
def test_commit_needs_pyproject_of_this_project(package, text):
    (package.parent / "pyproject.toml").write_text(text)
    repository(package.parent, ".")
    assert commit(package) is None


def test_commit_needs_tracked_package(package):
    repository(package.parent, "pyproject.toml")
    assert commit(package) is None
