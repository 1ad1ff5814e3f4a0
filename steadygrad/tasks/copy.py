"""Copy task: repeat a short string after a long silence (Hochreiter & Schmidhuber, 1997)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from steadygrad.tasks.task import Task, accuracy, cross_entropy, one_hot

RECALL = ("after", "at")


@dataclass(frozen=True)
class Copy(Task):
    """Remember ``length`` symbols for ``delay`` steps, then say them on cue.

        input    3 1 2 · · · · > · · ·       · blank (0)    > cue (symbols + 1)
        target   · · · · · · · · 3 1 2       here length=3, delay=5

    ``recall="after"`` the cue, as drawn (nnRNN, ENRNN), or ``"at"`` the cue, which then comes a step later (NC-GRU).
    """

    delay: int = 200
    length: int = 10
    symbols: int = 8
    recall: str = "after"

    score: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check(delay=1, length=1, symbols=1)
        if self.recall not in RECALL:
            raise ValueError(f"Copy expects recall to be one of {', '.join(RECALL)}; got {self.recall!r}")

    @property
    def input_size(self) -> int:
        return self.symbols + 2

    @property
    def output_size(self) -> int:
        return self.symbols + 1

    @property
    def steps(self) -> int:
        return self.delay + 2 * self.length

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        string = torch.randint(1, self.symbols + 1, (batch, self.length), generator=generator)
        tokens = torch.zeros(batch, self.steps, dtype=torch.int64)
        targets = torch.zeros_like(tokens)
        tokens[:, : self.length] = string
        tokens[:, -self.length - (self.recall == "after")] = self.symbols + 1  # the cue
        targets[:, -self.length :] = string
        return one_hot(tokens, self.input_size), targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Of the symbols recalled, how many are right."""
        return {"accuracy": accuracy(outputs[:, -self.length :], targets[:, -self.length :])}

    @property
    def guessing_loss(self) -> float:
        """Blanks for certain, then one of the symbols at random."""
        return self.length * math.log(self.symbols) / self.steps
