"""scoRNN: an orthogonal matrix, parametrised by the scaled Cayley transform (Helfrich, Willmott & Ye, 2018)."""

from typing import Unpack

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import uniform


class ScoRNN(RNN, name="scornn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = (I + A)⁻¹ (I − A) D orthogonal,  A skew-symmetric, D = diag(±1).

    ``reflections`` is the number of −1s in D, which is fixed. The default, half of hidden_size, is the authors' choice
    for copy and adding; for pixel-by-pixel MNIST they use a tenth. ``init`` names the initialisation of A.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        reflections: int | None = None,
        activation: str = "modrelu",
        init: str = "cayley",
        **common: Unpack[Common],
    ) -> None:
        negative = hidden_size // 2 if reflections is None else reflections
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={"name": "cayley", "reflections": negative, "init": init},
            input_init=uniform(0.01),  # the authors' code
            bias_init=uniform(0.01),
            **common,
        )
