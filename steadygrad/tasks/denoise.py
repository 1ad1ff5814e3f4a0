"""Denoise task: pick the symbols out of the noise, keep their order (Jing et al., 2019)."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from steadygrad.tasks.recall import Recall
from steadygrad.tasks.task import one_hot


@dataclass(frozen=True)
class Denoise(Recall, name="denoise"):
    """Remember ``length`` symbols scattered over ``delay`` + ``length`` − 1 steps, then output them after the cue.

        input    · 3 · · 1 · 2 > · · ·       · noise (0)    > cue
        target   · · · · · · · · 3 1 2       here length=3, delay=5

    ``authors=True`` follows GORU's program, which NC-GRU also uses. Positions are drawn with replacement, so a symbol
    may be overwritten; its target then cannot be known. The cue is the zero vector.
    """

    symbols: int = 9
    authors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_flags("authors")

    @property
    def input_size(self) -> int:
        return self.symbols + (1 if self.authors else 2)

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return one-hot inputs (batch, time, input_size) and integer targets (batch, time), 0 for blank."""
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
