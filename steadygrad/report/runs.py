"""Reads what runs have written. Nothing here needs torch."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEEDED = ("status", "score", "steps", "parameters", "guessing_loss", "wall_seconds")


@dataclass(frozen=True)
class Run:
    path: Path
    result: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def layer(self) -> str:
        return str(self.result["layer"]["name"])

    @property
    def task(self) -> str:
        return str(self.result["task"]["name"])

    @property
    def seed(self) -> int:
        return int(self.result["seed"])

    def curve(self, metric: str, split: str = "valid") -> tuple[list[int], list[float]]:
        """Updates and values where the metric was measured."""
        rows = [row for row in self.rows if row["split"] == split and is_number(row.get(metric))]
        return [row["step"] for row in rows], [row[metric] for row in rows]


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find(folders: Sequence[str | Path]) -> list[Run]:
    """Every finished or stopped run in these folders, at any depth."""
    runs: list[Run] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ValueError(f"report expects folders with runs; {folder} is none")
        runs += [read(path.parent) for path in sorted(folder.glob("**/result.json"))]
    if not runs:
        raise ValueError(f"no runs in {', '.join(map(str, folders))}: a run has a result.json")
    return runs


def read(folder: Path) -> Run:
    path = folder / "result.json"
    try:
        result = json.loads(path.read_text("utf-8"))
        metrics = folder / "metrics.jsonl"
        rows = list(parsed(metrics.read_text("utf-8"))) if metrics.exists() else []
        run = Run(folder, result, rows)
        _ = run.layer, run.task, run.seed, [result[key] for key in NEEDED]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a run's result: {error}") from None
    return run


def parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return  # the last line of a run that was killed


def labels(runs: Sequence[Run]) -> list[str]:
    """Short names that tell the runs apart: row or layer, then as far as needed the task, the size, the seed."""
    parts = [
        [run.task for run in runs],
        [str(run.result["layer"].get("hidden_size", "")) for run in runs],
        [f"seed {run.seed}" for run in runs],
    ]
    named = [row_or_layer(run) for run in runs]
    for words in parts:
        longer = [f"{name} {word}" for name, word in zip(named, words, strict=True)]
        if len(set(longer)) > len(set(named)):
            named = longer
    return named if len(set(named)) == len(runs) else [str(run.path) for run in runs]


def row_or_layer(run: Run) -> str:
    """`reproduce` names a folder after the row and has a folder for each seed in it."""
    return run.path.parent.name if re.fullmatch(r"seed-\d+", run.path.name) else run.layer
