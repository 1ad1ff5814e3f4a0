"""The gated recurrent unit (Cho et al., 2014). The recurrent matrix of each gate can be of any kind."""

import math
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from steadygrad.kernels import GRUInputs, Steps, StreamLevel, gru_unroll
from steadygrad.layers.gates import GatedCell, GateSpecs, build_gates
from steadygrad.layers.naming import Owned
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.rnn import check_activation
from steadygrad.layers.start import Initialiser, choose, glorot_uniform, uniform
from steadygrad.layers.torch_form import TorchForm, Weights, negate_update


def start_as_torch(cell: "GRUCell") -> None:
    """Initialise W, b and b_hn of a GRU cell in place, uniform in ±1/√hidden_size, as torch.nn.GRU does.

    The recurrent matrices and the bias of modReLU are not changed.
    """
    for parameter in (cell.weight_ih, cell.bias_ih, cell.bias_hn):
        if parameter is not None:
            uniform(1 / math.sqrt(cell.output_size))(parameter)


def start_as_tensorflow(cell: "GRUCell") -> None:
    """Initialise a GRU cell in place as TensorFlow's GRUCell: Glorot's law, and gates that keep the state at the start.

    With I inputs and N units, TensorFlow has one kernel of shape (I + N, 2N) for both gates and one of shape (I + N, N)
    for the candidate. Their Glorot bounds apply to ``weight_ih`` and to the free recurrent matrices. TensorFlow's gate
    biases are 1, and its u = 1 keeps the state. Here u = 1 takes the candidate, so b_r = 1 and b_u = −1. b_c is 0.
    """
    features, units = cell.weight_ih.shape[1], cell.output_size
    laws = [glorot_uniform(features + units, outputs * units) for outputs in (2, 2, 1)]
    free = cell.free_gates()
    for gate, law, rows in zip(cell.GATES, laws, cell.weight_ih.split(units), strict=True):
        law(rows)
        if gate in free:
            law(free[gate])
    if cell.bias_ih is not None:
        for value, part in zip((1.0, -1.0, 0.0), cell.bias_ih.split(units), strict=False):
            nn.init.constant_(part, value)


STARTS: dict[str, Callable[["GRUCell"], None]] = {"torch": start_as_torch, "tensorflow": start_as_tensorflow}


class GRUCell(GatedCell):
    """Cell of `GRU`. The rows of its weights and of ``bias_ih`` are in the order reset, update, candidate.

    With modReLU ``bias_ih`` has only the rows of the two gates, and ``bias_modrelu`` (hidden,) is the bias of the
    candidate, filled by the function ``modulus_init``. With ``reset="after"`` the parameter ``bias_hn`` (hidden,) is
    torch's b_hn, 0 unless ``start`` sets it; otherwise it is None. With ``bias=False`` all three are None. ``start`` is
    a function that initialises the weights and the other biases of the cell in place.
    """

    GATES = ("reset", "update", "candidate")
    shown = ("activation", "reset")
    resets_inside = True
    bias_modrelu = Owned()
    bias_hn = Owned()
    inner_bias = True
    """whether a cell with the reset after the product and with biases has ``bias_hn``"""

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
        start: Callable[["GRUCell"], None] = start_as_torch,
    ) -> None:
        super().__init__()
        check_activation("GRU", activation)
        if reset not in ("before", "after"):
            raise ValueError(f"GRU expects reset to be before or after, the product with U_c; got {reset!r}")
        self.activation, self.reset = activation, reset
        self.state_sizes, self.output_size = (hidden_size,), hidden_size
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden_size, input_size))
        self.weight_hh = build_gates("GRU", recurrent, self.GATES, hidden_size)
        inside = bias and activation == "modrelu"
        self.bias_ih = nn.Parameter(torch.empty((2 if inside else 3) * hidden_size)) if bias else None
        self.bias_modrelu = nn.Parameter(torch.empty(hidden_size)) if inside else None
        if self.bias_modrelu is not None:
            modulus_init(self.bias_modrelu)
        inner = bias and reset == "after" and self.inner_bias
        self.bias_hn = nn.Parameter(torch.zeros(hidden_size)) if inner else None
        start(self)

    def walk(
        self, weights: tuple[Tensor, Tensor, Tensor | None], x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return the states (rows, hidden) and the final state, a tuple (h,)."""
        W, U, bias = weights
        biases = bias, self.bias_modrelu, self.bias_hn
        states = gru_unroll(GRUInputs(x, W, U, *biases, state[0], self.activation, steps, self.reset))
        return states, (steps.last(states),)

    def stream_level(self, weights: tuple[Tensor, Tensor, Tensor | None]) -> StreamLevel:
        """Return the cell as a `StreamLevel`."""
        return StreamLevel(f"gru-{self.reset}", *weights, self.bias_modrelu, self.bias_hn, self.activation)

    def weights(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the tuple (W, U, b) in the form that the kernel takes; b is None without bias.

        The shapes are (3 · hidden, inputs), (3 · hidden, hidden), the gates' matrices stacked, and (3 · hidden,). With
        modReLU the candidate's third of b is 0.
        """
        bias, modulus = self.bias_ih, self.bias_modrelu
        if bias is not None and modulus is not None:
            bias = torch.cat([bias, torch.zeros_like(modulus)])
        return self.weight_ih, self.stacked(), bias

    def from_torch(self, weights: Weights) -> Weights:
        """Return the weights of torch.nn.GRU as those of the cell.

        The rows of torch's z are negated, because u = 1 − z. The two biases are added, except b_hn of the candidate.
        Raise ValueError with the reset before the product with U_c, whose candidate torch does not have.
        """
        if self.reset == "before":
            raise ValueError(
                'GRU expects reset="after" for the weights of torch.nn.GRU; got reset="before", which has another '
                'candidate. Construct the layer with reset="after"'
            )
        found = {name: negate_update(value) for name, value in weights.items()}
        if (second := found.pop("bias_hh", None)) is not None:
            gates = 2 * (len(second) // 3)
            found["bias_ih"] = torch.cat([found["bias_ih"][:gates] + second[:gates], found["bias_ih"][gates:]])
            found["bias_hn"] = second[gates:]
        return found

    def to_torch(self) -> TorchForm:
        """Return the cell as a level of torch.nn.GRU, whose z is 1 − u.

        Raise ValueError for another activation than tanh, and with the reset before the product with U_c.
        """
        if self.activation != "tanh" or self.reset == "before":
            raise ValueError(f'torch.nn.GRU has tanh and reset="after", not {self.activation} and "{self.reset}"')
        W, U, b = self.weights()
        weights = {"weight_ih": negate_update(W), "weight_hh": negate_update(U)}
        if b is None:
            return TorchForm("GRU", weights)
        inner = torch.zeros_like(b[: self.output_size]) if self.bias_hn is None else self.bias_hn
        second = torch.cat([torch.zeros_like(b[self.output_size :]), inner])
        return TorchForm("GRU", weights | {"bias_ih": negate_update(b), "bias_hh": second})


class GRU(RecurrentLayer, name="gru"):
    """h_t = (1 − u)∘h_{t−1} + u∘c,  c = φ(W_c x_t + U_c (r∘h_{t−1}) + b_c),  r, u = σ(W x_t + U h_{t−1} + b).

    r is the reset gate, u the update gate, c the candidate, φ = tanh by default. Each gate has its own W, U and b. With
    φ = modReLU, b_c is added to the modulus and starts at 0. Two conventions follow the papers and differ from
    torch.nn.GRU. u = 1 takes the candidate, whereas z = 1 of torch.nn.GRU, z = 1 − u, keeps the old state. The reset
    acts before the product with U_c. ``reset="after"`` gives c = φ(W_c x_t + r∘(U_c h_{t−1} + b_hn) + b_c), torch's
    candidate. Only then, and with ``bias``, the layer has the parameter b_hn, ``bias_hn_l0``. Such a layer computes
    what torch.nn.GRU computes: `from_torch` and ``load_state_dict`` take torch's weights and negate those of z.

    ``recurrent`` is one kind of matrix for all gates or {"reset": …, "update": …, "candidate": …}. ``start`` names the
    program whose initialisation of W, U and b is used: torch (uniform in ±1/√hidden_size) or tensorflow (GRUCell:
    Glorot, gates that keep the state at the start). Matrices under a constraint keep their own initialisation.
    """

    starts = STARTS
    cell = GRUCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str = "tanh",
        recurrent: GateSpecs = "free",
        reset: str = "before",
        start: str = "torch",
        **common: Unpack[Common],
    ) -> None:
        law = choose(type(self).__name__, "start", start, self.starts)

        def make_cell(width: int) -> GRUCell:
            options: dict[str, Any] = {
                "activation": activation,
                "recurrent": recurrent,
                "bias": self.bias,
                "reset": reset,
                "start": law,
            }
            return self.cell(width, hidden_size, **options)

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
