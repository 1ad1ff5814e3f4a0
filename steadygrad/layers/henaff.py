"""The network for which Henaff, Szlam & LeCun (2016) construct solutions of the copying and adding problems."""

from typing import Any, Unpack

import torch
from torch import Tensor

from steadygrad.kernels import (
    Recurrence,
    Steps,
    StreamLevel,
    activate,
    in_own_precision,
    needs_plain,
    wants_graph,
    with_graph,
)
from steadygrad.layers.cell import Cell
from steadygrad.layers.elman import ElmanWeights, elman_walk
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.rnn import ElmanCell
from steadygrad.layers.start import ORTHOGONAL_START
from steadygrad.matrices import Spec


class Product(torch.autograd.Function):
    """Autograd function x Uᵀ whose backward pass ignores autocast and uses the dtype of x and U."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, U: Tensor) -> Tensor:
        """Return x Uᵀ (rows, units) from x (rows, inputs) and U (units, inputs)."""
        ctx.save_for_backward(x, U)
        return product(x, U)

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the tuple of the gradients of x and U from the gradient of x Uᵀ (rows, units).

        The gradient of x is None if it is not needed.
        """
        x, U = ctx.saved_tensors
        if wants_graph():
            return with_graph(product, (x, U), [gradient])
        return gradient @ U if ctx.needs_input_grad[0] else None, gradient.mT @ x


def product(x: Tensor, U: Tensor) -> Tensor:
    """Return x Uᵀ (rows, units) from x (rows, inputs) and U (units, inputs)."""
    return x @ U.mT


class HenaffCell(ElmanCell):
    """Cell of `HenaffRNN`, h_t = φ(U x_t + b) + V h_{t−1}. Its matrix W is the V of the equation."""

    from_torch, to_torch = Cell.from_torch, Cell.to_torch  # torch has no such layer

    def walk(
        self, weights: ElmanWeights, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return the states (rows, hidden) and the final state, a tuple (h,)."""
        U, V = weights
        multiply = product if needs_plain(x) else Product.apply
        inputs = activate(self.activation, multiply(x, U), self.bias)
        identity = torch.eye(self.output_size, dtype=x.dtype, device=x.device)
        return elman_walk((identity, V), None, "identity", inputs, steps, state)

    def stream_level(self, weights: ElmanWeights) -> StreamLevel | None:
        """Return the cell as a `StreamLevel`; None if V is given as a function."""
        level = super().stream_level(weights)
        return None if level is None else level._replace(kind="henaff")

    def recurrence(self, weights: ElmanWeights) -> Recurrence | None:
        """Return None: the attention kernel applies φ to the whole sum, not to U x_t + b alone."""
        return None  # the attention kernel applies the activation to the whole sum, not to U x_t + b alone


class HenaffRNN(RecurrentLayer, name="henaff"):
    """h_t = φ(U x_t + b) + V h_{t−1},  φ = ReLU by default.

    The recurrence is linear in the state: only V acts on the contribution of an input at later steps, and no activation
    damps it. ``recurrent`` is the kind of V, as in `RNN`. By default V is free and starts as plane rotations by random
    angles, as in the authors' solution of the copying problem. {"name": "free", "init": "identity"} is their solution
    of the adding problem. In training a free V may learn to amplify or damp states; an orthogonal V such as
    "exponential" cannot.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str = "relu",
        recurrent: Spec = ORTHOGONAL_START,
        **common: Unpack[Common],
    ) -> None:
        def make_cell(width: int) -> Cell:
            return HenaffCell(width, hidden_size, activation=activation, recurrent=recurrent, bias=self.bias)

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
