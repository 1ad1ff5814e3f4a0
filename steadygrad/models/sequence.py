"""Sequence model: a recurrent layer and a linear readout."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.layers import RecurrentLayer
from steadygrad.layers.recurrent import State
from steadygrad.layers.start import choose
from steadygrad.layers.stream import Stages, Streamable
from steadygrad.models.model import Model, Streamed


class Inside(NamedTuple):
    """Named tuple of the parts of a model for diagnostics: its recurrent layer, the layer's inputs and the readout.

    ``layer`` takes time first, but ``inputs`` are (batch, time, features). ``read`` is a function that maps the layer's
    outputs (time, batch, features) to the outputs of the model.
    """

    layer: nn.Module
    """Recurrent layer, called like torch.nn.RNN with time first."""
    inputs: Tensor
    """Inputs of the layer (batch, time, features)."""
    read: Callable[[Tensor], Tensor]
    """Function that maps the outputs of the layer (time, batch, features) to those of the model."""


def as_nnrnn(readout: nn.Linear) -> None:
    """Initialise a readout y = C h + c in place: C Xavier normal, c not changed, so as torch.nn.Linear starts it.

    nnRNN's program does so on copy, MemoryNets on copy and denoise.
    """
    nn.init.xavier_normal_(readout.weight)


def as_denoise(readout: nn.Linear) -> None:
    """Initialise a readout y = C h + c in place: C uniform in ±√0.3, c = 0.01, as NC-GRU's program on denoise."""
    nn.init.uniform_(readout.weight, -math.sqrt(0.3), math.sqrt(0.3))
    nn.init.constant_(readout.bias, 0.01)


def as_parenthesis(readout: nn.Linear) -> None:
    """Initialise a readout y = C h + c in place: C ~ N(0, σ²), c = 0, as NC-GRU's program on parenthesis.

    σ = (in_features + out_features)⁻².
    """
    nn.init.normal_(readout.weight, std=(readout.in_features + readout.out_features) ** -2)
    nn.init.zeros_(readout.bias)


def as_xavier(readout: nn.Linear) -> None:
    """Initialise a readout y = C h + c in place: C Xavier normal, c = 0."""
    nn.init.xavier_normal_(readout.weight)
    nn.init.zeros_(readout.bias)


def as_urnn(readout: nn.Linear) -> None:
    """Initialise a readout y = C h + c in place: C Xavier uniform, c = 0, as the uRNN programs."""
    nn.init.xavier_uniform_(readout.weight)
    nn.init.zeros_(readout.bias)


def as_language_task(readout: nn.Linear) -> None:
    """Initialise a readout y = C h + c in place: C uniform in ±0.1, c = 0, as nnRNN's program on text."""
    nn.init.uniform_(readout.weight, -0.1, 0.1)
    nn.init.zeros_(readout.bias)


READOUTS: dict[str, Callable[[nn.Linear], None]] = {
    "xavier": as_xavier,
    "torch": lambda readout: None,  # torch.nn.Linear has initialised it
    "nnrnn": as_nnrnn,
    "text": as_language_task,
    "urnn": as_urnn,
    "denoise": as_denoise,
    "parenthesis": as_parenthesis,
}
"""Initialisations of a readout, most of them named after a program of the authors."""


def linear_readout(who: str, inputs: int, outputs: int, start: str) -> nn.Linear:
    """Return a readout y = C h + c, an nn.Linear(inputs, outputs), initialised by ``start``, a name in `READOUTS`.

    Raise ValueError for another name; ``who`` is the model's name in the message.
    """
    readout = nn.Linear(inputs, outputs)
    choose(who, "readout", start, READOUTS)(readout)
    return readout


class SequenceModel(Streamable, Model):
    """y_t = C h_t + c for every step, or with ``last_only`` for the last alone; h from the layer.

    x (batch, time, input_size) → y (batch, time, output_size), or (batch, output_size) with ``last_only``. A
    bidirectional layer's h is then the final output of each direction. ``layer`` takes time first; with batch_first it
    raises ValueError. ``readout`` is the initialisation of C and c: a name in `READOUTS`.
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
        """Return y from x (batch, time, input_size), starting from the layer's initial state.

        y is (batch, time, output_size), or with ``last_only`` (batch, output_size).
        """
        return self.walk(x)[0]

    def walk(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the pair of the outputs y for x (batch, time, input_size) and the layer's final state.

        The layer starts from ``state``, or from its initial state if it is None. y is (batch, time, output_size), or
        with ``last_only`` (batch, output_size).
        """
        hidden, state = self.layer(x.transpose(0, 1), state)  # the kernels take time first
        return self.read(hidden), state

    def read(self, hidden: Tensor) -> Tensor:
        """Return the model's outputs y from the layer's outputs (time, batch, features).

        y is (batch, time, output_size), or with ``last_only`` (batch, output_size).
        """
        if self.last_only:
            return self.readout(self._ends(hidden))
        return self.readout(hidden).transpose(0, 1)

    def streamed(self) -> Streamed:
        """Return a `Streamed` for export. Its ``run`` is `walk`, on inputs (batch, time, input_size) and a state."""
        example = next(self.readout.parameters()).new_zeros(2, 7, self.layer.input_size)
        return Streamed(self.walk, self.layer, example, ("batch", "time"))

    def stages(self) -> Stages:
        """Return the `Stages` of a stream: the layer and the readout, which is computed at every step."""
        return Stages([self.layer], self.readout)

    def inside(self, x: Tensor) -> Inside:
        """Return an `Inside` of the recurrent layer, its inputs x (batch, time, input_size) and the method `read`."""
        return Inside(self.layer, x, self.read)

    def _ends(self, hidden: Tensor) -> Tensor:
        """Return the final output of each direction: forward at the last step, backward at the first step."""
        if not self.layer.bidirectional:
            return hidden[-1]
        forward, backward = hidden.chunk(2, dim=-1)
        return torch.cat([forward[-1], backward[0]], dim=-1)

    def penalty(self) -> Tensor | float:
        """Return the regularisation term of the recurrent layer, which training adds to the loss."""
        return self.layer.penalty()
