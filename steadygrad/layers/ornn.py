"""oRNN: an orthogonal matrix, parametrised by Householder reflections (Mhammedi et al., 2017)."""

from typing import Unpack

from torch import nn

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN


class ORNN(RNN, name="ornn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = H_1 … H_k orthogonal,  H_i = I − 2 u_i u_iᵀ/‖u_i‖².

    The vectors u_i are trained. ``reflections`` is k; the default is 16, or hidden_size if that is smaller. W is the
    identity on the directions orthogonal to u_1 … u_k, so it changes the state in at most k dimensions. ``init`` names
    the initialisation of the vectors. The authors start from ``init="normal"`` reflections and use a leaky ReLU.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        reflections: int | None = None,
        activation: str = "modrelu",
        init: str = "haar",
        **common: Unpack[Common],
    ) -> None:
        few = min(16, hidden_size) if reflections is None else reflections
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={"name": "householder", "reflections": few, "init": init},
            input_init=nn.init.xavier_uniform_,  # the authors' code
            bias_init=nn.init.zeros_,
            **common,
        )
