"""CoRelNet: answers only from the similarities of objects (Kerg et al., 2022)."""

import torch
from torch import Tensor

from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel, perceptron
from steadygrad.models.relational.normalisation import Segments
from steadygrad.models.relational.similarity import lower_triangle, row_softmax, similarity, views


class CoRelNet(RelationalModel):
    """y = MLP(R),  R_i = softmax_j(z_i · z_j) over j ≤ i.

    The network answers from the similarities of the objects and from nothing else. The MLP has one hidden layer. Its
    input is the lower triangle of R with the diagonal, which gives the parameter counts of the paper. ``full`` uses all
    j and all of R, as in the paper's equation. ``asymmetric`` compares z¹_i = norm(W₁ s_i + b₁) with
    z²_j = norm(W₂ s_j + b₂), s the encoder's output. ``sensory`` adds z (if asymmetric, z¹) to the input of the MLP.
    CoRelNet-nhid has a ``hidden_size`` that gives it as many parameters as ESBN.

    Initialisation follows the authors' program (giancarlok/relationaltasks, CoRelNet.py): torch's default.
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
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1, asymmetric)
        self.check_counts(hidden_size=hidden_size)
        self.full, self.sensory = full, sensory
        relations = objects**2 if full else objects * (objects + 1) // 2
        self.decoder = perceptron(relations + sensory * objects * FEATURES, hidden_size, answers)

    def answer(self, z: Tensor) -> Tensor:
        R = self.relate(z)
        relations = R.flatten(1) if self.full else lower_triangle(R)
        return self.decoder(torch.cat([relations, views(z)[0].flatten(1)], dim=1) if self.sensory else relations)

    def relate(self, z: Tensor) -> Tensor:
        return row_softmax(similarity(z), self.full)
