"""Scores of past states, which decide which states a memory keeps as relevant (Kerg et al., 2020)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from steadygrad.layers.naming import Lender, Owned


class Score(Lender):
    """Base class of scores: how relevant a state will be. It is computed when the state leaves S, the recent states.

    The states with the highest scores are kept in R, the relevant states.
    """

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        """Return scores (batch,) from the states (batch, units) and the attention that each received (batch,).

        Each score defines this method; `Score` raises NotImplementedError.
        """
        raise NotImplementedError

    def gate(self, states: Tensor) -> Tensor | None:
        """Return a term (batch, places) for the attention logits of the relevant ``states``, or None.

        The states are (batch, places, units). The selection of states has no gradient, so a learned score is trained
        through this term. `Score` returns None.
        """
        return None


class ReceivedAttention(Score):
    """Score β(i) = Σ_t α_{i,t} of a state h_i: the attention weight that it received while it was a recent state."""

    def __init__(self, units: int, bias: bool = True) -> None:
        super().__init__()

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        """Return ``received`` (batch,), the attention that each state received, as its score."""
        return received


class LearnedScore(Score):
    """Learned score β(i) = w · h_i + b + Σ_t α_{i,t} of a state h_i;  σ(w · h_i + b) multiplies e^{logit} of h_i in R.

    α_{i,t} is the attention weight of h_i at step t, summed over its time in S, the recent states; R are the relevant
    ones. The factor σ(…) gives w and b a gradient from the value of attending to h_i (thesis, section 7.5). At the
    start w = b = 0, which ranks states as `ReceivedAttention` does. w is ``weight_relevance`` (1, units), b
    ``bias_relevance``, a scalar, or None without ``bias``.
    """

    weight_relevance = Owned()
    bias_relevance = Owned()

    def __init__(self, units: int, bias: bool = True) -> None:
        super().__init__()
        self.weight_relevance = nn.Parameter(torch.zeros(1, units))
        self.bias_relevance = nn.Parameter(torch.zeros(())) if bias else None

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        """Return the scores w · h + b + received (batch,) from states h (batch, units) and ``received`` (batch,)."""
        return self._logits(states) + received

    def gate(self, states: Tensor) -> Tensor:
        """Return log σ(w · h + b), (batch, places), of relevant states h (batch, places, units). It trains w and b."""
        return nn.functional.logsigmoid(self._logits(states))

    def _logits(self, states: Tensor) -> Tensor:
        """Return w · h + b (…) of states h (…, units)."""
        logits = states @ self.weight_relevance[0]
        return logits if self.bias_relevance is None else logits + self.bias_relevance


SCORES: dict[str, Callable[[int, bool], Score]] = {"received": ReceivedAttention, "learned": LearnedScore}
"""scores by name; each class is called with the number of units and with whether it may have a bias"""
