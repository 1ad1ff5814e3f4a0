"""ENRNN: a long-term orthogonal state coupled to a short-term state that fades (Helfrich & Ye, 2020)."""

from typing import Unpack

from torch import nn

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import uniform


class ENRNN(RNN):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = [[W_L, W_C], [0, W_S]],  W_L orthogonal, W_S = T / ρ(T).

    The first hidden_size − short_size units are the long-term state, the last ``short_size`` the short-term one; the
    latter feeds the former through W_C unless ``coupling`` is off. ``reflections`` counts the −1s of W_L's D.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        short_size: int | None = None,
        coupling: bool = True,
        reflections: int | None = None,
        activation: str = "modrelu",
        **common: Unpack[Common],
    ) -> None:
        # 40 % short-term units is the size of the adding problem, 30 % of −1s that of both of the authors' programs
        options = {"short_size": short_size, "reflections": reflections}
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={
                "name": "longshort",
                "coupling": coupling,
                **{key: value for key, value in options.items() if value is not None},
            },
            input_init=uniform(0.01),  # the authors' code
            bias_init=nn.init.zeros_,
            **common,
        )
