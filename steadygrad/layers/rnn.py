"""The plain recurrent network (Elman, 1990), with a choice of recurrent matrix and activation."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from steadygrad.kernels import ACTIVATIONS, Recurrence, Steps, StreamLevel
from steadygrad.layers.cell import Cell
from steadygrad.layers.complex import COMPLEX_ACTIVATIONS, ComplexElmanCell
from steadygrad.layers.constructor import TORCH_ORDER
from steadygrad.layers.elman import ElmanWeights, elman_walk
from steadygrad.layers.gates import FreeWeights, bare
from steadygrad.layers.naming import Owned
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import BIAS_STARTS, INPUT_STARTS, Initialiser, choose, uniform
from steadygrad.layers.torch_form import TorchForm, Weights, with_one_bias, with_two_biases
from steadygrad.matrices import Matrix, Spec, build


def check_activation(who: str, activation: str) -> None:
    """Raise ValueError unless the kernels support the activation: modrelu, tanh, relu or identity.

    ``who`` is the layer's name in the message.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"{who} expects an activation out of {', '.join(ACTIVATIONS)}; got {activation!r}")


class ElmanCell(Cell, FreeWeights):
    """h_t = φ(U x_t + W h_{t−1} + b);  for modReLU  h_t = sign(z) max(|z| + b, 0),  z = U x_t + W h_{t−1} + a.

    Cell of `RNN` with real units. Its options are those of `RNN`. U is ``weight_ih`` and W ``weight_hh``. The bias
    before φ, b or a, is ``bias_ih``, and the b of modReLU ``bias_modrelu``. The a of modReLU exists only with
    ``added_bias``, and without ``bias`` there is neither. The kernels receive it as one more column of U, with an input
    of 1. With other activations ``added_bias`` is the initialisation of b; together with ``bias_init`` it then raises
    ValueError.
    """

    shown = ("activation",)
    resets_inside = True
    weight_ih = Owned()
    weight_hh = Owned()
    bias_ih = Owned()
    bias_modrelu = Owned()

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        activation: str,
        recurrent: Spec,
        bias: bool,
        input_init: str | Initialiser | None = None,
        bias_init: str | Initialiser | None = None,
        added_bias: str | None = None,
    ) -> None:
        super().__init__()
        check_activation("RNN", activation)
        if input_init is not None and not callable(input_init):
            input_init = choose("RNN", "input_init", input_init, INPUT_STARTS)
        if bias_init is not None and not callable(bias_init):
            bias_init = choose("RNN", "bias_init", bias_init, BIAS_STARTS)(input_size, hidden_size)
        added = None
        if added_bias is not None:
            added = choose("RNN", "added_bias", added_bias, BIAS_STARTS)(input_size, hidden_size)
            if activation != "modrelu":  # with other activations b itself is added before φ
                if bias_init is not None:
                    raise ValueError(f"RNN with {activation} has one bias, so bias_init or added_bias; got both")
                bias_init, added = added, None
        self.activation = activation
        self.state_sizes, self.output_size = (hidden_size,), hidden_size
        as_torch = uniform(1 / math.sqrt(hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = bare(build(recurrent, hidden_size))
        b = nn.Parameter(torch.empty(hidden_size)) if bias else None
        (input_init or as_torch)(self.weight_ih)
        if b is not None:
            # modReLU adds b to every modulus at every step: with torch's range states would grow
            (bias_init or (uniform(0.01) if activation == "modrelu" else as_torch))(b)
        a = None
        if bias and added is not None:
            a = nn.Parameter(torch.empty(hidden_size))
            added(a)
        self.bias_ih, self.bias_modrelu = (a, b) if activation == "modrelu" else (b, None)

    def weights(self) -> ElmanWeights:
        """Return the pair of U and W; where that is faster, a function that maps rows h to h Wᵀ takes the place of W.

        U is (hidden, inputs), with one more column for the added bias a if it exists.
        """
        U, W = self.weight_ih, self.weight_hh
        if (a := self._added()) is not None:
            U = torch.cat([U, a[:, None]], dim=1)
        return U, W.operator() or W() if isinstance(W, Matrix) else self.used("weight_hh", W)

    def inputs(self, x: Tensor) -> Tensor:
        """Return x (rows, inputs), with a column of ones appended if the cell has an added bias a."""
        return x if self._added() is None else torch.cat([x, x.new_ones(x.shape[0], 1)], dim=1)

    @property
    def bias(self) -> Tensor | None:
        """The bias b that the activation takes: that of modReLU, or the one before another activation; None without."""
        return self.bias_modrelu if self.activation == "modrelu" else self.bias_ih

    def _added(self) -> Tensor | None:
        """Return the added bias a of modReLU, or None."""
        return self.bias_ih if self.activation == "modrelu" else None

    def walk(
        self, weights: ElmanWeights, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return the states (rows, hidden) and the final state, a tuple (h,)."""
        return elman_walk(weights, self.bias, self.activation, x, steps, state)

    def recurrence(self, weights: ElmanWeights) -> Recurrence | None:
        """Return U, W, b and the activation as a `Recurrence`; None if W is given as a function."""
        U, W = weights
        return Recurrence(U, W, self.bias, self.activation) if isinstance(W, Tensor) else None

    def stream_level(self, weights: ElmanWeights) -> StreamLevel | None:
        """Return the cell as a `StreamLevel`; None if W is given as a function."""
        _, W = weights
        if not isinstance(W, Tensor):
            return None
        return StreamLevel("elman", self.weight_ih, W, self.bias_ih, self.bias_modrelu, activation=self.activation)

    def from_torch(self, weights: Weights) -> Weights:
        """Return the weights of torch.nn.RNN as those of the cell: the two biases are added."""
        return with_one_bias(weights)

    def to_torch(self) -> TorchForm:
        """Return the cell as a level of torch.nn.RNN. Raise ValueError for another activation than tanh and relu."""
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"torch.nn.RNN has the activations tanh and relu, not {self.activation}")
        (W,) = self.matrices().values()
        weights = {"weight_ih": self.weight_ih, "weight_hh": W, "bias_ih": self.bias_ih}
        return TorchForm(f"RNN_{self.activation.upper()}", with_two_biases(weights))

    def matrices(self) -> dict[str, Tensor]:
        """Return {"recurrent": W} with W (hidden, hidden)."""
        W = self.weight_hh
        return {"recurrent": W.value() if isinstance(W, Matrix) else self.checked("weight_hh", W)}

    def kinds(self) -> dict[Tensor, str]:
        """Return {W: "matrix"} if W is a parameter."""
        return {} if isinstance(self.weight_hh, Matrix) else {self.weight_hh: "matrix"}


class RNN(RecurrentLayer, name="rnn", positional=("nonlinearity", *TORCH_ORDER)):
    """h_t = φ(U x_t + W h_{t−1} + b),  φ = tanh by default.

    ``activation``, or ``nonlinearity`` as torch calls it, names φ: tanh, relu, identity, or modrelu, for which h_t =
    sign(z) max(|z| + b, 0), z = U x_t + W h_{t−1}. Two different names raise ValueError. ``recurrent`` is the kind of
    W: a name in `steadygrad.matrices.MATRICES`, a dict {"name": …, options}, or a function size → `Matrix`. With
    ``complex`` the units are complex, ``activation`` must be modrelu or smoothed-modrelu, and the output is Re h and Im
    h concatenated, 2 · hidden_size features.

    U and b start uniform in ±1/√hidden_size, as in torch.nn.RNN; the b of modReLU starts uniform in ±0.01.
    ``input_init`` is another initialisation of U: xavier, kaiming (both normal), small (uniform in ±0.01), or a
    function that fills a tensor. ``bias_init`` is one of b: inputs (uniform in ±1/√input_size), units (uniform in
    ±1/√hidden_size), zeros, or a function. With complex units it must be a function.

    ``added_bias``, one of these three names, adds a second bias with this initialisation before a real modReLU, as in
    the programs of nnRNN and MemoryNets. With other activations it means the same as ``bias_init``, and giving both
    raises ValueError. So does ``added_bias`` with complex units. With ``bias=False`` there is no bias of either kind.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        nonlinearity: str | None = None,
        activation: str | None = None,
        recurrent: Spec = "free",
        complex: bool = False,
        input_init: str | Initialiser | None = None,
        bias_init: str | Initialiser | None = None,
        added_bias: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        if activation and nonlinearity and activation != nonlinearity:
            raise ValueError(
                f"{type(self).__name__} expects one activation, which torch calls nonlinearity; got "
                f"{activation=} and {nonlinearity=}"
            )
        activation = activation or nonlinearity or "tanh"
        if complex and (added_bias is not None or isinstance(bias_init, str)):
            raise ValueError("RNN expects neither added_bias nor the name of a bias_init for complex units")
        if complex and activation not in COMPLEX_ACTIVATIONS:
            known = " or ".join(COMPLEX_ACTIVATIONS)
            raise ValueError(f"RNN expects activation {known} for complex units; got {activation!r}")

        def make_cell(width: int) -> Cell:
            if complex:
                law = (
                    choose("RNN", "input_init", input_init, INPUT_STARTS) if isinstance(input_init, str) else input_init
                )
                own: dict[str, Any] = {"activation": activation, "input_init": law, "bias_init": bias_init}
                return ComplexElmanCell(width, hidden_size, recurrent=recurrent, bias=self.bias, **own)
            return ElmanCell(
                width,
                hidden_size,
                activation=activation,
                recurrent=recurrent,
                bias=self.bias,
                input_init=input_init,
                bias_init=bias_init,
                added_bias=added_bias,
            )

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
