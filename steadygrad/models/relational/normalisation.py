"""Temporal context normalisation (Webb, Dulberg et al., 2020)."""

import torch
from torch import Tensor, nn

from steadygrad.problem import Segments

EPSILON = 1e-8  # added to the variance, as in ESBN's code


class ContextNormalisation(nn.Module):
    """z_t ← γ (z_t − μ) / √(σ² + ε) + β,  μ and σ² over the objects t of a segment, feature by feature.

    z (batch, objects, features) → the same shape, also with more dimensions between objects and features. ``segments``
    are the ranges (begin, end) of objects that belong together. They hold each object once, in order. Each element of
    the batch has its own μ and σ². γ (``gain``) and β (``shift``) are learned, one number per feature; ε = 1e-8. σ² is
    the unbiased variance: it divides by the number of objects minus 1. In a segment of two objects, a feature that
    differs becomes ±γ/√2 + β, however large the difference, and a feature that is equal becomes β. A segment of fewer
    than two objects raises ValueError.
    """

    def __init__(self, segments: Segments, features: int) -> None:
        super().__init__()
        for begin, end in segments:
            if end - begin < 2:
                raise ValueError(f"ContextNormalisation expects segments of at least two objects; got {begin, end}")
        self.segments = segments
        self.gain = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, z: Tensor) -> Tensor:
        """Return z (batch, objects, …, features) normalised over the objects of each segment, with gain and shift."""
        return (
            torch.cat([standardised(z[:, begin:end]) for begin, end in self.segments], dim=1) * self.gain + self.shift
        )


def standardised(z: Tensor) -> Tensor:
    """Return z (batch, objects, …) scaled to mean 0 and unbiased variance 1 over the objects.

    1e-8 is added to the variance before the division.
    """
    centred = z - z.mean(dim=1, keepdim=True)
    variance = centred.square().sum(dim=1, keepdim=True) / (z.shape[1] - 1)  # torch.var is slow along this dimension
    return centred / (variance + EPSILON).sqrt()
