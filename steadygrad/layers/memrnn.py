"""MemRNN and MemLSTM: attention over all past states (Bahdanau et al., 2015, as in Kerg et al., 2020)."""

from typing import Unpack

from steadygrad.layers.gates import GateSpecs
from steadygrad.layers.lstm import LSTM
from steadygrad.layers.recurrent import Common, with_attention
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import ORTHOGONAL_START, Initialiser
from steadygrad.matrices import Spec


class MemRNN(RNN, name="memrnn"):
    """h_t = φ(U x_t + W s_t + b),  s_t = ½(h_{t−1} + Σ α_i h_i),  α = softmax of v · tanh(A s_{t−1} + B h_i),  i < t.

    The layer attends to all past states h_i with weights α_i. φ is tanh by default. Time and memory grow with the
    square of the sequence length. The state is the tuple (h, s, past states, number of steps), so it grows with the
    sequence length. ``alignment`` and ``combine`` are the options of `steadygrad.layers.attentive`; the equation shows
    their defaults. U, W, A, B, v and b start as in `RelRNN`. Passing ``attention`` raises ValueError.
    """

    revision = 2  # revision 1 started b from U(±1/√N), and v from another law

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        alignment: str = "additive",
        combine: str = "average",
        activation: str = "tanh",
        recurrent: Spec = ORTHOGONAL_START,
        input_init: str | Initialiser = "xavier",
        bias_init: str | Initialiser | None = None,
        added_bias: str | None = "inputs",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent=recurrent,
            input_init=input_init,
            bias_init=bias_init,
            added_bias=added_bias,
            **with_attention(self._name, common, {"short": None, "alignment": alignment, "combine": combine}),
        )


class MemLSTM(LSTM, name="memlstm"):
    """c_t = f∘c_{t−1} + i∘g,  h_t = o∘tanh(c_t),  gates from x_t and s_t = ½(h_{t−1} + Σ α_j h_j) over all j < t.

    An `LSTM` whose gates i, f, o and g use s_t in the place of h_{t−1}. The weights α are those of `MemRNN`. The state
    is the tuple (h, c, s, past states, number of steps). ``alignment`` and ``combine`` are the options of
    `steadygrad.layers.attentive`. All parameters start as in `RelLSTM`. Passing ``attention`` raises ValueError.
    """

    revision = 2  # revision 1 started as torch.nn.LSTM does, and v from another law

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        alignment: str = "additive",
        combine: str = "average",
        recurrent: GateSpecs = "free",
        forget_bias: float | None = None,
        start: str = "memorynets",
        **common: Unpack[Common],
    ) -> None:
        common = with_attention(self._name, common, {"short": None, "alignment": alignment, "combine": combine})
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            recurrent=recurrent,
            forget_bias=forget_bias,
            start=start,
            **common,
        )
