"""Long expressive memory (Rusch, Mishra, Erichson & Mahoney, 2022)."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from steadygrad.layers.cell import StepCell
from steadygrad.layers.naming import Owned
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import uniform


class LEMCell(StepCell):
    """Cell of `LEM`. Its state is the tuple (y, z).

    The rows of W (``weight_hh``), V (``weight_ih``) and b (``bias_ih``) are in the order: time scale of z, time scale
    of y, z, y.
    """

    weight_ih = Owned()
    weight_hh = Owned()
    bias_ih = Owned()
    shown = ("dt",)

    def __init__(self, input_size: int, hidden_size: int, dt: float, bias: bool = True) -> None:
        super().__init__()
        self.dt = dt
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_size)) if bias else None
        for parameter in self.parameters():
            uniform(1 / math.sqrt(hidden_size))(parameter)

    def initial_state(self) -> tuple[Tensor, ...]:
        zeros = self.weight_hh.new_zeros(self.weight_hh.shape[1])
        return zeros, zeros

    def step(self, input: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        y, z = state
        *W, W_y = self.weight_hh.chunk(4)
        drives = input @ self.weight_ih.mT
        drives = drives if self.bias_ih is None else drives + self.bias_ih
        *driven, driven_y = drives.chunk(4, dim=1)
        scale_z, scale_y, force = (drive + y @ one.mT for drive, one in zip(driven, W, strict=True))
        z = torch.lerp(z, force.tanh(), self.dt * scale_z.sigmoid())
        return torch.lerp(y, torch.tanh(driven_y + z @ W_y.mT), self.dt * scale_y.sigmoid()), z

    def matrices(self) -> dict[str, Tensor]:
        """Return a dict of the four matrices (hidden, hidden), which multiply y, or z in the last case.

        They are "scale" (W_s, time scale of z), "rate" (W_r, time scale of y), "recurrent" (W_z) and "output" (W_y).
        """
        return dict(zip(("scale", "rate", "recurrent", "output"), self.weight_hh.chunk(4), strict=True))


class LEM(RecurrentLayer, name="lem"):
    """z_t = z_{t−1} + s∘(tanh(W_z y_{t−1} + V_z x_t + b_z) − z_{t−1}),  y_t = y_{t−1} + r∘(tanh(W_y z_t + …) − y_{t−1})

    The dots are V_y x_t + b_y. s = Δt σ(W_s y_{t−1} + V_s x_t + b_s) is the time scale of z. The time scale r of y has
    the same form with its own weights. A unit is slow or fast depending on state and input. y is the output, and the
    state is the tuple (y, z). ``dt`` is Δt, the largest time scale.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, dt: float = 1.0, **common: Unpack[Common]
    ) -> None:
        def make_cell(width: int) -> LEMCell:
            return LEMCell(width, hidden_size, dt, self.bias)

        super().__init__(make_cell, input_size, hidden_size, num_layers, **common)
