"""Reads what runs have written. Nothing here needs torch."""

import json
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
    """Short names that tell the runs apart: the layer, then what differs: task, folder, seed."""
    parts = [
        [run.layer for run in runs],
        [run.task for run in runs],
        [size_of(run) for run in runs],
        [f"seed {run.seed}" for run in runs],
    ]
    named = [[str(word)] for word in parts[0]]
    for words in parts[1:]:
        if len({tuple(name) for name in named}) == len(runs):
            break
        if len(set(words)) > 1:
            named = [[*name, str(word)] for name, word in zip(named, words, strict=True)]
    short = [" ".join(name) for name in named]
    return short if len(set(short)) == len(runs) else [str(run.path) for run in runs]


def size_of(run: Run) -> str:
    return str(run.result["layer"].get("hidden_size", ""))
