"""How good a model is on data it was not trained on."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import nn

from steadygrad.models import RelationalModel, SequenceModel
from steadygrad.tasks import ObjectTask, Task
from steadygrad.training.data import stream
from steadygrad.training.directory import BEST, LAST, RunDirectory, RunError
from steadygrad.training.settings import Settings

AT_ONCE = 25_000
"""time steps of all sequences of a batch together, which is what memory grows with"""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    examples: int,
    *,
    seed: int = 0,
    split: str = "valid",
    batch: int = 100,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, float]:
    """Loss and metrics, means over ``examples`` sequences. The same seed, split and batch are the same sequences.

    ``progress`` hears after every batch how many sequences are done.
    """
    was_training = model.training
    model.eval()
    try:
        sums: Counter[str] = Counter()
        device = next(model.parameters()).device
        for number, begin in enumerate(range(0, examples, batch)):
            size = min(batch, examples - begin)
            inputs, targets = task.sample_unseen(size, stream(seed, split, number))
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            found = {"loss": task.loss(outputs, targets).item(), **task.metrics(outputs, targets)}
            sums.update({key: value * size for key, value in found.items()})
            progress(begin + size)
        return {key: value / examples for key, value in sums.items()}
    finally:
        model.train(was_training)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def load_model(
    directory: RunDirectory, settings: Settings | None = None, weights: str = "best"
) -> tuple[SequenceModel | RelationalModel, Task, Settings]:
    """A run's model with its ``best`` or ``last`` weights, for its own task or for that of other ``settings``."""
    files = {"best": BEST, "last": LAST}
    if weights not in files:
        raise ValueError(f"load_model expects weights to be one of {', '.join(files)}; got {weights!r}")
    own = directory.settings()
    settings = settings or own
    task, trained = settings.build_task(), own.build_task()
    check_sizes(str(directory), trained, task)
    model = settings.build_model(task)
    try:
        model.load_state_dict(directory.load_weights(files[weights]))
    except RuntimeError as error:
        raise RunError(f"{directory.file(files[weights])} does not fit the run's settings: {error}") from None
    return model, task, settings


def check_sizes(who: str, trained: Task, other: Task) -> None:
    """Whether weights for one task fit the other."""
    own, wanted = ((task.input_size, task.output_size) for task in (trained, other))
    if own != wanted:
        raise ValueError(f"{who} was trained for {own} inputs and outputs; this task has {wanted}")
    objects, more = (task.objects if isinstance(task, ObjectTask) else None for task in (trained, other))
    if objects != more:
        raise ValueError(f"{who} was trained for {objects} objects; this task has {more}")


def evaluate_run(
    directory: RunDirectory,
    settings: Settings,
    *,
    weights: str = "best",
    examples: int = 1000,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, float]:
    """A run's weights on ``settings``, which may differ from its own in the task, on sequences it has not met."""
    model, task, _ = load_model(directory, settings, weights)
    batch = max(1, min(100, AT_ONCE // task.steps))
    return evaluate(model, task, examples, seed=settings.seed, split="test", batch=batch, progress=progress)
