"""CoRelNet-diff: answers from the differences of objects along one learned direction (Kerg, 2022)."""

from typing import Any

from torch import Tensor, nn

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron
from steadygrad.problem import Problem


class CoRelNetDiff(RelationalModel):
    """y = MLP(D),  D_ij = w · (z_i − z_j).

    z_i are the normalised features of object i, y the logits, w is learned. D is antisymmetric, so this network can
    tell which of two objects is larger. A symmetric similarity cannot.
    """

    def __init__(self, problem: Problem, *, hidden_size: int = 256, **shared: Any) -> None:
        super().__init__(problem, **shared)
        self.check_counts(hidden_size=hidden_size)
        self.difference = Difference(FEATURES)
        self.decoder = perceptron(problem.objects**2, hidden_size, problem.answers)

    def answer(self, z: Tensor) -> Tensor:
        return self.decoder(self.relate(z).flatten(1))

    def relate(self, z: Tensor) -> Tensor:
        """Return the differences D_ij = w · (z_i − z_j), antisymmetric matrices (batch, objects, objects)."""
        return self.difference(z)


class Difference(nn.Module):
    """D_ij = w · (z_i − z_j):  z (batch, objects, features) → D (batch, objects, objects).

    The vector w (features,) is learned.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.direction = nn.Linear(features, 1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Return D_ij = w · (z_i − z_j), (batch, objects, objects), from z (batch, objects, features)."""
        size = self.direction(z)
        return size - size.mT
