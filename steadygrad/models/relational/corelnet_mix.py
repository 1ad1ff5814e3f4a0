"""CoRelNet-mix: selects between similarities and differences of objects (Kerg, 2022)."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steadygrad.check import is_number
from steadygrad.models.relational.corelnet_diff import Difference
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron
from steadygrad.models.relational.similarity import row_softmax, similarity, views
from steadygrad.problem import Problem


class CoRelNetMix(RelationalModel):
    """y = MLP(a_R R + a_D D),  (a_R, a_D) = gumbel-softmax(K Q z / √d / τ),  R of CoRelNet, D of CoRelNet-diff.

    z are the normalised features of the objects, y the logits. R and D are two rules. The rows of K (2, d) are their
    signatures, Q z is a query computed from all objects. d is ``signature_size`` and τ the ``temperature``. With
    ``hard``, one rule is selected, and the gradient is that of the soft selection. Otherwise both rules are weighted by
    their shares. Evaluation adds no noise. The thesis does not give d, τ and ``hard``: 32, 1 and True are choices made
    here. ``full`` and ``asymmetric`` mean the same as in CoRelNet; if asymmetric, D and the query use z¹. No program
    was released. Initialisation is torch's default, with K ~ N(0, 1).
    """

    def __init__(
        self,
        problem: Problem,
        *,
        hidden_size: int = 256,
        signature_size: int = 32,
        temperature: float = 1.0,
        hard: bool = True,
        full: bool = False,
        asymmetric: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(problem, asymmetric, **shared)
        self.check_counts(hidden_size=hidden_size, signature_size=signature_size)
        if not is_number(temperature) or temperature <= 0:
            raise ValueError(f"CoRelNetMix expects a finite temperature above 0; got {temperature!r}")
        self.temperature, self.hard, self.full = temperature, hard, full
        self.difference = Difference(FEATURES)
        self.signatures = nn.Parameter(torch.randn(2, signature_size))
        self.question = nn.Linear(problem.objects * FEATURES, signature_size)
        self.decoder = perceptron(problem.objects**2, hidden_size, problem.answers)

    def answer(self, z: Tensor) -> Tensor:
        return self.decoder(self.relate(z).flatten(1))

    def relate(self, z: Tensor) -> Tensor:
        """Return a_R R + a_D D (batch, objects, objects), from the similarities R and the differences D of the objects.

        R is after the softmax of each row. In training the weights a, which `shares` returns, are random.
        """
        rules = torch.stack([row_softmax(similarity(z), self.full), self.difference(views(z)[0])], dim=1)
        return torch.einsum("br,brij->bij", self.shares(z), rules)

    def shares(self, z: Tensor) -> Tensor:
        """Return the weights (a_R, a_D) of the two rules, similarity and difference, (batch, 2), from the features z.

        Each row sums to 1; with ``hard`` it is one-hot. In training the weights are random.
        """
        scores = self.question(views(z)[0].flatten(1)) @ self.signatures.mT / math.sqrt(self.signatures.shape[1])
        if self.training:
            return F.gumbel_softmax(scores, self.temperature, self.hard)
        if self.hard:
            return F.one_hot(scores.argmax(dim=1), scores.shape[1]).to(scores)
        return (scores / self.temperature).softmax(dim=1)
