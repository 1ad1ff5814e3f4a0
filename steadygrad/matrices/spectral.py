"""Functions of a large skew-symmetric A by its eigenvectors, in double precision.

Products and solves lose orthogonality in proportion to ‖A‖. Eigenvectors do not: A = V diag(iθ) Vᴴ with a unitary V, so
V diag(f(iθ)) Vᴴ is unitary up to rounding if all |f(iθ)| are 1, however large θ is.
"""

import math

import torch
from torch import Tensor

from steadygrad.matrices.complex import complexify, realify
from steadygrad.matrices.measures import orthogonality_error
from steadygrad.matrices.parameters import NonFiniteError


def is_near_orthogonal(W: Tensor, units: float) -> bool:
    """Return whether ‖WᵀW − I‖_F is at most ``units`` · eps of W's dtype; False if W has NaN or infinity."""
    return bool(W.isfinite().all()) and orthogonality_error(W) <= units * torch.finfo(W.dtype).eps


def eigen(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return the angles θ and the unitary V of A = V diag(iθ) Vᴴ, in double precision, for a skew-symmetric A.

    The real form of a complex L has the eigenvectors (v, −iv) and their conjugates, v those of L, so that functions of
    A are real forms, too. Raise NonFiniteError if A or an angle is not finite.
    """
    scale = A.abs().amax().double() if len(A) else torch.zeros((), dtype=torch.float64)
    if not scale.isfinite():
        raise NonFiniteError(f"a skew-symmetric matrix expects finite entries; got {float(scale)}")
    A = A.double() / scale.clamp_min(torch.finfo(torch.float64).tiny)
    if len(A) % 2 == 0 and torch.equal(A, realify(complexify(A))):
        angles, V = torch.linalg.eigh(complexify(A) * -1j)
        angles = torch.cat([angles, -angles])
        V = torch.cat([torch.cat([V, V.conj()], dim=1), torch.cat([-1j * V, 1j * V.conj()], dim=1)]) / 2**0.5
    else:
        angles, V = torch.linalg.eigh(A * -1j)
        angles = (angles - angles.flip(0)) / 2  # they come in pairs ±θ, up to rounding
    # An angle below the rounding error of `eigh` is 0. Otherwise ``scale`` would make a large angle of it, and another
    # one of its conjugate, whose vector need not be the conjugate vector.
    noise = len(A) * torch.finfo(torch.float64).eps * angles.abs().amax() if len(A) else 0.0
    angles = angles.where(angles.abs() > noise, 0.0) * scale
    if not angles.isfinite().all():
        raise NonFiniteError(f"a skew-symmetric matrix expects finite eigenvalues; got entries up to {float(scale):g}")
    return angles, V


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
    if not is_near_orthogonal(X, 5e-5 / torch.finfo(dtype).eps):
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


def rotation_log(W: Tensor) -> Tensor:
    """Return the skew A (n, n), not packed, with exp(A) = W and angles in [0, π], for a rotation W."""
    W64 = W.detach().double()
    cosines, Q = torch.linalg.eigh((W64 + W64.mT) / 2)  # planes of equal angle share an eigenspace
    K = Q.mT @ (W64 - W64.mT) @ Q / 2  # sin θ times the rotation by 90° in each of these planes
    sines = K.norm(dim=0)
    half_turn = (sines < 1e-7) & (cosines < 0)
    ratio = torch.where(sines < 1e-7, 1.0, torch.atan2(sines, cosines) / sines.clamp_min(1e-300))
    K = K * (ratio[:, None] + ratio) / 2
    K[half_turn], K[:, half_turn] = 0.0, 0.0
    ends = half_turn.nonzero().flatten()  # half turns do not determine their planes: pair the directions in order
    K[ends[1::2], ends[0::2]], K[ends[0::2], ends[1::2]] = math.pi, -math.pi
    A = Q @ K @ Q.mT
    return ((A - A.mT) / 2).to(W.dtype)
