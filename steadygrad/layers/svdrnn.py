"""Spectral RNN: a matrix, parametrised by its singular value decomposition (Zhang, Lei & Dhillon, 2018)."""

from typing import Unpack

from torch import nn

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN


class SpectralRNN(RNN, name="svdrnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = P diag(σ) Qᵀ,  1 − r < σ < 1 + r,  P and Q orthogonal.

    σ are the singular values of W, and ``margin`` is r. P and Q are products of ``reflections`` Householder reflections
    each; the default is 16, or hidden_size if that is smaller. With ``bases="exponential"`` P and Q can be any
    rotations, as in the hard constraint of Vorontsov et al. (2017), and passing ``reflections`` raises ValueError.
    ``init`` names the initialisation of P and Q. The authors start from ``init="normal"`` reflections and use a leaky
    ReLU.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        margin: float = 0.01,
        reflections: int | None = None,
        bases: str = "householder",
        activation: str = "modrelu",
        init: str = "haar",
        **common: Unpack[Common],
    ) -> None:
        few = min(16, hidden_size) if reflections is None and bases == "householder" else reflections
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={"name": "svd", "margin": margin, "reflections": few, "bases": bases, "init": init},
            input_init=nn.init.xavier_uniform_,  # the authors' code
            bias_init=nn.init.zeros_,
            **common,
        )
