"""The records in the files of a run: their types, and readers that check them. Nothing here needs torch."""

import json
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

from steadygrad.check import is_integer, is_number
from steadygrad.files import RunError

LARGEST = 1e300
"""largest absolute value of a number: sums and products of a few are still finite"""
LARGEST_INTEGER = 2**64
DEPTH = 16
"""largest number of levels of lists and dicts inside each other in a value of any type"""


class Rule(NamedTuple):
    """What a value must fulfil beyond its type, in ``Annotated[type, Rule(…)]``, and its description in messages."""

    holds: Callable[[Any], bool]
    expects: str


def is_finite(value: object) -> bool:
    """Return whether the value is a number, not a bool, with an absolute value of at most `LARGEST`."""
    return is_number(value, -LARGEST, LARGEST)


def is_text(value: object) -> bool:
    """Return whether the value is a string that UTF-8 can encode: one without half of a surrogate pair."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value))


def is_plain(value: object, depth: int = DEPTH) -> bool:
    """Return whether the value has at most ``depth`` lists and dicts inside each other and all strings are valid."""
    if isinstance(value, dict):
        return depth > 0 and all(is_text(key) and is_plain(item, depth - 1) for key, item in value.items())
    if isinstance(value, list):
        return depth > 0 and all(is_plain(item, depth - 1) for item in value)
    return is_text(value) or not isinstance(value, str)


LEAVES: dict[Any, Rule] = {
    int: Rule(lambda value: is_integer(value) and abs(value) <= LARGEST_INTEGER, "an integer of at most 64 bits"),
    float: Rule(is_finite, "a finite number"),
    float | None: Rule(lambda value: value is None or is_finite(value), "a finite number or null"),
    str: Rule(is_text, "a string of valid characters"),
    bool: Rule(lambda value: isinstance(value, bool), "true or false"),
    type(None): Rule(lambda value: value is None, "null"),
    Any: Rule(is_plain, f"valid strings and at most {DEPTH} levels"),
}
"""types that have no parts, and what is checked"""


@cache  # to resolve the hints takes longer than to check a row
def type_hints(kind: Any) -> dict[str, Any]:
    """Return the declared type of each key of a TypedDict, with its rules."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        key: typing.get_args(hint)[0] if typing.get_origin(hint) is NotRequired else hint for key, hint in hints.items()
    }


def faults(value: Any, kind: Any, name: str) -> Iterator[str]:
    """Yield a message for each way in which a value from a JSON file differs from its declared type ``kind``.

    Keys that are not declared are allowed. ``name`` is the name of the value in the messages.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in LEAVES:
        yield from broken(value, LEAVES[kind], name)
    elif origin is Literal:
        rule = Rule(lambda found: any(found is part or found == part for part in parts), " or ".join(map(repr, parts)))
        yield from broken(value, rule, name)
    elif origin is Annotated:
        found = list(faults(value, parts[0], name))
        yield from found or (fault for rule in parts[1:] for fault in broken(value, rule, name))
    elif origin in (typing.Union, UnionType):
        if all(any(faults(value, part, name)) for part in parts):
            yield from faults(value, parts[0], name)
    elif origin is list and isinstance(value, list):
        leaf = LEAVES.get(parts[0])
        if leaf is None or not all(map(leaf.holds, value)):
            for place, item in enumerate(value):
                yield from faults(item, parts[0], f"{name}[{place}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from broken(key, LEAVES[str], f"a key of {name}")
            yield from faults(item, parts[1], f"{name}.{key}")
    elif typing.is_typeddict(kind) and isinstance(value, dict):
        if missing := kind.__required_keys__ - value.keys():
            yield from (f"{name} has no {key}" for key in sorted(missing))
        for key, hint in type_hints(kind).items():
            if key in value and not (hint in LEAVES and LEAVES[hint].holds(value[key])):  # most are leaves, and right
                yield from faults(value[key], hint, key)
    else:
        yield f"{name} expects a {'list' if origin is list else 'dict'}; got {brief(value)}"


def broken(value: Any, rule: Rule, name: str) -> Iterator[str]:
    """Yield a message if the value breaks the rule."""
    if not rule.holds(value):
        yield f"{name} expects {rule.expects}; got {brief(value)}"


def brief(value: Any) -> str:
    """Return the value for a message: as ASCII text if it is short, otherwise its type and size."""
    if isinstance(value, list | dict) and value:
        return f"a {type(value).__name__} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"


def are_metrics(found: dict[str, Any]) -> bool:
    """Return whether every value but ``split`` is a finite number or None."""
    for key, value in found.items():  # a loop, because a log has many rows
        if type(value) in (float, int):
            if not -LARGEST <= value <= LARGEST:
                return False
        elif value is not None and key != "split":
            return False
    return True


METRICS = Rule(are_metrics, "a finite number or null for each metric")
Evaluation = Annotated[dict[str, Any], METRICS]
"""step, loss and metrics of an evaluation by name"""


class Result(TypedDict):
    """The content of ``result.json``, as training writes it. Some tasks add further numbers."""

    layer: dict[str, Any]
    task: dict[str, Any]
    train: dict[str, Any]
    seed: int
    parameters: int
    steps: int
    """updates that were done"""
    best: Evaluation | None
    """evaluation with the lowest validation loss: ``step``, ``loss`` and metrics; None if there was no evaluation"""
    final: Evaluation | None
    test: NotRequired[Evaluation]
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
    """A row of ``metrics.jsonl``: update and split. The loss and the metrics follow, by name, as numbers or null."""

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
    counts: Literal["best", "last", "test", "extreme"]
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


# readers


def refuse(token: str) -> float:
    """Raise ValueError: Python reads NaN and Infinity by default, but they are no JSON."""
    raise ValueError(f"{token} is no JSON")


decode = json.JSONDecoder(parse_constant=refuse).decode


def check_regular(path: Path) -> None:
    """Raise OSError if ``path`` is a folder, a pipe or a device: reading from a pipe might never end."""
    if path.exists() and not path.is_file():
        raise OSError("expected a file; got a folder, a pipe or a device")


def read_json(path: Path, kind: Any, what: str) -> Any:
    """Return the content of a JSON file of type ``kind``. Otherwise raise RunError, which calls the file ``what``."""
    try:
        check_regular(path)
        value = decode(path.read_text("utf-8"))
    except OSError as error:
        raise RunError(f"{path} is not {what}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not {what}: {error}") from None
    for fault in faults(value, kind, path.stem):
        raise RunError(f"{path} is not {what}: {fault}")
    return value


def read_lines(path: Path, fault_of: Callable[[Any], str | None], what: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file one by one; none if there is no such file. Raise RunError at an invalid row.

    ``fault_of`` returns what is wrong with a row, or None. An incomplete last line is left out: a run that was killed
    may leave one. ``what`` is the name of the content in messages.
    """
    if not path.exists():
        return
    try:
        check_regular(path)
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = decode(line.decode())
                    fault = fault_of(row)
                except (ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):
                        return
                    fault = str(error)
                if fault:
                    raise RunError(f"{path} is not {what}: line {number}: {fault}")
                yield row
    except OSError as error:
        raise RunError(f"{path} is not {what}: {error.strerror or error}") from None


class Rows:
    """Checks the rows of a JSON Lines log in order: their type, and that the updates of a split do not fall."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.last: dict[str, int] = {}

    def fault(self, row: Any) -> str | None:
        """Return a message that says what is wrong with ``row``, or None. Call this for each row of a log, in order.

        The update of a valid row is stored: the next row of the same split must not have a smaller one.
        """
        for fault in faults(row, self.kind, "a row"):
            return fault
        split, step = row.get("split", ""), row["step"]
        if step < self.last.get(split, step):
            return f"step expects at least {self.last[split]}, that of an earlier row; got {step}"
        self.last[split] = step
        return None


def metrics_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run's ``metrics.jsonl`` one by one. Raise RunError at an invalid row."""
    return read_lines(path, Rows(Annotated[MetricsRow, METRICS]).fault, "a run's metrics")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``metrics.jsonl``, without an incomplete last row. Raise RunError if invalid."""
    return list(metrics_rows(path))


def read_result(path: Path) -> Result:
    """Return the content of a run's ``result.json``. Raise RunError if it is invalid."""
    result: Result = read_json(path, Result, "a run's result")
    needed = (("layer", "name", str), ("task", "name", str), ("train", "steps", Any), ("task", "held_out", int))
    for table, key, kind in needed:
        settings = settings_tables(result)[table]
        if key not in settings and key != "held_out":  # only some tasks hold shapes out of training
            raise RunError(f"{path} is not a run's result: {table} has no {key}")
        for fault in faults(settings[key], kind, f"{table}.{key}") if key in settings else ():
            raise RunError(f"{path} is not a run's result: {fault}")
    return result


def read_table(path: Path) -> list[TableRow]:
    """Return the rows, dicts, of a ``table.json`` that `reproduce` wrote. Raise RunError if they are invalid."""
    rows: list[TableRow] = read_json(path, list[TableRow], "a table of reproduce")
    if any(row.get("transfer") and "trained_on" not in row for row in rows):
        raise RunError(f"{path} is not a table of reproduce: row has no trained_on")
    return rows
