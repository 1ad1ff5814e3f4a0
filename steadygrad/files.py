"""Files of runs: atomic writes, locks, JSON, TOML, names, and the rows of results. Nothing here needs torch."""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

import tomli_w
from filelock import FileLock, Timeout

from steadygrad.check import is_integer, is_number

SETTINGS, METRICS, RESULT = "settings.toml", "metrics.jsonl", "result.json"
OBSERVATIONS, PORTRAIT, TABLE = "observations.jsonl", "portrait.json", "table.json"


class RunError(ValueError):
    """Raised when the files of a run cannot be used as requested."""


# writing


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: write a temporary file, then rename it. An OSError carries the name of the file.

    Readers see either the old or the new content, also after a crash or on a full disk.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


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
    """Return text as a file name: other characters than letters, digits and _ . + - become hyphens."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"


# JSON


def finite(value: Any) -> Any:
    """Return the value with None in place of NaN and infinity, also inside lists and dicts: JSON has neither."""
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
    """Return the rows of a JSON Lines file; an empty list if there is no such file.

    Reading ends before the first line that is incomplete or no JSON object: a run that was killed may leave one.
    """
    rows: list[dict[str, Any]] = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict):
            break
        rows.append(row)
    return rows


# TOML


def toml_text(tables: Mapping[str, Any]) -> str:
    """Return the tables as TOML. Raise ValueError if TOML cannot represent a value, such as None."""
    try:
        return tomli_w.dumps(tables)
    except TypeError as error:
        raise ValueError(f"TOML expects numbers, strings, booleans, lists and tables: {error}") from None


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


# rows of results


class Result(TypedDict):
    """The content of ``result.json``, as training writes it. Some tasks add further numbers."""

    layer: dict[str, Any]
    task: dict[str, Any]
    train: dict[str, Any]
    seed: int
    parameters: int
    steps: int
    """updates that were done"""
    best: dict[str, Any] | None
    """evaluation with the lowest validation loss: ``step``, ``loss`` and metrics; None if there was no evaluation"""
    final: dict[str, Any] | None
    test: NotRequired[dict[str, Any]]
    score: str
    """name of the metric that rates the task"""
    higher_is_better: NotRequired[bool]
    guessing_loss: float
    wall_seconds: float
    threads: NotRequired[int]
    versions: NotRequired[dict[str, Any]]
    commit: NotRequired[str | None]
    data: NotRequired[str]
    """fingerprint of the training data"""
    status: str
    """done, diverged or interrupted"""
    why: NotRequired[str]


def settings_tables(result: Result) -> dict[str, dict[str, Any]]:
    """Return the settings in a result as a dict with the tables ``layer``, ``task`` and ``train``."""
    return {"layer": result["layer"], "task": result["task"], "train": result["train"]}


class MetricsRow(TypedDict):
    """A row of ``metrics.jsonl``: update number and split. The loss and the metrics follow, by name."""

    step: int
    split: str


class Score(TypedDict):
    """Name and value of the metric that rates a task."""

    name: str
    value: float | None


class TransferResult(TypedDict):
    """Our number on other task settings than in training: test name, value, examples, or ``why`` there is no value."""

    name: str
    value: float | None
    examples: int
    why: NotRequired[str]


class TransferTest(TypedDict):
    """The published number on other task settings than in training: name of the test and value."""

    name: str
    published: float | None


class TableRun(TypedDict):
    """One run (seed) in a row of ``table.json``: its status, value, time, evaluations and transfer tests."""

    seed: int
    status: str
    value: float | None
    seconds: float | None
    why: NotRequired[str]
    score: NotRequired[Score]
    parameters: NotRequired[int | None]
    guessing_loss: NotRequired[float | None]
    steps: NotRequired[int]
    best: NotRequired[dict[str, Any] | None]
    final: NotRequired[dict[str, Any] | None]
    transfer: NotRequired[list[TransferResult]]


class TableRow(TypedDict):
    """A row of ``table.json``: the numbers of a paper and ours, as `reproduce` writes them."""

    paper: str
    table: str
    row: str
    caption: str
    layer: NotRequired[str]
    scale: str
    reduced: str
    """changes of the scale to the paper's settings, as text"""
    same_task: NotRequired[bool]
    """whether the scale leaves the task unchanged; default: true"""
    metric: str
    attained: str
    counts: str
    printed_parameters: str | None
    parameters: int | None
    guessing_loss: NotRequired[float | None]
    published: float | None
    ours: NotRequired[float | None]
    trained_on: NotRequired[str]
    transfer: NotRequired[list[TransferTest]]
    runs: list[TableRun]
    seconds: NotRequired[float]
    note: str
    figures: NotRequired[list[str]]


type_hints = cache(get_type_hints)  # it takes longer than the check of a row


def faults(value: Any, kind: Any, name: str) -> Iterator[str]:
    """Yield a message for each way in which a value from a JSON file differs from its declared type ``kind``.

    Keys that are not declared are allowed. ``name`` is the name of the value in the messages.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if is_typeddict(kind) and isinstance(value, dict):
        yield from (f"{name} has no {key}" for key in sorted(kind.__required_keys__ - value.keys()))
        for key, hint in type_hints(kind).items():
            if key in value:
                yield from faults(value[key], hint, key)
    elif origin in (Union, UnionType):
        if all(any(faults(value, part, name)) for part in parts):
            yield from faults(value, parts[0], name)
    elif origin is list and isinstance(value, list):
        for item in value:
            yield from faults(item, parts[0], name)
    else:
        checks: dict[Any, Callable[[object], bool]] = {int: is_integer, float: is_number}
        plain = dict if is_typeddict(kind) else origin or kind
        if not checks.get(plain, lambda found: isinstance(found, plain))(value):
            yield f"{name} is no {plain.__name__}"


def read_json(path: Path, kind: Any, what: str) -> Any:
    """Return the content of a JSON file of type ``kind``. Otherwise raise RunError; ``what`` names the file in it."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is not {what}: {error}") from None
    for fault in faults(value, kind, path.stem):
        raise RunError(f"{path} is not {what}: {fault}")
    return value


def read_result(path: Path) -> Result:
    """Return the content of a run's ``result.json``. Raise RunError if it is invalid."""
    result: Result = read_json(path, Result, "a run's result")
    for table, key in ((result["layer"], "name"), (result["task"], "name"), (result["train"], "steps")):
        if key not in table:
            raise RunError(f"{path} is not a run's result: it has no {key} in {table}")
    return result


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.jsonl`` up to an incomplete one. Raise RunError if a row is invalid."""
    rows = read_rows(path)
    for fault in faults(rows, list[MetricsRow], "a row"):
        raise RunError(f"{path} is not a run's metrics: {fault}")
    return rows


def read_table(path: Path) -> list[TableRow]:
    """Return the rows of a ``table.json`` that `reproduce` wrote. Raise RunError if they are invalid."""
    rows: list[TableRow] = read_json(path, list[TableRow], "a table of reproduce")
    if any(row.get("transfer") and "trained_on" not in row for row in rows):
        raise RunError(f"{path} is not a table of reproduce: row has no trained_on")
    return rows
