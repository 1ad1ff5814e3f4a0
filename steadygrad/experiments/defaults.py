"""Settings for a layer and a task that no one has given any for: those of the nearest row of a paper."""

from dataclasses import dataclass
from typing import Any

from steadygrad.experiments.recipe import Recipe, every, train_with
from steadygrad.models import MODELS
from steadygrad.tasks import TASKS, DataTask, EnvironmentTask, ObjectTask, Task, TextTask
from steadygrad.training.settings import named, named_network

UNITS: dict[type[Task], int] = {TextTask: 256, EnvironmentTask: 64}
"""of a layer that nobody has sized, if not 128"""
OF_THE_LAYER = (
    *("optimizer", "optimizer_constrained", "lr", "lr_constrained", "smoothing", "beta1"),
    *("decay_transients", "clip"),
)
"""training settings that go with a layer; the others go with the task"""


@dataclass(frozen=True)
class Nearest:
    tables: dict[str, Any]
    """layer, task and train, as `Settings.from_tables` takes them"""
    source: str
    """where they come from, in words"""


def nearest(layer: str, task: str) -> Nearest:
    """The row for this pair if a paper has one; else the task's settings of one row with the layer's of another.

    Of several rows the one with the least work, at desk scale, and never an ablation. The layer's row is one on a task
    of the same kind. A data set itself says how to train on it: rows of other layers are as short as those are slow.
    There gradients of layers that nobody has tuned are clipped.
    """
    named("task", {"name": task}, TASKS)
    named_network({"name": layer}, task)
    kind = kind_of(task)
    known = (row for row in every() if not row.ablation)
    rows = sorted((row for row in known if kind_of(row.task["name"]) is kind), key=work)
    for_task = [row for row in rows if row.task["name"] == task]
    for_layer = [row for row in rows if row.layer["name"] == layer]
    if both := [row for row in for_task if row in for_layer]:
        return Nearest(tables(both[0]), f"{both[0].name}, at desk scale")
    size = UNITS.get(kind, 128)
    plain, units = {"name": layer, "hidden_size": size}, f"{size} units"
    if kind is ObjectTask and layer in MODELS:
        plain, units = {"name": layer}, "its own sizes"
    general = dict(TASKS[task].training)
    if issubclass(kind, DataTask):
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


def kind_of(task: str) -> type[Task]:
    """Among objects, in texts and agents other things stand around a layer; other data sets have rates of their own."""
    found = TASKS[task]
    for kind in (ObjectTask, TextTask, EnvironmentTask):
        if issubclass(found, kind):
            return kind
    return found if issubclass(found, DataTask) else Task


def work(recipe: Recipe) -> tuple[bool, int]:
    """Time steps in all of training, on data sets times the square of the units; papers come before the demo."""
    settings = recipe.settings("desk")
    task, train, layer = settings.build_task(), settings.train, settings.layer
    steps = train.frames or task.steps * train.steps * train.batch
    if isinstance(task, DataTask):
        steps = steps if train.epochs is None else task.training_steps * train.epochs
        steps *= sum(units**2 for units in layer.get("sizes") or [layer["hidden_size"]])
    return recipe.paper == "demo", steps


def tables(recipe: Recipe) -> dict[str, Any]:
    """At desk scale, with what the recipe has for those who do not want the paper's numbers."""
    found = {"layer": recipe.layer, "task": recipe.task, "train": recipe.train}
    for changes in (recipe.scales["desk"], recipe.scales["defaults"]):
        found |= {key: found[key] | changes.get(key, {}) for key in ("layer", "task")}
        found["train"] = train_with(found["train"], changes.get("train", {}))
    return found
