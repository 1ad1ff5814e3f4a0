"""The manifest of a run: it notices each changed byte, and no kill makes a valid run look altered."""

import json

import pytest

from steadygrad import files
from steadygrad.files import METRICS, RunError
from steadygrad.manifest import MANIFEST, Manifest, RunningDigest, digest_of, verify
from steadygrad.training import RunDirectory

NAME = "result.json"


@pytest.fixture
def run(tmp_path):
    """A directory with one file and two rows, all listed."""
    directory = RunDirectory(tmp_path)
    directory.log({"step": 1})
    directory.log({"step": 2})
    directory.write(NAME, "first")
    return directory


def test_unchanged_run_and_run_without_manifest_have_no_faults(run):
    assert verify(run.path) == []
    run.file(NAME).write_text("other")
    run.file(MANIFEST).unlink()
    assert verify(run.path) == []


def test_each_changed_bit_is_noticed_and_named(run):
    for name in (NAME, METRICS):
        content = run.file(name).read_bytes()
        for place in range(8 * len(content)):
            changed = bytearray(content)
            changed[place // 8] ^= 1 << place % 8
            run.file(name).write_bytes(changed)
            (fault,) = verify(run.path)
            assert fault.startswith(f"{run.file(name)} was altered: its SHA-256 differs from manifest.json. Restore")
            with pytest.raises(RunError, match="was altered"), run.reading(name):
                pass
        run.file(name).write_bytes(content)


def test_each_changed_bit_of_manifest_is_noticed(run):
    content = run.file(MANIFEST).read_bytes()
    value = json.loads(content)
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        run.file(MANIFEST).write_bytes(changed)
        try:
            same = json.loads(changed) == value  # another space means nothing
        except ValueError:
            same = False
        assert bool(verify(run.path)) != same


@pytest.mark.parametrize("text", ["", "[]", "3", '{"files": 3}', '{"files": {"a": [3]}}', "[" * 100_000, "\xff"])
def test_invalid_manifest_is_refused_with_advice(run, text):
    run.file(MANIFEST).write_text(text, "latin-1")
    (fault,) = verify(run.path)
    assert f"{MANIFEST} was altered (" in fault
    assert fault.endswith("restore it from a copy, or remove it to use the run without checks")
    with pytest.raises(RunError, match=r"manifest.json was altered"):
        run.write(NAME, "second")


def test_missing_file_is_no_fault_but_missing_rows_are(run):
    run.file(NAME).unlink()
    assert verify(run.path) == []
    run.file(METRICS).unlink()
    assert len(verify(run.path)) == 1


def test_only_named_files_are_verified(run):
    run.file(NAME).write_text("other")
    assert verify(run.path, [METRICS]) == []
    assert len(verify(run.path, [NAME])) == 1


def test_rows_after_manifest_are_not_checked(run):
    run.log({"step": 3})
    assert verify(run.path) == []
    run.file(METRICS).write_text(run.file(METRICS).read_text() + '{"st')
    assert verify(run.path) == []
    run.file(METRICS).write_text(run.file(METRICS).read_text()[:20])
    assert len(verify(run.path)) == 1


def test_kills_between_manifest_and_file_leave_valid_run(run, monkeypatch):
    """The old content stays valid, however often a process lists a new one and dies."""

    def die(contents, write=files.write_all):
        if MANIFEST not in [path.name for path in contents]:
            raise KeyboardInterrupt
        write(contents)

    for number in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", die)
            with pytest.raises(KeyboardInterrupt):
                RunDirectory(run.path).write(NAME, f"never {number}")
        assert run.file(NAME).read_text() == "first"
        assert verify(run.path) == []
    RunDirectory(run.path).write(NAME, "second")
    assert verify(run.path) == []
    run.file(NAME).write_text("never 2")
    assert len(verify(run.path)) == 1


def test_several_files_are_listed_by_one_write_of_manifest(run, monkeypatch):
    """A kill between any two renames leaves old and new files, all of which are accepted."""
    names = [NAME, "portrait.json", "settings.toml"]
    for last in range(len(names)):
        run.write_all({name: f"old {last} of {name}".encode() for name in names})
        written, write = [], files.write_all

        def noted(contents, written=written, write=write):
            written.append([path.name for path in contents])
            write(contents)

        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", noted)
            run.write_all({name: f"new {last} of {name}".encode() for name in names})
        assert written == [[MANIFEST], names]
        for name in names[last:]:
            run.file(name).write_text(f"old {last} of {name}")
        assert verify(run.path) == []


def test_kill_before_truncation_of_rows_leaves_valid_run(run, monkeypatch):
    def die(contents, write=files.write_all):
        if MANIFEST not in [path.name for path in contents]:
            raise KeyboardInterrupt
        write(contents)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", die)
        with pytest.raises(KeyboardInterrupt):
            run.keep_rows(1)
    assert verify(run.path) == []
    run.keep_rows(1)
    assert verify(run.path) == []
    assert RunDirectory(run.path).rows() == [{"step": 1}]


def test_file_replaced_by_running_process_meanwhile_is_no_fault(run, monkeypatch):
    """The reader has the old manifest and finds the new file."""
    old = Manifest(run.path).read()
    run.write(NAME, "second")
    run.write(NAME, "third")
    reader, read = Manifest(run.path), Manifest.read
    answers = iter([old])
    monkeypatch.setattr(Manifest, "read", lambda self: next(answers, None) or read(self))
    assert reader.fault(NAME) == ""


def test_running_digest_is_that_of_whole_content():
    running = RunningDigest(b"ab")
    running.update(b"c")
    assert running.digest() == digest_of(b"abc")


def test_replaced_content_is_accepted_only_until_the_next_file_is_written(run):
    run.write(NAME, "second")
    run.file(NAME).write_text("first")
    assert verify(run.path) == []
    run.file(NAME).write_text("second")
    run.write("portrait.json", "{}")
    assert verify(run.path) == []
    run.file(NAME).write_text("first")
    (fault,) = verify(run.path)
    assert fault.startswith(f"{run.file(NAME)} was altered")
