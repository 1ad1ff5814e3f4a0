"""Settings for a layer and a task that no one has given any for: those of the nearest row of a paper."""

from dataclasses import dataclass
from typing import Any

from steadygrad.experiments.recipe import Recipe, every
from steadygrad.models import MODELS
from steadygrad.tasks import TASKS
from steadygrad.training.settings import is_of_objects, named, named_network

OF_THE_LAYER = ("optimizer", "lr", "lr_constrained", "smoothing", "decay_transients", "clip")
"""training settings that go with a layer; the others go with the task"""


@dataclass(frozen=True)
class Nearest:
    tables: dict[str, Any]
    """layer, task and train, as `Settings.from_tables` takes them"""
    source: str
    """where they come from, in words"""


def nearest(layer: str, task: str) -> Nearest:
    """The row for this pair if a paper has one; else the task's settings of one row with the layer's of another.

    Of several rows the one with the least work, at desk scale. Among objects a layer is another network than over
    time, so there only rows of such tasks count.
    """
    named("task", {"name": task}, TASKS)
    named_network({"name": layer}, task)
    kind = is_of_objects(task)
    rows = sorted((row for row in every() if row.missing is None and is_of_objects(row.task["name"]) == kind), key=work)
    for_task = [row for row in rows if row.task["name"] == task]
    for_layer = [row for row in rows if row.layer["name"] == layer]
    if both := [row for row in for_task if row in for_layer]:
        return Nearest(tables(both[0]), f"{both[0].name}, at desk scale")
    plain, units = {"name": layer, "hidden_size": 128}, "128 units"
    if kind and layer in MODELS:
        plain, units = {"name": layer}, "its own sizes"
    general = dict(TASKS[task].training)
    if not for_task:
        return Nearest({"layer": plain, "task": {"name": task}, "train": general}, "the defaults")
    base = tables(for_task[0])
    train = general | {key: value for key, value in base["train"].items() if key not in OF_THE_LAYER}
    if not for_layer:
        source = f"the task as in {for_task[0].name}, at desk scale; {layer} with {units}"
        return Nearest({"layer": plain, "task": base["task"], "train": train}, source)
    other = tables(for_layer[0])
    train |= {key: value for key, value in other["train"].items() if key in OF_THE_LAYER}
    source = f"the task as in {for_task[0].name}, the layer as in {for_layer[0].name}, at desk scale"
    return Nearest({"layer": other["layer"], "task": base["task"], "train": train}, source)


def work(recipe: Recipe) -> tuple[bool, int]:
    """Time steps in all of training; papers come before the demo."""
    settings = recipe.settings("desk")
    steps = settings.build_task().steps * settings.train.steps * settings.train.batch
    return recipe.paper == "demo", steps


def tables(recipe: Recipe) -> dict[str, Any]:
    """At desk scale, with what the recipe has for those who do not want the paper's numbers."""
    desk, own = recipe.scales["desk"], recipe.scales["defaults"]
    return {key: getattr(recipe, key) | desk.get(key, {}) | own.get(key, {}) for key in ("layer", "task", "train")}
