"""Read the files that runs and `reproduce` have written. Nothing here needs torch."""

import json
import os
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

TABLE_NEEDS = (
    "paper",
    "table",
    "row",
    "caption",
    "metric",
    "attained",
    "counts",
    "published",
    "parameters",
    "printed_parameters",
    "runs",
    "scale",
    "reduced",
    "note",
)
"""keys that a row of a table must have"""
RUN_NEEDS = ("seed", "status", "value", "seconds")
"""keys that each run in a row of a table must have"""
NEEDED = ("status", "score", "steps", "parameters", "guessing_loss", "wall_seconds")
"""keys that the result of a run must have"""


@dataclass(frozen=True)
class Run:
    """The files of one run: its result, the rows of its metrics, its observations and its portrait."""

    path: Path
    result: dict[str, Any]
    rows: list[dict[str, Any]]
    observations: list[dict[str, Any]] = field(default_factory=list)
    portrait: dict[str, Any] | None = None

    @property
    def layer(self) -> str:
        return str(self.result["layer"]["name"])

    @property
    def task(self) -> str:
        return str(self.result["task"]["name"])

    @property
    def seed(self) -> int:
        return int(self.result["seed"])

    @property
    def command(self) -> str:
        """The command that repeats the run, with every setting spelled out."""
        words = ["steadygrad", "train", self.layer, self.task]
        for table in ("layer", "task", "train"):
            settings = {key: value for key, value in self.result.get(table, {}).items() if key != "name"}
            words += [word for key, value in settings.items() for word in (f"--{table}.{key}", spelled(value))]
        return shlex.join([*words, "--seed", str(self.seed)])

    def curve(self, metric: str, split: str = "valid") -> tuple[list[int], list[float]]:
        """Return the updates at which the metric was measured, and its values there."""
        rows = [row for row in self.rows if row["split"] == split and is_number(row.get(metric))]
        return [row["step"] for row in rows], [row[metric] for row in rows]


@dataclass(frozen=True)
class PaperTable:
    """A paper's table as `reproduce` wrote it, row by row."""

    path: Path
    rows: list[dict[str, Any]]


def spelled(value: Any) -> str:
    """Return the value as written on the command line and in TOML."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case dict():
            return "{ " + ", ".join(f"{key} = {quoted(item)}" for key, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(quoted, value)) + "]"
        case str() if reads_otherwise(value):
            return quoted(value)
    return str(value)


def reads_otherwise(word: str) -> bool:
    """Return whether a string without quotes would be read as a number, a list, true, none, …"""
    try:
        tomllib.loads(f"value = {word}")
    except tomllib.TOMLDecodeError:
        pass
    else:
        return True
    try:
        float(word)
    except ValueError:
        return word in ("", "none")
    return True


def quoted(value: Any) -> str:
    """Return the value as `spelled` does, but strings always in quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else spelled(value)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find(folders: Sequence[str | Path]) -> list[Run]:
    """Return every finished or stopped run in these folders, at any depth."""
    runs: list[Run] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ValueError(f"report expects folders with runs; {folder} is not a folder")
        known = {run.path.resolve() for run in runs}
        found = [path.parent for path in sorted(folder.glob("**/result.json"))]
        runs += [read(path) for path in found if path.resolve() not in known]
    if not runs:
        raise ValueError(f"no runs in {', '.join(map(str, folders))}: a run has a result.json")
    return runs


def find_papers(folders: Sequence[str | Path]) -> list[PaperTable]:
    """Return every table that `reproduce` wrote into these folders, at any depth."""
    found = []
    for path in [path for folder in folders for path in sorted(Path(folder).glob("**/table.json"))]:
        try:
            rows = json.loads(path.read_text("utf-8"))
            check_table(rows)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a table of reproduce: {error!r}") from None
        found += [PaperTable(path, rows)] if rows else []
    return found


def check_table(rows: Any) -> None:
    """Raise KeyError or TypeError unless the rows have all keys that are read later, with the right types."""
    if not isinstance(rows, list):
        raise TypeError("expected a list of rows")
    for row in rows:
        _ = [row[key] for key in TABLE_NEEDS]
        check_number(row["published"], "published")
        for test in row.get("transfer", []):
            _ = row["trained_on"], test["name"]
            check_number(test["published"], "published")
        if not isinstance(row["runs"], list):
            raise TypeError("runs is no list")
        for run in row["runs"]:
            _ = [run[key] for key in RUN_NEEDS]
            check_number(run["value"], "value")
            check_number((run.get("score") or {"value": None})["value"], "score")
            for test in run.get("transfer", []):
                _ = test["name"], test["examples"]
                check_number(test["value"], "value")


def check_number(value: object, name: str) -> None:
    if value is not None and not is_number(value):
        raise TypeError(f"{name} is no number")


def read(folder: Path) -> Run:
    """Return the run in this folder, or raise ValueError if its result is invalid."""
    path = folder / "result.json"
    try:
        result = json.loads(path.read_text("utf-8"))
        run = Run(folder, result, read_rows(folder / "metrics.jsonl"), read_rows(folder / "observations.jsonl"))
        _ = run.layer, run.task, run.seed, [result[key] for key in NEEDED]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a run's result: {error}") from None
    return replace(run, portrait=read_portrait(folder / "portrait.json"))


def read_portrait(path: Path) -> dict[str, Any] | None:
    """Return the portrait in this file, or None if there is no such file."""
    if not path.exists():
        return None
    try:
        portrait = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a portrait: {error}") from None
    if not isinstance(portrait, dict):
        raise ValueError(f"{path} is not a portrait: expected a table; got {type(portrait).__name__}")
    return portrait


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a JSON Lines file, or an empty list if there is no such file."""
    return list(parsed(path.read_text("utf-8"))) if path.exists() else []


def parsed(text: str) -> Iterator[dict[str, Any]]:
    """Yield the value of each line of JSON, up to the first incomplete line."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return  # the last line of a run that was killed may be incomplete


def labels(runs: Sequence[Run]) -> list[str]:
    """Return short names that distinguish the runs.

    A name is the row or the layer, followed as far as needed by the layer, the task, the hidden size, other settings
    that differ and the seed. If names are still equal, the runs' paths are returned instead.
    """
    named = [row_or_layer(run) for run in runs]
    for words in (
        [run.layer for run in runs],
        [run.task for run in runs],
        [str(run.result["layer"].get("hidden_size", "")) for run in runs],
    ):
        named = longer_if_needed(named, words)
    for table in ("layer", "task", "train"):
        tables = [run.result.get(table, {}) | {"name": name} for run, name in zip(runs, named, strict=True)]
        named = told_apart(tables, but=[key for one in tables for key in one if key.endswith("seed")])
    named = longer_if_needed(named, [f"seed {run.seed}" for run in runs])
    return named if len(set(named)) == len(runs) else [path.as_posix() for path in distinct_paths(runs)]


def longer_if_needed(names: list[str], words: Sequence[str]) -> list[str]:
    """Return the names with the words appended if this distinguishes more of them, otherwise the names."""
    longer = [f"{name} {word}" for name, word in zip(names, words, strict=True)]
    return longer if len(set(longer)) > len(set(names)) else names


def told_apart(tables: Sequence[dict[str, Any]], but: Collection[str] = ()) -> list[str]:
    """Return the name of each table with the settings, except ``but``, in which tables of that name differ."""
    values: dict[tuple[str, str], set[str]] = {}
    for table in tables:
        for key, value in table.items():
            values.setdefault((table["name"], key), set()).add(spelled(value))
    return [
        ", ".join(
            [table["name"]]
            + [
                f"{key} {spelled(value)}"
                for key, value in table.items()
                if key not in but and len(values[table["name"], key]) > 1
            ]
        )
        for table in tables
    ]


def distinct_paths(runs: Sequence[Run]) -> list[Path]:
    """Return the runs' folders relative to their common parent."""
    paths = [run.path.resolve() for run in runs]
    common = Path(os.path.commonpath(paths))
    return [path.relative_to(common) for path in paths]


def group_of(label: str) -> str:
    """Return the label without the seed."""
    return re.sub(r" seed \d+$", "", label)


def part_name(name: str, part: str) -> str:
    """Return the name of a part of a network's state; the whole state has the network's name."""
    return name if part == "state" else f"{name}, {part}"


def level_name(name: str, number: int, levels: Sequence[Any]) -> str:
    """Return the name of one of a network's levels; a single level has the network's name."""
    return name if len(levels) == 1 else f"{name}, level {number}"


def row_or_layer(run: Run) -> str:
    """Return the name of the row that the run belongs to, or that of its layer.

    `reproduce` names a folder after the row and creates a folder seed-N in it for each seed.
    """
    return run.path.parent.name if re.fullmatch(r"seed-\d+", run.path.name) else run.layer
