"""h-detach: an LSTM that drops part of the gradient through h, none of that through c (Kanuparthi et al., 2019)."""

from typing import Unpack

import torch
from torch import Tensor

from steadygrad.check import check_share
from steadygrad.layers.gates import GateSpecs
from steadygrad.layers.lstm import LSTM, LSTMCell
from steadygrad.layers.recurrent import Common


class HDetachCell(LSTMCell):
    """Cell of `HDetachLSTM`: in training, an LSTM cell that drops the gradient through h at random time steps."""

    detach_probability = 0.0
    shown = ("detach_probability",)

    def detached(self, time: int) -> Tensor | None:
        """Return a random Boolean mask (time,), True at steps whose gates detach h_{t−1}.

        An entry is True with probability ``detach_probability``. Return None in evaluation mode or if gradients are
        disabled.
        """
        if not self.training or not torch.is_grad_enabled():
            return None
        return torch.rand(time, device="cpu") < self.detach_probability

    def recurrence(self, weights: tuple[Tensor, Tensor]) -> None:
        """Return None: the attention kernel does not support the cell, because it cannot drop gradients of h."""
        return None  # the attention kernel cannot detach h: it always passes the gradient on


class HDetachLSTM(LSTM, name="h-detach"):
    """c_t = f∘c_{t−1} + i∘g,  h_t = o∘tanh(c_t),  the gates from x_t and h_{t−1} or, with probability p, stop(h_{t−1}).

    In training, the gates of each time step use h_{t−1}.detach() with probability p = ``detach_probability``. One draw
    holds for the whole batch; each of the num_layers levels and each direction draws its own. The
    gradient through c and the gradient that h_{t−1} receives as an output are never dropped. The forward pass equals
    that of `LSTM`. In evaluation nothing is detached.
    """

    cell = HDetachCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        detach_probability: float = 0.25,
        recurrent: GateSpecs = "free",
        forget_bias: float | None = None,
        start: str = "torch",
        **common: Unpack[Common],
    ) -> None:
        check_share(self._name, "detach_probability", detach_probability)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            recurrent=recurrent,
            forget_bias=forget_bias,
            start=start,
            **common,
        )
        self.detach_probability = detach_probability
        for cell in self.modules():
            if isinstance(cell, HDetachCell):
                cell.detach_probability = detach_probability
