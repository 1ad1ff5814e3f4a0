"""TorchRL modules with a layer of this package in the place of torch.nn.GRU or torch.nn.LSTM.

TorchRL's own modules split a batch at each ``is_init`` and pad the pieces. Here the layer resets its state itself.
"""

from typing import Any

import torch
from torch import Tensor
from torchrl.modules import GRUModule, LSTMModule

from steadygrad.layers import RecurrentLayer

Placed = tuple[Tensor, ...]
"""tensors of a state as TorchRL stores them: (batch, time, num_layers · directions, hidden_size)"""


def check_layer(who: str, layer: RecurrentLayer, tensors: int) -> None:
    """Raise ValueError unless TorchRL can hold the layer's state: so many tensors, each of hidden_size.

    The layer must take the batch first. ``who`` is the module's name in the message.
    """
    shapes = [part.shape for part in layer.state_parts]
    if shapes != [(layer.hidden_size,)] * tensors:
        raise ValueError(f"{who} expects a layer with a state of {tensors} × {layer.hidden_size} numbers; got {shapes}")
    if not layer.batch_first:
        raise ValueError(f"{who} expects a layer with batch_first=True; got batch_first=False")


def run(layer: RecurrentLayer, x: Tensor, given: Placed | None, is_init: Tensor | None) -> tuple[Tensor, ...]:
    """Return the outputs (batch, time, features) and the state tensors, as `Placed`, from inputs (batch, time, …).

    ``given`` is the state before each step, of which the first is used, or None. ``is_init`` (batch, time) is True
    where an episode starts, or None. The returned states are zero except at the last step, as with TorchRL's own
    modules, which do not know the others either.
    """
    state = None if given is None else tuple(part[:, 0].transpose(0, 1).contiguous() for part in given)
    y, final = layer(x, state, reset=is_init)
    ends = (part.transpose(0, 1)[:, None] for part in (final if isinstance(final, tuple) else (final,)))
    empty = x.shape[1] - 1
    return y, *(torch.cat([end.new_zeros(len(end), empty, *end.shape[2:]), end], dim=1) for end in ends)


class LayerModule(GRUModule):
    """TorchRL's GRUModule around a layer with a state of one tensor, such as ExpRNN, NNRNN, NCGRU or GRU.

    ``layer`` must have ``batch_first=True``; ValueError otherwise. The other arguments are GRUModule's: ``in_key`` or
    ``in_keys``, ``out_key`` or ``out_keys``, ``default_recurrent_mode``. In recurrent mode the layer resets its state
    wherever ``is_init`` is True.
    """

    def __init__(self, layer: RecurrentLayer, **keys: Any) -> None:
        check_layer("LayerModule", layer, 1)
        super().__init__(gru=layer, **keys)
        self.recurrent_backend = "scan"  # so that `_gru` gets is_init, and the batch is not split

    def _gru(
        self, input: Tensor, batch: int, steps: int, device: Any, dtype: Any, hidden_in: Tensor | None = None, *_: Any,
        is_init: Tensor | None = None, backend: str = "pad",
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the outputs and states, as `run` does. TorchRL calls this method."""
        return run(self.gru, input, None if hidden_in is None else (hidden_in,), is_init)


class LSTMLayerModule(LSTMModule):
    """TorchRL's LSTMModule around a layer with a state (h, c), such as LSTM or HDetachLSTM: see `LayerModule`."""

    def __init__(self, layer: RecurrentLayer, **keys: Any) -> None:
        check_layer("LSTMLayerModule", layer, 2)
        super().__init__(lstm=layer, **keys)
        self.recurrent_backend = "scan"

    def _lstm(
        self, input: Tensor, batch: int, steps: int, device: Any, dtype: Any, hidden0_in: Tensor | None = None,
        hidden1_in: Tensor | None = None, *_: Any, is_init: Tensor | None = None, backend: str = "pad",
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the outputs and states, as `run` does. TorchRL calls this method."""
        given = None if hidden0_in is None or hidden1_in is None else (hidden0_in, hidden1_in)
        return run(self.lstm, input, given, is_init)
