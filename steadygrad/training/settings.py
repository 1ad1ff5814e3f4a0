"""Settings of a run as data: layer, task, training and seed. Unknown keys are refused."""

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from steadygrad.catalog.networks import check_network
from steadygrad.check import check_name, refuse_unknown
from steadygrad.layers import LAYERS, RecurrentLayer
from steadygrad.models import Model
from steadygrad.tasks import TASKS, Task
from steadygrad.training.kinds import kind_of, networks_for
from steadygrad.training.options import Train
from steadygrad.training.typed import (
    build,
    check_type,
    construct,
    keyword_options,
    layer_options,
    none_as_string,
)

FIRST_NAMES: dict[str, str] = {}
"""Renamed settings, later name → first name. The first name stays in stored files and in fingerprints.

A key is written TABLE.KEY: {"train.updates": "train.steps"}. A name that is a value is written TABLE.KEY=NAME:
{"layer.name=nc-gru": "layer.name=ncgru"}. A setting that is renamed twice has two entries, the newest last.
"""


@dataclass(frozen=True)
class Settings:
    """The settings of a training run. ``layer`` and ``task`` are dicts {"name": …, options}.

    For a task of objects ``layer`` names a relational network, or a recurrent layer that reads the objects one after
    another. The options of the model around a layer are options of ``layer`` too.
    """

    layer: dict[str, Any]
    task: dict[str, Any]
    train: Train
    seed: int = 0

    def build_task(self) -> Task:
        """Return the task that the settings describe. Raise ValueError if an option is invalid."""
        name = check_name("task", self.task.get("name"), TASKS)
        return build(TASKS[name], {k: v for k, v in self.task.items() if k != "name"}, f"task {name}")

    def build_model(self, task: Task) -> Model:
        """Return a new model for the task. It is initialised from torch's global generator: seed that first.

        Raise ValueError if an option of the layer is unknown, missing, of the wrong type or not possible for the task.
        """
        name, given = self.network(), self.given_options()
        who = f"layer {name}"
        refuse_unknown(who, given, self.known_options())
        if task.causal and given.get("bidirectional"):
            task_name = type(task).__name__
            raise ValueError(
                f"{task_name} predicts the next input and expects a unidirectional layer; got bidirectional=True"
            )
        if self.train.window is not None and given.get("bidirectional"):
            raise ValueError(
                "truncated back-propagation (window) expects a layer of one direction, to carry its state on"
            )
        kind = kind_of(task)
        if name in kind.networks:
            network = kind.networks[name]
            return construct(who, network, kind.network_arguments(task), given, keyword_options(network))
        around = keyword_options(kind.model)
        own = {key: value for key, value in given.items() if key in around}
        return construct(who, kind.model, kind.arguments(task, self.build_layer), own, around)

    def build_layer(self, input_size: int, hidden_size: int | None = None) -> RecurrentLayer:
        """Return the layer for ``input_size`` features per step, with ``hidden_size`` units if that is given."""
        name = check_name("layer", self.layer.get("name"), LAYERS)
        around = keyword_options(kind_of(self.task["name"]).model)
        given = {key: value for key, value in self.given_options().items() if key not in around}
        if hidden_size is not None:
            if given.get("hidden_size") is not None:
                raise ValueError(f"layer {name} expects either hidden_size or sizes; got both")
            given |= {"hidden_size": hidden_size}
        return construct(f"layer {name}", LAYERS[name], (input_size,), given, layer_options(LAYERS[name]))

    def in_updates(self, task: Task) -> Train:
        """Return ``train``, a `Train`, with its length converted from epochs or frames of the task to updates.

        Frames are converted to the largest number of updates that they can take. Epochs also set ``evaluate_every`` to
        one epoch. Raise ValueError if the task has no epochs or no frames.
        """
        return kind_of(task).batches.in_updates(task, self.train)

    def network(self) -> str:
        """Return the name of the layer or network, or raise ValueError if the task has no such network."""
        return named_network(self.layer, check_name("task", self.task.get("name"), TASKS))

    def given_options(self) -> dict[str, Any]:
        """Return the dict of the options given in ``layer``, without the name."""
        known = self.known_options()
        given = {key: value for key, value in self.layer.items() if key != "name"}
        return {
            key: none_as_string(value, known[key].annotation) if key in known else value for key, value in given.items()
        }

    def known_options(self) -> dict[str, Any]:
        """Return the options that ``layer`` may have besides the name, as a dict of `inspect.Parameter`s."""
        name, kind = self.network(), kind_of(self.task["name"])
        if name in kind.networks:
            return keyword_options(kind.networks[name])
        return layer_options(LAYERS[name]) | keyword_options(kind.model)

    def resolved(self) -> dict[str, Any]:
        """Return all settings as a dict: ``seed`` and the tables ``layer``, ``task`` and ``train`` with all defaults.

        Settings that are None are left out, because TOML has no null.
        """
        tables = self.complete()
        known = {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}
        return {"seed": self.seed, **known}

    def complete(self) -> dict[str, dict[str, Any]]:
        """Return a dict of the tables layer, task and train with all defaults, including those that are None."""
        known = self.known_options()
        defaults = {key: p.default for key, p in known.items() if p.default is not inspect.Parameter.empty}
        return {
            "layer": {"name": self.layer["name"], **defaults, **self.given_options()},
            "task": {"name": self.task["name"], **asdict(self.build_task())},
            "train": asdict(self.train),
        }

    def revisions(self) -> dict[str, int]:
        """Return the revision numbers above 1 of layer, model and task, a dict by role ("layer", "model", "task").

        The ``revision`` of a class is raised when the same settings no longer mean the same.
        """
        name, task = self.network(), self.task["name"]
        classes: dict[str, object] = {"layer": networks_for(task)[name], "task": TASKS[task]}
        if name not in kind_of(task).networks:
            classes["model"] = kind_of(task).model
        found = {role: getattr(cls, "revision", 1) for role, cls in classes.items()}
        return {role: revision for role, revision in found.items() if revision != 1}

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], who: str = "settings") -> "Settings":
        """Return settings built from tables of plain values, the inverse of `resolved`.

        Raise ValueError if a key or type is wrong in task, train or seed, or if the network is unknown. The options of
        the layer are checked when it is built.
        """
        refuse_unknown(who, tables, [field.name for field in fields(cls)])
        for name in ("layer", "task", "train"):
            if not isinstance(tables.get(name, {}), dict):
                raise ValueError(f"{who} expects {name} to be a table; got {tables[name]!r}")
        seed = check_type(who, "seed", tables.get("seed", 0), int)
        train = build(Train, tables.get("train", {}), f"{who}, train")
        settings = cls(dict(tables.get("layer", {})), dict(tables.get("task", {})), train, seed)
        settings.build_task()
        settings.network()
        return settings


def with_first_names(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of settings tables in which every renamed setting has its first name, the oldest one.

    The tables are dicts such as `Settings.resolved` returns. Fingerprints are computed from first names, so renaming a
    setting does not change them. The first names are in `FIRST_NAMES`.
    """
    return renamed(tables, FIRST_NAMES)


def with_current_names(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of settings tables in which every setting has its current name.

    The tables may come from an older version, which used other names. The renamed settings are in `FIRST_NAMES`.
    """
    return renamed(tables, {first: later for later, first in FIRST_NAMES.items()})


def renamed(tables: Mapping[str, Any], names: Mapping[str, str], path: str = "") -> dict[str, Any]:
    """Return a copy of settings tables with keys and values renamed.

    ``names`` maps names to new names, both written as in `FIRST_NAMES`. ``path`` is the position of ``tables`` in outer
    tables, such as "train.".
    """
    result: dict[str, Any] = {}
    for key, value in tables.items():
        place = f"{path}{key}"
        if isinstance(value, Mapping):
            value = renamed(value, names, f"{place}.")
        elif isinstance(value, str):
            value = names.get(f"{place}={value}", f"={value}").partition("=")[2]
        result[names.get(place, place).rpartition(".")[2]] = value
    return result


def named_network(table: Mapping[str, Any], task: str) -> str:
    """Return the name in a layer's table of settings, or raise ValueError if the task has no such network."""
    name, known = table.get("name"), networks_for(task)
    fitting = [other for other in TASKS if name in list(kind_of(other).networks)]
    return check_network(name, task, known, fitting)
