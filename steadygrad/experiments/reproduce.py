"""Runs rows of papers and sets our numbers beside theirs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from steadygrad.experiments.recipe import Recipe
from steadygrad.experiments.transfer import reason, tests, transfer, words
from steadygrad.training import InUseError, RunDirectory, RunError, Watch, train

Watches = Callable[[Recipe, int], Sequence[Watch]]
"""who follows the run of a row with a seed"""
Notes = Mapping[str, str]
"""what a run's files do not say: ``status`` and ``why`` of one without a result, why it is ``untested``"""
FAILED, ELSEWHERE = "failed", "running elsewhere"
EVALUATIONS = {"best": "best", "last": "final", "test": "test"}
"""what a row counts → where ``result.json`` has it"""


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

    Returns the rows of the table. A row that fails says why, and the others run all the same. What another process
    has in hand is left to it.
    """
    if seeds < 1:
        raise ValueError(f"reproduce expects at least one seed; got {seeds}")
    for recipe in recipes:  # before anything runs: a wrong recipe shows at once
        settings = recipe.settings(scale)
        settings.build_model(settings.build_task())
    notes: dict[tuple[str, int], Notes] = {}
    # a first result of every row before a second of any
    turns = [(recipe, seeds_of(recipe, seeds)[number]) for number in range(seeds) for recipe in recipes]
    for _ in range(2):  # again at the end: what another process had in hand may be done by then, or given up
        for recipe, seed in turns:
            notes[recipe.name, seed] = run_row(recipe, scale, seed, Path(out), watches)
        turns = [turn for turn in turns if notes[turn[0].name, turn[1]].get("status") == ELSEWHERE]
    return [summary(recipe, scale, seeds_of(recipe, seeds), Path(out), notes) for recipe in recipes]


def run_row(recipe: Recipe, scale: str, seed: int, out: Path, watches: Watches) -> Notes:
    """Train, and test on other settings; whatever goes wrong, the other rows have their turn."""
    directory, trained = run_directory(recipe, seed, out), False
    try:
        result = train(recipe.settings(scale, seed), directory, resume=True, watches=watches(recipe, seed))
        trained = True
        if result["status"] != "interrupted" and (changes := recipe.transfers(scale)):
            transfer(RunDirectory(directory), changes, watches(recipe, seed), recipe.weights)
    except InUseError:
        return {"status": ELSEWHERE}
    except Exception as error:
        return {"untested": reason(error)} if trained else {"status": FAILED, "why": reason(error)}
    if result["status"] == "interrupted":
        raise KeyboardInterrupt
    return {}


def summary(
    recipe: Recipe, scale: str, seeds: Sequence[int], out: Path, notes: Mapping[tuple[str, int], Notes] | None = None
) -> dict[str, Any]:
    """A row of the table, from the run directories."""
    known = notes or {}
    return table_row(
        recipe, scale, [outcome(recipe, scale, seed, out, known.get((recipe.name, seed), {})) for seed in seeds]
    )


def whole_table(
    rows: Sequence[dict[str, Any]], recipes: Sequence[Recipe], scale: str, out: Path
) -> list[dict[str, Any]]:
    """``rows`` of a table of ``recipes`` with what else lies in ``out``: other rows and seeds that ended at this scale.

    What ran elsewhere is looked at once more.
    """
    asked = {row["row"]: row["runs"] for row in rows}
    table = []
    for recipe in recipes:
        runs = [
            outcome(recipe, scale, run["seed"], out, {"status": ELSEWHERE}) if run["status"] == ELSEWHERE else run
            for run in asked.get(recipe.row, [])
        ]
        known = [run["seed"] for run in runs]
        runs += [outcome(recipe, scale, seed, out) for seed in ended(recipe, scale, out) if seed not in known]
        if runs or recipe.row in asked:
            table.append(table_row(recipe, scale, runs))
    return table


def ended(recipe: Recipe, scale: str, out: Path) -> list[int]:
    """Seeds whose runs came to an end with the settings of this scale."""
    names = [path.parent.name for path in run_directory(recipe, 0, out).parent.glob("seed-*/result.json")]
    seeds = sorted(int(name) for name in (name.removeprefix("seed-") for name in names) if name.isdecimal())
    return [seed for seed in seeds if has_ended(recipe, scale, seed, out)]


def has_ended(recipe: Recipe, scale: str, seed: int, out: Path) -> bool:
    directory = RunDirectory(run_directory(recipe, seed, out))
    try:
        result = directory.result()
        same = directory.settings().resolved() == recipe.settings(scale, seed).resolved()
    except ValueError:  # not what a run leaves behind, or not of this library
        return False
    return same and result is not None and result["status"] in ("done", "diverged")


def table_row(recipe: Recipe, scale: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    values = [run["value"] for run in runs if run["value"] is not None]
    return {
        "paper": recipe.paper,
        "table": recipe.table,
        "row": recipe.row,
        "caption": recipe.caption,
        "layer": recipe.layer["name"],
        "scale": scale,
        "reduced": recipe.reduced(scale),
        "same_task": not recipe.scales.get(scale, {}).get("task"),
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
            for change in recipe.transfers(scale)
            for value in change.values()
        ],
        "runs": list(runs),
        "seconds": sum(run["seconds"] or 0.0 for run in runs),
        "note": recipe.note,
        "figures": list(recipe.figures),
    }


def outcome(recipe: Recipe, scale: str, seed: int, out: Path, notes: Notes | None = None) -> dict[str, Any]:
    directory, said = RunDirectory(run_directory(recipe, seed, out)), dict(notes or {})
    untested = said.pop("untested", None)
    found = {
        "seed": seed,
        "status": "not run",
        "value": None,
        "parameters": None,
        "guessing_loss": None,
        "seconds": None,
        "transfer": [],
    }
    result = directory.result() if said.get("status") != FAILED else None
    if result is None:
        return found | said
    counted = evaluation(recipe, directory, result)
    return found | {
        "score": {"name": result["score"], "value": counted.get(result["score"])},
        "status": result["status"],
        **({"why": result["why"]} if "why" in result else {}),
        "value": counted.get(recipe.metric),
        "final": result["final"],
        "best": result["best"],
        "steps": result["steps"],
        "parameters": result["parameters"],
        "guessing_loss": result["guessing_loss"],
        "seconds": result["wall_seconds"],
        "transfer": tested(recipe, scale, directory, result, untested),
    }


def tested(
    recipe: Recipe, scale: str, directory: RunDirectory, result: dict[str, Any], why: str | None
) -> list[dict[str, Any]]:
    """What the tests on other settings came to; one that failed has no value and says why."""
    changes = recipe.transfers(scale)
    try:
        known = tests(directory, result, recipe.weights) if changes else []
    except RunError as error:
        known, why = [], str(error)
    if why is not None:
        missing = {"examples": result["train"]["evaluate_examples"], "why": why}
        known = known + [{"task": change, **missing} for change in changes]  # those that are known come first
    found = [next((test for test in known if test["task"] == change), None) for change in changes]
    return [
        {
            "name": words(test["task"]),
            "value": test.get(recipe.metric),
            "examples": test["examples"],
            **({"why": test["why"]} if "why" in test else {}),
        }
        for test in found
        if test
    ]


def evaluation(recipe: Recipe, directory: RunDirectory, result: dict[str, Any]) -> dict[str, Any]:
    """Return the evaluation whose numbers the table shows. A run that was not tested to its end has no test."""
    if recipe.counts != "extreme":
        return result.get(EVALUATIONS[recipe.counts]) or {}
    rows = [row for row in directory.rows() if row["split"] == "valid" and row.get(recipe.metric) is not None]
    return {"min": min, "max": max}[recipe.attained](rows, key=itemgetter(recipe.metric), default={})
