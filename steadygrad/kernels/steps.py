"""The time axis of a batch of sequences, equal in length or not, walked in either direction."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Steps:
    """Which rows of a (rows, features) tensor belong to which time step.

    Rows stand step after step and, within a step, in the order of the batch, longest sequence first: the layout of
    `torch.nn.utils.rnn.PackedSequence`. ``sizes[t]`` rows are there at step t. ``reverse`` walks from the end of each
    sequence to its beginning; the rows stay where they are.
    """

    sizes: tuple[int, ...]
    reverse: bool = False

    @staticmethod
    @lru_cache(maxsize=64)
    def padded(time: int, batch: int) -> "Steps":
        return Steps((batch,) * time)

    @cached_property
    def reversed(self) -> "Steps":
        return Steps(self.sizes, not self.reverse)

    @property
    def batch(self) -> int:
        return self.sizes[0]

    @property
    def uniform(self) -> bool:
        return self.sizes[0] == self.sizes[-1]

    @cached_property
    def offsets(self) -> list[int]:
        """Row at which each step begins, and the number of rows at the end."""
        total, offsets = 0, [0]
        for size in self.sizes:
            total += size
            offsets.append(total)
        return offsets

    @cached_property
    def slices(self) -> list[slice]:
        """Rows of each step."""
        return [slice(begin, end) for begin, end in pairwise(self.offsets)]

    @cached_property
    def offsets_tensor(self) -> Tensor:
        return torch.tensor(self.offsets, dtype=torch.int64, device="cpu")

    @property
    def rows(self) -> int:
        return self.offsets[-1]

    @cached_property
    def lengths(self) -> list[int]:
        """Of the sequences, in the order of the batch."""
        lengths = [0] * self.batch
        for time, size in enumerate(self.sizes, 1):
            lengths[:size] = [time] * size
        return lengths

    def order(self) -> range:
        """The steps in the order in which they are walked."""
        return range(len(self.sizes) - 1, -1, -1) if self.reverse else range(len(self.sizes))

    @cached_property
    def _previous_rows(self) -> Tensor:
        """For each row the row of its previous state, counted on into the initial states that follow the rows."""
        starts = torch.arange(self.rows, self.rows + self.batch, device="cpu")
        index = torch.empty(self.rows, dtype=torch.int64, device="cpu")
        before = None
        for t in self.order():
            begin, size = self.offsets[t], self.sizes[t]
            index[begin : begin + size] = starts[:size]
            if before is not None:
                going_on = min(size, self.sizes[before])
                first = self.offsets[before]
                index[begin : begin + going_on] = torch.arange(first, first + going_on, device="cpu")
            before = t
        return index

    def previous(self, states: Tensor, initial: Tensor) -> Tensor:
        """The state that each row's step started from: (rows, hidden)."""
        if not self.uniform:
            return torch.cat([states, initial]).index_select(0, self._previous_rows.to(states.device))
        parts = [states[self.batch :], initial] if self.reverse else [initial, states[: -self.batch]]
        return torch.cat(parts)

    def last(self, states: Tensor) -> Tensor:
        """Each sequence's final state, in the order of the batch: (batch, hidden)."""
        if self.reverse:
            return states[: self.batch]
        if self.uniform:
            return states[-self.batch :]
        return states.index_select(0, self._last_rows.to(states.device))

    @cached_property
    def _last_rows(self) -> Tensor:
        index = torch.empty(self.batch, dtype=torch.int64, device="cpu")
        for begin, size in zip(self.offsets, self.sizes, strict=False):
            index[:size] = torch.arange(begin, begin + size, device="cpu")
        return index
