"""Base class of all tasks: sequences, a loss, metrics, and the loss of guessing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, overload

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.check import check_choice, check_integers, enter, is_integer


class Batch(NamedTuple):
    """Inputs and targets of several sequences, with the shapes of `Task`."""

    inputs: Tensor
    targets: Tensor
    goes_on: bool = False
    """Whether this batch continues the sequences of the previous batch, from their final state."""


class BatchList(Sequence[Batch]):
    """A sequence of ``count`` batches. Batch i is ``make(i)``, made on access."""

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


TASKS: dict[str, type["Task"]] = {}
"""task classes by name; a class enters itself, see `Task`"""


@dataclass(frozen=True)
class Task:
    """Base class of tasks. Inputs are (batch, time, input_size), targets (batch, time, …) or, if last_only, (batch, …).

    All randomness comes from the generator, so the seed of the generator determines the batch. A subclass with a name,
    ``class Copy(Task, name="copy")``, enters itself into `TASKS`.
    """

    def __init_subclass__(cls, name: str | None = None, **options: object) -> None:
        """Enter the class into `TASKS` if it has a ``name``. Raise ValueError if another class has the name."""
        super().__init_subclass__(**options)
        if name is not None:
            enter(TASKS, name, cls)

    last_only: ClassVar[bool] = False
    """Whether only the output of the last step is used."""

    causal: ClassVar[bool] = False
    """Whether targets are future inputs, which a bidirectional layer would see."""

    has_splits: ClassVar[bool] = False
    """Whether the task has a fixed data set with training, validation and test splits."""

    metrics_in_windows: ClassVar[bool] = False
    """Whether `metrics` is meaningful for a window of a sequence. Most tasks measure only some of the time steps."""

    score: ClassVar[str] = "loss"
    """Name of the metric that shows whether the task is solved."""

    higher_is_better: ClassVar[bool] = False
    """Whether a higher ``score`` is better."""

    training: ClassVar[Mapping[str, Any]] = {}
    """Default settings of `steadygrad.training.Train` for this task, used where no paper gives others."""

    @property
    def input_size(self) -> int:
        """Number of input features at each time step."""
        raise NotImplementedError

    @property
    def output_size(self) -> int:
        """Number of output features of a model for this task."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Number of time steps of a sequence."""
        raise NotImplementedError

    @property
    def model_sizes(self) -> dict[str, int]:
        """Sizes that a model for this task depends on, a dict by name.

        The names are ``inputs``, ``outputs`` and, for relational tasks, ``objects``. Weights fit another task of the
        same sizes.
        """
        return {"inputs": self.input_size, "outputs": self.output_size}

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of training data whose files have no known SHA-256; None if none is needed."""
        return None

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of ``batch`` random sequences for training, as a pair of tensors.

        Inputs are (batch, time, input_size), targets (batch, time, …) or, if last_only, (batch, …).
        """
        raise NotImplementedError

    def sample_unseen(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of ``batch`` sequences for tests, shaped as those of `sample`.

        Some tasks include kinds of sequences that training never shows. The others return the result of `sample`.
        """
        return self.sample(batch, generator)

    def held_out_batches(
        self, split: str, examples: int, batch: int, window: int | None, generator: Callable[[int], Generator]
    ) -> Sequence[Batch]:
        """Return the batches for evaluation, made on access by `sample_unseen`: ``examples`` sequences in all.

        ``batch`` is the number of sequences of a batch, and ``generator(i)`` the random generator of batch i. ``split``
        and ``window`` are for data sets and text; they are ignored here.
        """

        def make(i: int) -> Batch:
            return Batch(*self.sample_unseen(min(batch, examples - i * batch), generator(i)))

        return BatchList(make, -(-examples // batch))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the training loss of a batch, a scalar tensor, from a model's outputs and the targets.

        Outputs are (batch, time, output_size) or, if last_only, (batch, output_size).
        """
        raise NotImplementedError

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return metrics of a batch besides the loss, a dict by name, from a model's outputs and the targets."""
        raise NotImplementedError

    @property
    def guessing_loss(self) -> float:
        """Expected loss of the best answer that ignores the input."""
        raise NotImplementedError

    def weight(self, targets: Tensor) -> float:
        """Return the weight of a batch with these targets in a mean over batches: the number of its sequences."""
        return len(targets)

    def conclude(self, means: dict[str, float]) -> dict[str, float]:
        """Return the final loss and metrics, a dict, from the dict of their means over all batches.

        Subclasses add metrics that are not means, such as perplexity.
        """
        return means

    def check(self, most: int | None = None, **least: int) -> None:
        """Raise ValueError unless every named field is an integer of at least its value, as in check(length=1).

        The fields must be at most ``most``, if that is given.
        """
        for name, bound in least.items():
            check_integers(type(self).__name__, bound, most, **{name: getattr(self, name)})

    def check_seed(self, name: str) -> None:
        """Raise ValueError unless the task's field ``name`` is a seed for NumPy, an integer from 0 to 2³² − 1."""
        if not is_integer(value := getattr(self, name), 0) or value >= 2**32:
            who = type(self).__name__
            raise ValueError(f"{who} expects {name} to be an integer from 0 to {2**32 - 1}; got {value!r}")

    def check_flags(self, *names: str) -> None:
        """Raise ValueError unless every named field is a bool, as in check_flags("permuted", "fashion")."""
        for name in names:
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{type(self).__name__} expects {name} to be true or false; got {value!r}")

    def check_choice(self, name: str, known: Iterable[str]) -> None:
        """Raise ValueError unless the task's field ``name`` is one of the known values."""
        check_choice(type(self).__name__, name, getattr(self, name), known)


def one_hot(tokens: Tensor, classes: int) -> Tensor:
    """Return tokens as one-hot vectors of floating-point numbers, (*shape, classes)."""
    return torch.zeros(*tokens.shape, classes).scatter_(-1, tokens.unsqueeze(-1), 1.0)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all targets, a scalar tensor: outputs (…, classes) are logits, targets (…)."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of targets (…) for which the target class has the largest of the outputs (…, classes)."""
    return (outputs.argmax(-1) == targets).float().mean().item()
