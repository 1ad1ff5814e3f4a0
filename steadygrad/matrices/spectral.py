"""Functions of a large skew-symmetric A by its eigenvectors, in double precision.

Products and solves lose orthogonality in proportion to ‖A‖. Eigenvectors do not: A = V diag(iθ) Vᴴ with a unitary V, so
V diag(f(iθ)) Vᴴ is unitary up to rounding if all |f(iθ)| are 1, however large θ is.
"""

import torch
from torch import Tensor

from steadygrad.matrices.matrix import NonFiniteError


def is_near_orthogonal(W: Tensor, units: float = 400) -> bool:
    """Return whether ‖WᵀW − I‖_F is at most ``units`` in the last place; 400 are 5e-5 in single precision."""
    error = W.mT @ W
    error.diagonal().sub_(1)
    # large matrices need a wider limit, because this product is rounded too
    return float(torch.linalg.vector_norm(error)) <= max(units, len(W) / 2) * torch.finfo(W.dtype).eps


def eigen(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the angles θ and the unitary V of A = V diag(iθ) Vᴴ, in double precision, for a skew-symmetric A.

    Raise NonFiniteError if A or an angle is not finite.
    """
    scale = A.abs().amax().double()
    if scale.isfinite():
        angles, V = torch.linalg.eigh(A.double() / scale.clamp_min(torch.finfo(torch.float64).tiny) * -1j)
        angles = (angles - angles.flip(0)) * (scale / 2)  # they come in pairs ±θ, up to rounding
        if angles.isfinite().all():
            return angles, V
    raise NonFiniteError(
        f"a skew-symmetric matrix expects finite entries and eigenvalues; got a largest entry of {float(scale):.3g}"
    )


def from_eigen(values: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the real part of V diag(values) Vᴴ, which is real for conjugate pairs of values."""
    return ((V * values) @ V.mH).real.to(dtype).contiguous()


def inverse_of_shifted(A: Tensor) -> Tensor:
    """Return (I + A)⁻¹ for a skew-symmetric A."""
    angles, V = eigen(A)
    return from_eigen(1 / (1 + 1j * angles), V, A.dtype)


def exp_from_eigen(angles: Tensor, V: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exp(A) for A = V diag(iθ) Vᴴ. Raise NonFiniteError if θ is so large that rounding changes it by a turn."""
    X = from_eigen(torch.polar(torch.ones_like(angles), angles), V, dtype)
    if not is_near_orthogonal(X):
        largest = float(angles.abs().amax())
        raise NonFiniteError(f"exp(A) expects a skew-symmetric A with angles up to about 1e10; got {largest:.3g}")
    return X


def exp_gradient(G: Tensor, angles: Tensor, V: Tensor) -> Tensor:
    """Return the gradient of A from the gradient G of exp(A), for A = V diag(iθ) Vᴴ, in the dtype of G.

    dA = V (Ψ̄ ∘ Vᴴ G V) Vᴴ,  Ψⱼₖ = (e^{iθⱼ} − e^{iθₖ}) / (iθⱼ − iθₖ) = e^{i(θⱼ + θₖ)/2} sinc((θⱼ − θₖ)/2)
    """
    half = angles / 2
    difference, sum = half[:, None] - half, half[:, None] + half
    quotients = torch.polar(torch.sinc(difference / torch.pi), -sum)
    inner = V.mH @ G.to(V.dtype) @ V
    return (V @ (quotients * inner) @ V.mH).real.to(G.dtype)
