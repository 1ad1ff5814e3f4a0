"""Kinds of tasks: which model, batches and evaluation each needs. A new kind is one row of `KINDS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from steadygrad.layers import LAYERS, RecurrentLayer
from steadygrad.models import MODELS, LanguageModel, Model, PolicyModel, SequenceModel
from steadygrad.models.relational import FEATURES, Recurrent
from steadygrad.tasks import TASKS, DataTask, EnvironmentTask, ObjectTask, Task, TextTask
from steadygrad.training.data import Batches, EpochBatches, GeneratedBatches
from steadygrad.training.experience import Experience, evaluate_policy
from steadygrad.training.sequences import evaluate_sequences

MakeLayer = Callable[..., RecurrentLayer]
"""(input size, hidden size or None) → a new layer"""


class Evaluate(Protocol):
    """Protocol of a function that returns ``loss`` and metrics of a model on a held-out split, a dict by name."""

    def __call__(
        self,
        model: nn.Module,
        task: Any,
        examples: int,
        *,
        seed: int,
        split: str,
        batch: int,
        window: int | None,
        progress: Callable[[float], object],
    ) -> dict[str, float]: ...


@dataclass(frozen=True)
class Kind:
    """What training needs for one kind of task: model, batches, evaluation and defaults."""

    task: type[Task]
    model: type[Model]
    """model around a recurrent layer; its keyword arguments are options of the layer in settings"""
    arguments: Callable[[Any, MakeLayer], tuple[Any, ...]]
    """(task, make layer) → positional arguments of the model"""
    batches: type[Batches] = GeneratedBatches
    evaluate: Evaluate = evaluate_sequences
    networks: Mapping[str, type[Model]] = field(default_factory=dict)
    """networks of their own, without a recurrent layer around which a model is built"""
    network_arguments: Callable[[Any], tuple[Any, ...]] = lambda task: ()
    """task → positional arguments of a network of ``networks``"""
    units: int = 128
    """hidden size of a layer, where no paper gives one"""
    shares_settings: bool = True
    """whether a task without settings of its own takes them from other tasks of the kind"""


def sequence_arguments(task: Task, make: MakeLayer) -> tuple[Any, ...]:
    """Return the positional arguments of a `SequenceModel` for a task: (layer, output size, ``last_only``)."""
    return make(task.input_size), task.output_size, task.last_only


KINDS = (
    Kind(
        ObjectTask,
        Recurrent,
        lambda task, make: (make(FEATURES), task.problem),
        networks=MODELS,
        network_arguments=lambda task: (task.problem,),
    ),
    Kind(TextTask, LanguageModel, lambda task, make: (make, task.output_size), EpochBatches, units=256),
    Kind(
        EnvironmentTask,
        PolicyModel,
        lambda task, make: (make, task.view, task.kinds, task.others, task.actions),
        Experience,
        evaluate_policy,
        units=64,
    ),
    Kind(DataTask, SequenceModel, sequence_arguments, EpochBatches, shares_settings=False),
    Kind(Task, SequenceModel, sequence_arguments),
)
"""Kinds of tasks. The first row whose task type fits counts, so special types come before general ones."""


def kind_of(task: Task | type[Task] | str) -> Kind:
    """Return the `Kind` of a task, which is given as an instance, a class or a name in `TASKS`."""
    found = TASKS[task] if isinstance(task, str) else task if isinstance(task, type) else type(task)
    return next(kind for kind in KINDS if issubclass(found, kind.task))


def networks_for(task: str) -> dict[str, Callable[..., nn.Module]]:
    """Return the classes of layers and networks that can be trained on the task of this name, a dict by name.

    A name that a layer and a network of the kind share, such as lstm, means the network of the kind.
    """
    return {**LAYERS, **kind_of(task).networks}
