"""Tasks with a fixed data set in three splits: training, validation and test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from steadygrad.tasks.task import Batch, BatchList, Task

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class DataTask(Task):
    """Base class of tasks with a fixed data set.

    `epoch` returns the batches of one pass through a split. Evaluations use all of a held-out split.
    """

    has_splits: ClassVar[bool] = True

    def epoch(
        self, split: str, batch: int, window: int | None = None, generator: Generator | None = None
    ) -> Sequence[Batch]:
        """Return the batches of one pass through ``split``, made on access. ``generator`` shuffles the sequences.

        The split is "train", "valid" or "test". ``batch`` is the number of sequences of a batch. ``window``, the number
        of time steps of a batch, is required for text and must be None for other data sets.
        """
        raise NotImplementedError

    @property
    def training_steps(self) -> int:
        """Number of time steps of all training sequences together, known without reading the data."""
        raise NotImplementedError

    def held_out_batches(
        self, split: str, examples: int, batch: int, window: int | None, generator: Callable[[int], Generator]
    ) -> Sequence[Batch]:
        """Return the batches of the whole split by `epoch`, in order. ``examples`` and ``generator`` are ignored."""
        return self.epoch(split, batch, window)

    def check_split(self, split: str) -> None:
        """Raise ValueError unless ``split`` is train, valid or test."""
        if split not in SPLITS:
            raise ValueError(f"{type(self).__name__} expects a split out of {', '.join(SPLITS)}; got {split!r}")


@dataclass(frozen=True)
class ExampleTask(DataTask):
    """Base class of data sets whose sequences are independent of each other."""

    def count(self, split: str) -> int:
        """Return the number of sequences in a split."""
        raise NotImplementedError

    def take(self, split: str, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (n, time, …) and targets (n, …) of the sequences of a split with the indices ``which`` (n,)."""
        raise NotImplementedError

    def epoch(
        self, split: str, batch: int, window: int | None = None, generator: Generator | None = None
    ) -> Sequence[Batch]:
        """Return the batches of one pass through ``split``, as a sequence. A batch is made when it is accessed.

        ``generator`` shuffles the data; without it they are in order. ``batch`` is the number of data sequences of a
        batch. The last batch may be smaller. Raise ValueError if the split is unknown or ``window`` is not None.
        """
        self.check_split(split)
        if window is not None:
            raise ValueError(f"{type(self).__name__} is trained on whole sequences and expects no window; got {window}")
        count = self.count(split)
        order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
        parts = order.split(batch)
        return BatchList(lambda i: Batch(*self.take(split, parts[i])), len(parts))

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of ``batch`` sequences drawn from the training data with replacement."""
        return self.take("train", torch.randint(self.count("train"), (batch,), generator=generator))


@dataclass(frozen=True)
class TextTask(DataTask):
    """Base class of texts: predict the next token. Inputs and targets (batch, window) are token indices.

    The text is divided into ``batch`` rows of equal length. Successive windows move along the rows from left to right.
    """

    causal: ClassVar[bool] = True
    metrics_in_windows: ClassVar[bool] = True
    vocabulary_size: ClassVar[int]
    sizes: ClassVar[dict[str, int]]
    """Number of tokens in each split."""
    entropy: ClassVar[float]
    """Entropy −Σ p ln p of the token frequencies p in the training text, stored so that the data need not be read."""

    @property
    def input_size(self) -> int:
        """Number of different tokens."""
        return self.vocabulary_size

    @property
    def output_size(self) -> int:
        """Number of different tokens."""
        return self.vocabulary_size

    @property
    def steps(self) -> int:
        """The number 1. The training setting ``window`` decides how many tokens an update reads."""
        return 1

    @property
    def training_steps(self) -> int:
        return self.sizes["train"]

    def tokens(self, split: str) -> Tensor:
        """Return the whole text of a split as a one-dimensional tensor of token indices."""
        raise NotImplementedError

    def encode(self, text: str) -> Tensor:
        """Return the token indices of a text as a tensor. Raise ValueError for tokens outside the vocabulary."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of these token indices."""
        raise NotImplementedError

    def epoch(
        self, split: str, batch: int, window: int | None = None, generator: Generator | None = None
    ) -> Sequence[Batch]:
        """Return the batches of one pass through a split: windows in the order of the text.

        Inputs and targets are (batch, window): the targets are the next tokens. Each window starts where the previous
        one ended, and the last window may be shorter. Up to batch − 1 tokens at the end of the split are left out.
        ``generator`` is ignored: nothing is shuffled.

        Raise ValueError if the split is unknown or has at most ``batch`` tokens, or if the argument ``window`` is None.
        """
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
        """Return inputs and targets (batch, window): windows from random positions in the training text."""
        tokens = self.tokens("train")
        window = min(window, len(tokens) - 1)
        starts = torch.randint(len(tokens) - window, (batch, 1), generator=generator)
        places = starts + torch.arange(window)
        return tokens[places], tokens[places + 1]

    def weight(self, targets: Tensor) -> float:
        """Return the weight of a batch with these targets in a mean over batches: the number of its tokens."""
        return targets.numel()

    @property
    def guessing_loss(self) -> float:
        """Loss of always predicting the token frequencies of the training text."""
        return self.entropy
