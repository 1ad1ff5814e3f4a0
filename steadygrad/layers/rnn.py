"""The plain recurrent network (Elman, 1990), with any matrix and any activation."""

import math
from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn

from steadygrad.kernels import ACTIVATIONS, Recurrence, Steps
from steadygrad.layers.cell import Cell, through
from steadygrad.layers.complex import COMPLEX_ACTIVATIONS, ComplexElmanCell, ElmanWeights, elman_walk
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.matrices import Spec, build

Initialiser = Callable[[Tensor], object]


def uniform(bound: float) -> Initialiser:
    return partial(nn.init.uniform_, a=-bound, b=bound)


def check_activation(who: str, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"{who} expects an activation out of {', '.join(ACTIVATIONS)}; got {activation!r}")


class ElmanCell(Cell):
    """h_t = φ(U x_t + W h_{t−1} + b);  modReLU takes b inside: sign(z) max(|z| + b, 0)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        activation: str,
        recurrent: Spec,
        bias: bool,
        input_init: Initialiser | None = None,
        bias_init: Initialiser | None = None,
    ) -> None:
        super().__init__()
        check_activation("RNN", activation)
        self.activation = activation
        self.state_sizes, self.output_size = (hidden_size,), hidden_size
        as_torch = uniform(1 / math.sqrt(hidden_size))
        self.U = nn.Parameter(torch.empty(hidden_size, input_size))
        self.W = build(recurrent, hidden_size)
        self.b = nn.Parameter(torch.empty(hidden_size)) if bias else None
        (input_init or as_torch)(self.U)
        if self.b is not None:
            # modReLU's is added to every modulus at every step: torch's range would make states grow by it
            (bias_init or (uniform(0.01) if activation == "modrelu" else as_torch))(self.b)

    def weights(self, table: Tensor | None = None) -> ElmanWeights:
        """U and W, or what W does to rows where that is faster."""
        return through(table, self.U), self.W.operator() or self.W()

    def walk(
        self, weights: ElmanWeights, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return elman_walk(weights, self.b, self.activation, x, steps, state)

    def recurrence(self, weights: ElmanWeights) -> Recurrence | None:
        U, W = weights
        return Recurrence(U, W, self.b, self.activation) if isinstance(W, Tensor) else None

    def matrices(self) -> dict[str, Tensor]:
        return {"recurrent": self.W.value()}


class RNN(RecurrentLayer):
    """h_t = φ(U x_t + W h_{t−1} + b),  φ = tanh unless said otherwise.

    ``recurrent`` is what W is: a name out of `steadygrad.matrices.MATRICES`, a table {"name": …, options}, or a
    function size → `Matrix`. With ``complex`` the units are complex, with modReLU, and come out as (Re h, Im h).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str = "tanh",
        recurrent: Spec = "free",
        bias: bool = True,
        complex: bool = False,
        input_init: Initialiser | None = None,
        bias_init: Initialiser | None = None,
        **common: Unpack[Common],
    ) -> None:
        if complex and activation not in COMPLEX_ACTIVATIONS:
            known = " or ".join(COMPLEX_ACTIVATIONS)
            raise ValueError(f"RNN expects activation {known} for complex units; got {activation!r}")

        def make_cell(width: int) -> Cell:
            if complex:
                own = {"input_init": input_init, "bias_init": bias_init}
                return ComplexElmanCell(
                    width, hidden_size, recurrent=recurrent, bias=bias, activation=activation, **own
                )
            return ElmanCell(
                width,
                hidden_size,
                activation=activation,
                recurrent=recurrent,
                bias=bias,
                input_init=input_init,
                bias_init=bias_init,
            )

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
