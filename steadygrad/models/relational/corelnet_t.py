"""CoRelNet-T: a transformer looks at how alike the objects are (Kerg et al., 2022)."""

import torch
from torch import Tensor, nn

from steadygrad.models.relational.attention import TransformerLayer
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.relational.normalisation import Segments
from steadygrad.models.relational.similarity import Similarity, row_softmax


class CoRelNetT(RelationalModel):
    """y = C mean_i transformer(W [R_i, p_i]),  R_i = softmax_j(z_i · z_j) over j ≤ i, p learned positions.

    The thesis gives the numbers: 8 heads, width 512, queries and positions of 8, one layer. What it leaves open is
    decided here: positions stand beside the row, as 8 numbers cannot be added to it; a linear map brings both to
    ``width``, which is that of the feed-forward part too; the answer is linear in the mean token. The program that the
    authors released decides otherwise, and is another network: tokens R P with P learned, 8 wide, which one learned
    query attends to, 128 units in the feed-forward part and 256 before the answer. The switches are CoRelNet's.
    """

    def __init__(
        self,
        objects: int,
        image_size: int,
        channels: int,
        answers: int,
        segments: Segments,
        *,
        heads: int = 8,
        width: int = 512,
        query_size: int = 8,
        position_size: int = 8,
        layers: int = 1,
        full: bool = False,
        asymmetric: bool = False,
        sensory: bool = False,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(heads=heads, width=width, query_size=query_size, position_size=position_size, layers=layers)
        self.full, self.sensory = full, sensory
        self.similarity = Similarity(FEATURES, asymmetric)
        self.positions = nn.Parameter(torch.randn(objects, position_size))
        self.token = nn.Linear(objects + position_size + sensory * FEATURES, width)
        self.transformer = nn.Sequential(*(TransformerLayer(width, heads, query_size, width) for _ in range(layers)))
        self.readout = nn.Linear(width, answers)

    def answer(self, z: Tensor) -> Tensor:
        seen = [self.relate(z), self.positions.expand(len(z), -1, -1), *([z] if self.sensory else [])]
        return self.readout(self.transformer(self.token(torch.cat(seen, dim=2))).mean(dim=1))

    def relate(self, z: Tensor) -> Tensor:
        return row_softmax(self.similarity(z), self.full)
