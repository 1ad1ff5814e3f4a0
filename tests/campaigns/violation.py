"""How far a matrix is from its constraint, and how far it may be."""

import torch
from torch import Tensor

from steadygrad.kernels import at_least_single
from steadygrad.matrices import (
    BoundedSVD,
    ComplexSchur,
    EigenvalueNormalized,
    LongShort,
    Matrix,
    RealSchur,
    orthogonality_error,
    spectral_radius,
)
from steadygrad.matrices.complex import skew_hermitian
from steadygrad.matrices.exponential import skew_exponential
from steadygrad.matrices.matrix import skew_free

ORTHOGONAL, RADIUS = 1e-4, 1e-5
"""bounds of ‖WᵀW − I‖_F and of the spectral radius − 1, in single precision"""


def violation(matrix: Matrix, W: Tensor) -> tuple[float, float]:
    """Return by how much W breaks the constraint of its matrix, and the bound on that. A free matrix breaks none."""
    map, free = matrix.map, [at_least_single(f.detach()) for f in matrix.packed()]
    W = W.detach()
    match map:
        case EigenvalueNormalized():
            return spectral_radius(W) - 1, RADIUS
        case LongShort():  # block by block: eigenvalues of the whole have rounding errors as large as the coupling
            return max(spectral_radius(W[part, part]) for part in map.blocks.values()) - 1, RADIUS
        case BoundedSVD():
            deviation = (torch.linalg.svdvals(W.double()) - 1).abs().max()
            return float(deviation) - map.margin, ORTHOGONAL
        case RealSchur():
            return orthogonality_error(map.basis(free[0])), ORTHOGONAL
        case ComplexSchur():
            packed = skew_free(skew_hermitian(free[0], map.size))
            return orthogonality_error(skew_exponential(packed, 2 * map.size)), ORTHOGONAL
    return (orthogonality_error(W), ORTHOGONAL) if matrix.orthogonal else (0.0, ORTHOGONAL)
