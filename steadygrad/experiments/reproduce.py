"""Runs rows of papers and compares our numbers with the published ones."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from steadygrad.experiments.recipe import Recipe
from steadygrad.experiments.transfer import reason, tests, transfer, words
from steadygrad.records import Result, TableRow, TableRun, TransferResult
from steadygrad.training import Callback, InUseError, RunDirectory, RunError, train

Callbacks = Callable[[Recipe, int], Sequence[Callback]]
"""function that returns the callbacks for the run of a row with a seed"""
Notes = Mapping[str, str]
"""facts that are not in a run's files: ``status`` and ``why`` of a run without a result, and why it is ``untested``"""
FAILED, ELSEWHERE = "failed", "running elsewhere"


def seeds_of(recipe: Recipe, count: int) -> list[int]:
    """Return ``count`` seeds: those of the recipe first, then the integers that follow the largest."""
    own = list(recipe.seeds[:count])
    return own + [max(recipe.seeds) + 1 + i for i in range(count - len(own))]


def run_directory(recipe: Recipe, seed: int, out: Path) -> Path:
    """Return the path of a run's directory: out/PAPER/TABLE/ROW/seed-N."""
    return out / recipe.paper / recipe.table / recipe.row / f"seed-{seed}"


def reproduce(
    recipes: Sequence[Recipe],
    *,
    scale: str = "desk",
    seeds: int = 1,
    out: str | Path = "runs",
    callbacks: Callbacks = lambda recipe, seed: (),
) -> list[TableRow]:
    """Train every row with ``seeds`` seeds in folders under ``out``. Return the rows, with published and our numbers.

    ``callbacks(recipe, seed)`` returns the callbacks of a run. Finished runs are not repeated, and unfinished runs are
    resumed. A row that fails reports the reason, and the other rows still run. A run that another process is training
    is left to that process. Rows are dicts, see `TableRow`. Raise KeyboardInterrupt if a run was interrupted,
    ValueError if a recipe is wrong.
    """
    if seeds < 1:
        raise ValueError(f"reproduce expects at least one seed; got {seeds}")
    for recipe in recipes:  # fail early if a recipe is wrong
        settings = recipe.settings(scale)
        settings.build_model(settings.build_task())
    notes: dict[tuple[str, int], Notes] = {}
    # all rows run with their first seed before any row runs with its second
    turns = [(recipe, seeds_of(recipe, seeds)[number]) for number in range(seeds) for recipe in recipes]
    for _ in range(2):  # a second pass: by then another process may have finished its runs or stopped
        for recipe, seed in turns:
            notes[recipe.name, seed] = run_row(recipe, scale, seed, Path(out), callbacks)
        turns = [turn for turn in turns if notes[turn[0].name, turn[1]].get("status") == ELSEWHERE]
    return [summary(recipe, scale, seeds_of(recipe, seeds), Path(out), notes) for recipe in recipes]


def run_row(recipe: Recipe, scale: str, seed: int, out: Path, callbacks: Callbacks) -> Notes:
    """Train a row of a paper with one seed and run its transfer tests.

    ``callbacks(recipe, seed)`` returns the callbacks; it is called for the training and again for the tests.

    Return a dict that is empty after success. After an error in training it has ``status`` and ``why``, after one in
    the tests ``untested``, the reason: the other rows still run. If another process trains the row, it has ``status``.
    Raise KeyboardInterrupt if the run was interrupted.
    """
    directory, trained = run_directory(recipe, seed, out), False
    try:
        result = train(recipe.settings(scale, seed), directory, resume=True, callbacks=callbacks(recipe, seed))
        trained = True
        if result["status"] != "interrupted" and (changes := recipe.transfers(scale)):
            transfer(RunDirectory(directory), changes, callbacks(recipe, seed), recipe.weights)
    except InUseError:
        return {"status": ELSEWHERE}
    except Exception as error:
        return {"untested": reason(error)} if trained else {"status": FAILED, "why": reason(error)}
    if result["status"] == "interrupted":
        raise KeyboardInterrupt
    return {}


def summary(
    recipe: Recipe, scale: str, seeds: Sequence[int], out: Path, notes: Mapping[tuple[str, int], Notes] | None = None
) -> TableRow:
    """Return a row of a paper's table with the published number and ours, from the run directories under ``out``.

    The row is a dict, see `TableRow`. ``notes`` are what `run_row` returned, by row name and seed.
    """
    known = notes or {}
    return table_row(
        recipe, scale, [outcome(recipe, scale, seed, out, known.get((recipe.name, seed), {})) for seed in seeds]
    )


def whole_table(rows: Sequence[TableRow], recipes: Sequence[Recipe], scale: str, out: Path) -> list[TableRow]:
    """Return a paper's table: ``rows``, and the other rows and seeds in ``out`` that ended at this scale.

    ``recipes`` are those of all rows of the table; a row that is not in ``rows`` and has no such run is left out. The
    outcome of a run that another process was training is read again.
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


def seeds_with_result(recipe: Recipe, out: Path) -> list[int]:
    """Return the seeds of a row that have a result under ``out``. Other folders, as seed-0.before-1, do not count."""
    names = [path.parent.name for path in run_directory(recipe, 0, out).parent.glob("seed-*/result.json")]
    return sorted(int(name) for name in (name.removeprefix("seed-") for name in names) if name.isdecimal())


def ended(recipe: Recipe, scale: str, out: Path) -> list[int]:
    """Return the seeds of a row whose runs under ``out`` ended with the settings of this scale."""
    return [seed for seed in seeds_with_result(recipe, out) if has_ended(recipe, scale, seed, out)]


def has_ended(recipe: Recipe, scale: str, seed: int, out: Path) -> bool:
    """Return whether the run of a row with a seed ended, done or diverged, with the settings of this scale."""
    directory = RunDirectory(run_directory(recipe, seed, out))
    try:
        result, wanted = directory.result(), recipe.settings(scale, seed)
        same = directory.settings().resolved() == wanted.resolved() and directory.revisions() == wanted.revisions()
    except ValueError:  # not the files of a run, or of an unknown layer or task
        return False
    return same and result is not None and result["status"] in ("done", "diverged")


def table_row(recipe: Recipe, scale: str, runs: Sequence[TableRun]) -> TableRow:
    """Return a row of a paper's table from the outcomes of its runs. ``ours`` is the median over seeds."""
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


def outcome(recipe: Recipe, scale: str, seed: int, out: Path, notes: Notes | None = None) -> TableRun:
    """Return status, value and transfer tests of one run as a dict, from its directory and from notes on errors.

    The status is "not run" if there is no such run.
    """
    directory, said = RunDirectory(run_directory(recipe, seed, out)), notes or {}
    found: TableRun = {
        "seed": seed,
        "status": said.get("status", "not run"),
        "value": None,
        "parameters": None,
        "guessing_loss": None,
        "seconds": None,
        "transfer": [],
    }
    result = directory.result() if said.get("status") != FAILED else None
    if result is None or (result["status"] == "interrupted" and said.get("status") == ELSEWHERE):
        return found | ({"why": said["why"]} if "why" in said else {})
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
        "transfer": tested(recipe, scale, directory, result, said.get("untested")),
    }


def tested(
    recipe: Recipe, scale: str, directory: RunDirectory, result: Result, why: str | None
) -> list[TransferResult]:
    """Return the results of a run's transfer tests, a list of dicts. Tests that were not run are left out.

    A test that failed has the reason in ``why`` and no value. The argument ``why`` is the reason of tests that have no
    stored result.
    """
    changes = recipe.transfers(scale)
    try:
        known = tests(directory, result, recipe.weights) if changes else []
    except RunError as error:
        known, why = [], str(error)
    if why is not None:
        missing = {"examples": result["train"]["evaluate_examples"], "why": why}
        known = known + [{"task": change, **missing} for change in changes]  # known results are found first
    found = [next((test for test in known if test["task"] == change), None) for change in changes]
    rows: list[TransferResult] = []
    for test in filter(None, found):
        rows.append({"name": words(test["task"]), "value": test.get(recipe.metric), "examples": test["examples"]})
        if "why" in test:
            rows[-1]["why"] = test["why"]
    return rows


def evaluation(recipe: Recipe, directory: RunDirectory, result: Result) -> dict[str, Any]:
    """Return the evaluation of a run whose numbers the paper's table shows, such as the best one, as a dict.

    The dict is empty if the run ended before it.
    """
    if recipe.counts != "extreme":
        return {"best": result["best"], "last": result["final"], "test": result.get("test")}[recipe.counts] or {}
    rows = [row for row in directory.metrics() if row["split"] == "valid" and row.get(recipe.metric) is not None]
    return {"min": min, "max": max}[recipe.attained](rows, key=itemgetter(recipe.metric), default={})
