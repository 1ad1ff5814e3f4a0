"""Settings of a run as data: layer, task, training and seed. Unknown keys are refused."""

import inspect
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, TypeVar, Union, get_args, get_origin

from torch import nn

from steadygrad.layers import LAYERS, RecurrentLayer
from steadygrad.layers.recurrent import Common
from steadygrad.models import MODELS, LanguageModel, PolicyModel, RelationalModel, SequenceModel
from steadygrad.models.relational import FEATURES, Recurrent
from steadygrad.tasks import TASKS, DataTask, EnvironmentTask, ObjectTask, Task, TextTask

OPTIMIZERS = ("adam", "adagrad", "rmsprop", "rmsprop-tf", "rmsprop-theano", "sgd")
LARGEST = 1e30  # the largest float32 is 3.4e38
SCHEDULES = ("constant", "step", "plateau", "cosine")
FIRST_NAMES: dict[str, str] = {}
"""Renamed settings, later name → first name. The first name stays in stored files and in fingerprints.

A key is written TABLE.KEY: {"train.updates": "train.steps"}. A name that is a value is written TABLE.KEY=NAME:
{"layer.name=nc-gru": "layer.name=ncgru"}. A setting that is renamed twice has two entries, the newest last.
"""
NOT_FOR_LAYERS = {"self", "input_size", "batch_first", "device", "dtype", "common"}
"""keywords of a layer that settings cannot give"""

Record = TypeVar("Record")
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Train:
    """Training settings: length, optimizer, learning rates, regularisation, data, evaluation."""

    steps: int = 2000
    """number of updates"""
    epochs: int | None = None
    """passes through a data set, instead of ``steps``; with an evaluation after each, instead of ``evaluate_every``"""
    batch: int = 50
    optimizer: str = "adam"
    """adam, adagrad, rmsprop, sgd (no momentum), rmsprop-tf (of TensorFlow 1: the mean square starts at 1, ε is inside
    the square root) or rmsprop-theano (of the uRNN programs: the mean square starts at 0.001, ε is negligible)"""
    optimizer_constrained: str | None = None
    """optimizer of skew parts and reflectors; default: ``optimizer``"""
    lr: float = 1e-3
    lr_constrained: float | None = None
    """learning rate of skew parts and reflectors, the parameters of orthogonal matrices; default: ``lr``"""
    smoothing: float | None = None
    """α of RMSprop or β₂ of Adam, for both optimizers if there are two; default: that of each optimizer"""
    beta1: float | None = None
    """β₁ of Adam, the decay rate of the mean gradient; default: 0.9"""
    decay_transients: float = 0.0
    """L2 weight decay of T of nnRNN, coupled: it is added to the gradient before the optimizer step"""
    decay_readout: float = 0.0
    """L2 weight decay of the readout matrix, in addition to ``weight_decay``"""
    decay_matrices: float = 0.0
    """L2 weight decay of free recurrent matrices, in addition to ``weight_decay``"""
    weight_decay: float = 0.0
    """L2 weight decay of all parameters except T of nnRNN, skew parts and reflectors"""
    clip: float | None = None
    """largest norm of the gradient; a larger gradient is scaled down to it"""
    schedule: str = "constant"
    """constant; step: learning rates are multiplied by ``lr_factor`` every ``lr_every`` updates; plateau: whenever the
    best validation loss has not improved; cosine: learning rates follow half a cosine, from their full value to 0"""
    lr_factor: float = 0.5
    lr_every: int = 1000
    examples: int | None = None
    """size of a fixed training set, whose batches come in a new order every epoch; default: always new sequences"""
    window: int | None = None
    """truncated back-propagation: one update per ``window`` time steps; the state is carried on, its gradient is not"""
    evaluate_every: int = 100
    evaluate_examples: int = 1000
    evaluate_batch: int = 100
    log_every: int = 20
    max_loss: float | None = None
    """training loss above which a run has diverged; default: 10⁶ times the guessing loss, as bad starts may recover"""
    stop_at: float | None = None
    """end the run as soon as the task's score reaches this value in an evaluation"""
    frames: int | None = None
    """time steps that an agent plays, instead of ``steps``; the agent also learns from the last round of episodes"""

    def __post_init__(self) -> None:
        at_least(
            self, "Train", 1, "steps", "batch", "evaluate_every", "evaluate_examples", "evaluate_batch", "log_every"
        )
        at_least(self, "Train", 1, "lr_every", "examples", "window", "epochs", "frames")
        positive(self, "Train", "lr", "lr_constrained", "clip", "max_loss", "lr_factor")
        for name in ("weight_decay", "decay_transients", "decay_readout", "decay_matrices"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"Train expects {name} to be at least 0; got {getattr(self, name)!r}")
        if self.smoothing is not None and not 0 < self.smoothing < 1:
            raise ValueError(f"Train expects smoothing above 0 and below 1; got {self.smoothing!r}")
        if self.beta1 is not None and not 0 <= self.beta1 < 1:
            raise ValueError(f"Train expects beta1 of at least 0 and below 1; got {self.beta1!r}")
        if self.beta1 is not None and "adam" not in (self.optimizer, self.optimizer_constrained):
            raise ValueError(f"Train expects beta1 with the optimizer adam only; got {self.optimizer!r}")
        if self.examples is not None and self.examples < self.batch:
            raise ValueError(f"Train expects examples for one batch of {self.batch} at least; got {self.examples}")
        if self.epochs is not None and self.frames is not None:
            raise ValueError(f"Train expects either epochs or frames; got {self.epochs} and {self.frames}")
        one_of("Train", "optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer_constrained is not None:
            one_of("Train", "optimizer_constrained", self.optimizer_constrained, OPTIMIZERS)
        one_of("Train", "schedule", self.schedule, SCHEDULES)
        if self.schedule == "cosine" and self.frames is not None:
            raise ValueError(f"Train expects steps or epochs for schedule cosine; got {self.frames} frames")


@dataclass(frozen=True)
class Settings:
    """The settings of a run. ``layer`` and ``task`` are dicts {"name": …, options}.

    For a task of objects ``layer`` names a relational network, or a recurrent layer that reads the objects one after
    another. The options of the model around a layer are options of ``layer`` too.
    """

    layer: dict[str, Any]
    task: dict[str, Any]
    train: Train
    seed: int = 0

    def build_task(self) -> Task:
        name = named("task", self.task, TASKS)
        return build(TASKS[name], {k: v for k, v in self.task.items() if k != "name"}, f"task {name}")

    def build_model(self, task: Task) -> SequenceModel | LanguageModel | PolicyModel | RelationalModel:
        """Return a new model for the task. It is initialised from torch's global generator: seed that first."""
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
        if isinstance(task, ObjectTask):
            problem = (task.objects, task.image_size, task.channels, task.output_size, task.segments)
            if name in MODELS:
                return construct(who, MODELS[name], problem, given, keyword_options(MODELS[name]))
            return self.build_around(Recurrent, (self.build_layer(FEATURES), *problem))
        if isinstance(task, TextTask):
            return self.build_around(LanguageModel, (self.build_layer, task.output_size))
        if isinstance(task, EnvironmentTask):
            sight = (task.view, task.kinds, task.others, task.actions)
            return self.build_around(PolicyModel, (self.build_layer, *sight))
        return self.build_around(SequenceModel, (self.build_layer(task.input_size), task.output_size, task.last_only))

    def build_around(self, model: type[Model], positional: Sequence[Any]) -> Model:
        """Return a model around a layer, with those options of ``layer`` that belong to the model."""
        around = keyword_options(model)
        own = {key: value for key, value in self.given_options().items() if key in around}
        return construct(f"layer {self.network()}", model, positional, own, around)

    def build_layer(self, input_size: int, hidden_size: int | None = None) -> RecurrentLayer:
        """Return the layer for ``input_size`` features per step, with ``hidden_size`` units if that is given."""
        name = named("layer", self.layer, LAYERS)
        around = keyword_options(surroundings(self.task["name"]))
        given = {key: value for key, value in self.given_options().items() if key not in around}
        if hidden_size is not None:
            if given.get("hidden_size") is not None:
                raise ValueError(f"layer {name} expects either hidden_size or sizes; got both")
            given |= {"hidden_size": hidden_size}
        return construct(f"layer {name}", LAYERS[name], (input_size,), given, layer_options(LAYERS[name]))

    def in_updates(self, task: Task) -> Train:
        """Return the training settings with epochs or frames converted to updates. For frames it is an upper bound."""
        if self.train.frames is not None:
            if not isinstance(task, EnvironmentTask):
                raise ValueError(f"frames are for a task that is played; {self.task['name']} is none")
            rounds = -(-self.train.frames // max(task.round_frames, task.episodes))
            return replace(self.train, steps=rounds * updates_a_round(task, self.train))
        if self.train.epochs is None:
            return self.train
        if not isinstance(task, DataTask):
            raise ValueError(f"epochs are for a task with a data set; {self.task['name']} has none")
        updates = len(task.epoch("train", self.train.batch, self.train.window))
        return replace(self.train, steps=self.train.epochs * updates, evaluate_every=updates)

    def network(self) -> str:
        """Return the name in ``layer``, or raise ValueError if the task has no such network."""
        return named_network(self.layer, named("task", self.task, TASKS))

    def given_options(self) -> dict[str, Any]:
        """Return the options in ``layer``, without the name."""
        known = self.known_options()
        given = {key: value for key, value in self.layer.items() if key != "name"}
        return {key: meant(value, known[key].annotation) if key in known else value for key, value in given.items()}

    def known_options(self) -> dict[str, Any]:
        """Return the options that ``layer`` may have besides the name, as `inspect.Parameter`s."""
        name, outside = self.network(), surroundings(self.task["name"])
        if is_of_objects(self.task["name"]) and name in MODELS:
            return keyword_options(MODELS[name])
        return layer_options(LAYERS[name]) | keyword_options(outside)

    def resolved(self) -> dict[str, Any]:
        """Return all settings, including defaults. Settings that are None are left out, because TOML has no null."""
        tables = self.complete()
        known = {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}
        return {"seed": self.seed, **known}

    def complete(self) -> dict[str, dict[str, Any]]:
        """Return the tables layer, task and train with all defaults, including those that are None."""
        known = self.known_options()
        defaults = {key: p.default for key, p in known.items() if p.default is not inspect.Parameter.empty}
        return {
            "layer": {"name": self.layer["name"], **defaults, **self.given_options()},
            "task": {"name": self.task["name"], **asdict(self.build_task())},
            "train": asdict(self.train),
        }

    def revisions(self) -> dict[str, int]:
        """Return the revision numbers above 1 of layer, model and task.

        The ``revision`` of a class is raised when the same settings no longer mean the same.
        """
        name, task = self.network(), self.task["name"]
        relational = is_of_objects(task) and name in MODELS
        classes: dict[str, type] = {"layer": networks(task)[name], "task": TASKS[task]}
        if not relational:
            classes["model"] = surroundings(task)
        found = {role: getattr(cls, "revision", 1) for role, cls in classes.items()}
        return {role: revision for role, revision in found.items() if revision != 1}

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], who: str = "settings") -> "Settings":
        """Build settings from tables, the inverse of `resolved`.

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
    """Return ``tables`` with the first name of every setting that has been renamed."""
    return renamed(tables, FIRST_NAMES)


def with_current_names(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tables``, as an older version wrote them, with the names that settings have now."""
    return renamed(tables, {first: later for later, first in FIRST_NAMES.items()})


def renamed(tables: Mapping[str, Any], names: Mapping[str, str], path: str = "") -> dict[str, Any]:
    """Return ``tables`` with keys and values renamed. ``names`` is written as in `FIRST_NAMES`."""
    result: dict[str, Any] = {}
    for key, value in tables.items():
        place = f"{path}{key}"
        if isinstance(value, Mapping):
            value = renamed(value, names, f"{place}.")
        elif isinstance(value, str):
            value = names.get(f"{place}={value}", f"={value}").partition("=")[2]
        result[names.get(place, place).rpartition(".")[2]] = value
    return result


def named(kind: str, table: Mapping[str, Any], registry: Mapping[str, Any]) -> str:
    """Return the name in ``table``, or raise ValueError if the registry does not have it."""
    name = table.get("name")
    if not isinstance(name, str) or name not in registry:
        raise ValueError(f"no {kind} {name!r}; known: {', '.join(registry)}")
    return str(name)


def is_of_objects(task: str) -> bool:
    return issubclass(TASKS[task], ObjectTask)


def surroundings(task: str) -> type[nn.Module]:
    """Return the class of the model around a layer. Its options are options of ``layer`` too."""
    if is_of_objects(task):
        return Recurrent
    if issubclass(TASKS[task], EnvironmentTask):
        return PolicyModel
    return LanguageModel if issubclass(TASKS[task], TextTask) else SequenceModel


def updates_a_round(task: EnvironmentTask, train: Train) -> int:
    """Return the number of updates in a round, between two times that episodes are played."""
    return task.passes * -(-task.episodes // train.batch)


def networks(task: str) -> dict[str, type[nn.Module]]:
    """Return the networks that can be trained on a task, by name.

    For a task of objects, a name that a layer and a relational network share (lstm) is the relational network.
    """
    return {**LAYERS, **MODELS} if is_of_objects(task) else dict(LAYERS)


def named_network(table: Mapping[str, Any], task: str) -> str:
    """Return the name in ``table``, or raise ValueError if the task has no such network."""
    name = table.get("name")
    if isinstance(name, str) and name in MODELS and name not in networks(task):
        known = ", ".join(filter(is_of_objects, TASKS))
        raise ValueError(f"layer {name} relates objects and expects a task out of {known}; got {task}")
    return named("layer", table, networks(task))


def refuse_unknown(who: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError if a given key is not known."""
    known = list(known)
    if unknown := [key for key in given if key not in known]:
        raise ValueError(f"{who}: unknown key {', '.join(map(repr, unknown))}; known: {', '.join(known)}")


def layer_options(layer: type[nn.Module]) -> dict[str, Any]:
    """Return the keywords of a layer that settings may give, by name, as `inspect.Parameter`s."""
    shared = typing.get_type_hints(Common)
    defaults = inspect.signature(RecurrentLayer).parameters
    hints = typing.get_type_hints(layer.__init__)
    own = {
        key: parameter.replace(annotation=hints.get(key, Any))
        for key, parameter in inspect.signature(layer).parameters.items()
    }
    common = {key: defaults[key].replace(annotation=hint) for key, hint in shared.items()}
    return {key: parameter for key, parameter in (own | common).items() if key not in NOT_FOR_LAYERS}


def keyword_options(model: type[nn.Module]) -> dict[str, Any]:
    """Return the keyword-only arguments of a model in the same form. The task gives the other arguments."""
    hints = typing.get_type_hints(model.__init__)
    parameters = inspect.signature(model).parameters.items()
    return {key: p.replace(annotation=hints[key]) for key, p in parameters if p.kind is p.KEYWORD_ONLY}


def construct(who: str, cls: Any, positional: Sequence[Any], given: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Return an instance of ``cls``. Raise ValueError if an option is unknown, missing or of the wrong type."""
    refuse_unknown(who, given, known)
    if missing := [key for key, option in known.items() if option.default is option.empty and key not in given]:
        raise ValueError(f"{who} expects {', '.join(missing)}; got {', '.join(given) or 'nothing'}")
    options = {key: check_type(who, key, value, known[key].annotation) for key, value in given.items()}
    try:
        return cls(*positional, **options)
    except TypeError as error:
        raise ValueError(f"{who}: {error}") from error


def build(cls: type[Record], given: Mapping[str, Any], who: str) -> Record:
    """Return a dataclass instance of ``cls``. Raise ValueError if a key is unknown, missing or of the wrong type."""
    record: Any = cls  # a dataclass, which a type variable cannot express
    known = {field.name: field for field in fields(record)}
    refuse_unknown(who, given, known)
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in given]:
        raise ValueError(f"{who} expects {', '.join(missing)}")
    hints = typing.get_type_hints(cls)
    return cls(**{key: check_type(who, key, value, hints[key]) for key, value in given.items()})


def check_type(who: str, key: str, value: Any, expected: Any) -> Any:
    """Return ``value`` if it has the expected type, else raise ValueError. An integer also passes for a float."""
    value = meant(value, expected)
    options = alternatives(expected)
    plain = [option for option in options if option in (int, float, str, bool, dict, type(None))]
    if len(plain) < len(options) or type(value) in plain:  # other types are checked by the class that takes the option
        return value
    if float in plain and type(value) is int:
        return float(value)
    kinds = {int: "an integer", float: "a number", str: "a string", bool: "true or false", dict: "a table"}
    wanted = " or ".join(kinds[option] for option in plain if option in kinds)
    raise ValueError(f"{who} expects {key} to be {wanted}; got {value!r}")


def alternatives(expected: Any) -> tuple[Any, ...]:
    """Return the members of a union type: int | None → (int, NoneType)."""
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)


def meant(value: Any, expected: Any) -> Any:
    """Return "none" for None if the option takes a string and not None: the command line reads ``none`` as None."""
    options = alternatives(expected)
    return "none" if value is None and str in options and type(None) not in options else value


def at_least(record: Any, who: str, bound: int, *names: str) -> None:
    """Raise ValueError if a named attribute is below ``bound``. None is allowed."""
    for name in names:
        if (value := getattr(record, name)) is not None and value < bound:
            raise ValueError(f"{who} expects {name} of at least {bound}; got {value!r}")


def positive(record: Any, who: str, *names: str) -> None:
    """Raise ValueError unless every named attribute is above 0 and at most `LARGEST`. None is allowed."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not value > 0:
            raise ValueError(f"{who} expects {name} above 0; got {value!r}")
        if value is not None and value > LARGEST:
            raise ValueError(f"{who} expects {name} of at most {LARGEST:g}; got {value!r}")


def one_of(who: str, name: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ValueError(f"{who} expects {name} to be one of {', '.join(known)}; got {value!r}")
