"""Denoise task: pick the symbols out of the noise, keep their order (Jing et al., 2019)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from steadygrad.tasks.task import Task, accuracy, cross_entropy, one_hot


@dataclass(frozen=True)
class Denoise(Task):
    """Remember ``length`` symbols strewn over ``delay`` + ``length`` − 1 steps, then say them after the cue.

        input    · 3 · · 1 · 2 > · · ·       · noise (0)    > cue
        target   · · · · · · · · 3 1 2       here length=3, delay=5

    ``authors=True`` is GORU's program, which NC-GRU took over: places are drawn with replacement, so a symbol may be
    overwritten and its target cannot be known, and the cue is the zero vector.
    """

    delay: int = 200
    length: int = 10
    symbols: int = 9
    authors: bool = False

    score: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check(delay=1, length=1, symbols=1)
        if not isinstance(self.authors, bool):
            raise ValueError(f"Denoise expects authors to be true or false; got {self.authors!r}")

    @property
    def input_size(self) -> int:
        return self.symbols + (1 if self.authors else 2)

    @property
    def output_size(self) -> int:
        return self.symbols + 1

    @property
    def steps(self) -> int:
        return self.delay + 2 * self.length

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        string = torch.randint(1, self.symbols + 1, (batch, self.length), generator=generator)
        cue = self.delay + self.length - 1
        if self.authors:
            places = torch.randint(cue, (batch, self.length), generator=generator)
        else:
            places = torch.rand(batch, cue, generator=generator).topk(self.length, sorted=False).indices
        tokens = torch.zeros(batch, self.steps, dtype=torch.int64).scatter_(1, places.sort(dim=1).values, string)
        tokens[:, cue] = self.symbols + 1
        targets = torch.zeros_like(tokens)
        targets[:, -self.length :] = string
        return one_hot(tokens, self.symbols + 2)[..., : self.input_size], targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Of the symbols recalled, how many are right."""
        return {"accuracy": accuracy(outputs[:, -self.length :], targets[:, -self.length :])}

    @property
    def guessing_loss(self) -> float:
        """Blanks for certain, then one of the symbols at random."""
        return self.length * math.log(self.symbols) / self.steps
