"""Fingerprints of rows: equal if and only if two runs have the same settings with the same meaning.

A fingerprint is the SHA-256 of the settings in a canonical form:

- one line TABLE.KEY=VALUE for each setting of layer, task and train, for the seed and for each transfer test
- settings equal to their default are left out, so a new option with a default changes no fingerprint
- every setting has its first name (`FIRST_NAMES` in training/settings.py), so renaming changes no fingerprint
- revisions above 1 of layer, model and task (`Settings.revisions`), so raising one changes the fingerprint
"""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from steadygrad.experiments.recipe import SCALES, Recipe
from steadygrad.experiments.transfer import Change, tests
from steadygrad.tasks import TASKS
from steadygrad.training import RunDirectory, Settings, Train
from steadygrad.training.settings import with_first_names

ENDED = ("done", "diverged")


def fingerprint(
    settings: Settings, transfers: Sequence[Change] = (), revisions: Mapping[str, int] | None = None
) -> str:
    """Return the fingerprint, a hexadecimal SHA-256, of a run with ``settings`` that is tested on ``transfers``.

    ``revisions`` are those above 1 with which the run was trained; default: the current revisions of the code.
    """
    return hashlib.sha256("\n".join(canonical(settings, transfers, revisions)).encode()).hexdigest()


def canonical(
    settings: Settings, transfers: Sequence[Change] = (), revisions: Mapping[str, int] | None = None
) -> list[str]:
    """Return the lines that `fingerprint` hashes, a sorted list of strings TABLE.KEY=VALUE.

    They are the seed, all settings that are not the default, the transfer tests and the revisions.
    """
    tables, usual = settings.resolved(), defaults(settings)
    own: dict[str, Any] = {
        name: {key: value for key, value in tables[name].items() if key not in usual[name] or value != usual[name][key]}
        for name in ("layer", "task", "train")
    }
    lines = flat_lines(with_first_names({"seed": settings.seed, **own}))
    for change in transfers:
        lines += [f"transfer.{line}" for line in flat_lines(with_first_names({"task": change}))]
    revised = settings.revisions() if revisions is None else revisions
    return sorted(lines + flat_lines({"revision": revised}))


def defaults(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the default of every option that has one, in a dict of the tables layer, task and train."""
    options = settings.known_options().items()
    return {
        "layer": {key: option.default for key, option in options if option.default is not inspect.Parameter.empty},
        "task": field_defaults(TASKS[settings.task["name"]]),
        "train": field_defaults(Train),
    }


def field_defaults(cls: Any) -> dict[str, Any]:
    """Return the defaults of the fields of a dataclass, a dict by name. Fields with a default_factory are left out."""
    return {field.name: field.default for field in fields(cls) if field.default is not MISSING}


def flat_lines(tables: Mapping[str, Any], path: str = "") -> list[str]:
    """Return nested ``tables`` as a list of strings KEY.KEY=VALUE with values in JSON."""
    lines = []
    for key, value in tables.items():
        if isinstance(value, Mapping):
            lines += flat_lines(value, f"{path}{key}.")
        else:
            lines.append(f"{path}{key}={json.dumps(plain(value))}")
    return lines


def plain(value: Any) -> Any:
    """Return ``value`` in a form in which equal values have the same JSON: 1.0 becomes 1, a tuple becomes a list."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# recipes and run directories


def recipe_fingerprint(recipe: Recipe, scale: str, seed: int) -> str:
    """Return the fingerprint that a run of this row of a paper must have at a scale and with a seed."""
    return fingerprint(recipe.settings(scale, seed), recipe.transfers(scale))


def result_scale(recipe: Recipe, seed: int, directory: RunDirectory, scales: Sequence[str] = SCALES) -> str | None:
    """Return the largest of ``scales`` at which ``directory`` holds the result of a paper's row, or None.

    The row is ``recipe``, one row of a table in a paper, run with ``seed``. Scales are names in `SCALES`: smoke, desk
    and paper, the full size. Only a run that has ended counts, with all transfer tests of the row.
    """
    try:
        result = directory.result()
        if result is None or result["status"] not in ENDED:
            return None
        settings, revisions = directory.settings(), directory.revisions()
        tested = [test["task"] for test in tests(directory, result, recipe.weights) if "why" not in test]
        row = settled(recipe, settings)
        for scale in (name for name in reversed(SCALES) if name in scales):
            changes = row.transfers(scale)
            # a run that diverged before its first evaluation has no weights to test
            ran = [change for change in changes if change in tested] if result["best"] is not None else changes
            if fingerprint(settings, ran, revisions) == recipe_fingerprint(row, scale, seed):
                return scale
    except ValueError:  # not readable, of a layer or task that no longer exists, or a recipe that needs missing data
        pass
    return None


def why_not(recipe: Recipe, seed: int, directory: RunDirectory, scale: str) -> str:
    """Return a text that says why ``directory`` does not hold the result of a paper's row at ``scale``."""
    try:
        result, settings, revisions = directory.result(), directory.settings(), directory.revisions()
        here = canonical(settings, recipe.transfers(scale), revisions)
        wanted = canonical(settled(recipe, settings).settings(scale, seed), recipe.transfers(scale))
    except ValueError as error:
        return str(error)
    if result is None or result["status"] not in ENDED:
        return "the run has not ended"
    stored, asked = ([line for line in a if line not in b] for a, b in ((here, wanted), (wanted, here)))
    if not stored and not asked:
        return "transfer tests are missing"
    return f"the run has {', '.join(stored) or 'the default'}; the recipe has {', '.join(asked) or 'the default'}"


def settled(recipe: Recipe, found: Settings) -> Recipe:
    """Return ``recipe`` with the values of the run for task options that depend on the machine, such as the glyphs."""
    open_ = [field.name for field in fields(TASKS[recipe.task["name"]]) if field.default == "auto"]
    chosen = found.resolved()["task"]
    return replace(
        recipe, task=recipe.task | {key: chosen[key] for key in open_ if key not in recipe.task and key in chosen}
    )
