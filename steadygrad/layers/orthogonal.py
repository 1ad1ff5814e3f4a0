"""Free matrices that start well: orthogonal (Henaff et al., 2016) or the identity (Le, Jaitly & Hinton, 2015)."""

from functools import partial
from typing import Unpack

from torch import nn

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN


class OrthogonalRNN(RNN):
    """h_t = φ(U x_t + W h_{t−1} + b),  W free, orthogonal at the start.

    ``init`` is ``haar``, ``henaff`` or ``cayley``: nnRNN's tables 2, 3 and 5 use the first and, once, the last.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str = "tanh",
        init: str = "haar",
        bias: bool = True,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={"name": "free", "init": init},
            bias=bias,
            **common,
        )


class IRNN(RNN):
    """h_t = max(U x_t + W h_{t−1} + b, 0),  W free, the identity at the start."""

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, bias: bool = True, **common: Unpack[Common]
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation="relu",
            recurrent={"name": "free", "init": "identity"},
            bias=bias,
            input_init=partial(nn.init.normal_, std=0.001),  # Le et al., section 4
            bias_init=nn.init.zeros_,
            **common,
        )
