"""CoRelNet: nothing but how alike the objects are (Kerg et al., 2022)."""

import torch
from torch import Tensor

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron
from steadygrad.models.relational.normalisation import Segments
from steadygrad.models.relational.similarity import Similarity, lower_triangle, row_softmax


class CoRelNet(RelationalModel):
    """y = MLP(R),  R_i = softmax_j(z_i · z_j) over j ≤ i.

    The lower triangle of R, with its diagonal, goes into one hidden layer: this is what gives the parameter counts
    that the paper prints. ``full`` takes all j and all of R, as its equation reads. ``asymmetric`` compares W₁ z_i
    with W₂ z_j, ``sensory`` shows z itself to the MLP too. CoRelNet-nhid has a ``hidden_size`` that makes it as large
    as ESBN.
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
        full: bool = False,
        asymmetric: bool = False,
        sensory: bool = False,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(hidden_size=hidden_size)
        self.full, self.sensory = full, sensory
        self.similarity = Similarity(FEATURES, asymmetric)
        relations = objects**2 if full else objects * (objects + 1) // 2
        self.decoder = perceptron(relations + sensory * objects * FEATURES, hidden_size, answers)

    def answer(self, z: Tensor) -> Tensor:
        R = self.relate(z)
        relations = R.flatten(1) if self.full else lower_triangle(R)
        return self.decoder(torch.cat([relations, z.flatten(1)], dim=1) if self.sensory else relations)

    def relate(self, z: Tensor) -> Tensor:
        return row_softmax(self.similarity(z), self.full)
