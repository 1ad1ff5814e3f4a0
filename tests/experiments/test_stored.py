"""Stored results: only runs whose files are valid are copied, and all files of a run at once."""

import pytest

from steadygrad import files
from steadygrad.experiments import StoredResults, select
from steadygrad.experiments.reproduce import run_directory
from steadygrad.files import METRICS, RESULT, SETTINGS
from steadygrad.manifest import MANIFEST
from steadygrad.training import RunDirectory, train

(ROW,) = select("nnrnn-2019/copy/rnn")
NAME = "results/nnrnn-2019/copy/rnn/seed-0"


@pytest.fixture
def run(tmp_path):
    """The folder of a finished run."""
    folder = run_directory(ROW, 0, tmp_path / "runs")
    train(ROW.settings("smoke", 0), folder)
    return folder


def collect(tmp_path):
    return list(StoredResults(tmp_path / "results").collect(tmp_path / "runs"))


def stored(tmp_path):
    return {path.name: path.read_bytes() for path in (tmp_path / NAME).iterdir()}


def test_collected_run_has_small_files_without_manifest(tmp_path, run):
    assert collect(tmp_path) == [NAME]
    assert stored(tmp_path).keys() == {METRICS, RESULT, SETTINGS}
    assert (tmp_path / NAME / RESULT).read_bytes() == (run / RESULT).read_bytes()


@pytest.mark.parametrize("name", [METRICS, RESULT, SETTINGS, "model.safetensors"])
def test_altered_run_is_not_collected_and_stored_one_is_kept(tmp_path, run, name):
    collect(tmp_path)
    before = stored(tmp_path)
    content = (run / name).read_bytes()
    (run / name).write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    (line,) = collect(tmp_path)
    assert line.startswith(f"{NAME} is not stored: ")
    assert f"{name} was altered" in line
    assert stored(tmp_path) == before


@pytest.mark.parametrize(("name", "content"), [(METRICS, b'{"step": 1}\n'), (RESULT, b"{}"), (SETTINGS, b"seed = 0")])
def test_invalid_run_without_manifest_is_not_collected(tmp_path, run, name, content):
    (run / MANIFEST).unlink()
    (run / name).write_bytes(content)
    (line,) = collect(tmp_path)
    assert line.startswith(f"{NAME} is not stored: ")
    assert not (tmp_path / NAME).exists()


def test_failed_copy_leaves_stored_run_unchanged(tmp_path, run, monkeypatch):
    collect(tmp_path)
    before = stored(tmp_path)
    train(ROW.settings("smoke", 1), run, restart=True)
    written = []

    def fsync(number):
        written.append(number)
        if len(written) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left on device"):
        collect(tmp_path)
    assert stored(tmp_path) == before


def test_run_that_is_being_extended_and_run_set_aside_are_not_collected(tmp_path, run):
    run.rename(run.with_name("seed-0.before-1"))
    assert collect(tmp_path) == []
    run.with_name("seed-0.before-1").rename(run)
    settings = ROW.settings("smoke", 0)
    longer = files.toml_text(settings.resolved() | {"train": settings.resolved()["train"] | {"steps": 10**6}})
    RunDirectory(run).write(SETTINGS, longer)
    assert collect(tmp_path) == []
