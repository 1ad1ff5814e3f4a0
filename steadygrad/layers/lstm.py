"""Long short-term memory (Hochreiter & Schmidhuber, 1997). The recurrent matrix of each gate can be of any kind."""

import math
from collections.abc import Callable
from typing import Unpack, cast

import torch
from torch import Tensor, nn

from steadygrad.kernels import LSTMInputs, Recurrence, Steps, lstm_unroll
from steadygrad.layers.cell import Cell
from steadygrad.layers.gates import GateSpecs, build_gates, fill
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import choose, glorot_uniform, normal, uniform
from steadygrad.matrices import Matrix


def start_as_torch(cell: "LSTMCell") -> None:
    """Initialise W and b of an LSTM cell from U(±1/√N), as in torch.nn.LSTM. U keeps its own initialisation."""
    for parameter in (cell.W, cell.b):
        if parameter is not None:
            uniform(1 / math.sqrt(cell.output_size))(parameter)


def start_as_tensorflow(cell: "LSTMCell") -> None:
    """Initialise an LSTM cell as TensorFlow does: W and U from U(±√(6/(I + 5N))), b = 0, for the forget gate b = 1.

    The bound is Glorot's law for one kernel of shape (I + N, 4N).
    """
    (rows, features), units = cell.W.shape, cell.output_size
    fill(cell, glorot_uniform(features + units, rows), nn.init.zeros_)
    if cell.b is not None:
        nn.init.ones_(cell.b[units : 2 * units])


def start_as_memorynets(cell: "LSTMCell") -> None:
    """Initialise an LSTM cell as the MemoryNets program: W and U from N(0, 2/(2N + I)), b from U(±1/√(N + I)).

    The first is Xavier's law of each gate on [h; x].
    """
    features, units = cell.W.shape[1], cell.output_size
    fill(cell, normal(math.sqrt(2 / (2 * units + features))), uniform(1 / math.sqrt(units + features)))


STARTS: dict[str, Callable[["LSTMCell"], None]] = {
    "torch": start_as_torch,
    "tensorflow": start_as_tensorflow,
    "memorynets": start_as_memorynets,
}


class LSTMCell(Cell):
    """Cell of `LSTM`. The rows of W and b are in torch's order: input, forget, cell, output."""

    GATES = ("input", "forget", "cell", "output")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        recurrent: GateSpecs,
        bias: bool,
        forget_bias: float | None,
        start: str,
    ) -> None:
        super().__init__()
        self.state_sizes, self.output_size = (hidden_size, hidden_size), hidden_size
        self.W = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.U = build_gates("LSTM", recurrent, self.GATES, hidden_size)
        self.b = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
        choose("LSTM", "start", start, STARTS)(self)
        if forget_bias is not None:
            if self.b is None:
                raise ValueError(f"LSTM expects bias=True with a forget_bias; got bias=False and {forget_bias}")
            nn.init.constant_(self.b[hidden_size : 2 * hidden_size], forget_bias)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return W and U (the gates' matrices stacked) in the form that the kernel takes."""
        return self.W, torch.cat([matrix() for matrix in self.U])

    def walk(
        self, weights: tuple[Tensor, Tensor], x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        (W, U), (h_0, c_0) = weights, state
        given = LSTMInputs(x, W, U, self.b, h_0, c_0, steps, self.detached(len(steps.sizes)))
        states, cells = lstm_unroll(given)
        return states, (steps.last(states), steps.last(cells))

    def recurrence(self, weights: tuple[Tensor, Tensor]) -> Recurrence | None:
        return Recurrence(*weights, self.b)

    def detached(self, time: int) -> Tensor | None:
        """Return a mask (time), True at steps whose gates pass no gradient to h_{t−1}, or None if there are none.

        `LSTM` detaches no step; `HDetachLSTM` overrides this method.
        """
        return None

    def matrices(self) -> dict[str, Tensor]:
        """Return the recurrent matrix U (hidden, hidden) of each gate, by the names in `GATES`."""
        return {gate: cast(Matrix, matrix).value() for gate, matrix in zip(self.GATES, self.U, strict=True)}


class LSTM(RecurrentLayer):
    """c_t = f∘c_{t−1} + i∘g,  h_t = o∘tanh(c_t),  i, f, o = σ(W x_t + U h_{t−1} + b),  g = tanh(W x_t + U h_{t−1} + b).

    ``recurrent`` is one kind of matrix for all gates or {"input": …, "forget": …, "cell": …, "output": …}.
    ``start`` names the program whose initialisation of W, U and b is used: torch (U(±1/√N)), tensorflow (BasicLSTMCell:
    Glorot, b = 0, forget gate 1) or memorynets (the code of RelRNN's paper: Xavier). Matrices under a constraint keep
    their own initialisation. ``forget_bias`` is the initial bias of the forget gate; None leaves it to ``start``.
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
        start: str = "torch",
        **common: Unpack[Common],
    ) -> None:
        def make_cell(width: int) -> LSTMCell:
            return self.cell(width, hidden_size, recurrent=recurrent, bias=bias, forget_bias=forget_bias, start=start)

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
