"""What every task is: a recipe for sequences, a loss, metrics, and the loss of somebody who guesses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


class Batch(NamedTuple):
    inputs: Tensor
    targets: Tensor
    goes_on: bool = False
    """whether the state of the batch before is carried into this one"""


@dataclass(frozen=True)
class Task:
    """Base class. Inputs (batch, time, input_size); targets (batch, time, …), or (batch, …) if only the end counts.

    All randomness comes from the generator, so a batch is a function of its seed.
    """

    last_only: ClassVar[bool] = False
    """whether the answer is read at the last step alone"""

    causal: ClassVar[bool] = False
    """whether it asks for the next input, which a layer that reads backwards would have seen"""

    score: ClassVar[str] = "loss"
    """the metric that says at a glance whether the task is solved"""

    higher_is_better: ClassVar[bool] = False
    """of ``score``"""

    training: ClassVar[Mapping[str, Any]] = {}
    """how networks are trained on it where no paper says so, in the words of `steadygrad.training.Train`"""

    @property
    def input_size(self) -> int:
        raise NotImplementedError

    @property
    def output_size(self) -> int:
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Time steps of one sequence."""
        raise NotImplementedError

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Fresh inputs and targets, to train on."""
        raise NotImplementedError

    def sample_unseen(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Fresh inputs and targets, to be tested on: also of kinds that training never shows, if the task has such."""
        return self.sample(batch, generator)

    def shown(self, model: Any, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Inputs and targets of sequences to look at a model with."""
        return self.sample(batch, generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Means over the batch, besides the loss."""
        raise NotImplementedError

    @property
    def guessing_loss(self) -> float:
        """The expected loss of the best answer that ignores the input."""
        raise NotImplementedError

    def weight(self, targets: Tensor) -> float:
        """How much of all that is averaged a batch with these targets is."""
        return len(targets)

    def conclude(self, means: dict[str, float]) -> dict[str, float]:
        """Loss and metrics of all batches together, with those that are no means."""
        return means

    def check(self, **least: int) -> None:
        """Every field named is a whole number of at least so much."""
        for name, bound in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < bound:
                who = type(self).__name__
                raise ValueError(f"{who} expects {name} to be a whole number of at least {bound}; got {value!r}")

    def check_seed(self, name: str) -> None:
        """numpy takes no larger ones."""
        if not isinstance(value := getattr(self, name), int) or isinstance(value, bool) or not 0 <= value < 2**32:
            who = type(self).__name__
            raise ValueError(f"{who} expects {name} to be a whole number from 0 to {2**32 - 1}; got {value!r}")

    def check_flags(self, *names: str) -> None:
        for name in names:
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{type(self).__name__} expects {name} to be true or false; got {value!r}")

    def check_choice(self, name: str, known: Iterable[str]) -> None:
        if (value := getattr(self, name)) not in (known := tuple(known)):
            raise ValueError(f"{type(self).__name__} expects {name} to be one of {', '.join(known)}; got {value!r}")


def one_hot(tokens: Tensor, classes: int) -> Tensor:
    """As `torch.nn.functional.one_hot`, in floating point at once."""
    return torch.zeros(*tokens.shape, classes).scatter_(-1, tokens.unsqueeze(-1), 1.0)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over batch and time; outputs (batch, time, classes), targets (batch, time)."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    return (outputs.argmax(-1) == targets).float().mean().item()
