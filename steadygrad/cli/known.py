"""Names and settings that commands accept, known before torch is imported, so that a typing error is answered at once.

The registries decide in the end. They may hold layers and tasks of the user's, which are known here too if the package
is already imported.
"""

import argparse
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from steadygrad.catalog import networks
from steadygrad.catalog.networks import check_network
from steadygrad.check import check_name, did_you_mean, suggestion
from steadygrad.cli.common import close_options, dotted
from steadygrad.files import SETTINGS, parse_toml

SOURCES = {
    "layers": (networks.layers, "steadygrad.layers", "LAYERS"),
    "networks": (networks.networks, "steadygrad.models", "MODELS"),
    "tasks": (networks.tasks, "steadygrad.tasks", "TASKS"),
}
"""kind of name: (how to read the names from the source, module of the registry, name of the registry)"""


def names(kind: str) -> list[str]:
    """Return the names of all "layers", "networks" or "tasks": those of the registry if it is imported."""
    read, module, registry = SOURCES[kind]
    loaded = getattr(sys.modules.get(module), registry, None)
    return list(read() if loaded is None else loaded)


def of_run(layer: str, task: str) -> dict[str, Collection[str] | None]:
    """Return the keys of the tables layer, task and train for a layer on a task, a dict; see `settings`.

    Raise ValueError for an unknown name, or for a network that the task does not have.
    """
    check_name("task", task, names("tasks"))
    if task not in networks.tasks():
        check_name("layer", layer, [*names("layers"), *names("networks")])
        return {"layer": None, "task": None, "train": networks.train_options()}
    related, objects = names("networks"), [other for other in networks.tasks() if networks.kind_of(other)[1]]
    known = dict.fromkeys([*names("layers"), *(related if task in objects else [])])
    check_network(layer, task, known, objects if layer in related else [])
    return {
        "layer": networks.options_on(layer, task) if layer in networks.networks_for(task) else None,
        "task": networks.task_options(task),
        "train": networks.train_options(),
    }


def of_layer(layer: str) -> dict[str, Collection[str] | None]:
    """Return the keys of the table layer for a layer by itself, a dict; see `settings`."""
    return {"layer": networks.options_on(layer, "copy") if layer in networks.layers() else None}


def of_run_directory(path: str) -> dict[str, Collection[str] | None]:
    """Return the keys of the table task for a run's task, a dict; see `settings`."""
    task = None
    if is_run(path):
        with suppress(ValueError, OSError):  # a damaged file is reported by the library
            tables = parse_toml(path, (Path(path) / SETTINGS).read_text("utf-8"))
            task = tables["task"]["name"] if isinstance(tables.get("task"), dict) else None
    return {"task": networks.task_options(task) if task in networks.tasks() else None}


def is_run(path: str) -> bool:
    """Return whether the path is a run's directory: it has the settings of a run."""
    return (Path(path) / SETTINGS).exists()


def no_layer(expected: str, name: str) -> ValueError:
    """Return the error for a name that is no layer; ``expected`` says what the command takes besides a layer."""
    known = names("layers")
    return ValueError(f"{expected} a layer out of {', '.join(known)}; got {name}{did_you_mean(name, known)}")


def settings(options: argparse.Namespace, known: Mapping[str, Collection[str] | None]) -> dict[str, dict[str, Any]]:
    """Return the dotted settings among the arguments of a command, a dict of tables.

    ``known`` has the keys of each table that the command accepts, None if they are not known before torch is imported.
    Raise ValueError for any other argument and for an unknown key, with the closest one.
    """
    given = dotted(options.rest, list(known), known_options(options.parser, known))
    for table, keys in known.items():
        if keys is None or "name" in given.get(table, {}):  # another layer or task, of which the library knows the keys
            continue
        for key in given.get(table, {}):
            if key not in keys:
                hint = suggestion(close_options(f"--{table}.{key}", known_options(options.parser, known)))
                raise ValueError(f"unknown setting --{table}.{key}; --{table} has {', '.join(keys)}{hint}")
    return given


def known_options(parser: argparse.ArgumentParser, known: Mapping[str, Collection[str] | None]) -> list[str]:
    """Return all options of a command as a list: its own, such as --seed, and dotted settings, such as --train.lr."""
    own = [option for option in parser._option_string_actions if option.startswith("--")]
    return own + [f"--{table}.{key}" for table, keys in known.items() for key in keys or ()]
