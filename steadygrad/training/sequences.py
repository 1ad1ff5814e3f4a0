"""Evaluation of models on held-out sequences."""

from collections import Counter
from collections.abc import Callable

from torch import nn

from steadygrad.layers.recurrent import State
from steadygrad.models import Model
from steadygrad.tasks import Task
from steadygrad.training.data import stream


def evaluate_sequences(
    model: nn.Module,
    task: Task,
    examples: int,
    *,
    seed: int,
    split: str,
    batch: int,
    window: int | None,
    progress: Callable[[float], object],
) -> dict[str, float]:
    """Return loss and metrics as means over the sequences of a held-out split, a dict. ``model`` may be any module.

    The model is in evaluation mode meanwhile. ``progress`` is called with the share that is done.
    """
    was_training = model.training
    model.eval()
    try:
        sums: Counter[str] = Counter()
        device = next(model.parameters()).device
        state: State | None = None
        batches = task.held_out_batches(split, examples, batch, window, lambda i: stream(seed, split, i))
        for number, (inputs, targets, goes_on) in enumerate(batches, 1):
            inputs, targets = inputs.to(device), targets.to(device)
            carried = state if goes_on else None
            outputs, state = model.walk(inputs, carried) if isinstance(model, Model) else (model(inputs), None)
            found = {"loss": task.loss(outputs, targets).item(), **task.metrics(outputs, targets)}
            weight = task.weight(targets)
            sums.update({key: value * weight for key, value in found.items()} | {"": weight})
            progress(number / len(batches))
        total = sums.pop("")
        return task.conclude({key: value / total for key, value in sums.items()})
    finally:
        model.train(was_training)
