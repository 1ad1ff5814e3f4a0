"""Layers, relational networks, tasks and training settings: names, docstrings and options, read from the source.

Each function returns what the registry of the same name holds once torch is imported (`LAYERS`, `MODELS`, `TASKS`).
"""

import ast
from collections.abc import Iterable, Sequence
from functools import cache

from steadygrad.catalog.source import Class, Option, module
from steadygrad.check import check_name

NOT_FOR_LAYERS = frozenset({"input_size", "batch_first", "device", "dtype", "nonlinearity"})
"""keyword arguments of a layer that settings cannot give; nonlinearity is torch's name of activation"""
OF_EVERY_LAYER = {"hidden_size": "number of units", "num_layers": "number of stacked layers"}
"""descriptions of options that every layer has"""


@cache
def layers() -> dict[str, Class]:
    """Return the classes of layers as source code, a dict by name, in the order of `LAYERS`."""
    return entered("layers")


@cache
def tasks() -> dict[str, Class]:
    """Return the classes of tasks as source code, a dict by name, in the order of `TASKS`."""
    return entered("tasks")


@cache
def networks() -> dict[str, Class]:
    """Return the classes of relational networks as source code, a dict by name, in the order of `MODELS`."""
    here = module("models.relational")
    match here.values["MODELS"]:
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            named = {ast.literal_eval(key): here.find(ast.unparse(value)) for key, value in pairs if key}
            return {name: cls for name, cls in named.items() if cls}
    raise ValueError("models/relational/__init__.py expects MODELS to be a dict display")


def entered(package: str) -> dict[str, Class]:
    """Return the classes of a subpackage that have a name in their class line, a dict by that name.

    They are those of the modules that its ``__init__`` imports: module after module, as the registry enters them.
    """
    imported = dict.fromkeys(where for where, _ in module(package).imports.values())
    classes = [cls for name in imported for cls in module(name).classes.values()]
    return {cls.entered: cls for cls in classes if cls.entered is not None}


@cache
def kinds() -> list[tuple[Class, Class, bool]]:
    """Return the rows of `KINDS` as a list of (class of tasks, model around a layer, whether it has networks)."""
    here = module("training.kinds")
    found = []
    for row in getattr(here.values["KINDS"], "elts", []):
        task, model = (here.find(ast.unparse(argument)) for argument in row.args[:2])
        if task and model:
            found.append((task, model, any(word.arg == "networks" for word in row.keywords)))
    return found


def kind_of(task: str) -> tuple[Class, bool]:
    """Return the model around a layer on the task of this name, and whether the task has relational networks."""
    names = [(cls.module.name, cls.name) for cls in tasks()[task].lineage]
    return next((model, has) for of, model, has in kinds() if (of.module.name, of.name) in names)


def networks_for(task: str) -> dict[str, Class]:
    """Return the classes of layers and networks that can be trained on the task of this name, a dict by name."""
    _, has_networks = kind_of(task)
    return layers() | (networks() if has_networks else {})


def check_network(name: object, task: str, known: Iterable[str], fitting: Sequence[str]) -> str:
    """Return the name of a layer or network, or raise ValueError unless it can be trained on the task of this name.

    ``known`` are the names that can. ``fitting`` are the tasks that have a relational network of this name, if any.
    """
    known = list(known)
    if fitting and name not in known:
        raise ValueError(f"layer {name} expects a task out of {', '.join(fitting)}; got {task}")
    return check_name("layer", name, known)


def layer_options(name: str) -> dict[str, Option]:
    """Return the options of the layer of this name that settings may give, a dict by name."""
    options = layers()[name].options()
    return {
        key: option._replace(description=option.description or OF_EVERY_LAYER.get(key, ""))
        for key, option in options.items()
        if key not in NOT_FOR_LAYERS
    }


def network_options(name: str) -> dict[str, Option]:
    """Return the options of the relational network of this name, a dict by name."""
    return networks()[name].options(keyword_only=True)


def model_options(task: str) -> dict[str, Option]:
    """Return the options of the model around a layer on the task of this name, a dict by name."""
    model, _ = kind_of(task)
    return model.options(keyword_only=True)


def options_on(name: str, task: str) -> dict[str, Option]:
    """Return the options that ``layer`` may have in settings with this layer or network and this task."""
    _, has_networks = kind_of(task)
    if has_networks and name in networks():
        return network_options(name)
    return layer_options(name) | model_options(task)


def task_options(name: str) -> dict[str, Option]:
    """Return the options of the task of this name, a dict by name."""
    return tasks()[name].fields()


@cache
def train_options() -> dict[str, Option]:
    """Return the settings of training, a dict by name."""
    return module("training.options").classes["Train"].fields()
