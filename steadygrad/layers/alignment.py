"""Attention scores a(s, m) of a query s and a past state m (Bahdanau et al., 2015; Vaswani et al., 2017)."""

import math

import torch
from torch import Tensor, nn

from steadygrad.layers.naming import Lender, Owned


class Alignment(Lender):
    """Base class of attention scores: modules that compute the attention logits from queries and keys.

    The keys are computed once from the past states (`keys`), and `forward` compares them with the query of each step.
    """

    in_kernel = False
    """whether the fused kernel supports this score: the additive one with v, or the scaled product without v"""
    weight_query = Owned()
    weight_key = Owned()
    weight_score = Owned()

    def keys(self, states: Tensor) -> Tensor:
        """Return the keys (…, key size) of states (…, units): the part of the score that does not depend on the query.

        Each score defines this method; `Alignment` raises NotImplementedError.
        """
        raise NotImplementedError

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the attention logits (batch, places) from queries (batch, units) and keys (batch, places, key size).

        Each place holds one past state. The keys are those that `keys` returns, not the states. Each score defines this
        method; `Alignment` raises NotImplementedError.
        """
        raise NotImplementedError


class Projected(Alignment):
    """Base class of attention scores that compare A s with B m: s is the query, m a past state.

    A and B are the parameters ``weight_query`` and ``weight_key``, (units, units). The key of m is B m.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(units)
        self.weight_query = nn.Parameter(torch.empty(units, units).uniform_(-bound, bound))  # W_a in the thesis
        self.weight_key = nn.Parameter(torch.empty(units, units).uniform_(-bound, bound))  # U_a
        self.weight_score = None

    def keys(self, states: Tensor) -> Tensor:
        """Return the keys B m (…, units) of states m (…, units)."""
        return states @ self.weight_key.mT


class Additive(Projected):
    """Additive attention score a(s, m) = v · tanh(A s + B m) of a query s and a past state m.

    A, B and v are the parameters ``weight_query`` and ``weight_key``, (units, units), and ``weight_score``, (1, units).
    ``forward`` takes the queries s and the keys B m, which `keys` computes from the states m.
    """

    in_kernel = True

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.weight_score = nn.Parameter(torch.empty(1, units).normal_(std=math.sqrt(2 / (1 + units))))  # Xavier

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return v · tanh(A s + k), (batch, places), from queries s (batch, N) and keys k = B m (batch, places, N)."""
        return ((query @ self.weight_query.mT)[:, None] + keys).tanh() @ self.weight_score[0]


class ScaledDot(Projected):
    """Scaled dot-product attention score a(s, m) = (A s) · (B m) / √N of a query s and a past state m, N units.

    A and B are the parameters ``weight_query`` and ``weight_key``, (N, N). ``forward`` takes the queries s and the keys
    B m, which `keys` computes from the states m.
    """

    in_kernel = True

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return (A s) · k / √N, (batch, places), from queries s (batch, N) and keys k = B m (batch, places, N)."""
        return (keys @ (query @ self.weight_query.mT)[:, :, None])[:, :, 0] / math.sqrt(keys.shape[2])


ALIGNMENTS: dict[str, type[Alignment]] = {"additive": Additive, "dot": ScaledDot}
"""attention scores by name; each class is called with the number of units"""
