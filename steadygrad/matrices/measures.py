"""Measures of how far a matrix is from orthogonal, stable or normal, computed in double precision."""

import math

import torch
from torch import Tensor

from steadygrad.matrices.matrix import check_square


def orthogonality_error(W: Tensor) -> float:
    """Return ‖WᴴW − I‖_F, the distance of W from orthogonal or unitary.

    Raise ValueError unless W is square and finite.
    """
    W = checked("orthogonality_error", W)
    return float(torch.linalg.matrix_norm(W.mH @ W - torch.eye(len(W), dtype=W.dtype, device=W.device)))


def spectral_radius(W: Tensor) -> float:
    """Return the spectral radius of W, ρ(W) = max |λ|. Raise ValueError unless W is square and finite."""
    W = checked("spectral_radius", W)
    return float(eigenvalues_of(W).abs().max()) if len(W) else 0.0


def departure_from_normality(W: Tensor) -> float:
    """Return (‖W‖_F² − Σ|λ|²)^½, Henrici's measure, which is 0 for a normal matrix.

    λ are the eigenvalues of W. Raise ValueError unless W is square and finite.
    """
    W = checked("departure_from_normality", W)
    excess = W.abs().square().sum() - eigenvalues_of(W).abs().square().sum()
    return float(excess.clamp_min(0).sqrt())  # rounding may make it slightly negative


def eigenvalues_of(T: Tensor) -> Tensor:
    """Return the eigenvalues (n,) of T (n, n). This also works if LAPACK does not converge on T itself."""
    size = power_of_two(T)
    try:
        values = torch.linalg.eigvals(T / size)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # public, but not in its __all__
        values = torch.linalg.eigvals(shifted(T / size)) - 1
    return values * size


def eigenvectors_of(T: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues (n,) of T (n, n) and its eigenvectors as columns (n, n).

    This also works if LAPACK does not converge on T itself.
    """
    size = power_of_two(T)
    try:
        values, vectors = torch.linalg.eig(T / size)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # public, but not in its __all__
        values, vectors = torch.linalg.eig(shifted(T / size))
        values = values - 1
    return values * size, vectors


def shifted(T: Tensor) -> Tensor:
    """Return T + I, whose eigenvalues are those of T plus 1.

    If T has a low rank, such as a matrix of equal entries, the diagonal of its Hessenberg form is zero up to rounding.
    LAPACK compares the entries below the diagonal with the diagonal, so on some processors it never finds them small
    enough. With the shift the diagonal is 1. The largest entry of T is between 1 and 2, so the shift rounds T by eps at
    most.
    """
    return T + torch.eye(len(T), dtype=T.dtype, device=T.device)


def power_of_two(T: Tensor) -> Tensor:
    """Return the power of two just below the largest |entry| of T, as a scalar: dividing by it does not round."""
    if not len(T):
        return torch.ones((), dtype=torch.float64)
    return T.detach().abs().amax().log2().floor().clamp(-1000, 1000).exp2()


def checked(who: str, W: Tensor) -> Tensor:
    """Return W in double precision, as `doubled` does. Raise ValueError unless W is square and finite.

    ``who`` is the caller's name in the message.
    """
    check_square(who, W)
    if wrong := int((~W.isfinite()).sum()):
        raise ValueError(f"{who} expects finite entries; got {wrong} NaN or infinite values")
    return doubled(W)


def doubled(W: Tensor) -> Tensor:
    """Return W converted to float64, or to complex128 if W is complex, without gradient history."""
    return W.detach().to(torch.complex128 if W.is_complex() else torch.float64)


def largest_singular_values(matrices: Tensor) -> Tensor:
    """Return the largest singular value (count) of each of the matrices (count, rows, columns).

    The value is the square root of the largest eigenvalue of MᴴM or MMᴴ, whichever is smaller. It is infinite if an
    entry of the matrix is NaN or infinite.
    """
    size = matrices.abs().amax(dim=(1, 2), keepdim=True)
    scaled = doubled((matrices / size.where(size > 0, 1)).nan_to_num(0.0, 0.0, 0.0))  # no square overflows
    tall = scaled if scaled.shape[1] >= scaled.shape[2] else scaled.mH
    largest = torch.linalg.eigvalsh(tall.mH @ tall)[:, -1].clamp_min(0).sqrt()
    return (largest.to(size.dtype) * size[:, 0, 0]).where(size[:, 0, 0].isfinite(), math.inf)
