"""A recurrent layer and a linear readout: what a task trains."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.layers import RecurrentLayer
from steadygrad.layers.recurrent import State


class Inside(NamedTuple):
    """What there is to look at in a model with a recurrent layer."""

    layer: nn.Module
    """called as torch.nn.RNN, time first"""
    inputs: Tensor
    """(batch, time, features) that it gets"""
    read: Callable[[Tensor], Tensor]
    """the model's outputs from those of the layer (time, batch, features)"""


class SequenceModel(nn.Module):
    """y_t = C h_t + c for every step, or with ``last_only`` for the last alone; h from the layer.

    x (batch, time, input_size) → y (batch, time, output_size) or (batch, output_size).
    """

    def __init__(self, layer: RecurrentLayer, output_size: int, last_only: bool = False) -> None:
        super().__init__()
        if layer.batch_first:
            raise ValueError("SequenceModel expects a layer with time first; got batch_first=True")
        self.layer, self.last_only = layer, last_only
        self.readout = nn.Linear(layer.output_size, output_size)
        layer.reset_readout(self.readout)

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
