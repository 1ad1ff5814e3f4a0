"""Default settings for a layer and a task, taken from the nearest row of a paper."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any, cast

import torch

from steadygrad.catalog.papers import Table
from steadygrad.check import check_name
from steadygrad.experiments.recipe import Recipe, every, layer_with, train_with
from steadygrad.files import value_text
from steadygrad.tasks import TASKS, DataTask
from steadygrad.training.kinds import kind_of
from steadygrad.training.settings import Settings, named_network

OF_THE_LAYER = (
    *("optimizer", "optimizer_constrained", "lr", "lr_constrained", "smoothing", "beta1"),
    *("decay_transients", "clip"),
)
"""training settings that belong to the layer; the others belong to the task"""


@dataclass(frozen=True)
class Nearest:
    """Default settings for a layer and a task, and a text that says from which papers' rows they come."""

    tables: dict[str, Any]
    """layer, task and train, in the form of `Settings.from_tables`"""
    source: str
    """description of the rows that the settings come from"""


def nearest(layer: str, task: str) -> Nearest:
    """Return default settings for a layer on a task: from a paper's row with both, or from one row for each.

    Of several rows the one with the least work at desk scale is chosen. Ablations are never chosen. The row of the
    layer is on a task of the same kind. A data set has its own training settings and takes none from rows of other
    layers, because rows of slow layers are short. On data sets, gradients of layers without a row are clipped. Raise
    ValueError if there is no such task, or no such layer for it.
    """
    check_name("task", task, TASKS)
    named_network({"name": layer}, task)
    kind = kind_of(task)
    known = (row for row in every() if not row.ablation)
    rows = sorted((row for row in known if lends(row.task["name"], task)), key=work)
    for_task = [row for row in rows if row.task["name"] == task]
    for_layer = [row for row in rows if row.layer["name"] == layer]
    if both := [row for row in for_task if row in for_layer]:
        return Nearest(tables(both[0]), f"{both[0].name}, at desk scale")
    plain, units = {"name": layer, "hidden_size": kind.units}, f"{kind.units} units"
    if layer in kind.networks:
        plain, units = {"name": layer}, "its own sizes"
    general = dict(TASKS[task].training)
    if TASKS[task].has_splits:
        general |= {} if for_layer else {"clip": 1.0}
        base, origin, scale = {"task": {"name": task}, "train": {}}, "the task with its own settings", ""
    elif for_task:
        base, origin, scale = tables(for_task[0]), f"the task as in {for_task[0].name}", ", at desk scale"
    else:
        return Nearest({"layer": plain, "task": {"name": task}, "train": general}, "the defaults")
    train = general | {key: value for key, value in base["train"].items() if key not in OF_THE_LAYER}
    if not for_layer:
        return Nearest(base | {"layer": plain, "train": train}, f"{origin}{scale}; {layer} with {units}")
    other = tables(for_layer[0])
    train |= {key: value for key, value in other["train"].items() if key in OF_THE_LAYER}
    source = f"{origin}, the layer as in {for_layer[0].name}, at desk scale"
    return Nearest(base | {"layer": other["layer"], "train": train}, source)


def settings_for(layer: str, task: str, changes: Mapping[str, Table] = {}, seed: int = 0) -> tuple[Settings, str]:
    """Return the settings of a layer on a task with ``changes``, and a text that says where they come from.

    ``changes`` has the tables layer, task and train, or some of them. The other settings are those of `nearest`. One of
    them that does not fit the changes is left out, so that the layer's, task's or training's default applies: a row's
    ``reflections = 80`` does not fit 16 units. Raise ValueError if the changes themselves are wrong.
    """
    near = nearest(layer, task)
    if not any(changes.values()):
        return Settings.from_tables({**near.tables, "seed": seed}, "train"), near.source
    source = f"{near.source}, with your changes"
    try:
        return buildable(near.tables, changes, seed), source
    except ValueError:
        for left_out in droppable(near.tables, changes):
            with suppress(ValueError):
                lent = {
                    table: {key: value for key, value in content.items() if (table, key) not in left_out}
                    for table, content in near.tables.items()
                }
                settings = buildable(lent, changes, seed)
                words = [f"{table}.{key} = {value_text(near.tables[table][key])}" for table, key in left_out]
                return settings, f"{source}, without {' and '.join(words)}, which does not fit"
        raise


def buildable(lent: Mapping[str, Table], changes: Mapping[str, Table], seed: int) -> Settings:
    """Return the settings ``lent`` by rows with ``changes``. Raise ValueError if no model can be built with them.

    torch's random numbers are not used up.
    """
    tables = {
        "layer": layer_with(lent["layer"], changes.get("layer", {})),
        "task": {**lent["task"], **changes.get("task", {})},
        "train": train_with(lent["train"], changes.get("train", {})),
        "seed": seed,
    }
    settings = Settings.from_tables(tables, "train")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # training will give them
        settings.build_model(settings.build_task())
    return settings


def droppable(lent: Mapping[str, Table], changes: Mapping[str, Table]) -> Iterator[tuple[tuple[str, str], ...]]:
    """Return an iterator over sets of lent settings, tuples of (table, key), to leave out in turn: single ones first.

    Settings in ``changes`` and names are in none of them. Pairs and all settings of the layer follow the single ones.
    """
    given = {(table, key) for table, content in changes.items() for key in content}
    own = {
        table: [(table, key) for key in lent[table] if key != "name" and (table, key) not in given]
        for table in ("layer", "train", "task")
    }
    yield from ((one,) for keys in own.values() for one in keys)
    yield from combinations(own["layer"], 2)
    if len(own["layer"]) > 2:
        yield tuple(own["layer"])


def lends(task: str, other: str) -> bool:
    """Return whether settings in papers' rows on ``task`` may be used for ``other``. Both are names in `TASKS`.

    A row is one row of a table in a paper. The tasks must be of one kind (`kind_of`), because objects, texts and
    environments need different models around a layer. Rows on other data sets are used only for the same data set,
    because each needs its own learning rates.
    """
    kind = kind_of(task)
    return kind is kind_of(other) and (kind.shares_settings or TASKS[task] is TASKS[other])


def work(recipe: Recipe) -> tuple[bool, int]:
    """Return a key that sorts rows by work: papers' rows before the demo, then rows with fewer time steps of training.

    On data sets the time steps are multiplied by the sum of the squared hidden sizes.
    """
    settings = recipe.settings("desk")
    task, train, layer = settings.build_task(), settings.train, settings.layer
    steps = train.frames or task.steps * train.steps * train.batch
    if task.has_splits:
        steps = steps if train.epochs is None else cast(DataTask, task).training_steps * train.epochs
        steps *= sum(units**2 for units in layer.get("sizes") or [layer["hidden_size"]])
    return recipe.paper == "demo", steps


def tables(recipe: Recipe) -> dict[str, Any]:
    """Return the tables layer, task and train, a dict, of a row at desk scale, with the changes of its ``defaults``."""
    found = {"layer": recipe.layer, "task": recipe.task, "train": recipe.train}
    for changes in (recipe.scales["desk"], recipe.scales["defaults"]):
        found |= {key: found[key] | changes.get(key, {}) for key in ("layer", "task")}
        found["train"] = train_with(found["train"], changes.get("train", {}))
    return found
