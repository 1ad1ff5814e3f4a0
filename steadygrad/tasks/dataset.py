"""Tasks that are a data set: so many sequences and no more, in three parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, overload

import torch
from torch import Generator, Tensor

from steadygrad.tasks.task import Batch, Task

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class DataTask(Task):
    """Base class. `epoch` is one pass through a part of the data; tests are on all of a part that training lacks."""

    def epoch(
        self, split: str, batch: int, window: int | None = None, generator: Generator | None = None
    ) -> Sequence[Batch]:
        """The batches of one pass through ``split``, made when asked for; in another order with a generator."""
        raise NotImplementedError

    @property
    def training_steps(self) -> int:
        """Time steps in one pass through the training data, known without the data."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str | None:
        """Of the training data, where these may be others each time: no SHA-256 is known for them."""
        return None

    def check_split(self, split: str) -> None:
        if split not in SPLITS:
            raise ValueError(f"{type(self).__name__} expects a split out of {', '.join(SPLITS)}; got {split!r}")


class BatchList(Sequence[Batch]):
    """``make(i)`` for i below ``count``, when asked for."""

    def __init__(self, make: Callable[[int], Batch], count: int) -> None:
        self.make, self.total = make, count

    def __len__(self) -> int:
        return self.total

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.total))]
        if not -self.total <= index < self.total:
            raise IndexError(f"expected a batch out of {self.total}; got {index}")
        return self.make(index % self.total)


@dataclass(frozen=True)
class ExampleTask(DataTask):
    """Base class of data sets whose sequences have nothing to do with each other."""

    def count(self, split: str) -> int:
        """How many sequences it has."""
        raise NotImplementedError

    def take(self, split: str, which: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the sequences with these numbers."""
        raise NotImplementedError

    def epoch(
        self, split: str, batch: int, window: int | None = None, generator: Generator | None = None
    ) -> Sequence[Batch]:
        self.check_split(split)
        count = self.count(split)
        order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        parts = order.split(batch)
        return BatchList(lambda i: Batch(*self.take(split, parts[i])), len(parts))

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """From the training data, with replacement."""
        return self.take("train", torch.randint(self.count("train"), (batch,), generator=generator))


@dataclass(frozen=True)
class TextTask(DataTask):
    """Base class of texts: what comes next? Inputs and targets (batch, window) are token numbers.

    The text is laid out in ``batch`` rows side by side, and windows go along them from left to right.
    """

    causal: ClassVar[bool] = True
    vocabulary_size: ClassVar[int]
    sizes: ClassVar[dict[str, int]]
    """tokens by split"""
    entropy: ClassVar[float]
    """−Σ p ln p over the shares p of the tokens in the training text, known without the data"""

    @property
    def input_size(self) -> int:
        return self.vocabulary_size

    @property
    def output_size(self) -> int:
        return self.vocabulary_size

    @property
    def steps(self) -> int:
        """One token after another; how many at once is a matter of training."""
        return 1

    @property
    def training_steps(self) -> int:
        return self.sizes["train"]

    def tokens(self, split: str) -> Tensor:
        """The whole text, as numbers."""
        raise NotImplementedError

    def encode(self, text: str) -> Tensor:
        """Tokens of some text; a ValueError for what the vocabulary lacks."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def epoch(
        self, split: str, batch: int, window: int | None = None, generator: Generator | None = None
    ) -> Sequence[Batch]:
        """In the order of the text, whatever the generator: each window goes on where the last one ended."""
        who = type(self).__name__
        self.check_split(split)
        tokens = self.tokens(split)
        length = (len(tokens) - 1) // batch
        if window is None:
            raise ValueError(f"{who} expects a window, the number of steps of an update; got none")
        if length < 1:
            raise ValueError(f"{who} expects a batch of at most {len(tokens) - 1} for {split}; got {batch}")
        inputs = tokens[: batch * length].view(batch, length)
        targets = tokens[1 : batch * length + 1].view(batch, length)

        def make(i: int) -> Batch:
            here = slice(i * window, (i + 1) * window)
            return Batch(inputs[:, here], targets[:, here], goes_on=i > 0)

        return BatchList(make, -(-length // window))

    def sample(self, batch: int, generator: Generator, window: int = 100) -> tuple[Tensor, Tensor]:
        """Windows from anywhere in the training data."""
        tokens = self.tokens("train")
        window = min(window, len(tokens) - 1)
        starts = torch.randint(len(tokens) - window, (batch, 1), generator=generator)
        places = starts + torch.arange(window)
        return tokens[places], tokens[places + 1]

    def weight(self, targets: Tensor) -> float:
        return targets.numel()

    @property
    def guessing_loss(self) -> float:
        """Of somebody who knows how frequent each token is in the training text, and no more."""
        return self.entropy
