"""GORU: a gated unit whose candidate multiplies the old state by an orthogonal matrix (Jing et al., 2017)."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from steadygrad.layers.gru import GRUCell
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import uniform
from steadygrad.layers.torch_form import Weights, negate_update
from steadygrad.matrices import Free, Matrix, Spec


class GORUCell(GRUCell):
    """Cell of `GORU`. The rows of ``weight_ih``, ``weight_hh`` and ``bias_ih`` are in the order r, g, c.

    With modReLU ``bias_ih`` has no rows of c; ``bias_modrelu`` (hidden,) is b_c and starts at 0.011. The kernel is
    that of `GRU`, whose update gate is u = 1 − g. Because 1 − σ(z) = σ(−z), `weights` negates the rows of g.
    """

    inner_bias = False

    def __init__(
        self, input_size: int, hidden_size: int, *, recurrent: Spec, activation: str, bias: bool, reset_bias: float
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            activation=activation,
            recurrent={"reset": small, "update": small, "candidate": recurrent},
            bias=bias,
            reset="after",
            modulus_init=lambda modulus: nn.init.constant_(modulus, 0.01 + 0.001),  # the authors add 0.001 at every use
        )
        uniform(0.01)(self.weight_ih)
        if self.bias_ih is not None:
            nn.init.constant_(self.bias_ih[:hidden_size], reset_bias)
            uniform(math.sqrt(3 / hidden_size))(self.bias_ih[hidden_size : 2 * hidden_size])

    def weights(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the tuple (W, U, b) in the form that the kernel takes, with the rows of g negated.

        The shapes are (3 · hidden, inputs), (3 · hidden, hidden) and (3 · hidden,).
        """
        W, U, b = super().weights()
        return negate_update(W), negate_update(U), None if b is None else negate_update(b)

    def from_torch(self, weights: Weights) -> Weights:
        """Return the weights unchanged: torch.nn.GRU has b_hn, which this cell has not."""
        return weights


def small(size: int) -> Matrix:
    """Return a free `Matrix` of this size whose entries start uniform in ±0.01, as in the authors' code."""
    return Matrix(Free(size), torch.empty(size, size).uniform_(-0.01, 0.01))


AUTHORS_ROTATIONS: Spec = {"name": "rotations", "capacity": 4}


class GORU(RecurrentLayer, name="goru"):
    """h_t = g∘h_{t−1} + (1 − g)∘c,  c = modReLU(W_c x_t + r∘(Q h_{t−1}); b_c),  r, g = σ(W x_t + U h_{t−1} + b).

    Q is orthogonal. Each gate, r and g, has its own W, U and b. g = 1 keeps the old state, so 1 − g is the update gate
    u of `GRU`, and ``matrices()`` calls U_r "reset", U_g "update" and Q "candidate". ``recurrent`` is the kind of Q.
    The default is four layers of plane rotations, as in the authors' code; "exponential" can represent every rotation.
    ``reset_bias`` is the initial value of b_r, if there is a bias. W, U_r and U_g start uniform in ±0.01, b_g uniform
    in ±√(3/hidden_size), and the b_c of modReLU at 0.011, as in the authors' code.
    """

    revision = 2  # in revision 1 Q was exp(A)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        recurrent: Spec = AUTHORS_ROTATIONS,
        activation: str = "modrelu",
        reset_bias: float = 2.0,
        **common: Unpack[Common],
    ) -> None:
        def make_cell(width: int) -> GORUCell:
            own: dict[str, Any] = {"recurrent": recurrent, "activation": activation, "reset_bias": reset_bias}
            return GORUCell(width, hidden_size, bias=self.bias, **own)

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
