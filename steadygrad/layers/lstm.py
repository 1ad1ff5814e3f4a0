"""Long short-term memory (Hochreiter & Schmidhuber, 1997), each gate with any matrix."""

import math
from typing import Unpack, cast

import torch
from torch import Tensor, nn

from steadygrad.kernels import Recurrence, Steps, lstm_unroll
from steadygrad.layers.cell import Cell, through
from steadygrad.layers.gru import GateSpecs, build_gates
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.rnn import uniform
from steadygrad.matrices import Matrix


class LSTMCell(Cell):
    """See `LSTM`. W and b stand in torch's order: input, forget, cell, output."""

    GATES = ("input", "forget", "cell", "output")

    def __init__(
        self, input_size: int, hidden_size: int, *, recurrent: GateSpecs, bias: bool, forget_bias: float | None
    ) -> None:
        super().__init__()
        self.state_sizes, self.output_size = (hidden_size, hidden_size), hidden_size
        self.W = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.U = build_gates("LSTM", recurrent, self.GATES, hidden_size)
        self.b = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
        for parameter in (self.W, self.b):
            if parameter is not None:
                uniform(1 / math.sqrt(hidden_size))(parameter)
        if forget_bias is not None:
            if self.b is None:
                raise ValueError(f"LSTM expects bias=True with a forget_bias; got bias=False and {forget_bias}")
            nn.init.constant_(self.b[hidden_size : 2 * hidden_size], forget_bias)

    def weights(self, table: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """W and U as the kernel takes them."""
        return through(table, self.W), torch.cat([matrix() for matrix in self.U])

    def walk(
        self, weights: tuple[Tensor, Tensor], x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (W, U), (h_0, c_0) = weights, state
        states, cells = lstm_unroll(x, W, U, self.b, h_0, c_0, steps, self.detached(len(steps.sizes)))
        return states, (steps.last(states), steps.last(cells))

    def recurrence(self, weights: tuple[Tensor, Tensor]) -> Recurrence | None:
        return Recurrence(*weights, self.b)

    def detached(self, time: int) -> Tensor | None:
        """True at steps (time) whose gates hand no gradient to the state before; None, because there are none."""
        return None

    def matrices(self) -> dict[str, Tensor]:
        return {gate: cast(Matrix, matrix).value() for gate, matrix in zip(self.GATES, self.U, strict=True)}


class LSTM(RecurrentLayer):
    """c_t = f∘c_{t−1} + i∘g,  h_t = o∘tanh(c_t),  i, f, o = σ(W x_t + U h_{t−1} + b),  g = tanh(W x_t + U h_{t−1} + b).

    ``recurrent`` is one kind of matrix for all gates or {"input": …, "forget": …, "cell": …, "output": …}.
    ``forget_bias`` is where the forget gate's bias starts, if not at random as the others.
    """

    cell = LSTMCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        recurrent: GateSpecs = "free",
        bias: bool = True,
        forget_bias: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        def make_cell(width: int) -> LSTMCell:
            return self.cell(width, hidden_size, recurrent=recurrent, bias=bias, forget_bias=forget_bias)

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
