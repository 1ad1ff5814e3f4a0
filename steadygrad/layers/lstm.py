"""Long short-term memory (Hochreiter & Schmidhuber, 1997). The recurrent matrix of each gate can be of any kind."""

import math
from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor, nn

from steadygrad.kernels import LSTMInputs, Recurrence, Steps, lstm_unroll
from steadygrad.layers.gates import GatedCell, GateSpecs, build_gates, fill
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import choose, glorot_uniform, normal, uniform


def start_as_torch(cell: "LSTMCell") -> None:
    """Initialise W and b of an LSTM cell in place, uniform in ±1/√hidden_size, as torch.nn.LSTM does.

    The recurrent matrices are not changed.
    """
    for parameter in (cell.weight_ih, cell.bias_ih):
        if parameter is not None:
            uniform(1 / math.sqrt(cell.output_size))(parameter)


def start_as_tensorflow(cell: "LSTMCell") -> None:
    """Initialise an LSTM cell in place as TensorFlow's BasicLSTMCell: Glorot's law, b = 0, for the forget gate b = 1.

    With I inputs and N units, ``weight_ih`` and the free recurrent matrices are uniform in ±√(6/(I + 5N)). This is
    Glorot's bound for one kernel of shape (I + N, 4N).
    """
    (rows, features), units = cell.weight_ih.shape, cell.output_size
    fill(cell, glorot_uniform(features + units, rows), nn.init.zeros_)
    if cell.bias_ih is not None:
        nn.init.ones_(cell.bias_ih[units : 2 * units])


def start_as_memorynets(cell: "LSTMCell") -> None:
    """Initialise an LSTM cell in place as the MemoryNets program: Xavier normal weights, uniform b.

    With I inputs and N units, ``weight_ih`` and the free recurrent matrices are N(0, 2/(2N + I)), Xavier's law of each
    gate on [h; x]. b is uniform in ±1/√(N + I).
    """
    features, units = cell.weight_ih.shape[1], cell.output_size
    fill(cell, normal(math.sqrt(2 / (2 * units + features))), uniform(1 / math.sqrt(units + features)))


STARTS: dict[str, Callable[["LSTMCell"], None]] = {
    "torch": start_as_torch,
    "tensorflow": start_as_tensorflow,
    "memorynets": start_as_memorynets,
}


class LSTMCell(GatedCell):
    """Cell of `LSTM`. The rows of its weights and bias are in torch's order: input, forget, cell, output.

    ``weight_ih`` is (4 · hidden, inputs) and ``bias_ih`` (4 · hidden,). The state is the tuple (h, c).
    """

    GATES = ("input", "forget", "cell", "output")
    resets_inside = True

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
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = build_gates("LSTM", recurrent, self.GATES, hidden_size)
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
        choose("LSTM", "start", start, STARTS)(self)
        if forget_bias is not None:
            if self.bias_ih is None:
                raise ValueError(f"LSTM expects bias=True with a forget_bias; got bias=False and {forget_bias}")
            nn.init.constant_(self.bias_ih[hidden_size : 2 * hidden_size], forget_bias)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return the pair of W (4 · hidden, inputs) and U (4 · hidden, hidden), the gates' matrices stacked."""
        return self.weight_ih, self.stacked()

    def walk(
        self, weights: tuple[Tensor, Tensor], x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return all h (rows, hidden) and the final (h, c), each (batch, hidden)."""
        (W, U), (h_0, c_0) = weights, state
        given = LSTMInputs(x, W, U, self.bias_ih, h_0, c_0, steps, self.detached(steps.time))
        states, cells = lstm_unroll(given)
        return states, (steps.last(states), steps.last(cells))

    def recurrence(self, weights: tuple[Tensor, Tensor]) -> Recurrence | None:
        """Return W, U and b as a `Recurrence` for the attention kernel. Its activation is None, which means an LSTM."""
        return Recurrence(*weights, self.bias_ih)

    def detached(self, time: int) -> Tensor | None:
        """Return a Boolean mask (time,), True at steps whose gates pass no gradient to h_{t−1}; None for no step.

        This cell returns None: it detaches no step. `HDetachCell` overrides this method.
        """
        return None


class LSTM(RecurrentLayer, name="lstm"):
    """c_t = f∘c_{t−1} + i∘g,  h_t = o∘tanh(c_t),  i, f, o = σ(W x_t + U h_{t−1} + b),  g = tanh(W x_t + U h_{t−1} + b).

    Each gate has its own W, U and b. The state is the tuple (h, c). ``recurrent`` is one kind of matrix for all gates
    or {"input": …, "forget": …, "cell": …, "output": …}. ``start`` names the program whose initialisation of W, U and b
    is used: torch (uniform in ±1/√hidden_size), tensorflow (BasicLSTMCell: Glorot, b = 0, forget gate 1) or memorynets
    (the code of RelRNN's paper: Xavier). Matrices under a constraint keep their own initialisation. ``forget_bias`` is
    the initial bias of the forget gate; None leaves it to ``start``. A number raises ValueError with ``bias=False``.
    """

    cell = LSTMCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        recurrent: GateSpecs = "free",
        forget_bias: float | None = None,
        start: str = "torch",
        **common: Unpack[Common],
    ) -> None:
        def make_cell(width: int) -> LSTMCell:
            return self.cell(
                width, hidden_size, recurrent=recurrent, bias=self.bias, forget_bias=forget_bias, start=start
            )

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
