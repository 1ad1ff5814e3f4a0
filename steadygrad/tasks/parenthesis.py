"""Parenthesis task: count the open brackets of each type (Foerster et al., 2017; Jing et al., 2019)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.tasks.task import Task, accuracy, one_hot


@dataclass(frozen=True)
class Parenthesis(Task, name="parenthesis"):
    """After every token, output how many brackets of each of ``types`` types are open, at most ``cap``.

        input      ( [ x ( ) ] ] )       x one of ``noise`` tokens; all tokens equally likely
        target  (  1 1 1 2 1 1 1 0       closing a bracket that is not open changes nothing
                [  0 1 1 1 1 0 0 0

    A sequence has ``length`` tokens. Targets are one-hot vectors of cap + 1 numbers per type. The loss is the mean
    squared error, as in NC-GRU.
    """

    length: int = 100
    types: int = 3
    noise: int = 1
    cap: int = 5

    score: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check(length=1, types=1, noise=0, cap=1)

    @property
    def input_size(self) -> int:
        return 2 * self.types + self.noise

    @property
    def output_size(self) -> int:
        return self.types * (self.cap + 1)

    @property
    def steps(self) -> int:
        return self.length

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return one-hot tokens (batch, time, input_size) and one-hot counts (batch, time, types · (cap + 1))."""
        tokens = torch.randint(self.input_size, (batch, self.length), generator=generator)
        moves = np.zeros((self.input_size, self.types), np.int16)  # by token: opening, closing, noise
        moves[: self.types], moves[self.types : 2 * self.types] = np.eye(self.types), -np.eye(self.types)
        counts = clipped_walk(moves[tokens.numpy().T], self.cap)  # time first
        targets = np.eye(self.cap + 1, dtype=np.float32)[counts.swapaxes(0, 1)]
        return one_hot(tokens, self.input_size), torch.from_numpy(targets).flatten(2)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of outputs and one-hot targets, both (batch, time, output_size)."""
        return F.mse_loss(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the dict {"accuracy": share of counts that are right}."""
        shape = self.types, self.cap + 1
        return {"accuracy": accuracy(outputs.unflatten(-1, shape), targets.unflatten(-1, shape).argmax(-1))}

    @property
    def guessing_loss(self) -> float:
        """Mean squared error of predicting each step's mean target: the mean of p (1 − p), p a count's probability."""
        count, move = np.eye(self.cap + 1)[0], 1 / self.input_size
        up, down = np.roll(np.eye(self.cap + 1), 1, axis=0), np.roll(np.eye(self.cap + 1), -1, axis=0)
        up[0, -1], up[-1, -1] = 0, 1  # at the cap the count stays
        down[-1, 0], down[0, 0] = 0, 1
        step = move * (up + down) + (1 - 2 * move) * np.eye(self.cap + 1)
        variance = 0.0
        for _ in range(self.length):
            count = step @ count
            variance += float((count * (1 - count)).mean())
        return variance / self.length


def clipped_walk(moves: np.ndarray, cap: int) -> np.ndarray:
    """Return the walk x_t = min(max(x_{t−1} + moves_t, 0), cap) along the first axis of ``moves``, from x = 0.

    The result is an array of integers of the same shape, without the start.

    It takes log₂ T rounds instead of T steps.

    Each stretch of the walk maps x to min(max(x + shift, low), high). Two such maps in a row are a map of this form.
    """
    shift: Any = moves.astype(np.int16 if cap + len(moves) < 2**15 else np.int64)
    low, high = np.zeros_like(shift), np.full_like(shift, cap)
    reach = 1
    while reach < len(shift):
        before, here = slice(None, -reach), slice(reach, None)
        low_new = np.minimum(np.maximum(low[before] + shift[here], low[here]), high[here])
        high_new = np.minimum(np.maximum(high[before] + shift[here], low[here]), high[here])
        shift_new = shift[before] + shift[here]
        low[here], high[here], shift[here] = low_new, high_new, shift_new
        reach *= 2
    return np.minimum(np.maximum(shift, low), high)
