"""A recurrent layer and a linear readout: what a task trains."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.layers import RecurrentLayer
from steadygrad.layers.recurrent import State
from steadygrad.layers.start import choose


class Inside(NamedTuple):
    """What there is to look at in a model with a recurrent layer."""

    layer: nn.Module
    """called as torch.nn.RNN, time first"""
    inputs: Tensor
    """(batch, time, features) that it gets"""
    read: Callable[[Tensor], Tensor]
    """the model's outputs from those of the layer (time, batch, features)"""


def as_nnrnn(readout: nn.Linear) -> None:
    """C Xavier normal, c as torch.nn.Linear's: nnRNN's program on copy, MemoryNets on copy and denoise."""
    nn.init.xavier_normal_(readout.weight)


def as_denoise(readout: nn.Linear) -> None:
    """C ~ U(±√0.3), c = 0.01: NC-GRU's program on denoise."""
    nn.init.uniform_(readout.weight, -math.sqrt(0.3), math.sqrt(0.3))
    nn.init.constant_(readout.bias, 0.01)


def as_parenthesis(readout: nn.Linear) -> None:
    """C ~ N(0, σ²), σ = (units + outputs)⁻², c = 0: NC-GRU's program on parenthesis."""
    nn.init.normal_(readout.weight, std=(readout.in_features + readout.out_features) ** -2)
    nn.init.zeros_(readout.bias)


def as_xavier(readout: nn.Linear) -> None:
    """C Xavier normal, c = 0."""
    nn.init.xavier_normal_(readout.weight)
    nn.init.zeros_(readout.bias)


def as_urnn(readout: nn.Linear) -> None:
    """C Xavier uniform, c = 0: the programs of uRNN and full-capacity uRNN."""
    nn.init.xavier_uniform_(readout.weight)
    nn.init.zeros_(readout.bias)


def as_language_task(readout: nn.Linear) -> None:
    """C ~ U(±0.1), c = 0: nnRNN's program on text."""
    nn.init.uniform_(readout.weight, -0.1, 0.1)
    nn.init.zeros_(readout.bias)


READOUTS: dict[str, Callable[[nn.Linear], None]] = {
    "xavier": as_xavier,
    "torch": lambda readout: None,  # torch.nn.Linear has just started it
    "nnrnn": as_nnrnn,
    "text": as_language_task,
    "urnn": as_urnn,
    "denoise": as_denoise,
    "parenthesis": as_parenthesis,
}
"""how a readout starts, mostly named after the program of the authors"""


def linear_readout(who: str, inputs: int, outputs: int, start: str) -> nn.Linear:
    """Return y = C h + c that starts as ``start`` says."""
    readout = nn.Linear(inputs, outputs)
    choose(who, "readout", start, READOUTS)(readout)
    return readout


class SequenceModel(nn.Module):
    """y_t = C h_t + c for every step, or with ``last_only`` for the last alone; h from the layer.

    x (batch, time, input_size) → y (batch, time, output_size) or (batch, output_size). ``readout`` says how C and c
    start: a name out of `READOUTS`.
    """

    def __init__(
        self, layer: RecurrentLayer, output_size: int, last_only: bool = False, *, readout: str = "xavier"
    ) -> None:
        super().__init__()
        if layer.batch_first:
            raise ValueError("SequenceModel expects a layer with time first; got batch_first=True")
        self.layer, self.last_only = layer, last_only
        self.readout = linear_readout("SequenceModel", layer.output_size, output_size, readout)

    def forward(self, x: Tensor) -> Tensor:
        return self.walk(x)[0]

    def walk(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The same from a given state on, with the state it ends in."""
        hidden, state = self.layer(x.transpose(0, 1), state)  # the kernels walk time first
        return self.read(hidden), state

    def read(self, hidden: Tensor) -> Tensor:
        """y from the layer's output (time, batch, features)."""
        if self.last_only:
            return self.readout(self._ends(hidden))
        return self.readout(hidden).transpose(0, 1)

    def inside(self, x: Tensor) -> Inside:
        return Inside(self.layer, x, self.read)

    def _ends(self, hidden: Tensor) -> Tensor:
        """What each direction says when it has seen everything: the backward one at the first step."""
        if not self.layer.bidirectional:
            return hidden[-1]
        forward, backward = hidden.chunk(2, dim=-1)
        return torch.cat([forward[-1], backward[0]], dim=-1)

    def penalty(self) -> Tensor | float:
        return self.layer.penalty()
