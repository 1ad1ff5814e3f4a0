"""Attention scores a(s, m) of a query s and a past state m (Bahdanau et al., 2015; Vaswani et al., 2017)."""

import math

import torch
from torch import Tensor, nn


class Alignment(nn.Module):
    """Base class of attention scores, which give the logits of queries and keys.

    The keys are computed once from the past states (`keys`), and `forward` compares them with the query of each step.
    """

    in_kernel = False
    """whether the fused kernel supports this alignment; it takes A, B and v: additive with v, scaled product without"""
    A: Tensor
    B: Tensor
    v: Tensor | None

    def keys(self, states: Tensor) -> Tensor:
        """Return the keys (…, key size) of states (…, units): the part of the score that does not depend on the query.

        Each score defines this method; `Alignment` raises NotImplementedError.
        """
        raise NotImplementedError

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the attention logits (batch, places) from queries (batch, units) and keys (batch, places, key size).

        The keys are those that `keys` returns, not the states. Each score defines this method; `Alignment` raises
        NotImplementedError.
        """
        raise NotImplementedError


class Projected(Alignment):
    """Base class of attention scores that compare A s with B m: s is the query, m a past state.

    A and B are parameters (units, units). The key of m is B m.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.register_parameter("v", None)
        bound = 1 / math.sqrt(units)
        self.A = nn.Parameter(torch.empty(units, units).uniform_(-bound, bound))  # projects queries, W_a in the thesis
        self.B = nn.Parameter(torch.empty(units, units).uniform_(-bound, bound))  # projects keys, U_a

    def keys(self, states: Tensor) -> Tensor:
        """Return the keys B m (…, units) of states m (…, units)."""
        return states @ self.B.mT


class Additive(Projected):
    """Additive attention score a(s, m) = v · tanh(A s + B m) of a query s and a past state m.

    A and B are parameters (units, units), v is a parameter (units,). ``forward`` takes the queries s and the keys B m,
    which `keys` computes from the states m.
    """

    in_kernel = True

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.v = nn.Parameter(torch.empty(units).normal_(std=math.sqrt(2 / (1 + units))))  # Xavier of (1, units)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return v · tanh(A s + k), (batch, places), from queries s (batch, N) and keys k = B m (batch, places, N)."""
        assert self.v is not None
        return ((query @ self.A.mT)[:, None] + keys).tanh() @ self.v


class ScaledDot(Projected):
    """Scaled dot-product attention score a(s, m) = (A s) · (B m) / √N of a query s and a past state m, N units.

    A and B are parameters (N, N). ``forward`` takes the queries s and the keys B m, which `keys` computes from the
    states m.
    """

    in_kernel = True

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return (A s) · k / √N, (batch, places), from queries s (batch, N) and keys k = B m (batch, places, N)."""
        return (keys @ (query @ self.A.mT)[:, :, None])[:, :, 0] / math.sqrt(keys.shape[2])


ALIGNMENTS: dict[str, type[Alignment]] = {"additive": Additive, "dot": ScaledDot}
"""attention scores by name; each class is called with the number of units"""
