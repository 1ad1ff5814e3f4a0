"""The records in the files of a run: their types, and readers that check them. Nothing here needs torch."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from steadygrad.check import is_integer, is_number
from steadygrad.files import RunError, read_rows


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
    """Return the content of a run's ``result.json``, a dict. Raise RunError if it is invalid."""
    result: Result = read_json(path, Result, "a run's result")
    for table, key in ((result["layer"], "name"), (result["task"], "name"), (result["train"], "steps")):
        if key not in table:
            raise RunError(f"{path} is not a run's result: it has no {key} in {table}")
    return result


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.jsonl``, dicts, up to an incomplete one. Raise RunError for a bad row."""
    rows = read_rows(path)
    for fault in faults(rows, list[MetricsRow], "a row"):
        raise RunError(f"{path} is not a run's metrics: {fault}")
    return rows


def read_table(path: Path) -> list[TableRow]:
    """Return the rows, dicts, of a ``table.json`` that `reproduce` wrote. Raise RunError if they are invalid."""
    rows: list[TableRow] = read_json(path, list[TableRow], "a table of reproduce")
    if any(row.get("transfer") and "trained_on" not in row for row in rows):
        raise RunError(f"{path} is not a table of reproduce: row has no trained_on")
    return rows
