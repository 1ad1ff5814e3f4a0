"""Adding problem: add two marked numbers of a long sequence (Hochreiter & Schmidhuber, 1997)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.tasks.task import Task


@dataclass(frozen=True)
class Adding(Task, name="adding"):
    """Output the sum of two marked numbers, one in each half of a sequence of ``length`` numbers.

    input    .3 .9 .4 .7 .1 .8       values, uniform in [0, 1)
              0  1  0  0  1  0       markers
    target                  1.0      .9 + .1, at the last step
    """

    length: int = 200

    last_only: ClassVar[bool] = True
    score: ClassVar[str] = "mse"

    def __post_init__(self) -> None:
        self.check(length=3)

    @property
    def input_size(self) -> int:
        return 2

    @property
    def output_size(self) -> int:
        return 1

    @property
    def steps(self) -> int:
        return self.length

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs (batch, time, 2), values and markers, and targets (batch, 1), the sums."""
        half = (self.length - 1) // 2  # where ENRNN's authors divide the sequence
        first = torch.randint(0, half, (batch, 1), generator=generator)
        second = torch.randint(half, self.length, (batch, 1), generator=generator)
        places = torch.cat([first, second], dim=1)
        values = torch.rand(batch, self.length, generator=generator)
        markers = torch.zeros(batch, self.length).scatter_(1, places, 1.0)
        return torch.stack([values, markers], dim=-1), values.gather(1, places).sum(1, keepdim=True)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error, a scalar tensor, of outputs and targets (batch, 1)."""
        return F.mse_loss(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the dict {"mse": mean squared error}."""
        return {"mse": F.mse_loss(outputs, targets).item()}

    @property
    def guessing_loss(self) -> float:
        """Mean squared error of always answering 1: the variance of the sum of two uniform numbers, 1/6."""
        return 1 / 6
