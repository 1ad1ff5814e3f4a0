"""Copy task: repeat a short string after a long delay (Hochreiter & Schmidhuber, 1997)."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from steadygrad.tasks.recall import Recall
from steadygrad.tasks.task import one_hot

RECALL = ("after", "at")


@dataclass(frozen=True)
class Copy(Recall, name="copy"):
    """Remember ``length`` symbols for ``delay`` steps, then output them on cue.

        input    3 1 2 · · · · > · · ·       · blank (0)    > cue (symbols + 1)
        target   · · · · · · · · 3 1 2       here length=3, delay=5

    With ``recall="after"``, the answer begins one step after the cue, as drawn (nnRNN, ENRNN). With ``recall="at"``,
    it begins at the cue, which then comes one step later (NC-GRU).
    """

    recall: str = "after"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("recall", RECALL)

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return one-hot inputs (batch, time, symbols + 2) and integer targets (batch, time), 0 for blank."""
        string = torch.randint(1, self.symbols + 1, (batch, self.length), generator=generator)
        tokens = torch.zeros(batch, self.steps, dtype=torch.int64)
        targets = torch.zeros_like(tokens)
        tokens[:, : self.length] = string
        tokens[:, -self.length - (self.recall == "after")] = self.symbols + 1  # the cue
        targets[:, -self.length :] = string
        return one_hot(tokens, self.input_size), targets
