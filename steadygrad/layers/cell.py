"""Base classes of cells. A recurrent layer has one cell for each level and direction."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.kernels import Recurrence, Steps, unroll


class Lookup(NamedTuple):
    """Input x = e E of a layer: one-hot rows e (…, symbols) that each select a row of a table E (symbols, input_size).

    The layer computes U Eᵀ once and multiplies it by e, which is faster than U x if there are few symbols.
    """

    rows: Tensor
    table: Tensor


class Part(NamedTuple):
    """Shape, without the batch, and dtype of one tensor of a state.

    None in the shape is a number of places that grows with time. The dtype None is that of the layer.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype | None = None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this part of the state may have the shape (without the batch)."""
        return len(shape) == len(self.shape) and all(map(lambda a, b: b in (None, a), shape, self.shape))

    def zeros(self, leading: tuple[int, ...], like: Tensor) -> Tensor:
        """Return zeros (*leading, *shape), with no places yet where their number grows."""
        return like.new_zeros(*leading, *(size or 0 for size in self.shape), dtype=self.dtype)


class Cell(nn.Module):
    """Base class of cells: one direction of one level of a recurrent layer.

    A cell evaluates its matrices once, then runs over all time steps of a batch.

    ``forward(x, steps, state)`` takes x (rows, input_size), laid out as in `Steps`, and a tuple of initial states
    (batch, …), one for each of ``state_parts``. It returns the outputs (rows, output_size) and the final states.
    With a ``table`` the rows of x are one-hot, as in `Lookup`.
    """

    state_sizes: tuple[int, ...]
    """sizes of the tensors (batch, size) with which the state begins; a memory of past states follows them"""
    output_size: int

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """Shape and dtype of each tensor of the state."""
        return tuple(Part((size,)) for size in self.state_sizes)

    def forward(
        self, x: Tensor, steps: Steps, state: tuple[Tensor, ...], table: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps of x and return the outputs (rows, output_size) and the final states."""
        weights = self.weights()
        if table is None:
            return self.walk(weights, self.inputs(x), steps, state)
        return self.walk(*self.fold(weights, x, table), steps, state)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the rows of x in the form that `walk` takes; some cells append features."""
        return x

    def weights(self) -> Any:
        """Return the evaluated matrices, which `walk` uses at all steps: a tuple that begins with the input matrix."""
        raise NotImplementedError

    def fold(self, weights: Any, rows: Tensor, table: Tensor) -> tuple[Any, Tensor]:
        """Return weights and inputs for `walk`, from one-hot rows e and a table E: U Eᵀ replaces U, and e replaces x.

        Features that `inputs` appends to x are appended to the rows of E.
        """
        U, *others = weights
        return (U @ self.inputs(table).mT, *others), rows

    def walk(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return the outputs (rows, output_size) and the final states."""
        raise NotImplementedError

    def recurrence(self, weights: Any) -> Recurrence | None:
        """Return the cell's weights for the attention kernel; None if the kernel does not support the cell."""
        return None

    def matrices(self) -> dict[str, Tensor]:
        """Return the recurrent matrices (hidden, hidden), which multiply the state, by name; a cell may have none."""
        return {}

    def initial_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return the states before the first input: a tuple of zeros (batch, …), one for each of ``state_parts``.

        They have the device of ``like``, and its dtype unless the part has its own.
        """
        return tuple(part.zeros((batch,), like) for part in self.state_parts)

    def penalty(self) -> Tensor | float:
        """Return the cell's regularisation term, which training adds to the loss."""
        return 0.0


class StepCell(Cell):
    """A cell that is defined by `step` and `initial_state` alone.

    Packed and reversed sequences, attention, streaming and diagnostics follow from these two methods. The output is the
    first part of the state.
    """

    def step(self, input: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the state after one time step, from the input (batch, input_size) and the state before it."""
        raise NotImplementedError

    def initial_state(self) -> tuple[Tensor, ...]:
        """Return the state before the first input: one tensor (size,) for each part."""
        raise NotImplementedError

    @property
    def state_sizes(self) -> tuple[int, ...]:  # type: ignore[override]  # computed here, an attribute elsewhere
        """Size of each tensor of the state."""
        return tuple(len(part) for part in self.initial_state())

    @property
    def output_size(self) -> int:  # type: ignore[override]  # likewise
        """Number of output features: the size of the first tensor of the state."""
        return self.state_sizes[0]

    def initial_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return `initial_state` for every sequence of a batch, with the dtype and device of ``like``."""
        return tuple(part.to(like).expand(batch, -1) for part in self.initial_state())

    def weights(self) -> None:
        """Return None: `step` reads the parameters itself."""

    def fold(self, weights: None, rows: Tensor, table: Tensor) -> tuple[None, Tensor]:
        """Return None for the weights, and the inputs e E from one-hot rows e and a table E."""
        return None, rows @ table

    def walk(
        self, weights: None, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        states = unroll(self.step, x.split(steps.sizes), state, steps)
        return states[0], tuple(map(steps.last, states))
