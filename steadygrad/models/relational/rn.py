"""The relation network: the sum of a learned function over all pairs of objects (Santoro et al., 2017)."""

from typing import Any

import torch
from torch import Tensor

from steadygrad.models.relational import initialisation
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron, with_position
from steadygrad.problem import Problem


class RelationNetwork(RelationalModel):
    """y = f(Σ_{i,j} g(x_i, x_j)),  x_i = [z_i, i],  f and g perceptrons.

    z_i are the normalised features of object i, y the logits. The network sums a learned function over all ordered
    pairs, i = j included. g has layers of ``pair_size`` = 512 and ``hidden_size`` = 256 units with ReLUs, f has one
    hidden layer of ``hidden_size`` units: the sizes of Webb et al. (2021).

    Computation and initialisation follow Webb's program (taylorwwebb/emergent_symbols, RN.py): Kaiming normal, Xavier
    normal for the last layer of f, biases 0.
    """

    revision = 2  # revision 1 had positions from −1 to 1

    def __init__(self, problem: Problem, *, pair_size: int = 512, hidden_size: int = 256, **shared: Any) -> None:
        super().__init__(problem, **shared)
        self.check_counts(pair_size=pair_size, hidden_size=hidden_size)
        self.g = perceptron(2 * (FEATURES + 1), pair_size, hidden_size).apply(initialisation.kaiming)
        self.f = perceptron(hidden_size, hidden_size, problem.answers)
        initialisation.decoder(self.f)

    def answer(self, z: Tensor) -> Tensor:
        x = with_position(z)
        count = x.shape[1]
        pairs = [x.unsqueeze(2).expand(-1, -1, count, -1), x.unsqueeze(1).expand(-1, count, -1, -1)]
        return self.f(self.g(torch.cat(pairs, dim=3)).relu().sum(dim=(1, 2)))
