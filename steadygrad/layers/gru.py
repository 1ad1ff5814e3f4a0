"""The gated recurrent unit (Cho et al., 2014), each gate with any matrix."""

import math
from collections.abc import Mapping
from typing import Unpack, cast

import torch
from torch import Tensor, nn

from steadygrad.kernels import Steps, gru_unroll
from steadygrad.layers.cell import Cell, through
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.rnn import Initialiser, check_activation, uniform
from steadygrad.matrices import Matrix, Spec, build

GateSpecs = Spec | Mapping[str, Spec]


def build_gates(who: str, recurrent: GateSpecs, gates: tuple[str, ...], hidden_size: int) -> nn.ModuleList:
    """One `Matrix` a gate, in order: the same kind for all, or by gate name, where gates not named are free."""
    if isinstance(recurrent, Mapping) and "name" not in recurrent:
        if unknown := recurrent.keys() - set(gates):
            raise ValueError(f"{who} has the gates {', '.join(gates)}; got a matrix for {', '.join(sorted(unknown))}")
        specs = [recurrent.get(gate, "free") for gate in gates]
    else:
        specs = [recurrent] * len(gates)
    return nn.ModuleList(build(spec, hidden_size) for spec in specs)


class GRUCell(Cell):
    """See `GRU`. W and b stand in the order reset, update, candidate; a modReLU candidate has its b in ``modulus``."""

    GATES = ("reset", "update", "candidate")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        activation: str,
        recurrent: GateSpecs,
        bias: bool,
        reset: str = "before",
        modulus_init: Initialiser = nn.init.zeros_,
    ) -> None:
        super().__init__()
        check_activation("GRU", activation)
        if reset not in ("before", "after"):
            raise ValueError(f"GRU expects reset to be before or after, the product with U_c; got {reset!r}")
        self.activation, self.reset = activation, reset
        self.state_sizes, self.output_size = (hidden_size,), hidden_size
        self.W = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.U = build_gates("GRU", recurrent, self.GATES, hidden_size)
        inside = bias and activation == "modrelu"
        self.b = nn.Parameter(torch.empty((2 if inside else 3) * hidden_size)) if bias else None
        self.modulus = nn.Parameter(torch.empty(hidden_size)) if inside else None
        for parameter in (self.W, self.b):
            if parameter is not None:
                uniform(1 / math.sqrt(hidden_size))(parameter)
        if self.modulus is not None:
            modulus_init(self.modulus)

    def walk(
        self, weights: tuple[Tensor, Tensor, Tensor | None], x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        W, U, bias = weights
        states = gru_unroll(x, W, U, bias, self.modulus, state[0], self.activation, steps, self.reset)
        return states, (steps.last(states),)

    def weights(self, table: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """W, U and b as the kernel takes them."""
        U = torch.cat(self.evaluate_gates())
        bias: Tensor | None = self.b
        if bias is not None and self.modulus is not None:
            bias = torch.cat([bias, torch.zeros_like(self.modulus)])
        return through(table, self.W), U, bias

    def evaluate_gates(self) -> list[Tensor]:
        """Return the matrix of each gate, in order."""
        return [matrix() for matrix in self.U]

    def matrices(self) -> dict[str, Tensor]:
        return {gate: cast(Matrix, matrix).value() for gate, matrix in zip(self.GATES, self.U, strict=True)}


class GRU(RecurrentLayer):
    """h_t = (1 − u)∘h_{t−1} + u∘c,  c = φ(W_c x_t + U_c (r∘h_{t−1}) + b_c),  r, u = σ(W x_t + U h_{t−1} + b).

    As in the papers u lets the candidate in, where torch.nn.GRU's z = 1 − u keeps the old state, and the reset acts
    before the product with U_c; ``reset="after"`` gives torch.nn.GRU's c = φ(W_c x_t + r∘(U_c h_{t−1}) + b_c).
    ``recurrent`` is one kind of matrix for all gates or {"reset": …, "update": …, "candidate": …}.
    """

    cell = GRUCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str = "tanh",
        recurrent: GateSpecs = "free",
        bias: bool = True,
        reset: str = "before",
        **common: Unpack[Common],
    ) -> None:
        def make_cell(width: int) -> GRUCell:
            return self.cell(width, hidden_size, activation=activation, recurrent=recurrent, bias=bias, reset=reset)

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
