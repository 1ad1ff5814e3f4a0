"""PrediNet: many heads, each of which compares two attended positions (Shanahan et al., 2020)."""

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.models.relational import initialisation
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron, with_position
from steadygrad.problem import Problem


class PrediNet(RelationalModel):
    """y = MLP([S (e₁ − e₂), t₁, t₂] of all heads),  e = softmax((Q flat(x)) · K x_j) x,  x_j = [z_j, j].

    z_j are the normalised features of object j, y the logits. Each head attends to the objects twice and compares the
    two results e₁ and e₂. K and S are shared by all heads; each head has one Q for e₁ and one for e₂, and t is the
    position in e. Sizes are the paper's: keys of 16, 32 heads, 16 relations, 8 hidden units. A position is one number,
    0 … objects − 1, where the paper has two, the coordinates in the image.

    Computation and initialisation follow Webb's program (taylorwwebb/emergent_symbols, PrediNet.py): Xavier normal,
    Kaiming normal before the ReLU, biases 0.
    """

    revision = 2  # revision 1 had positions from −1 to 1

    def __init__(
        self,
        problem: Problem,
        *,
        key_size: int = 16,
        heads: int = 32,
        relations: int = 16,
        hidden_size: int = 8,
        **shared: Any,
    ) -> None:
        super().__init__(problem, **shared)
        self.check_counts(key_size=key_size, heads=heads, relations=relations, hidden_size=hidden_size)
        self.heads, width = heads, FEATURES + 1
        self.key = nn.Linear(width, key_size, bias=False)
        self.first_query = nn.Linear(problem.objects * width, heads * key_size, bias=False)
        self.second_query = nn.Linear(problem.objects * width, heads * key_size, bias=False)
        self.relations = nn.Linear(width, relations, bias=False)
        self.decoder = perceptron(heads * (relations + 2), hidden_size, problem.answers)
        for layer in (self.key, self.first_query, self.second_query, self.relations):
            initialisation.xavier(layer)
        initialisation.decoder(self.decoder)

    def answer(self, z: Tensor) -> Tensor:
        x = with_position(z)
        first, second = (self.attend(query, x) for query in (self.first_query, self.second_query))
        positions = first[..., -1:], second[..., -1:]
        return self.decoder(torch.cat([self.relations(first - second), *positions], dim=2).flatten(1))

    def attend(self, query: nn.Linear, x: Tensor) -> Tensor:
        """Return the mean of the objects x under the attention of each head: (batch, heads, 129).

        x is (batch, objects, 129), the features and the position. ``query`` is the linear layer that computes the
        queries of all heads from all objects.
        """
        queries = query(x.flatten(1)).unflatten(1, (self.heads, -1))
        return (queries @ self.key(x).mT).softmax(dim=2) @ x
