"""How far a matrix is from orthogonal, stable, normal. Computed in double precision."""

import math

import torch
from torch import Tensor

from steadygrad.matrices.matrix import check_square


def orthogonality_error(W: Tensor) -> float:
    """‖WᴴW − I‖_F."""
    W = checked("orthogonality_error", W)
    return float(torch.linalg.matrix_norm(W.mH @ W - torch.eye(len(W), dtype=W.dtype, device=W.device)))


def spectral_radius(W: Tensor) -> float:
    """ρ(W) = max |λ|."""
    W = checked("spectral_radius", W)
    return float(torch.linalg.eigvals(W).abs().max()) if len(W) else 0.0


def departure_from_normality(W: Tensor) -> float:
    """(‖W‖_F² − Σ|λ|²)^½, Henrici's measure: 0 for a normal matrix."""
    W = checked("departure_from_normality", W)
    excess = W.abs().square().sum() - torch.linalg.eigvals(W).abs().square().sum()
    return float(excess.clamp_min(0).sqrt())  # rounding may leave it just below 0


def checked(who: str, W: Tensor) -> Tensor:
    check_square(who, W)
    if wrong := int((~W.isfinite()).sum()):
        raise ValueError(f"{who} expects finite entries; got {wrong} NaN or infinite values")
    return doubled(W)


def doubled(W: Tensor) -> Tensor:
    """In double precision, real or complex as it is."""
    return W.detach().to(torch.complex128 if W.is_complex() else torch.float64)


def largest_singular_values(matrices: Tensor) -> Tensor:
    """Of a batch of matrices, by the eigenvalues of MᴴM or MMᴴ, whichever is small; infinite where an entry is."""
    size = matrices.abs().amax(dim=(1, 2), keepdim=True)
    scaled = doubled((matrices / size.where(size > 0, 1)).nan_to_num(0.0, 0.0, 0.0))  # so that squares fit
    tall = scaled if scaled.shape[1] >= scaled.shape[2] else scaled.mH
    largest = torch.linalg.eigvalsh(tall.mH @ tall)[:, -1].clamp_min(0).sqrt()
    return (largest.to(size.dtype) * size[:, 0, 0]).where(size[:, 0, 0].isfinite(), math.inf)
