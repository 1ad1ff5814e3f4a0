"""CoRelNet-T: a learned query attends to the similarities of objects (Kerg et al., 2022)."""

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.models.relational.attention import AttentionLayer
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import MOST_LAYERS, RelationalModel, perceptron
from steadygrad.models.relational.similarity import row_softmax, similarity, views
from steadygrad.problem import Problem


class CoRelNetT(RelationalModel):
    """y = MLP(attention(q, t)),  t_i = Σ_j R_ij p_j,  R_i = softmax_j(z_i · z_j) over j ≤ i.

    CoRelNet with attention in front of its MLP. z_i are the normalised features of object i, y the logits. Each row of
    R mixes the learned position vectors p_j into one token t_i. One learned query q, the same for every problem,
    attends to the tokens with 8 heads of 64 and passes through a feed-forward part of 128 units; the MLP has 256.
    ``layers`` above 1 repeats attention and feed-forward part with the same weights. ``sensory`` appends z_i (if
    asymmetric, z¹_i) to token i. ``full`` and ``asymmetric`` mean the same as in CoRelNet. ``width`` is that of all
    heads together.

    Computation and initialisation follow the authors' program (giancarlok/relationaltasks, CoRelNet_qtsf.py): p and q
    are N(0, 1), all else is torch's default. The program also registers parameters that have no influence on the answer
    (``positional``, ``query_matrix``, ``key_matrix``, ``value_matrix``); they are not registered here.
    """

    revision = 2  # revision 1 was a different network

    def __init__(
        self,
        problem: Problem,
        *,
        heads: int = 8,
        width: int = 512,
        query_size: int = 8,
        position_size: int = 8,
        feedforward_size: int = 128,
        hidden_size: int = 256,
        layers: int = 1,
        full: bool = False,
        asymmetric: bool = False,
        sensory: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(problem, asymmetric, **shared)
        self.check_counts(
            heads=heads,
            width=width,
            query_size=query_size,
            position_size=position_size,
            feedforward_size=feedforward_size,
            hidden_size=hidden_size,
        )
        self.check_counts(MOST_LAYERS, layers=layers)
        self.layers, self.full, self.sensory = layers, full, sensory
        self.positions = nn.Parameter(torch.randn(problem.objects, position_size))
        self.query = nn.Parameter(torch.randn(query_size))
        token_size = position_size + sensory * FEATURES
        self.attention = AttentionLayer(query_size, token_size, width, heads, feedforward_size)
        self.decoder = perceptron(query_size, hidden_size, problem.answers)

    def answer(self, z: Tensor) -> Tensor:
        tokens = self.tokens(z)
        query = self.query.expand(len(z), 1, -1)
        for _ in range(self.layers):
            query = self.attention(query, tokens)
        return self.decoder(query.squeeze(1))

    def tokens(self, z: Tensor) -> Tensor:
        """Return one token per object, (batch, objects, position_size), from the features z that `encode` returns.

        With ``sensory`` a token has 128 features more, those of the object.
        """
        mixed = self.relate(z) @ self.positions
        return torch.cat([mixed, views(z)[0]], dim=2) if self.sensory else mixed

    def relate(self, z: Tensor) -> Tensor:
        """Return R (batch, objects, objects), the similarities of the objects after a softmax of each row.

        Without ``full`` the softmax of row i is over j ≤ i, and R is 0 above the diagonal.
        """
        return row_softmax(similarity(z), self.full)
