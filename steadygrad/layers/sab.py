"""SAB, sparse attentive backtracking: an LSTM that looks at a few of the states kept now and then (Ke et al., 2018)."""

from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from steadygrad.kernels import Steps
from steadygrad.layers.attentive import AttentiveCell, Trace, softmax
from steadygrad.layers.cell import Cell
from steadygrad.layers.gru import GateSpecs
from steadygrad.layers.lstm import LSTM
from steadygrad.layers.memory import Contents, Everything
from steadygrad.layers.recurrent import Common, with_attention


def sparse(logits: Tensor, taken: Tensor, top: int) -> Tensor:
    """max(e − e', 0), e' the (top + 1)-th largest, scaled to sum 1; softmax of no more than ``top``."""
    if logits.shape[1] <= top:
        return softmax(logits, taken)
    lowest = torch.finfo(logits.dtype).min
    threshold = logits.masked_fill(~taken, lowest).topk(top + 1, dim=1).values[:, -1:]
    excess = (logits - threshold).relu() * taken
    total = excess.sum(dim=1, keepdim=True)
    chosen = (taken.sum(dim=1, keepdim=True) > top) & (total > 0)  # all alike: no choice
    return torch.where(chosen, excess / total.where(chosen, 1), softmax(logits, taken))


class SABCell(AttentiveCell):
    """See `SAB`. It asks with what the LSTM has made of the step, and adds the answer to that."""

    def __init__(self, cell: Cell, *arguments: Any, **options: Any) -> None:
        super().__init__(cell, *arguments, **options)
        self.state_sizes = (*cell.state_sizes, self.memory.size)

    def walk(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.step_by_step(weights, x, steps, state)

    def step(
        self, weights: Any, x: Tensor, state: tuple[Tensor, ...], contents: Contents, trace: list[Trace] | None
    ) -> tuple[Tensor, tuple[Tensor, ...], Contents]:
        provisional, (_, *rest) = self.cell.walk(weights, x, Steps((len(x),)), state)
        attended, alpha, taken = self.attend(provisional, contents, trace)
        h = torch.where(taken.any(dim=1, keepdim=True), self.combined(provisional, attended), provisional)
        return h, (h, *rest), self.memory.add(contents, alpha, h, self.alignment.keys(h))


class SAB(LSTM):
    """h_t = g_t + Σ α_m m,  g_t, c_t = LSTM(x_t, h_{t−1}, c_{t−1}),  α sparse over the states m kept, by a(g_t, m).

    Each ``every``-th h is kept. With e = a(g_t, m), e' the (``top`` + 1)-th largest: α ∝ max(e − e', 0), so states
    come from ``top`` moments at most, and gradients reach back to these and through e' to one more. Every logit has
    to be computed all the same: the work is quadratic in the length.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        every: int = 10,
        top: int = 10,
        alignment: str = "additive",
        recurrent: GateSpecs = "free",
        bias: bool = True,
        forget_bias: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        if not isinstance(top, int) or isinstance(top, bool) or top < 1:
            raise ValueError(f"SAB expects top to be a whole number of at least 1; got {top!r}")

        def attention(cell: Cell) -> SABCell:
            memory, normalise = partial(Everything, every=every), partial(sparse, top=top)
            return SABCell(cell, memory, alignment=alignment, combine="add", normalise=normalise)

        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            recurrent=recurrent,
            bias=bias,
            forget_bias=forget_bias,
            **with_attention(self._name, common, attention),
        )
