"""Base classes of cells. A recurrent layer has one cell for each of its ``num_layers`` levels and each direction."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadygrad.kernels import Recurrence, Steps, StreamLevel, unroll_rows
from steadygrad.layers.naming import Lender
from steadygrad.layers.torch_form import TorchForm, Weights

MOST_LAYERS = 10_000
"""largest ``num_layers`` of a layer; without a limit, a huge number fills the memory with cells, one by one"""


class Lookup(NamedTuple):
    """Input x = e E of a layer, not multiplied out: ``rows`` are e (…, symbols), ``table`` is E (symbols, input_size).

    Each row of e is one-hot and selects a row of E. A cell with the input matrix U computes U Eᵀ once and multiplies it
    by e, which is faster than U x if there are few symbols. A `StepCell` computes e E instead.
    """

    rows: Tensor
    table: Tensor


class Part(NamedTuple):
    """Shape, without the batch, and dtype of one tensor of a recurrent state.

    A size None stands for a number of places that grows with time, as in a memory of all past states. The dtype None
    stands for the dtype of the layer.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype | None = None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether ``shape`` has as many dimensions as this part's shape, and the same sizes.

        Both shapes are without the batch. Where the part has None, any size fits. The dtype is not compared.
        """
        return len(shape) == len(self.shape) and all(map(lambda a, b: b in (None, a), shape, self.shape))

    def zeros(self, leading: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of zeros of shape (*leading, *shape), where None in the part's shape becomes 0.

        The device is that of ``like``. The dtype is the part's or, if the part has none, that of ``like``.
        """
        return like.new_zeros(*leading, *(size or 0 for size in self.shape), dtype=self.dtype)


class Cell(Lender):
    """Base class of cells. A recurrent layer has one cell for each of its ``num_layers`` levels and each direction.

    A cell evaluates its matrices once, then runs over all time steps of a batch.

    ``forward(x, steps, state)`` takes x (rows, input_size), laid out as in `Steps`, and a tuple of initial states
    (batch, …), one for each of ``state_parts``. It returns a pair: the outputs (rows, output_size) and the tuple of
    final states. With a ``table`` the rows of x are one-hot, as in `Lookup`. A subclass defines `weights` and `walk`,
    and sets ``state_sizes`` and ``output_size``.

    Parameters that a subclass declares as `Owned`, such as ``weight_ih = Owned()``, are taken over by the layer and get
    its names, such as ``weight_ih_l0``. ``weight_ih`` multiplies the input, ``weight_hh`` the state.
    """

    state_sizes: tuple[int, ...]
    """sizes of the tensors (batch, size) with which the state begins; a memory of past states follows them"""
    output_size: int
    shown: tuple[str, ...] = ()
    """names of the attributes that `repr` of the layer shows, such as ``activation``"""
    resets_inside = False
    """whether `walk` itself resets the state to zeros where `Steps.resets` says so, if the C kernel runs"""

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """Tuple of the shape and dtype of each tensor of the state, as `Part`: (size,) for each of ``state_sizes``."""
        return tuple(Part((size,)) for size in self.state_sizes)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Name of each tensor of the state, as a tuple: "h" is the first, "c" the second, as in torch.nn.LSTM."""
        return ("h", "c", *(f"state{i}" for i in range(2, len(self.state_sizes))))[: len(self.state_sizes)]

    def forward(
        self, x: Tensor, steps: Steps, state: tuple[Tensor, ...], table: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps of x (rows, input_size) and return the pair of outputs and final states.

        The outputs are (rows, output_size), laid out as x. ``state`` and the final states are tuples of tensors (batch,
        …), one for each of ``state_parts``. With a ``table`` (symbols, input_size), x holds one-hot rows (rows,
        symbols), as in `Lookup`.
        """
        return self.run(self.weights(), x, steps, state, table)

    def run(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...], table: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what `forward` returns, with the ``weights`` that `weights` has returned."""
        if table is None:
            return self.walk(weights, self.inputs(x), steps, state)
        return self.walk(*self.fold(weights, x, table), steps, state)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the rows of x in the form that `walk` takes: x itself, or x with features that a cell appends."""
        return x

    def weights(self) -> Any:
        """Return the evaluated matrices, which `walk` uses at all steps: a tuple that begins with the input matrix.

        Each cell defines this method; `Cell` raises NotImplementedError.
        """
        raise NotImplementedError

    def fold(self, weights: Any, rows: Tensor, table: Tensor) -> tuple[Any, Tensor]:
        """Return the pair (weights, x) for `walk`, from one-hot ``rows`` e (rows, symbols) and a ``table`` E.

        E is (symbols, input_size). U Eᵀ replaces the input matrix U, the first of ``weights``, and e is the x. Features
        that `inputs` appends to x are appended to the rows of E.
        """
        U, *others = weights
        return (U @ self.inputs(table).mT, *others), rows

    def walk(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return the pair of outputs (rows, output_size) and final states, a tuple.

        ``weights`` and x are those that `weights` and `inputs`, or `fold`, return. The states are (batch, …). Each cell
        defines this method; `Cell` raises NotImplementedError.
        """
        raise NotImplementedError

    @property
    def traceable(self) -> bool:
        """Whether torch.compile and torch.export can trace the loop over time. `Cell` returns True."""
        return True

    def recurrence(self, weights: Any) -> Recurrence | None:
        """Return ``weights`` as a `Recurrence` for the attention kernel; None if the kernel does not support the cell.

        `Cell` returns None.
        """
        return None

    def from_torch(self, weights: Weights) -> Weights:
        """Return the cell's parameters by name, from those of one level and direction of torch's layer of its kind.

        Names have no suffix. `Cell` returns the weights unchanged: torch has no such layer.
        """
        return weights

    def to_torch(self) -> TorchForm:
        """Return the cell as one level and direction of a layer of torch.nn, in evaluation mode.

        Raise ValueError, with the reason, if torch has no such layer. `Cell` raises it always.
        """
        raise ValueError(f"torch has no layer with the recurrence of {type(self).__name__}")

    def stream_level(self, weights: Any) -> StreamLevel | None:
        """Return the cell with its evaluated ``weights`` as a `StreamLevel`; None if C has no single step of it.

        `Cell` returns None.
        """
        return None

    def matrices(self) -> dict[str, Tensor]:
        """Return a dict by name of the recurrent matrices (hidden, hidden), which multiply the state.

        `Cell` returns an empty dict.
        """
        return {}

    def options(self) -> dict[str, Any]:
        """Return the options to show in `repr` of the layer, a dict by name: those in ``shown``, the kind of matrix."""
        label = getattr(getattr(self, "weight_hh", None), "label", "")  # a parameter has none
        return {name: getattr(self, name) for name in self.shown} | ({"recurrent": label} if label else {})

    def kinds(self) -> dict[Tensor, str]:
        """Return a dict of the kind, such as "matrix", of each parameter that has one.

        Parameters of a `Matrix` are left out: the `Matrix` has their kinds. `Cell` returns an empty dict.
        """
        return {}

    def initial_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return the states before the first input: a tuple of zeros (batch, …), one for each of ``state_parts``.

        The device is that of ``like``. The dtype is the part's or, if the part has none, that of ``like``.
        """
        return tuple(part.zeros((batch,), like) for part in self.state_parts)

    def penalty(self) -> Tensor | float:
        """Return the cell's regularisation term, which training adds to the loss. `Cell` returns 0.0."""
        return 0.0


class StepCell(Cell):
    """Base class of cells that are defined by `step` and `initial_state` alone, in PyTorch operations.

    Packed and reversed sequences, attention, streaming and diagnostics follow from these two methods. The output of a
    step is the first tensor of the state.
    """

    def step(self, input: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the state after one time step, from the input (batch, input_size) and the state before it.

        A state is a tuple of tensors (batch, size). Each cell defines this method; `StepCell` raises
        NotImplementedError.
        """
        raise NotImplementedError

    def initial_state(self) -> tuple[Tensor, ...]:
        """Return the state before the first input: a tuple of tensors (size,), without a batch.

        Each cell defines this method; `StepCell` raises NotImplementedError.
        """
        raise NotImplementedError

    @property
    def state_sizes(self) -> tuple[int, ...]:  # type: ignore[override]  # computed here, an attribute elsewhere
        """Size of each tensor of the state, as a tuple: the lengths of the tensors of `initial_state`."""
        return tuple(len(part) for part in self.initial_state())

    @property
    def output_size(self) -> int:  # type: ignore[override]  # likewise
        """Number of output features: the size of the first tensor of the state."""
        return self.state_sizes[0]

    def initial_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return `initial_state` for every sequence of a batch: a tuple of tensors (batch, size).

        They have the dtype and device of ``like``. They are expanded views, so do not write to them.
        """
        return tuple(part.to(like).expand(batch, -1) for part in self.initial_state())

    def weights(self) -> None:
        """Return None instead of evaluated matrices for `walk`: `step` reads the parameters itself."""

    def fold(self, weights: None, rows: Tensor, table: Tensor) -> tuple[None, Tensor]:
        """Return the pair (None, e E): no weights, and the inputs from one-hot rows e and a table E."""
        return None, rows @ table

    def walk(
        self, weights: None, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Call `step` at every time step and return the outputs (rows, output_size) and the tuple of final states.

        The outputs are the first tensor of every state. ``weights`` is not used.
        """
        states = unroll_rows(self.step, x, state, steps)
        return states[0], tuple(map(steps.last, states))
