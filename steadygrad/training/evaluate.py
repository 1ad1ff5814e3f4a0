"""Evaluation of models on held-out data."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice
from steadygrad.files import RunError
from steadygrad.layers.recurrent import State
from steadygrad.models import LanguageModel, PolicyModel, RelationalModel, SequenceModel
from steadygrad.tasks import Batch, BatchList, DataTask, EnvironmentTask, ObjectTask, Task
from steadygrad.training.data import stream
from steadygrad.training.directory import BEST, LAST, RunDirectory
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
    """Return loss and metrics as means over ``examples`` sequences or episodes, or over a whole split of a data set.

    The same seed, split and batch give the same sequences. ``window`` is for text, which is read this many tokens at a
    time. ``progress`` is called with the share that is done, after every batch or every time step of episodes.
    """
    if isinstance(task, EnvironmentTask):
        return acted(model, task, examples, seed, split, batch, progress)
    was_training = model.training
    model.eval()
    try:
        sums: Counter[str] = Counter()
        device = next(model.parameters()).device
        state: State | None = None
        batches = held_back(task, examples, seed, split, batch, window)
        for number, (inputs, targets, goes_on) in enumerate(batches, 1):
            inputs, targets = inputs.to(device), targets.to(device)
            outputs, state = walk(model, inputs, state if goes_on else None)
            found = {"loss": task.loss(outputs, targets).item(), **task.metrics(outputs, targets)}
            weight = task.weight(targets)
            sums.update({key: value * weight for key, value in found.items()} | {"": weight})
            progress(number / len(batches))
        total = sums.pop("")
        return task.conclude({key: value / total for key, value in sums.items()})
    finally:
        model.train(was_training)


def acted(
    model: nn.Module,
    task: EnvironmentTask,
    examples: int,
    seed: int,
    split: str,
    batch: int,
    progress: Callable[[float], object],
) -> dict[str, float]:
    """Return the mean reward of ``examples`` episodes, and the loss. Training never uses the seeds of the episodes."""
    agent = cast(PolicyModel, model)  # or another model with the same interface
    device = next(model.parameters()).device
    total = 0.0
    for begin in range(0, examples, batch):
        numbers = range(begin, min(begin + batch, examples))
        seeds = [stream(seed, split, number).initial_seed() for number in numbers]

        def tell(share: float, done: int = begin, here: int = len(numbers)) -> None:
            progress((done + here * share) / examples)

        episodes = task.play(agent, seeds, greedy=task.greedy, device=device, progress=tell)
        total += task.reward(episodes.rewards) * len(numbers)
        tell(1.0)
    return task.conclude({"reward": total / examples})


def held_back(task: Task, examples: int, seed: int, split: str, batch: int, window: int | None) -> Sequence[Batch]:
    """Return the batches of a held-out split."""
    if isinstance(task, DataTask):
        return task.epoch(split, batch, window)
    sizes = [min(batch, examples - begin) for begin in range(0, examples, batch)]
    return BatchList(lambda i: Batch(*task.sample_unseen(sizes[i], stream(seed, split, i))), len(sizes))


def walk(model: nn.Module, inputs: Tensor, state: State | None) -> tuple[Tensor, State | None]:
    """Return the outputs and the final state; the state is None if the model is not recurrent."""
    carried = SequenceModel | LanguageModel | PolicyModel
    return model.walk(inputs, state) if isinstance(model, carried) else (model(inputs), None)


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def load_model(
    directory: RunDirectory, settings: Settings | None = None, weights: str = "best"
) -> tuple[SequenceModel | LanguageModel | PolicyModel | RelationalModel, Task, Settings]:
    """Return a run's model with its ``best`` or ``last`` weights, the task and the settings.

    The task is the run's own, or that of other ``settings``.
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
    """Raise ValueError if the training data differ from the fingerprint that the run has stored, if it has one."""
    if isinstance(task, DataTask) and (noted := known.get("data")) and noted != (found := task.fingerprint):
        raise ValueError(
            f"{who} was trained on other recordings than are here now: {noted} and {found} by their digests"
        )


def check_sizes(who: str, trained: Task, other: Task) -> None:
    """Raise ValueError if weights for the task ``trained`` do not fit the task ``other``."""
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
    split: str = "test",
    examples: int | None = None,
    progress: Callable[[float], object] = lambda share: None,
) -> dict[str, float]:
    """Evaluate the weights of a run on ``settings``, whose task may have other options than that of the run.

    The ``test`` split has ``examples`` new sequences, by default 1000, or all test data of a data set. The ``valid``
    split holds the sequences of the evaluations during training. With the run's own settings its numbers are those of
    ``result.json``.
    """
    model, task, _ = load_model(directory, settings, weights)
    count, own = examples or examples_of(settings, split), settings.train
    makes = split == "test" and not isinstance(task, DataTask)
    batch = max(1, min(100, AT_ONCE // task.steps)) if makes else own.evaluate_batch
    return evaluate(
        model, task, count, seed=settings.seed, split=split, batch=batch, window=own.window, progress=progress
    )


def examples_of(settings: Settings, split: str) -> int:
    """Return the number of sequences of a split, for a task that generates its sequences."""
    return TEST_EXAMPLES if split == "test" else settings.train.evaluate_examples
