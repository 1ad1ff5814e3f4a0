"""What every task is: a recipe for sequences, a loss, metrics, and the loss of somebody who guesses."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Task:
    """Base class. Inputs (batch, time, input_size); targets (batch, time, …), or (batch, …) if only the end counts.

    All randomness comes from the generator, so a batch is a function of its seed.
    """

    last_only: ClassVar[bool] = False
    """whether the answer is read at the last step alone"""

    score: ClassVar[str] = "loss"
    """the metric that says at a glance whether the task is solved"""

    higher_is_better: ClassVar[bool] = False
    """of ``score``"""

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
        """Fresh inputs and targets."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Means over the batch, besides the loss."""
        raise NotImplementedError

    @property
    def guessing_loss(self) -> float:
        """The expected loss of the best answer that ignores the input."""
        raise NotImplementedError

    def check(self, **least: int) -> None:
        """Every field named is a whole number of at least so much."""
        for name, bound in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < bound:
                who = type(self).__name__
                raise ValueError(f"{who} expects {name} to be a whole number of at least {bound}; got {value!r}")


def one_hot(tokens: Tensor, classes: int) -> Tensor:
    """As `torch.nn.functional.one_hot`, in floating point at once."""
    return torch.zeros(*tokens.shape, classes).scatter_(-1, tokens.unsqueeze(-1), 1.0)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over batch and time; outputs (batch, time, classes), targets (batch, time)."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    return (outputs.argmax(-1) == targets).float().mean().item()
