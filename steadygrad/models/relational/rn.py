"""The relation network: a function of all pairs, summed (Santoro et al., 2017)."""

import torch
from torch import Tensor

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron, with_position
from steadygrad.models.relational.normalisation import Segments


class RelationNetwork(RelationalModel):
    """y = f(Σ_{i,j} g(x_i, x_j)),  x_i = z_i with its position,  f and g perceptrons.

    g has four layers of 256 ReLUs, f two and the answer: the sizes of the paper's network for CLEVR, without dropout.
    """

    def __init__(
        self,
        objects: int,
        image_size: int,
        channels: int,
        answers: int,
        segments: Segments,
        *,
        hidden_size: int = 256,
        layers: int = 4,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(hidden_size=hidden_size, layers=layers)
        self.g = perceptron(2 * (FEATURES + 1), *[hidden_size] * layers)
        self.f = perceptron(hidden_size, hidden_size, hidden_size, answers)

    def answer(self, z: Tensor) -> Tensor:
        x = with_position(z)
        count = x.shape[1]
        pairs = [x.unsqueeze(2).expand(-1, -1, count, -1), x.unsqueeze(1).expand(-1, count, -1, -1)]
        return self.f(self.g(torch.cat(pairs, dim=3)).relu().sum(dim=(1, 2)))
