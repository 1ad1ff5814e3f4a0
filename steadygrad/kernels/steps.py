"""The time axis of a batch of sequences, of equal or unequal length, processed in either direction."""

from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor


def shortened(sizes: tuple[object, ...]) -> str:
    """Return the sizes as text; of more than ten only the first ten, and how many more there are."""
    return f"{list(sizes)}" if len(sizes) <= 10 else f"{list(sizes[:10])} and {len(sizes) - 10} more"


@dataclass(frozen=True)
class Steps:
    """Which rows of a (rows, features) tensor belong to which time step.

    A row is one time step of one sequence. Rows are ordered by time step and, within a step, by sequence, longest
    sequence first: the layout of `torch.nn.utils.rnn.PackedSequence`. Step t has ``sizes[t]`` rows. With ``reverse``
    each sequence is processed from its end to its beginning; the order of the rows does not change.

    ``resets`` is None, or a Boolean tensor (rows,), see `with_resets`.
    """

    sizes: tuple[int, ...]
    reverse: bool = False
    resets: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError unless the sizes are those of a batch. The C kernels read as many rows as the sizes say."""
        sizes = self.sizes
        if not sizes or set(map(type, sizes)) != {int}:
            raise ValueError(
                f"a packed batch expects batch_sizes of one integer for each time step; got {shortened(sizes)}"
            )
        if sizes[-1] < (sizes[0] > 0) or list(sizes) != sorted(sizes, reverse=True):
            raise ValueError(
                f"a packed batch expects batch_sizes that are positive and do not rise; got {shortened(sizes)}"
            )

    @staticmethod
    @lru_cache(maxsize=64)
    def padded(time: int, batch: int) -> "Steps":
        """Return the `Steps` of ``batch`` sequences, each with ``time`` steps."""
        return Steps((batch,) * time)

    @staticmethod
    def packed(batch_sizes: Tensor, rows: int) -> "Steps":
        """Return the `Steps` of a PackedSequence, from its ``batch_sizes`` and the number of ``rows`` of its data.

        Raise ValueError unless the batch_sizes are a vector on the CPU, positive, not rising, and add up to ``rows``.
        """
        if not batch_sizes.is_cpu or batch_sizes.dim() != 1:
            shape = tuple(batch_sizes.shape)
            raise ValueError(
                f"a packed batch expects batch_sizes as a vector on the CPU; got shape {shape} on {batch_sizes.device}"
            )
        steps = Steps(tuple(batch_sizes.tolist()))
        if steps.batch == 0 or sum(steps.sizes) != rows:
            raise ValueError(
                f"a packed batch expects positive batch_sizes that add up to its {rows} rows; "
                f"got {shortened(steps.sizes)}"
            )
        return steps

    def chunks(self, length: int) -> list["Steps"]:
        """Return a list of `Steps`, in the order of time, of ``length`` time steps each; the last may have fewer."""
        found, row, whole = [], 0, (self.sizes[0],) * length
        for begin in range(0, len(self.sizes), length):
            sizes = self.sizes[begin : begin + length]
            piece = Steps.padded(length, self.batch) if sizes == whole else Steps(sizes)
            piece = piece.reversed if self.reverse else piece
            found.append(piece if self.resets is None else piece.with_resets(self.resets[row : row + piece.rows]))
            row += piece.rows
        return found

    def with_resets(self, resets: Tensor) -> "Steps":
        """Return a copy of these `Steps` in which a new sequence begins at each row where ``resets`` is True.

        ``resets`` is a Boolean tensor (rows,). The recurrent state before such a row is zero, and a memory of past
        states is empty. This method only stores the mask. The C kernels and `unroll` reset the state.
        """
        steps = copy(self)  # with all that is cached
        object.__setattr__(steps, "resets", resets.contiguous())
        return steps

    @cached_property
    def reversed(self) -> "Steps":
        """`Steps` of the same rows, processed in the opposite direction."""
        return Steps(self.sizes, not self.reverse)

    @property
    def time(self) -> int:
        """Number of time steps."""
        return len(self.sizes)

    @cached_property
    def batch(self) -> int:
        """Number of sequences."""
        return self.sizes[0]

    @cached_property
    def uniform(self) -> bool:
        """Whether all sequences have the same length."""
        return self.sizes[0] == self.sizes[-1]

    @cached_property
    def offsets(self) -> list[int]:
        """List of the number of the first row of each time step, followed by the total number of rows."""
        total, offsets = 0, [0]
        for size in self.sizes:
            total += size
            offsets.append(total)
        return offsets

    @cached_property
    def slices(self) -> list[slice]:
        """List of the rows of each time step, as slices."""
        return [slice(begin, end) for begin, end in pairwise(self.offsets)]

    @cached_property
    def offsets_tensor(self) -> Tensor:
        """`offsets` as a tensor of integers on the CPU."""
        if self.uniform:  # without a Python integer for each step
            return torch.arange(len(self.sizes) + 1, device="cpu") * self.batch
        return torch.tensor(self.offsets, dtype=torch.int64, device="cpu")

    @cached_property
    def rows(self) -> int:
        """Total number of rows: one for each time step of each sequence."""
        return len(self.sizes) * self.batch if self.uniform else self.offsets[-1]

    @cached_property
    def lengths(self) -> list[int]:
        """List of the lengths of the sequences, in the order of the batch: longest first."""
        if self.uniform:
            return [len(self.sizes)] * self.batch
        lengths = [0] * self.batch
        for time, size in enumerate(self.sizes, 1):
            lengths[:size] = [time] * size
        return lengths

    def order(self) -> range:
        """Return the numbers of the time steps, from 0, in the order of processing, as a range."""
        return range(len(self.sizes) - 1, -1, -1) if self.reverse else range(len(self.sizes))

    @cached_property
    def _previous_rows(self) -> Tensor:
        """Row number of the previous state, for each row. The initial states are counted as rows after all others."""
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
        """Return the previous state of each row, (rows, hidden), from all states and the initial ones (batch, hidden).

        The previous state is that of the step processed before; at a sequence's first step it is its initial state.
        """
        if not self.uniform:
            return torch.cat([states, initial]).index_select(0, self._previous_rows.to(states.device))
        parts = [states[self.batch :], initial] if self.reverse else [initial, states[: -self.batch]]
        return torch.cat(parts)

    def last(self, states: Tensor) -> Tensor:
        """Return the final state of each sequence, (batch, hidden), from all states (rows, hidden).

        With ``reverse`` it is the state at the first time step, which is processed last.
        """
        if self.reverse:
            return states if len(self.sizes) == 1 else states[: self.batch]
        if self.uniform:
            return states if len(self.sizes) == 1 else states[-self.batch :]
        return states.index_select(0, self._last_rows.to(states.device))

    @cached_property
    def _last_rows(self) -> Tensor:
        """Row number of the last time step of each sequence, in the order of the batch."""
        index = torch.empty(self.batch, dtype=torch.int64, device="cpu")
        for begin, size in zip(self.offsets, self.sizes, strict=False):
            index[:size] = torch.arange(begin, begin + size, device="cpu")
        return index
