"""Base class of copy and denoise: recall a string of symbols in the last steps."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from steadygrad.tasks.task import Task, accuracy, cross_entropy


@dataclass(frozen=True)
class Recall(Task):
    """Base class of copy and denoise: targets are blank (0) up to the last ``length`` steps, then symbols to recall.

    There are ``symbols`` different symbols. A sequence has ``delay`` + 2 · ``length`` steps.
    """

    delay: int = 200
    length: int = 10
    symbols: int = 8

    score: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check(delay=1, length=1, symbols=1)

    @property
    def input_size(self) -> int:
        return self.symbols + 2

    @property
    def output_size(self) -> int:
        return self.symbols + 1

    @property
    def steps(self) -> int:
        return self.delay + 2 * self.length

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over all time steps."""
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the dict {"accuracy": share of right symbols in the last ``length`` steps}."""
        return {"accuracy": accuracy(outputs[:, -self.length :], targets[:, -self.length :])}

    @property
    def guessing_loss(self) -> float:
        """Loss of predicting blanks with certainty, then all symbols with equal probability."""
        return self.length * math.log(self.symbols) / self.steps
