"""Long short-term memory (Hochreiter & Schmidhuber, 1997). The recurrent matrix of each gate can be of any kind."""

import math
from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor, nn

from steadygrad.check import is_integer
from steadygrad.kernels import LSTMInputs, Recurrence, Steps, StreamLevel, lstm_unroll
from steadygrad.layers.constructor import TORCH_ORDER
from steadygrad.layers.gates import GatedCell, GateSpecs, build_gates, fill
from steadygrad.layers.naming import Owned
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import choose, glorot_uniform, normal, uniform
from steadygrad.layers.torch_form import TorchForm, Weights, with_one_bias, with_two_biases


def start_as_torch(cell: "LSTMCell") -> None:
    """Initialise W and b of an LSTM cell in place, uniform in ±1/√hidden_size, as torch.nn.LSTM does.

    The recurrent matrices are not changed.
    """
    for parameter in (cell.weight_ih, cell.bias_ih):
        if parameter is not None:
            uniform(1 / math.sqrt(cell.units))(parameter)


def start_as_tensorflow(cell: "LSTMCell") -> None:
    """Initialise an LSTM cell in place as TensorFlow's BasicLSTMCell: Glorot's law, b = 0, for the forget gate b = 1.

    With I inputs and N units, ``weight_ih`` and the free recurrent matrices are uniform in ±√(6/(I + 5N)). This is
    Glorot's bound for one kernel of shape (I + N, 4N).
    """
    (rows, features), units = cell.weight_ih.shape, cell.units
    fill(cell, glorot_uniform(features + units, rows), nn.init.zeros_)
    if cell.bias_ih is not None:
        nn.init.ones_(cell.bias_ih[units : 2 * units])


def start_as_memorynets(cell: "LSTMCell") -> None:
    """Initialise an LSTM cell in place as the MemoryNets program: Xavier normal weights, uniform b.

    With I inputs and N units, ``weight_ih`` and the free recurrent matrices are N(0, 2/(2N + I)), Xavier's law of each
    gate on [h; x]. b is uniform in ±1/√(N + I).
    """
    features, units = cell.weight_ih.shape[1], cell.units
    fill(cell, normal(math.sqrt(2 / (2 * units + features))), uniform(1 / math.sqrt(units + features)))


STARTS: dict[str, Callable[["LSTMCell"], None]] = {
    "torch": start_as_torch,
    "tensorflow": start_as_tensorflow,
    "memorynets": start_as_memorynets,
}


class LSTMCell(GatedCell):
    """Cell of `LSTM`. The rows of its weights and bias are in torch's order: input, forget, cell, output.

    ``weight_ih`` is (4 · hidden, inputs) and ``bias_ih`` (4 · hidden,). The state is the tuple (h, c). With a positive
    ``proj_size`` P the matrix ``weight_hr`` is (P, hidden) and ``weight_hh`` (4 · hidden, P); both are free.
    """

    GATES = ("input", "forget", "cell", "output")
    weight_hr = Owned()

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        recurrent: GateSpecs,
        bias: bool,
        forget_bias: float | None,
        start: str,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        self.units, self.output_size = hidden_size, proj_size or hidden_size
        self.state_sizes = (self.output_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hr = None
        check_projection(hidden_size, proj_size, recurrent)
        if proj_size:
            shapes, law = ((4 * hidden_size, proj_size), (proj_size, hidden_size)), uniform(1 / math.sqrt(hidden_size))
            self.weight_hh, self.weight_hr = (nn.Parameter(torch.empty(shape)) for shape in shapes)
            law(self.weight_hh), law(self.weight_hr)
        else:
            self.weight_hh = build_gates("LSTM", recurrent, self.GATES, hidden_size)
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
        choose("LSTM", "start", start, STARTS)(self)
        if forget_bias is not None:
            if self.bias_ih is None:
                raise ValueError(f"LSTM expects bias=True with a forget_bias; got bias=False and {forget_bias}")
            nn.init.constant_(self.bias_ih[hidden_size : 2 * hidden_size], forget_bias)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Return the pair of W (4 · hidden, inputs) and U (4 · hidden, output_size), the gates' matrices stacked."""
        return self.weight_ih, self.stacked()

    @property
    def resets_inside(self) -> bool:  # type: ignore[override]  # computed here, an attribute elsewhere
        """Whether the C kernel resets the state inside its loop; it does not compute a projection."""
        return self.weight_hr is None

    def walk(
        self, weights: tuple[Tensor, Tensor], x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return all h (rows, output_size) and the tuple of the final (h, c)."""
        (W, U), (h_0, c_0) = weights, state
        given = LSTMInputs(x, W, U, self.bias_ih, h_0, c_0, steps, self.detached(steps.time))
        states, cells = lstm_unroll(given, self.weight_hr)
        return states, (steps.last(states), steps.last(cells))

    def recurrence(self, weights: tuple[Tensor, Tensor]) -> Recurrence | None:
        """Return W, U and b as a `Recurrence` for the attention kernel. Its activation is None, which means an LSTM."""
        return Recurrence(*weights, self.bias_ih)

    def stream_level(self, weights: tuple[Tensor, Tensor]) -> StreamLevel | None:
        """Return the cell as a `StreamLevel`; None with a projection, which the C kernel does not compute."""
        return None if self.weight_hr is not None else StreamLevel("lstm", *weights, self.bias_ih)

    def matrices(self) -> dict[str, Tensor]:
        """Return a dict of the recurrent matrices (hidden, hidden) by the names of their gates.

        With a projection R the matrix of a gate with U is U R, which multiplies o∘tanh(c) of the step before.
        """
        found = super().matrices()
        return found if self.weight_hr is None else {gate: U @ self.weight_hr for gate, U in found.items()}

    def from_torch(self, weights: Weights) -> Weights:
        """Return the weights of torch.nn.LSTM as those of the cell: the two biases are added."""
        return with_one_bias(weights)

    def to_torch(self) -> TorchForm:
        """Return the cell as a level of torch.nn.LSTM."""
        W, U = self.weights()
        weights = {"weight_ih": W, "weight_hh": U, "bias_ih": self.bias_ih, "weight_hr": self.weight_hr}
        return TorchForm("LSTM", with_two_biases(weights))

    def detached(self, time: int) -> Tensor | None:
        """Return a Boolean mask (time,), True at steps whose gates pass no gradient to h_{t−1}; None for no step.

        This cell returns None: it detaches no step. `HDetachCell` overrides this method.
        """
        return None


def check_projection(hidden_size: int, proj_size: int, recurrent: GateSpecs) -> None:
    """Raise ValueError unless ``proj_size`` is from 0 to hidden_size − 1, and 0 if a matrix is under a constraint."""
    if not is_integer(proj_size, 0) or proj_size >= hidden_size:
        raise ValueError(
            f"LSTM expects proj_size to be an integer from 0 to {hidden_size - 1}, below hidden_size; got {proj_size!r}"
        )
    if proj_size and recurrent != "free":
        raise ValueError(
            'LSTM expects recurrent="free" with proj_size, because the matrices are not square then; '
            f"got {recurrent!r}. Use proj_size=0 with a constraint"
        )


class LSTM(RecurrentLayer, name="lstm", positional=(*TORCH_ORDER, "proj_size")):
    """c_t = f∘c_{t−1} + i∘g,  h_t = o∘tanh(c_t),  i, f, o = σ(W x_t + U h_{t−1} + b),  g = tanh(W x_t + U h_{t−1} + b).

    Each gate has its own W, U and b. The state is the tuple (h, c). ``recurrent`` is one kind of matrix for all gates
    or {"input": …, "forget": …, "cell": …, "output": …}. ``start`` names the program whose initialisation of W, U and b
    is used: torch (uniform in ±1/√hidden_size), tensorflow (BasicLSTMCell: Glorot, b = 0, forget gate 1) or memorynets
    (the code of RelRNN's paper: Xavier). Matrices under a constraint keep their own initialisation. ``forget_bias`` is
    the initial bias of the forget gate; None leaves it to ``start``. A number raises ValueError with ``bias=False``.

    With a positive ``proj_size`` P, as in torch.nn.LSTM, h_t = W_hr (o∘tanh(c_t)) has P features and c_t has
    hidden_size. W_hr is the parameter ``weight_hr_l0`` (P, hidden_size). Such a layer has free matrices and runs step
    by step in PyTorch. It accepts no ``attention``.
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
        proj_size: int = 0,
        **common: Unpack[Common],
    ) -> None:
        if proj_size and common.get("attention") is not None:
            raise ValueError(
                f"{self._name} expects attention=None with proj_size; got proj_size={proj_size!r} and attention. "
                "Use proj_size=0 with attention"
            )

        def make_cell(width: int) -> LSTMCell:
            return self.cell(
                width,
                hidden_size,
                recurrent=recurrent,
                bias=self.bias,
                forget_bias=forget_bias,
                start=start,
                proj_size=proj_size,
            )

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
        self.proj_size = proj_size
