"""Runs rows of papers and sets our numbers beside theirs."""

import statistics
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steadygrad.experiments.recipe import Recipe
from steadygrad.experiments.transfer import Change, tests, transfer, words
from steadygrad.training import RunDirectory, RunError, Watch, train

Watches = Callable[[Recipe, int], Sequence[Watch]]
"""who follows the run of a row with a seed"""


def seeds_of(recipe: Recipe, count: int) -> list[int]:
    """The recipe's own seeds first, then the numbers that follow."""
    own = list(recipe.seeds[:count])
    return own + [max(recipe.seeds) + 1 + i for i in range(count - len(own))]


def run_directory(recipe: Recipe, seed: int, out: Path) -> Path:
    return out / recipe.paper / recipe.table / recipe.row / f"seed-{seed}"


def reproduce(
    recipes: Sequence[Recipe],
    *,
    scale: str = "desk",
    seeds: int = 1,
    out: str | Path = "runs",
    watches: Watches = lambda recipe, seed: (),
) -> list[dict[str, Any]]:
    """Run every row with every seed; what is done already is not done again, what is half done goes on.

    Returns the rows of the table. A row that fails says why, and the others run all the same.
    """
    if seeds < 1:
        raise ValueError(f"reproduce expects at least one seed; got {seeds}")
    for recipe in recipes:  # before anything runs: a wrong recipe shows at once
        if not recipe.missing:
            settings = recipe.settings(scale)
            settings.build_model(settings.build_task())
    failures: dict[tuple[str, int], str] = {}
    for number in range(seeds):  # a first result of every row before a second of any
        for recipe in recipes:
            if recipe.missing:
                continue
            seed = seeds_of(recipe, seeds)[number]
            directory = run_directory(recipe, seed, Path(out))
            try:
                result = train(recipe.settings(scale, seed), directory, resume=True, watches=watches(recipe, seed))
                if result["status"] != "interrupted" and (changes := recipe.transfers(scale)):
                    transfer(RunDirectory(directory), changes, watches(recipe, seed))
            except RunError as error:
                failures[recipe.name, seed] = str(error)
                continue
            except Exception:  # the table says so; the other rows still have their turn
                failures[recipe.name, seed] = traceback.format_exc().strip().splitlines()[-1]
                continue
            if result["status"] == "interrupted":
                raise KeyboardInterrupt
    return [summary(recipe, scale, seeds_of(recipe, seeds), Path(out), failures) for recipe in recipes]


def summary(
    recipe: Recipe, scale: str, seeds: Sequence[int], out: Path, failures: dict[tuple[str, int], str] | None = None
) -> dict[str, Any]:
    """A row of the table, from the run directories."""
    changes = recipe.transfers(scale)
    runs = [outcome(recipe, seed, out, (failures or {}).get((recipe.name, seed)), changes) for seed in seeds]
    values = [run["value"] for run in runs if run["value"] is not None]
    return {
        "paper": recipe.paper,
        "table": recipe.table,
        "row": recipe.row,
        "caption": recipe.caption,
        "layer": recipe.layer["name"],
        "missing": recipe.missing,
        "scale": scale,
        "reduced": recipe.reduced(scale),
        "metric": recipe.metric,
        "attained": recipe.attained,
        "counts": recipe.counts,
        "printed_parameters": recipe.parameters,
        "parameters": next((run["parameters"] for run in runs if run["parameters"]), None),
        "guessing_loss": next((run["guessing_loss"] for run in runs if run["guessing_loss"]), None),
        "published": recipe.published.get(recipe.metric),
        "ours": statistics.median(values) if values else None,
        "trained_on": words(recipe.trained_on(scale)),
        "transfer": [
            {"name": words(change), "published": recipe.published.get(f"{recipe.metric}@{value}")}
            for change in changes
            for value in change.values()
        ],
        "runs": [] if recipe.missing else runs,
        "seconds": sum(run["seconds"] or 0.0 for run in runs),
        "note": recipe.note,
        "figures": list(recipe.figures),
    }


def outcome(recipe: Recipe, seed: int, out: Path, failure: str | None, changes: Sequence[Change]) -> dict[str, Any]:
    directory = RunDirectory(run_directory(recipe, seed, out))
    found = {
        "seed": seed,
        "status": "not run",
        "value": None,
        "parameters": None,
        "guessing_loss": None,
        "seconds": None,
        "transfer": [],
    }
    result = directory.result() if failure is None else None
    if failure is not None:
        return found | {"status": "failed", "why": failure}
    if result is None:
        return found
    score, better = result["score"], max if result["higher_is_better"] else min
    scores = {
        split: [row[score] for row in directory.rows() if row["split"] == split and row.get(score) is not None]
        for split in ("valid", "train")
    }
    return found | {
        "score": {"name": score, **{split: better(values) if values else None for split, values in scores.items()}},
        "status": result["status"],
        **({"why": result["why"]} if "why" in result else {}),
        "value": number(recipe, directory, result),
        "final": result["final"],
        "best": result["best"],
        "steps": result["steps"],
        "parameters": result["parameters"],
        "guessing_loss": result["guessing_loss"],
        "seconds": result["wall_seconds"],
        "transfer": [
            {"name": words(test["task"]), "value": test.get(recipe.metric), "examples": test["examples"]}
            for test in (tests(directory, result) if changes else [])
            if test["task"] in changes
        ],
    }


def number(recipe: Recipe, directory: RunDirectory, result: dict[str, Any]) -> float | None:
    """What the table has of a run; a test only of one that went to its end."""
    if recipe.counts == "test":
        return (result.get("test") or {}).get(recipe.metric)
    evaluated = [row for row in directory.rows() if row["split"] == "valid"]
    values = [row[recipe.metric] for row in evaluated if row.get(recipe.metric) is not None]
    if not values:
        return None
    return values[-1] if recipe.counts == "last" else {"min": min, "max": max}[recipe.attained](values)
