"""How good a model is on data it was not trained on."""

from collections import Counter

import torch
from torch import nn

from steadygrad.models import SequenceModel
from steadygrad.tasks import Task
from steadygrad.training.data import stream
from steadygrad.training.directory import BEST, LAST, RunDirectory, RunError
from steadygrad.training.settings import Settings


@torch.no_grad()
def evaluate(
    model: SequenceModel, task: Task, examples: int, *, seed: int = 0, split: str = "valid", batch: int = 100
) -> dict[str, float]:
    """Loss and metrics, means over ``examples`` sequences. The same seed and split are the same sequences."""
    was_training = model.training
    model.eval()
    try:
        sums: Counter[str] = Counter()
        device = next(model.parameters()).device
        for number, begin in enumerate(range(0, examples, batch)):
            size = min(batch, examples - begin)
            inputs, targets = task.sample(size, stream(seed, split, number))
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            found = {"loss": task.loss(outputs, targets).item(), **task.metrics(outputs, targets)}
            sums.update({key: value * size for key, value in found.items()})
        return {key: value / examples for key, value in sums.items()}
    finally:
        model.train(was_training)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def load_model(
    directory: RunDirectory, settings: Settings | None = None, weights: str = "best"
) -> tuple[SequenceModel, Task, Settings]:
    """A run's model with its ``best`` or ``last`` weights, for its own task or for that of other ``settings``."""
    files = {"best": BEST, "last": LAST}
    if weights not in files:
        raise ValueError(f"load_model expects weights to be one of {', '.join(files)}; got {weights!r}")
    own = directory.settings()
    settings = settings or own
    task, trained = settings.build_task(), own.build_task()
    sizes = [(other.input_size, other.output_size) for other in (task, trained)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"{directory} was trained for {sizes[1]} inputs and outputs; this task has {sizes[0]}")
    model = settings.build_model(task)
    try:
        model.load_state_dict(directory.load_weights(files[weights]))
    except RuntimeError as error:
        raise RunError(f"{directory.file(files[weights])} does not fit the run's settings: {error}") from None
    return model, task, settings


def evaluate_run(
    directory: RunDirectory, settings: Settings, *, weights: str = "best", examples: int = 1000, batch: int = 100
) -> dict[str, float]:
    """A run's weights on ``settings``, which may differ from its own in the task, on sequences it has not met."""
    model, task, _ = load_model(directory, settings, weights)
    return evaluate(model, task, examples, seed=settings.seed, split="test", batch=batch)
