"""SAB, sparse attentive backtracking: an LSTM with sparse attention over a few past states (Ke et al., 2018)."""

import math
from functools import partial
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from steadygrad.check import is_integer
from steadygrad.kernels import Steps
from steadygrad.layers.alignment import Alignment
from steadygrad.layers.attentive import AttentiveCell, Trace
from steadygrad.layers.cell import Cell
from steadygrad.layers.gates import GateSpecs
from steadygrad.layers.lstm import LSTM, LSTMCell
from steadygrad.layers.memory import Contents, Everything
from steadygrad.layers.naming import Owned
from steadygrad.layers.recurrent import Common, with_attention
from steadygrad.layers.start import uniform

MARGIN = 1e-7
"""constant that the released program adds to the threshold d and to the denominator Σ r"""


def sparse(scores: Tensor, taken: Tensor, top: int) -> Tensor:
    """Return sparse weights α = r / (Σ r + 1e-7) from scores e:  r = max(e − d, 0),  d = 1e-7 + ``top``-th largest e.

    ``scores``, the Boolean mask ``taken`` and the result are (batch, places). A sequence with at most ``top`` taken
    places has α = e. Places that are not taken have α = 0.
    """
    if scores.shape[1] <= top:
        return scores * taken
    many = taken.sum(dim=1, keepdim=True) > top
    kth = scores.masked_fill(~taken, -math.inf).topk(top, dim=1).values[:, -1:]
    excess = (scores - (kth.where(many, 0) + MARGIN)).relu() * taken
    return torch.where(many, excess / (excess.sum(dim=1, keepdim=True) + MARGIN), scores * taken)


class TanhScore(Alignment):
    """Attention score a(g, m) = w · tanh([g; m]) = w₁ · tanh(g) + w₂ · tanh(m) of a query g and a past state m.

    w = [w₁; w₂] is the parameter ``weight_score``, (1, 2 · units). The key of m is the number w₂ · tanh(m).
    """

    weight_score = Owned()

    def __init__(self, units: int) -> None:
        super().__init__()
        self.weight_score = nn.Parameter(torch.empty(1, 2 * units).normal_(std=0.01))

    def keys(self, states: Tensor) -> Tensor:
        """Return the keys w₂ · tanh(m) (…, 1) of states m (…, units)."""
        return states.tanh() @ self.weight_score.chunk(2, dim=1)[1].mT

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the scores (batch, places) from queries g (batch, units) and keys w₂ · tanh(m) (batch, places, 1)."""
        return query.tanh() @ self.weight_score.chunk(2, dim=1)[0].mT + keys[:, :, 0]


class SABCell(AttentiveCell):
    """Cell of `SAB`, an LSTM with sparse attention. Its state is the tuple of h, c and the tensors of the memory.

    The output has 2 · units features, [h; s] with the attended state s. SAB also attends to a zero state, which the
    memory does not store.
    """

    def __init__(self, cell: Cell, *, every: int, top: int, truncate: int | None) -> None:
        super().__init__(cell, partial(Everything, every=every), alignment=TanhScore)
        self.top, self.truncate = top, truncate
        self.state_sizes, self.output_size = cell.state_sizes, 2 * cell.output_size

    def options(self) -> dict[str, Any]:
        """Return the options to show in `repr` of the layer: ``every``, ``top`` and, if it is set, ``truncate``."""
        own = {"top": self.top, "truncate": self.truncate}
        return super().options() | {name: value for name, value in own.items() if value is not None}

    def normalise(self, logits: Tensor, taken: Tensor) -> Tensor:
        """Return the weights α of the places from their scores, by `sparse`. All are (batch, places)."""
        return sparse(logits, taken, self.top)

    def step(
        self, weights: Any, x: Tensor, state: tuple[Tensor, ...], contents: Contents, trace: list[Trace] | None
    ) -> tuple[Tensor, tuple[Tensor, ...], Contents]:
        """Return the tuple (output, state, contents) after one time step: [h; s], (h, c) and the memory, h = g + s.

        g is the LSTM's output for x (batch, inputs) and the ``state`` (h, c), and s is the attended state. The output
        is (batch, 2 · units). ``contents`` is the memory as a dict; the returned one is a new dict, to which h is added
        if its step is stored (every ``every``-th). A `Trace` is appended to the list ``trace``, unless it is None. With
        ``truncate`` = n the gradient through the state stops before every n-th step.
        """
        if self.truncate is not None:
            cut = (contents["age"][:, None] + 1) % self.truncate == 0
            if cut.any():
                state = tuple(torch.where(cut, part.detach(), part) for part in state)
        g, (_, *rest) = self.cell.walk(weights, x, Steps((len(x),)), state)
        s, alpha, _ = self.attend(g, contents, trace)
        h = g + s
        contents = self.memory.add(contents, alpha, h, self.alignment.keys(h))
        return torch.cat([h, s], dim=1), (h, *rest), contents

    def attend(
        self, query: Tensor, contents: Contents, trace: list[Trace] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tuple (Σ α_m m, α, taken): the attended state (batch, units), its weights and the taken places.

        α and the mask are (batch, places). The zero state takes part in the choice of weights but is not in α.
        ``query`` is the LSTM's output g (batch, units). A `Trace` is appended to the list ``trace``, if one is given.
        """
        states, keys, taken, _ = self.memory.items(contents)
        scores = self.alignment(
            query, nn.functional.pad(keys, (0, 0, 1, 0))
        )  # the zero state comes first; its key is 0
        alpha = self.normalise(scores, nn.functional.pad(taken, (1, 0), value=True))[:, 1:]
        self.note(alpha, taken, contents, trace)
        chosen = alpha
        if alpha.shape[1] > self.top:  # all other places have weight 0 and no gradient
            places = alpha.detach().abs().masked_fill(~taken, -1).topk(self.top, dim=1).indices
            rows = torch.arange(len(places), device=places.device)[:, None]
            chosen, states = (
                alpha[rows, places],
                states[rows, places],
            )  # unlike gather, this stores no states for autograd
        return (chosen[:, None] @ states)[:, 0], alpha, taken


class SAB(LSTM, name="sab"):
    """h_t = g_t + s_t,  g_t, c_t = LSTM(x_t, h_{t−1}, c_{t−1}),  s_t = Σ α_m m,  α = sparse(w · tanh([g_t; m])).

    An LSTM that learns over long distances by back-propagation through a few attended states m. The memory holds the
    zero state and every ``every``-th h. With up to ``top`` = k entries, α is the scores e themselves. With more, α = r
    / (Σ r + 1e-7) with r = max(e − d, 0) and d the k-th largest score plus 1e-7. So at most k − 1 states are attended
    to, and the gradient reaches these and the k-th. The term w₁ · tanh(g_t) is the same in all scores and cancels in e
    − d: with more than k entries the choice does not depend on the present state. With ``truncate`` = n the gradient
    through h and c stops before the steps n, 2n, …, counted from 1, and the gradient through the memory does not stop.
    With None neither stops.

    This layer follows the released program (nke001/sparse_attentive_backtracking_release). That program runs with every
    2, top 10 and truncate 10, or, according to its README, top 5 and truncate 5. Its readout takes both h and s, so the
    output is [h_t; s_t], with 2 · hidden_size features. The state is the tuple of h, c and the tensors of the memory.
    The program's LSTM has two bias vectors; here b starts as their sum. No settings are known for the SAB rows of
    Kerg's thesis (2022).

    The C kernel for attention does not cover this layer. It runs step by step, and time grows with the square of the
    length: a step copies and searches up to length / ``every`` entries. Autograd stores a few numbers for each of them,
    not the states themselves. With 128 units, batch 10 and every 2, forward and backward passes take 1.5 s for 500
    steps and 11 s for 2000 on one core.
    """

    revision = 2  # revision 1 had matrices in its scores, and the (k + 1)-th score as threshold

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        every: int = 2,
        top: int = 10,
        truncate: int | None = None,
        recurrent: GateSpecs = "free",
        forget_bias: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        if not is_integer(top, 2):
            raise ValueError(f"SAB expects top to be an integer of at least 2, as it attends to top − 1; got {top!r}")
        if truncate is not None and not is_integer(truncate, 1):
            raise ValueError(f"SAB expects truncate to be an integer of at least 1, or None; got {truncate!r}")

        def attention(cell: Cell) -> SABCell:
            add_second_bias(cast(LSTMCell, cell), forget_bias)
            return SABCell(cell, every=every, top=top, truncate=truncate)

        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            recurrent=recurrent,
            forget_bias=forget_bias,
            **with_attention(self._name, common, attention),
        )


@torch.no_grad()
def add_second_bias(cell: LSTMCell, forget_bias: float | None) -> None:
    """Add a second random vector to b of an LSTM cell in place, because torch.nn.LSTM has two bias vectors.

    If ``forget_bias`` is a number, the bias of the forget gate is not changed. Do nothing if the cell has no b.
    """
    if cell.bias_ih is None:
        return
    second = torch.empty_like(cell.bias_ih)
    uniform(1 / math.sqrt(cell.output_size))(second)
    if forget_bias is not None:
        second[cell.output_size : 2 * cell.output_size] = 0
    cell.bias_ih.add_(second)
