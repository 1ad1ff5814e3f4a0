"""expRNN: a rotation by the matrix exponential (Lezcano-Casado & Martínez-Rubio, 2019)."""

from functools import partial
from typing import Unpack

from torch import nn

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN, uniform


class ExpRNN(RNN):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = exp(A) a rotation.

    ``rebase_every=100`` gives dtriv (Lezcano-Casado, 2019): every 100 updates A is folded into a base and starts
    from 0 again.
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
        **common: Unpack[Common],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={"name": "exponential", "rebase_every": rebase_every, "init": init},
            input_init=partial(nn.init.kaiming_normal_, nonlinearity="relu"),  # the authors' code
            bias_init=uniform(0.01),
            **common,
        )
