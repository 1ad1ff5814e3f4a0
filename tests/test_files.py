"""Files: atomic writes, locks, JSON lines, TOML and names."""

import errno
import json
import math
import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadygrad import files
from steadygrad.files import file_name, toml_text

# writing


@pytest.mark.parametrize("content", ["new ☃", b"new"])
def test_write_replaces_existing_file(tmp_path, content):
    path = tmp_path / "file.txt"
    path.write_text("old")
    files.write(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.open"])
def test_full_disk_keeps_old_file_and_error_names_it(tmp_path, monkeypatch, what):
    def full_disk(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file.txt"
    path.write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(what, full_disk)
        with pytest.raises(OSError, match="No space left on device") as caught:
            files.write(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_concurrent_writers_of_one_file_do_not_clash(tmp_path, monkeypatch):
    path, fsync = tmp_path / "page.html", os.fsync

    def other_first(file):
        monkeypatch.setattr("os.fsync", fsync)
        monkeypatch.setattr("os.getpid", lambda: 0)
        files.write(path, "theirs")
        assert path.read_text() == "theirs"

    monkeypatch.setattr("os.fsync", other_first)
    files.write(path, "ours")
    assert path.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_files_of_killed_processes_are_removed(tmp_path):
    left = [tmp_path / name for name in (".a.json.12.tmp", ".b.txt.3.tmp")]
    for path in (*left, tmp_path / "mine.tmp", tmp_path / ".lock"):
        path.write_text("")
    assert [path for path in sorted(tmp_path.iterdir()) if files.is_temporary(path)] == left
    files.remove_temporary(tmp_path, "a.json")
    assert [path.exists() for path in left] == [False, True]
    files.remove_temporary(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "mine.tmp"]


def test_file_name_is_sanitized():
    assert file_name("a/b c: d*e") == "a-b-c-d-e"
    assert file_name("../..") == "run"
    assert file_name("größe_1.5+x-y") == "größe_1.5+x-y"


# locks

LOCK_HOLDER_SCRIPT = """
import sys
from pathlib import Path
from steadygrad.files import locked
with locked(Path(sys.argv[1]), lambda: None):
    print(flush=True)
    input()
"""


def test_lock_is_released_when_holder_is_killed(tmp_path):
    class BusyError(Exception):
        pass

    def refuse():
        raise BusyError

    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", LOCK_HOLDER_SCRIPT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(BusyError), files.locked(path, refuse):
            pass
        holder.kill()
    with files.locked(path, refuse), pytest.raises(BusyError), files.locked(path, refuse):
        pass
    with files.locked(path, refuse):
        pass


def test_locked_waits_if_callback_does_not_raise(tmp_path):
    told, inside = [], []

    def work(number):
        with files.locked(tmp_path / "lock", lambda: told.append(number)):
            inside.append(number)
            time.sleep(0.2)
            assert inside[-1] == number

    with ThreadPoolExecutor(2) as both:
        list(both.map(work, [0, 1]))
    assert sorted(inside) == [0, 1]
    assert len(told) == 1


# JSON lines


@pytest.mark.parametrize("end", ["", '{"a": ', "3\n", '[1]\n{"a": 4}\n', "\n"])
def test_read_rows_stops_before_first_incomplete_line(tmp_path, end):
    path = tmp_path / "rows.jsonl"
    assert files.read_rows(path) == []
    path.write_text(files.json_lines([{"a": 1}, {"a": math.nan, "b": [math.inf, "\u2028"]}]) + end)
    assert files.read_rows(path) == [{"a": 1}, {"a": None, "b": [None, "\u2028"]}]


# TOML

words = st.text(st.characters(exclude_characters="\x7f", exclude_categories=["Cs"]))
plain = st.booleans() | st.integers() | st.floats(allow_nan=False) | words
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(words, inner), max_leaves=8)


@given(st.dictionaries(words, values))
def test_toml_text_round_trips(tables):
    read = tomllib.loads(toml_text(tables))
    assert read == tables
    assert json.dumps(read, sort_keys=True) == json.dumps(tables, sort_keys=True)  # 1 is not 1.0 and not True


@pytest.mark.parametrize(
    "text",
    [
        "😀",
        "\U0001d6fe",  # a mathematical γ
        'a"b\\c',
        "\0\b\t\n\f\r\x1b\x85\u2028",
        "",
        "\x7f",
    ],
    ids=ascii,
)
def test_toml_text_round_trips_special_characters(text):
    tables = {"a": text, text: 1, "b": {text: [text]}}
    assert tomllib.loads(toml_text(tables)) == tables


def test_toml_text_writes_infinity_and_nan():
    read = tomllib.loads(toml_text({"a": math.inf, "b": -math.inf, "c": [math.nan]}))
    assert (read["a"], read["b"]) == (math.inf, -math.inf)
    assert math.isnan(read["c"][0])


def test_toml_text_writes_values_before_sections():
    text = toml_text({"layer": {"odd key": 1, "deep": {"a": 2}}, "seed": 3})
    assert text == 'seed = 3\n\n[layer]\n"odd key" = 1\n\n[layer.deep]\na = 2\n'


@pytest.mark.parametrize("value", [None, object(), {1, 2}, 1j])
def test_toml_text_rejects_unsupported_types(value):
    with pytest.raises(
        ValueError, match=r"^TOML expects numbers, strings, booleans, lists and tables: .*is not TOML ser"
    ):
        toml_text({"a": [value]})
