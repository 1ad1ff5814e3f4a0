"""Files of runs: atomic writes, locks, JSON, TOML and names. Nothing here needs torch."""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

SETTINGS, METRICS, RESULT = "settings.toml", "metrics.jsonl", "result.json"
OBSERVATIONS, PORTRAIT, TABLE = "observations.jsonl", "portrait.json", "table.json"
TRANSFER, LISTEN = "transfer.json", "listen.json"

DEEPEST = 20
"""largest number of lists and tables inside each other in a setting"""


class RunError(ValueError):
    """Raised when the files of a run cannot be used as requested."""


# writing


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: write a temporary file, then rename it. An OSError carries the name of the file.

    Readers see either the old or the new content, also after a crash or on a full disk.
    """
    write_all({path: content})


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Write several files, given as a dict of contents by path, as `write` does.

    No file is replaced before all temporary files are complete on the disk.
    """
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    path = Path()
    try:
        for path, content in contents.items():
            with temporary[path].open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
        for path in contents:
            temporary[path].replace(path)
    except BaseException as error:
        for left in temporary.values():
            with suppress(OSError):  # the first error counts; `remove_temporary` deletes the file later
                left.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)
        raise


def is_temporary(path: Path, name: str = "*") -> bool:
    """Return whether ``path`` is a temporary file of `write` for a file named ``name`` (a pattern; default: any)."""
    return fnmatchcase(path.name, f".{name}.*.tmp")


def remove_temporary(folder: Path, name: str = "*") -> None:
    """Delete the temporary files in ``folder`` that an interrupted `write` of files named ``name`` (a pattern) left."""
    for path in [path for path in folder.iterdir() if is_temporary(path, name)]:
        path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Context manager: hold an exclusive lock on a file. If another process holds it, call ``busy``, then wait.

    The operating system releases the lock when the process ends, even if the process is killed.
    """
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        busy()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def file_name(text: str) -> str:
    """Return text as a file name: each run of characters other than letters, digits and _ . + - becomes one hyphen.

    Hyphens and dots at both ends are removed. If nothing is left, the name is "run".
    """
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"


# JSON


def finite(value: Any) -> Any:
    """Return a copy of the value with None in place of NaN and infinity, also inside lists, tuples and dicts.

    JSON has neither NaN nor infinity. Tuples become lists.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def json_text(value: Any, indent: int | None = None) -> str:
    """Return the value as JSON, with null in place of NaN and infinity."""
    return json.dumps(finite(value), indent=indent)


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the rows as text, one line of JSON each."""
    return "".join(json_text(row) + "\n" for row in rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file, a list of dicts; an empty list if there is no such file.

    Reading ends before the first line that is incomplete or no JSON object: a run that was killed may leave one.
    """
    return parse_rows(path.read_bytes()) if path.exists() else []


def parse_rows(content: bytes) -> list[dict[str, Any]]:
    """Return the rows in JSON Lines, a list of dicts, up to the first line that is incomplete or no JSON object."""
    rows: list[dict[str, Any]] = []
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # a RecursionError is a deeply nested value
            break
        if not isinstance(row, dict):
            break
        rows.append(row)
    return rows


# TOML


def toml_text(tables: Mapping[str, Any]) -> str:
    """Return the tables as TOML. Raise ValueError for a value that TOML or `parse_toml` does not know, such as None."""
    if is_nested_deeper(tables, DEEPEST + 2):
        raise ValueError(f"TOML expects at most {DEEPEST} lists or tables inside each other in a value; got more")
    try:
        return tomli_w.dumps(tables)
    except TypeError as error:
        raise ValueError(f"TOML expects numbers, strings, booleans, lists and tables: {error}") from None


def parse_toml(who: object, text: str) -> dict[str, Any]:
    """Return the tables of a TOML text as a dict. ``who`` is the file's name in messages.

    Raise RunError if the text is no TOML, or if a value is nested deeper than `DEEPEST` levels in a table of a table.
    """
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise RunError(f"{who} is not readable: {error}") from None
    except RecursionError:
        tables = None
    if tables is None or is_nested_deeper(tables, DEEPEST + 2):
        raise RunError(
            f"{who} is not readable: expected at most {DEEPEST} lists or tables inside each other in a value; got more"
        )
    return tables


def is_nested_deeper(value: object, levels: int) -> bool:
    """Return whether lists and dicts in a value are inside each other deeper than ``levels`` levels."""
    level = [value]
    for _ in range(levels):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, list | dict)]
        level = [item for part in parts for item in part]
    return any(isinstance(part, list | dict) for part in level)


def parse_value(text: str) -> Any:
    """Parse a value as TOML: 64, 1e-3, true, [1, 2], { name = "schur" }. ``none`` is None; other text is a string."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # 1e-3 is TOML, but .5 is not
    except ValueError:
        return text


def value_text(value: Any, quotes: bool = False) -> str:
    """Return the text that `parse_value` reads as this value. Quotes around a string are left out if it needs none.

    With ``quotes`` every string has them, as inside a list or a table.
    """
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case dict():
            return "{ " + ", ".join(f"{key} = {value_text(item, True)}" for key, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(value_text(item, True) for item in value) + "]"
        case str() if quotes or not value or parse_value(value) != value:
            return json.dumps(value, ensure_ascii=False)
    return str(value)
