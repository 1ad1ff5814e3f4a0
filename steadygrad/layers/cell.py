"""What every recurrent layer is made of."""

from typing import Any

from torch import Tensor, nn

from steadygrad.kernels import Recurrence, Steps, unroll


class Cell(nn.Module):
    """One direction of one level: evaluates its matrices once, then walks a whole batch of sequences.

    ``forward(x, steps, state)`` takes x (rows, input_size) laid out as `Steps` says and a tuple of initial states, one
    for each of ``state_sizes`` and each (batch, size); it returns outputs (rows, output_size) and final states.
    ``remembers``: the last of the states is a memory of earlier ones, none of them if it is zero. ``growth`` is for a
    memory without limit: it may be longer by any multiple of that. With a ``table`` (symbols, input_size) the rows of x
    are one-hot, symbols wide, and stand for rows of it.
    """

    state_sizes: tuple[int, ...]
    output_size: int
    remembers = False
    growth = 0

    def forward(
        self, x: Tensor, steps: Steps, state: tuple[Tensor, ...], table: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.walk(self.weights(table), self.inputs(x, table), steps, state)

    def inputs(self, x: Tensor, table: Tensor | None) -> Tensor:
        """The rows of x as `walk` takes them."""
        return x

    def weights(self, table: Tensor | None = None) -> Any:
        """What `walk` needs and no step changes: matrices are evaluated here, that of the inputs with the table."""
        raise NotImplementedError

    def walk(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        raise NotImplementedError

    def recurrence(self, weights: Any) -> Recurrence | None:
        """The same for a kernel that takes the states to be multiplied from elsewhere; None if there is none."""
        return None

    def matrices(self) -> dict[str, Tensor]:
        """Return the assembled recurrent matrices by name, W of W h; a cell may have none."""
        return {}

    def initial_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return the states (batch, size) before the first input: zeros, with the dtype and device of ``like``."""
        return tuple(like.new_zeros(batch, size) for size in self.state_sizes)

    def penalty(self) -> Tensor | float:
        return 0.0


class StepCell(Cell):
    """A cell that is given by `step` and `initial_state` alone.

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
    def state_sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return tuple(len(part) for part in self.initial_state())

    @property
    def output_size(self) -> int:  # type: ignore[override]
        return self.state_sizes[0]

    def initial_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.to(like).expand(batch, -1) for part in self.initial_state())

    def weights(self, table: Tensor | None = None) -> None:
        """Return nothing: `step` reads the parameters."""

    def inputs(self, x: Tensor, table: Tensor | None) -> Tensor:
        return x if table is None else x @ table

    def walk(
        self, weights: None, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        states = unroll(self.step, x.split(steps.sizes), state, steps)
        return states[0], tuple(map(steps.last, states))


def through(table: Tensor | None, U: Tensor) -> Tensor:
    """U, or U Eᵀ, which takes a one-hot e to U x where x = Eᵀ e is a row of the table E."""
    return U if table is None else U @ table.mT
