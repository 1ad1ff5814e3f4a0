"""Alternatives to this package: a Python loop over a constrained `Linear`, and the layers of torchrecurrent.

torchrecurrent 0.2 has no orthogonal, unitary or Schur recurrence, and no plain RNN, GRU or LSTM. The closest layers:

    AntisymmetricRNN   h ← h + ε tanh((M − Mᵀ − γI) h + V x + b)       a small rotation per step, to first order
    coRNN              a damped oscillator for each unit, with two recurrent matrices
    FastRNN            h ← α tanh(W h + V x + b) + β h                  the closest to a plain RNN
    MGU                one gate for both reset (before the product) and update: the closest to a GRU
    PeepholeLSTM       an LSTM whose gates also read the cell state

IndRNN and UnICORNN have a recurrent vector instead of a matrix.
"""

import importlib
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from steadygrad.kernels import modrelu
from steadygrad.matrices import init, skew


class MissingError(Exception):
    """Raised if a contender cannot run on this machine. The message gives the reason."""


def optional(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingError(f"{name} is not installed") from error


class LoopRNN(nn.Module):
    """h_t = modReLU(V x_t + W h_{t−1}; b), step by step with autograd, as in typical research code.

    It avoids two common mistakes: W is evaluated once per sequence, and x is unbound instead of indexed.
    """

    def __init__(self, inputs: int, hidden: int, constrain: Callable[[nn.Linear], nn.Module]) -> None:
        super().__init__()
        self.V = nn.Linear(inputs, hidden, bias=False)
        self.W = constrain(nn.Linear(hidden, hidden, bias=False))
        self.b = nn.Parameter(torch.empty(hidden).uniform_(-0.01, 0.01))
        # Both packages have W = B exp(A) and start at A = 0, where exp is a little faster. Use expRNN's A instead.
        (A,) = self.W.parameters()
        A.data.copy_(skew(init.henaff(hidden)).tril())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.new_zeros(x.shape[1], len(self.b))
        states = []
        with parametrize.cached():
            for u in self.V(x).unbind(0):
                h = modrelu(u + self.W(h), self.b)
                states.append(h)
        return torch.stack(states), h


def loop_with_torch(inputs: int, hidden: int) -> nn.Module:
    return LoopRNN(inputs, hidden, partial(parametrizations.orthogonal, orthogonal_map="matrix_exp"))


def loop_with_geotorch(inputs: int, hidden: int) -> nn.Module:
    geotorch = optional("geotorch")
    return LoopRNN(inputs, hidden, lambda linear: geotorch.orthogonal(linear, "weight"))


def from_torchrecurrent(layer: str, inputs: int, hidden: int) -> nn.Module:
    return getattr(optional("torchrecurrent"), layer)(inputs, hidden)


NAIVE, GEOTORCH = "loop + torch orthogonal", "loop + geotorch"
TORCHRECURRENT = ("AntisymmetricRNN", "coRNN", "FastRNN", "MGU", "PeepholeLSTM")

PEERS: dict[str, Callable[[int, int], nn.Module]] = {
    NAIVE: loop_with_torch,
    GEOTORCH: loop_with_geotorch,
    **{f"torchrecurrent {name}": partial(from_torchrecurrent, name) for name in TORCHRECURRENT},
}
