"""PrediNet: many heads, each comparing two places that it attends to (Shanahan et al., 2020)."""

import torch
from torch import Tensor, nn

from steadygrad.models.relational.encoder import FEATURES, kaiming
from steadygrad.models.relational.model import RelationalModel, perceptron, with_position
from steadygrad.models.relational.normalisation import Segments


class PrediNet(RelationalModel):
    """y = MLP([S (e₁ − e₂), t₁, t₂] of all heads),  e = softmax((Q flat(x)) · K x_j) x,  x_j = [z_j, position t_j].

    K and S are shared by all heads; each has a Q for e₁ and one for e₂, and t is the position in e. Sizes are the
    paper's: keys of 16, 32 heads, 16 relations, 8 hidden units. A position is one number, along the sequence, where the
    paper has two, across the image.
    """

    def __init__(
        self,
        objects: int,
        image_size: int,
        channels: int,
        answers: int,
        segments: Segments,
        *,
        key_size: int = 16,
        heads: int = 32,
        relations: int = 16,
        hidden_size: int = 8,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(key_size=key_size, heads=heads, relations=relations, hidden_size=hidden_size)
        self.heads, width = heads, FEATURES + 1
        self.key = nn.Linear(width, key_size, bias=False)
        self.queries = nn.Linear(objects * width, 2 * heads * key_size, bias=False)
        self.relations = nn.Linear(width, relations, bias=False)
        self.decoder = perceptron(heads * (relations + 2), hidden_size, answers).apply(kaiming)

    def answer(self, z: Tensor) -> Tensor:
        x = with_position(z)
        queries = self.queries(x.flatten(1)).unflatten(1, (2 * self.heads, -1))
        chosen = (queries @ self.key(x).mT).softmax(dim=2) @ x
        first, second = chosen.chunk(2, dim=1)
        positions = first[..., -1:], second[..., -1:]
        return self.decoder(torch.cat([self.relations(first - second), *positions], dim=2).flatten(1))
