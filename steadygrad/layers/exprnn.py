"""expRNN: a rotation matrix, parametrised by the matrix exponential (Lezcano-Casado & Martínez-Rubio, 2019)."""

from typing import Unpack

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import Initialiser, uniform


class ExpRNN(RNN, name="exprnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = exp(A) a rotation,  A skew-symmetric.

    ``rebase_every=100`` gives dtriv (Lezcano-Casado, 2019): every 100 updates exp(A) is merged into a base matrix, and
    A is reset to 0. ``init`` names the initialisation of A. ``input_init`` is the initialisation of U, as in `RNN`:
    kaiming in the authors' program, xavier in nnRNN's program for copy.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        rebase_every: int | None = None,
        activation: str = "modrelu",
        init: str = "henaff",
        input_init: str | Initialiser = "kaiming",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={"name": "exponential", "rebase_every": rebase_every, "init": init},
            input_init=input_init,
            bias_init=uniform(0.01),
            **common,
        )
