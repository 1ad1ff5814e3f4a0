"""Training batches as a function of the update number, so that a resumed run needs no saved state of its data."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Generator, Tensor

from steadygrad.tasks import Batch, DataTask, ExampleTask, Task
from steadygrad.training.options import Train


def stream(seed: int, *names: str | int) -> Generator:
    """Return a random generator that the seed and the names determine: one stream for every purpose and number."""
    digest = hashlib.blake2b(repr((seed, *names)).encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


class Batches:
    """Training data of a task: ``batches(step)`` returns the batch of update ``step`` = 0, 1, …"""

    def __init__(self, task: Task, train: Train, seed: int) -> None:
        self.task, self.train, self.seed = task, train, seed
        self.windows = 1 if train.window is None else -(-task.steps // train.window)
        who = type(task).__name__
        if train.window is not None and task.last_only:
            raise ValueError(f"truncated back-propagation expects targets at every step; {who} has one at the end")
        if train.window is not None and isinstance(task, ExampleTask):
            raise ValueError(f"{who} is trained on whole sequences and expects no window; got {train.window}")
        if train.examples is not None and isinstance(task, DataTask):
            raise ValueError(f"{who} is a data set and expects no number of examples; got {train.examples}")
        self.sequences = lru_cache(maxsize=1)(self._sequences)
        self.order = lru_cache(maxsize=1)(self._order)
        self.epoch = lru_cache(maxsize=1)(self._epoch)
        self.in_epoch = len(self.epoch(0)) if isinstance(task, DataTask) else 0

    def ready(self) -> None:
        """Fail early if data files are missing."""
        self(0)

    def is_over(self, step: int) -> bool:
        """Return whether the training data are used up after ``step`` updates."""
        return False

    def counts(self) -> dict[str, int]:
        """Return further counters of the run besides updates, by name, such as frames."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must store to restore the batches."""
        return {}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""

    def __call__(self, step: int) -> Batch:
        if self.in_epoch:
            epoch, place = divmod(step, self.in_epoch)
            return self.epoch(epoch)[place]
        number, window = divmod(step, self.windows)
        inputs, targets = self.sequences(number)
        if self.train.window is not None:
            here = slice(window * self.train.window, (window + 1) * self.train.window)
            inputs, targets = inputs[:, here], targets[:, here]
        return Batch(inputs, targets, goes_on=window > 0)

    def _sequences(self, number: int) -> tuple[Tensor, Tensor]:
        if self.train.examples is not None:
            epoch, place = divmod(number, self.train.examples // self.train.batch)
            number = self.order(epoch)[place]
        return self.task.sample(self.train.batch, stream(self.seed, "train", number))

    def _epoch(self, number: int) -> Sequence[Batch]:
        assert isinstance(self.task, DataTask)
        return self.task.epoch("train", self.train.batch, self.train.window, stream(self.seed, "order", number))

    def _order(self, epoch: int) -> list[int]:
        count = (self.train.examples or 0) // self.train.batch
        return torch.randperm(count, generator=stream(self.seed, "order", epoch)).tolist()
