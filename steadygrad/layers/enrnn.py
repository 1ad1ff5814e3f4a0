"""ENRNN: a long-term state with an orthogonal matrix and a short-term state that decays (Helfrich & Ye, 2020)."""

from typing import Unpack

import torch
from torch import nn

from steadygrad.layers.recurrent import Common
from steadygrad.layers.rnn import RNN
from steadygrad.layers.start import uniform


class ENRNN(RNN, name="enrnn"):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  W = [[W_L, W_C], [0, W_S]],  W_L = (I + A)⁻¹ (I − A) D,  W_S = T / ρ(T).

    The first hidden_size − short_size units are the long-term state, the last ``short_size`` units the short-term state
    (by default 40 % of the units). The short-term state feeds the long-term state through W_C unless ``coupling`` is
    False.

    W_L is orthogonal: A is skew-symmetric, and D is diagonal with ``reflections`` entries of −1, the others 1 (by
    default 30 % are −1). T is free and ρ(T) its spectral radius; W_S is T itself until ρ(T) exceeds 1 for the first
    time. ``coupling_init`` is the initialisation of W_C: ``"xavier"`` or ``"orthogonal"``. ``radius`` selects how ρ(T)
    is computed: ``"exact"`` or ``"power"`` (`steadygrad.matrices.EigenvalueNormalized`). With ``identity_input`` U is
    the identity and is not trained. ValueError is raised then unless input_size equals hidden_size.

    The paper's network for character PTB is a linear embedding to hidden_size features, followed by an ENRNN with
    ``coupling_init="orthogonal"``, ``identity_input=True`` and ``activation="relu"`` (section 5.4).
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
        coupling_init: str = "xavier",
        radius: str = "exact",
        identity_input: bool = False,
        activation: str = "modrelu",
        **common: Unpack[Common],
    ) -> None:
        # None leaves the default of the matrix: 40 % short-term units, as in the authors' adding problem, and 30 % of
        # −1s, as in both of their programs
        options = {"short_size": short_size, "reflections": reflections}
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            activation=activation,
            recurrent={
                "name": "longshort",
                "coupling": coupling,
                "coupling_init": coupling_init,
                "radius": radius,
                **{key: value for key, value in options.items() if value is not None},
            },
            input_init=uniform(0.01),  # the authors' code
            bias_init=nn.init.zeros_,
            **common,
        )
        for name in [name for name in self._parameters if name.startswith("weight_ih")] if identity_input else ():
            fix_input(self, name)


def fix_input(layer: nn.Module, name: str) -> None:
    """Replace an input matrix of a layer, in place, by a buffer that holds the identity and is not trained.

    ``name`` is that of the parameter, such as ``weight_ih_l0``. Raise ValueError unless the matrix is square.
    """
    U = layer.get_parameter(name)
    units, inputs = U.shape
    if units != inputs:
        raise ValueError(f"ENRNN with identity_input expects as many inputs as units; got {inputs} and {units}")
    identity = torch.eye(units, dtype=U.dtype, device=U.device)
    delattr(layer, name)
    layer.register_buffer(name, identity)
