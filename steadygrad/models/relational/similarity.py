"""How alike objects are: dot products, and their softmax row by row."""

import torch
from torch import Tensor, nn


class Similarity(nn.Module):
    """s_ij = z_i · z_j, or (W₁ z_i) · (W₂ z_j) where ``asymmetric``; not divided by √d.

    z (batch, objects, features) → s (batch, objects, objects).
    """

    def __init__(self, features: int, asymmetric: bool) -> None:
        super().__init__()
        self.asked = nn.Linear(features, features, bias=False) if asymmetric else nn.Identity()
        self.compared = nn.Linear(features, features, bias=False) if asymmetric else nn.Identity()

    def forward(self, z: Tensor) -> Tensor:
        return self.asked(z) @ self.compared(z).mT


def row_softmax(scores: Tensor, full: bool) -> Tensor:
    """Softmax of each row i over all j, or unless ``full`` over those up to i, with zeros behind."""
    if full:
        return scores.softmax(dim=-1)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(dim=-1)


def lower_triangle(matrices: Tensor) -> Tensor:
    """The entries on and below the diagonal, row after row: (batch, n, n) → (batch, n (n + 1) / 2)."""
    row, column = torch.tril_indices(*matrices.shape[1:], device=matrices.device)
    return matrices[:, row, column]
