"""Training batches as a function of the update number, so that a resumed run needs no saved state of its data."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Generator, Tensor, nn

from steadygrad.tasks import Batch, DataTask, Task
from steadygrad.training.options import Train


def stream(seed: int, *names: str | int) -> Generator:
    """Return a new torch.Generator whose seed depends on ``seed`` and on all of the arguments ``names``.

    ``stream(seed, "train", 3)`` always gives the same random numbers, other arguments give other numbers.
    """
    digest = hashlib.blake2b(repr((seed, *names)).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class Batches:
    """Base class of training data: ``batches(step)`` returns the batch of update ``step`` = 0, 1, …

    A subclass serves one kind of task, see `steadygrad.training.kinds`.
    """

    def __init__(self, task: Any, train: Train, seed: int) -> None:
        self.task, self.train, self.seed = task, train, seed

    def __call__(self, step: int) -> Batch:
        raise NotImplementedError

    @classmethod
    def in_updates(cls, task: Any, train: Train) -> Train:
        """Return the training settings with epochs or frames converted to updates, where a subclass can do this.

        This base class returns ``train`` itself, or raises ValueError if it has epochs or frames.
        """
        who = type(task).__name__
        if train.frames is not None:
            raise ValueError(f"frames are for a task that is played; {who} is none")
        if train.epochs is not None:
            raise ValueError(f"epochs are for a task with a data set; {who} has none")
        return train

    @staticmethod
    def examples(task: Any, model: nn.Module, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of ``batch`` random training sequences, for diagnostics of a model.

        They come from the task's `sample`. A subclass may let the model make them.
        """
        return task.sample(batch, generator)

    def attach(self, model: nn.Module, progress: Callable[[float], object]) -> None:
        """Store the model that is trained, for batches that depend on it. ``progress`` reports long preparations.

        By default do nothing.
        """

    def ready(self) -> None:
        """Raise an error early if data files are missing, by making the first batch."""
        self(0)

    @property
    def updates_per_round(self) -> int:
        """Number of updates after which new data are prepared, as by playing; by default all of training."""
        return self.train.steps

    def is_over(self, step: int) -> bool:
        """Return whether the training data are used up after ``step`` updates; by default they never are."""
        return False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch that training minimises, a scalar tensor."""
        return self.task.loss(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics of a training batch besides the loss, a dict by name."""
        return self.task.metrics(outputs, targets)

    def counts(self) -> dict[str, int]:
        """Return further counters of the run besides updates, a dict by name, such as frames."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return a dict of the tensors that a checkpoint must store to restore the batches."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the batches from the tensors that `state` returned."""


class GeneratedBatches(Batches):
    """Batches of sequences that the task generates: always new ones, or a fixed set of ``train.examples``.

    With ``train.window`` a batch is one window of its sequences, and successive updates take the windows in order.
    """

    task: Task

    def __init__(self, task: Task, train: Train, seed: int) -> None:
        super().__init__(task, train, seed)
        self.windows = 1 if train.window is None else -(-task.steps // train.window)
        if train.window is not None and task.last_only:
            raise ValueError(
                f"truncated back-propagation expects targets at every step; {type(task).__name__} has one at the end"
            )
        self.sequences = lru_cache(maxsize=1)(self._sequences)
        self.order = lru_cache(maxsize=1)(self._order)

    def __call__(self, step: int) -> Batch:
        number, window = divmod(step, self.windows)
        inputs, targets = self.sequences(number)
        if self.train.window is not None:
            here = slice(window * self.train.window, (window + 1) * self.train.window)
            inputs, targets = inputs[:, here], targets[:, here]
        return Batch(inputs, targets, goes_on=window > 0)

    def _sequences(self, number: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of batch ``number`` of whole sequences.

        With a fixed training set, it is one of the set's batches, in the order of the epoch.
        """
        if self.train.examples is not None:
            epoch, place = divmod(number, self.train.examples // self.train.batch)
            number = int(self.order(epoch)[place])
        return self.task.sample(self.train.batch, stream(self.seed, "train", number))

    def _order(self, epoch: int) -> Tensor:
        """Return the random order of the batches of a fixed training set in an epoch, as a tensor of integers."""
        count = (self.train.examples or 0) // self.train.batch
        return torch.randperm(count, generator=stream(self.seed, "order", epoch))


class EpochBatches(Batches):
    """Batches of a data set, one pass through the training split after another: shuffled, or in order for a text."""

    task: DataTask

    def __init__(self, task: DataTask, train: Train, seed: int) -> None:
        super().__init__(task, train, seed)
        if train.examples is not None:
            who = type(task).__name__
            raise ValueError(f"{who} is a data set and expects no number of examples; got {train.examples}")
        self.epoch = lru_cache(maxsize=1)(self._epoch)
        self.updates_per_epoch = len(self.epoch(0))

    @classmethod
    def in_updates(cls, task: DataTask, train: Train) -> Train:
        """Return the training settings with epochs converted to updates, and an evaluation after each epoch."""
        if train.epochs is None:
            return super().in_updates(task, train)
        updates = len(task.epoch("train", train.batch, train.window))
        return replace(train, steps=train.epochs * updates, evaluate_every=updates)

    def __call__(self, step: int) -> Batch:
        epoch, place = divmod(step, self.updates_per_epoch)
        return self.epoch(epoch)[place]

    def _epoch(self, number: int) -> Sequence[Batch]:
        """Return the batches of pass ``number`` through the training data, in its random order."""
        return self.task.epoch("train", self.train.batch, self.train.window, stream(self.seed, "order", number))
