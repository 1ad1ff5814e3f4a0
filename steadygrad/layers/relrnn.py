"""RelRNN and RelLSTM: attention over the last states and the most relevant older ones (Kerg et al., 2020)."""

from collections.abc import Callable
from typing import Unpack

from steadygrad.layers.gates import GateSpecs
from steadygrad.layers.lstm import LSTM
from steadygrad.layers.recurrent import Common, with_attention
from steadygrad.layers.relevance import Score
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import ORTHOGONAL_START, Initialiser
from steadygrad.matrices import Spec


class RelRNN(RNN, name="relrnn"):
    """h_t = φ(U x_t + W s_t + b),  s_t = ½(h_{t−1} + Σ α_m m),  α = softmax over S ∪ R of v · tanh(A s_{t−1} + B m).

    The layer attends to a limited number of past states m with weights α_m. φ is tanh by default. S contains the last
    ``short`` states (ν in the thesis). R contains the ``relevant`` (ρ) states that received most attention while they
    were in S. A step costs the same for any sequence length. ``short``, ``relevant``, ``score``, ``alignment`` and
    ``combine`` are the options of `steadygrad.layers.attentive`; the equation shows their defaults. Passing
    ``attention`` raises ValueError.

    The state is a tuple: h, s and the tensors of the memory, which are the states in S and R, the attention received in
    S, the scores and time steps of R, and the number of steps. U and b start as in the authors' program for copy; for
    denoise, pixels and text it uses ``input_init="kaiming"``.
    """

    revision = 2  # revision 1 started b from U(±1/√N), and v from another law

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        short: int = 10,
        relevant: int = 10,
        score: str | Callable[[int], Score] = "received",
        alignment: str = "additive",
        combine: str = "average",
        activation: str = "tanh",
        recurrent: Spec = ORTHOGONAL_START,
        input_init: str | Initialiser = "xavier",
        bias_init: str | Initialiser | None = None,
        added_bias: str | None = "inputs",
        **common: Unpack[Common],
    ) -> None:
        attention = {"short": short, "relevant": relevant, "score": score, "alignment": alignment, "combine": combine}
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent=recurrent,
            input_init=input_init,
            bias_init=bias_init,
            added_bias=added_bias,
            **with_attention(self._name, common, attention),
        )


class RelLSTM(LSTM, name="rellstm"):
    """c_t = f∘c_{t−1} + i∘g,  h_t = o∘tanh(c_t),  gates from x_t and s_t = ½(h_{t−1} + Σ α_m m),  m ∈ S ∪ R, as RelRNN.

    An `LSTM` whose gates i, f, o and g use s_t in the place of h_{t−1}. The options of attention, S, R and α are those
    of `RelRNN`. The state is the tuple of h, c, s and the tensors of the memory, as in `RelRNN`. The gates start as in
    the authors' program. Passing ``attention`` raises ValueError.
    """

    revision = 2  # revision 1 started as torch.nn.LSTM does, and v from another law

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        short: int = 10,
        relevant: int = 10,
        score: str | Callable[[int], Score] = "received",
        alignment: str = "additive",
        combine: str = "average",
        recurrent: GateSpecs = "free",
        forget_bias: float | None = None,
        start: str = "memorynets",
        **common: Unpack[Common],
    ) -> None:
        attention = {"short": short, "relevant": relevant, "score": score, "alignment": alignment, "combine": combine}
        common = with_attention(self._name, common, attention)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            recurrent=recurrent,
            forget_bias=forget_bias,
            start=start,
            **common,
        )
