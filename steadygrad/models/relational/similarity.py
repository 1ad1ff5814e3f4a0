"""Similarity of objects: dot products, and their softmax in each row."""

import torch
from torch import Tensor, nn


class Views(nn.Module):
    """s → (W₁ s + b₁, W₂ s + b₂).

    Two views of each object for an asymmetric similarity: the first is a query, the second a key.
    s (n, features) → (n, 2, features). Weights and biases have torch's initialisation, U(±1/√features).
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.asked = nn.Linear(features, features)
        self.compared = nn.Linear(features, features)

    def forward(self, s: Tensor) -> Tensor:
        """Return both views of each object, (n, 2, features), from s (n, features)."""
        return torch.stack([self.asked(s), self.compared(s)], dim=1)


def views(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pair of the queries and the keys of the objects, each (batch, objects, features).

    For z (batch, objects, 2, features) from `Views`, they are the two views. For z (batch, objects, features), both
    are z.
    """
    return (z[:, :, 0], z[:, :, 1]) if z.dim() == 4 else (z, z)


def similarity(z: Tensor) -> Tensor:
    """Return the similarities s_ij = z_i · z_j (batch, objects, objects), or z¹_i · z²_j for the two `views`."""
    queries, keys = views(z)
    return queries @ keys.mT


def row_softmax(scores: Tensor, full: bool) -> Tensor:
    """Return the softmax of each row i of scores (batch, n, n): over all j if ``full``, else over j ≤ i.

    Without ``full`` the entries with j > i are 0.
    """
    if full:
        return scores.softmax(dim=-1)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(dim=-1)


def lower_triangle(matrices: Tensor) -> Tensor:
    """Return the entries of matrices on and below the diagonal, row by row: (batch, n, n) → (batch, n (n + 1) / 2)."""
    row, column = torch.tril_indices(*matrices.shape[1:], device=matrices.device)
    return matrices[:, row, column]
