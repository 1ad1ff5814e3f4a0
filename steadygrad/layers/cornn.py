"""The coupled oscillatory network (Rusch & Mishra, 2021)."""

import math
from typing import Unpack

import torch
from torch import Tensor, nn

from steadygrad.layers.cell import StepCell
from steadygrad.layers.naming import Owned
from steadygrad.layers.recurrent import Common, RecurrentLayer
from steadygrad.layers.start import uniform


class CoRNNCell(StepCell):
    """Cell of `CoRNN`, a network of coupled oscillators. Its state is the tuple (y, z): positions and velocities.

    V is ``weight_ih``, W is ``weight_hh``, W_z is ``weight_velocity`` and b is ``bias_ih``.
    """

    weight_ih = Owned()
    weight_hh = Owned()
    weight_velocity = Owned()
    bias_ih = Owned()
    shown = ("dt", "gamma", "epsilon")

    def __init__(
        self, input_size: int, hidden_size: int, dt: float, gamma: float, epsilon: float, bias: bool = True
    ) -> None:
        super().__init__()
        self.dt, self.gamma, self.epsilon = dt, gamma, epsilon
        self.weight_hh, self.weight_velocity = (nn.Parameter(torch.empty(hidden_size, hidden_size)) for _ in range(2))
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size)) if bias else None
        for parameter in self.parameters():
            uniform(1 / math.sqrt(input_size + 2 * hidden_size))(parameter)

    def initial_state(self) -> tuple[Tensor, ...]:
        y, z = self.weight_hh.new_zeros(2, len(self.weight_hh))
        return y, z

    def step(self, input: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        y, z = state
        driven = input @ self.weight_ih.mT + y @ self.weight_hh.mT + z @ self.weight_velocity.mT
        force = torch.tanh(driven if self.bias_ih is None else driven + self.bias_ih)
        z = z + self.dt * (force - self.gamma * y - self.epsilon * z)
        return y + self.dt * z, z

    def matrices(self) -> dict[str, Tensor]:
        """Return {"recurrent": W, "velocity": W_z}, each (hidden, hidden): W multiplies y, W_z multiplies z."""
        return {"recurrent": self.weight_hh, "velocity": self.weight_velocity}


class CoRNN(RecurrentLayer, name="cornn"):
    """z_t = z_{t−1} + Δt (tanh(W y_{t−1} + W_z z_{t−1} + V x_t + b) − γ y_{t−1} − ε z_{t−1}),  y_t = y_{t−1} + Δt z_t.

    The units are coupled, damped oscillators: y is the output, z its velocity. The state is the tuple (y, z). Gradients
    stay bounded for small Δt. ``dt`` (Δt), ``gamma`` (γ, frequency) and ``epsilon`` (ε, damping) depend on the task.
    The defaults are the authors' values for sequential MNIST.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dt: float = 0.042,
        gamma: float = 2.7,
        epsilon: float = 4.7,
        **common: Unpack[Common],
    ) -> None:
        own = (hidden_size, dt, gamma, epsilon)
        super().__init__(lambda width: CoRNNCell(width, *own, self.bias), input_size, hidden_size, num_layers, **common)
