"""Evaluation of models on held-out data."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from steadygrad.check import check_choice
from steadygrad.files import RunError
from steadygrad.matrices import Matrix
from steadygrad.models import Model
from steadygrad.tasks import Task
from steadygrad.training.directory import BEST, LAST, RunDirectory
from steadygrad.training.kinds import kind_of
from steadygrad.training.settings import Settings

AT_ONCE = 25_000
"""largest number of time steps in a test batch, summed over its sequences; memory grows with this number"""
TEST_EXAMPLES = 1000
"""sequences of the test split, for a task that generates its sequences"""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    examples: int,
    *,
    seed: int = 0,
    split: str = "valid",
    batch: int = 100,
    window: int | None = None,
    progress: Callable[[float], object] = lambda share: None,
) -> dict[str, float]:
    """Return a model's loss and metrics on ``examples`` held-out sequences or episodes, or on a data set's split.

    The result is a dict of ``loss`` and the task's metrics by name. They are means over batches, weighted by
    `Task.weight`, and what `Task.conclude` makes of the means. The same seed, split and batch give the same sequences.
    ``window`` is for text, which is read this many tokens at a time. ``progress`` is called with the share that is
    done, after every batch or every time step of episodes.
    """
    return kind_of(task).evaluate(
        model, task, examples, seed=seed, split=split, batch=batch, window=window, progress=progress
    )


def parameter_count(module: nn.Module) -> int:
    """Return the number of entries of all parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def readings(model: nn.Module) -> dict[str, float]:
    """Return the numbers to log of all matrices of the model, a dict by name; of several of one name, the largest."""
    found: dict[str, float] = {}
    for module in model.modules():
        if isinstance(module, Matrix):
            found |= {key: max(value, found.get(key, value)) for key, value in module.readings().items()}
    return found


def load_model(
    directory: RunDirectory, settings: Settings | None = None, weights: str = "best"
) -> tuple[Model, Task, Settings]:
    """Return a run's model with its ``best`` or ``last`` weights, the task and the settings, as a tuple.

    Task and settings are the run's own, or those of other ``settings``. Raise ValueError (RunError is one) if there is
    no such run, or if its weights do not fit the task.
    """
    files = {"best": BEST, "last": LAST}
    check_choice("load_model", "weights", weights, files)
    own = directory.settings()
    settings = settings or own
    task, trained = settings.build_task(), own.build_task()
    check_sizes(str(directory), trained, task)
    check_data(str(directory), directory.result() or {}, task)
    model = settings.build_model(task)
    try:
        model.load_state_dict(directory.load_weights(files[weights]))
    except RuntimeError as error:
        raise RunError(f"{directory.file(files[weights])} does not fit the run's settings: {error}") from None
    return model, task, settings


def check_data(who: str, known: Mapping[str, Any], task: Task) -> None:
    """Raise ValueError if ``known`` has a fingerprint of training data, "data", that is not the task's.

    ``known`` is the result of a run or the state of its checkpoint.
    """
    if (noted := known.get("data")) and noted != (found := task.fingerprint):
        raise ValueError(
            f"{who} was trained on other recordings than are here now: {noted} and {found} by their digests"
        )


def check_sizes(who: str, trained: Task, other: Task) -> None:
    """Raise ValueError if weights for the task ``trained`` do not fit the task ``other``."""
    own, wanted = (", ".join(f"{size} {name}" for name, size in task.model_sizes.items()) for task in (trained, other))
    if own != wanted:
        raise ValueError(f"{who} was trained for {own}; this task has {wanted}")


def evaluate_run(
    directory: RunDirectory,
    settings: Settings,
    *,
    weights: str = "best",
    split: str = "test",
    examples: int | None = None,
    progress: Callable[[float], object] = lambda share: None,
) -> dict[str, float]:
    """Return loss and metrics, a dict, of a run's weights on the task of ``settings``, which may be another task.

    The ``test`` split has ``examples`` new sequences, by default 1000, or all test data of a data set. The ``valid``
    split holds the sequences of the evaluations during training. With the run's own settings its numbers are those of
    ``result.json``.
    """
    model, task, _ = load_model(directory, settings, weights)
    count, own = examples or examples_of(settings, split), settings.train
    makes = split == "test" and not task.has_splits
    batch = max(1, min(100, AT_ONCE // task.steps)) if makes else own.evaluate_batch
    return evaluate(
        model, task, count, seed=settings.seed, split=split, batch=batch, window=own.window, progress=progress
    )


def examples_of(settings: Settings, split: str) -> int:
    """Return the number of sequences in a test or validation split, for a task that generates its sequences."""
    return TEST_EXAMPLES if split == "test" else settings.train.evaluate_examples
