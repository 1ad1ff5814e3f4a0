"""CoRelNet: answers only from the similarities of objects (Kerg et al., 2022)."""

from typing import Any

import torch
from torch import Tensor

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron
from steadygrad.models.relational.similarity import lower_triangle, row_softmax, similarity, views
from steadygrad.problem import Problem


class CoRelNet(RelationalModel):
    """y = MLP(R),  R_i = softmax_j(z_i · z_j) over j ≤ i.

    z_i are the normalised features of object i, y the logits. The network answers from the similarities of the objects
    and from nothing else. The MLP has one hidden layer. Its input is the lower triangle of R with the diagonal, which
    gives the parameter counts of the paper. ``full`` uses all j and all of R, as in the paper's equation.
    ``asymmetric`` compares z¹_i = norm(W₁ s_i + b₁) with z²_j = norm(W₂ s_j + b₂), s the encoder's output. ``sensory``
    adds z (if asymmetric, z¹) to the input of the MLP. CoRelNet-nhid has a ``hidden_size`` that gives it as many
    parameters as ESBN.

    Initialisation follows the authors' program (giancarlok/relationaltasks, CoRelNet.py): torch's default.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        hidden_size: int = 256,
        full: bool = False,
        asymmetric: bool = False,
        sensory: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(problem, asymmetric, **shared)
        self.check_counts(hidden_size=hidden_size)
        self.full, self.sensory = full, sensory
        relations = problem.objects**2 if full else problem.objects * (problem.objects + 1) // 2
        self.decoder = perceptron(relations + sensory * problem.objects * FEATURES, hidden_size, problem.answers)

    def answer(self, z: Tensor) -> Tensor:
        R = self.relate(z)
        relations = R.flatten(1) if self.full else lower_triangle(R)
        return self.decoder(torch.cat([relations, views(z)[0].flatten(1)], dim=1) if self.sensory else relations)

    def relate(self, z: Tensor) -> Tensor:
        """Return R (batch, objects, objects), the similarities of the objects after a softmax of each row.

        Without ``full`` the softmax of row i is over j ≤ i, and R is 0 above the diagonal.
        """
        return row_softmax(similarity(z), self.full)
