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
    """Return the loss and metrics of ``model``, which may be any module, on a held-out split, a dict by name.

    They are means over all batches. `Task.weight` is the weight of a batch: the number of sequences or, for text and
    TIMIT, of target values. `Task.conclude` adds metrics that are no means, such as perplexity. The model is in
    evaluation mode meanwhile. ``progress`` is called with the share of batches that are done, from 0 to 1.
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
