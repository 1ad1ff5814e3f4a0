"""The antisymmetric network (Chang, Chen, Haber & Chi, 2019)."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from steadygrad.layers.cell import StepCell
from steadygrad.layers.naming import Owned
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import uniform


class AntisymmetricCell(StepCell):
    """Cell of `AntisymmetricRNN`. The state is (h,). If ``gated``, V and b have the rows of tanh, then those of g.

    M is ``weight_hh``, V is ``weight_ih`` and b is ``bias_ih``.
    """

    weight_ih = Owned()
    weight_hh = Owned()
    bias_ih = Owned()
    shown = ("epsilon", "gamma", "gated")

    def __init__(
        self, input_size: int, hidden_size: int, epsilon: float, gamma: float, gated: bool, bias: bool = True
    ) -> None:
        super().__init__()
        self.epsilon, self.gamma, self.gated = epsilon, gamma, gated
        rows = 2 * hidden_size if gated else hidden_size
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.bias_ih = nn.Parameter(torch.zeros(rows)) if bias else None
        nn.init.normal_(self.weight_hh, std=1 / math.sqrt(hidden_size))
        uniform(1 / math.sqrt(input_size))(self.weight_ih)

    def initial_state(self) -> tuple[Tensor, ...]:
        return (self.weight_hh.new_zeros(len(self.weight_hh)),)

    def step(self, input: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (h,), M = state, self.weight_hh
        product = nn.functional.linear(h, M) - h @ M - self.gamma * h  # torch's scan forbids M.mT beside M
        drives = input @ self.weight_ih.mT
        driven, *gate = (drives if self.bias_ih is None else drives + self.bias_ih).split(len(M), dim=1)
        change = self.epsilon * torch.tanh(product + driven)
        return (h + (change * torch.sigmoid(product + gate[0]) if gate else change),)

    def matrices(self) -> dict[str, Tensor]:
        """Return {"recurrent": A} with A = M − Mᵀ − γI (hidden, hidden)."""
        M = self.weight_hh
        return {"recurrent": M - M.mT - self.gamma * torch.eye(len(M), dtype=M.dtype, device=M.device)}


class AntisymmetricRNN(RecurrentLayer, name="antisymmetric"):
    """h_t = h_{t−1} + ε g_t∘tanh(A h_{t−1} + V x_t + b),  A = M − Mᵀ − γI,  g_t = σ(A h_{t−1} + V_g x_t + b_g).

    Each step is an Euler step of size ε (``epsilon``) of a differential equation whose Jacobian has nearly imaginary
    eigenvalues, so gradients change slowly. ``gamma`` is γ, which keeps the step stable. Without ``gated`` g is 1.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        epsilon: float = 0.01,
        gamma: float = 0.01,
        gated: bool = False,
        **common: Unpack[Common],
    ) -> None:
        own = (hidden_size, epsilon, gamma, gated)
        super().__init__(
            lambda width: AntisymmetricCell(width, *own, self.bias), input_size, hidden_size, num_layers, **common
        )
