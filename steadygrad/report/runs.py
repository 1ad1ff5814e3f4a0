"""Read the files that runs and `reproduce` have written. Nothing here needs torch."""

import os
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steadygrad import files, records
from steadygrad.check import is_number
from steadygrad.files import value_text
from steadygrad.records import Result, TableRow, settings_tables


@dataclass(frozen=True)
class Run:
    """The files of one run: its result, the rows of its metrics, its observations and its portrait."""

    path: Path
    result: Result
    rows: list[dict[str, Any]]
    observations: list[dict[str, Any]] = field(default_factory=list)
    portrait: dict[str, Any] | None = None

    @property
    def layer(self) -> str:
        """Name of the run's layer."""
        return str(self.result["layer"]["name"])

    @property
    def task(self) -> str:
        """Name of the run's task."""
        return str(self.result["task"]["name"])

    @property
    def seed(self) -> int:
        """Random seed of the run."""
        return int(self.result["seed"])

    @property
    def command(self) -> str:
        """Shell command that repeats the run, with every setting spelled out."""
        words = ["steadygrad", "train", self.layer, self.task]
        for table, settings in settings_tables(self.result).items():
            given = {key: value for key, value in settings.items() if key != "name"}
            words += [word for key, value in given.items() for word in (f"--{table}.{key}", value_text(value))]
        return shlex.join([*words, "--seed", str(self.seed)])

    def curve(self, metric: str, split: str = "valid") -> tuple[list[int], list[float]]:
        """Return the updates at which the metric was measured, and its values there, as two lists."""
        rows = [row for row in self.rows if row["split"] == split and is_number(row.get(metric))]
        return [row["step"] for row in rows], [row[metric] for row in rows]


@dataclass(frozen=True)
class PaperTable:
    """Path and rows of a ``table.json`` that `reproduce` wrote for a paper's table."""

    path: Path
    rows: list[TableRow]


def find(folders: Sequence[str | Path]) -> list[Run]:
    """Return every finished or stopped run in these folders, at any depth. Raise ValueError if there is none.

    Raise ValueError too if a folder does not exist or a file of a run is invalid.
    """
    runs: list[Run] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ValueError(f"report expects folders with runs; {folder} is not a folder")
        known = {run.path.resolve() for run in runs}
        found = [path.parent for path in sorted(folder.glob(f"**/{files.RESULT}"))]
        runs += [read(path) for path in found if path.resolve() not in known]
    if not runs:
        raise ValueError(f"no runs in {', '.join(map(str, folders))}: a run has a result.json")
    return runs


def find_papers(folders: Sequence[str | Path]) -> list[PaperTable]:
    """Return every paper's table that `reproduce` wrote into these folders, at any depth."""
    found = []
    for path in [path for folder in folders for path in sorted(Path(folder).glob(f"**/{files.TABLE}"))]:
        rows = records.read_table(path)
        found += [PaperTable(path, rows)] if rows else []
    return found


def read(folder: Path) -> Run:
    """Return the run in this folder. Raise ValueError if one of its files is invalid."""
    return Run(
        folder,
        records.read_result(folder / files.RESULT),
        records.read_metrics(folder / files.METRICS),
        files.read_rows(folder / files.OBSERVATIONS),
        read_portrait(folder / files.PORTRAIT),
    )


def read_portrait(path: Path) -> dict[str, Any] | None:
    """Return the content of a ``portrait.json``, a dict, or None if there is none. Raise RunError if it is invalid."""
    return records.read_json(path, dict, "a portrait") if path.exists() else None


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
        tables = [settings_tables(run.result)[table] | {"name": name} for run, name in zip(runs, named, strict=True)]
        named = distinct_names(tables, but=[key for one in tables for key in one if key.endswith("seed")])
    named = longer_if_needed(named, [f"seed {run.seed}" for run in runs])
    return named if len(set(named)) == len(runs) else [path.as_posix() for path in distinct_paths(runs)]


def longer_if_needed(names: list[str], words: Sequence[str]) -> list[str]:
    """Return the names with the words appended if this distinguishes more of them, otherwise the names."""
    longer = [f"{name} {word}" for name, word in zip(names, words, strict=True)]
    return longer if len(set(longer)) > len(set(names)) else names


def distinct_names(tables: Sequence[dict[str, Any]], but: Collection[str] = ()) -> list[str]:
    """Return a label for each dict of settings: its ``name``, then the settings in which dicts of that name differ.

    A label is like "RNN, hidden_size 64". Settings in ``but`` are left out.
    """
    values: dict[tuple[str, str], set[str]] = {}
    for table in tables:
        for key, value in table.items():
            values.setdefault((table["name"], key), set()).add(value_text(value))
    return [
        ", ".join(
            [table["name"]]
            + [
                f"{key} {value_text(value)}"
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
    """Return the label of a run without the seed: the name of its group."""
    return re.sub(r" seed \d+$", "", label)


def part_name(name: str, part: str) -> str:
    """Return the name of a part of a network's state in a chart; the whole state has the network's name."""
    return name if part == "state" else f"{name}, {part}"


def level_name(name: str, number: int, levels: Sequence[Any]) -> str:
    """Return the name of a network's level ``number`` in a chart; a single level has the network's name."""
    return name if len(levels) == 1 else f"{name}, level {number}"


def row_or_layer(run: Run) -> str:
    """Return the name of the paper's row that a run belongs to, or else the name of its layer.

    `reproduce` names a folder after the row and creates a folder seed-N in it for each seed.
    """
    return run.path.parent.name if re.fullmatch(r"seed-\d+", run.path.name) else run.layer
