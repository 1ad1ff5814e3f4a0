"""What copy and denoise share: symbols that are said in order at the end."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from steadygrad.tasks.task import Task, accuracy, cross_entropy


@dataclass(frozen=True)
class Recall(Task):
    """``length`` out of ``symbols`` symbols, said in the last ``length`` steps; blanks (0) before."""

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
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Of the symbols recalled, how many are right."""
        return {"accuracy": accuracy(outputs[:, -self.length :], targets[:, -self.length :])}

    @property
    def guessing_loss(self) -> float:
        """Blanks for certain, then one of the symbols at random."""
        return self.length * math.log(self.symbols) / self.steps
