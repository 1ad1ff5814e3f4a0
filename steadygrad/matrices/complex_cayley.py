"""The complex scaled Cayley transform, which can represent every unitary matrix (Maduranga, Helfrich & Ye, 2019)."""

import math

import torch
from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.kernels import needs_plain
from steadygrad.matrices import init as initialisers
from steadygrad.matrices.cayley import CayleyGradient, cayley
from steadygrad.matrices.complex import (
    complexify,
    haar_unitary,
    nearest_unitary,
    phases,
    skew_hermitian,
    skew_hermitian_free,
)
from steadygrad.matrices.inverse import cayley_inverse
from steadygrad.matrices.matrix import Matrix, check_square, skew, skew_free
from steadygrad.matrices.registry import entered


def cayley_unitary(free: Tensor, size: int) -> Tensor:
    """Return (I + A)⁻¹ (I − A) in its real form (2n, 2n), for the skew-Hermitian A (n, n) packed in n² numbers."""
    packed = skew_free(skew_hermitian(free, size))
    D = torch.ones(2 * size, dtype=packed.dtype, device=packed.device)
    if needs_plain(free):
        return cayley(packed, D)
    with torch.no_grad():
        F = cayley_inverse(skew(packed, 2 * size))
        R = 2 * F
        R.diagonal().sub_(1)  # (I + A)⁻¹ (I − A) = 2 (I + A)⁻¹ − I
    return CayleyGradient.apply(packed, F, R, D)


class ComplexCayley(nn.Module):
    """Map W = (I + A)⁻¹ (I − A) D,  A skew-Hermitian, D = diag(e^{iθ}) learned: W can be every unitary matrix."""

    complex = True
    kinds = ("skew", "angle")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("ComplexCayley", size)

    def forward(self, free: Tensor, theta: Tensor) -> Tensor:
        """Return the unitary W (n, n), complex, from the packed A (n² numbers) and the angles θ (n) of D."""
        return complexify(cayley_unitary(free, self.size)) * phases(theta)  # multiplication by D scales the columns

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pair of the packed A (n²) and the angles θ (n) of the unitary matrix nearest to W.

        All θ are equal and chosen so that W D⁻¹ has no eigenvalue near −1.
        """
        check_square("ComplexCayley", W, self.size)
        A, theta = turned_cayley(nearest_unitary(W))
        real = W.real.dtype
        return skew_hermitian_free(A).to(real), theta.to(real).expand(self.size).clone()

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}"


def turned_cayley(U: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and θ with U = (I + A)⁻¹ (I − A) e^{iθ}, A skew-Hermitian, for a unitary U and one angle θ.

    The result is the pair of A (n, n) and a scalar tensor. θ rotates the middle of the widest gap between the
    eigenvalues of U to −1, the pole of the Cayley transform.
    """
    angles = torch.linalg.eigvals(U).angle().sort().values
    gaps = torch.cat([angles[1:], angles[:1] + 2 * math.pi]) - angles
    widest = int(gaps.argmax())
    theta = angles[widest] + gaps[widest] / 2 - math.pi
    U = U * phases(-theta)
    I = torch.eye(len(U), dtype=U.dtype, device=U.device)
    A = torch.linalg.solve(I + U, I - U)
    return (A - A.mH) / 2, theta


@entered("complex-cayley", complex=True)
def complex_cayley(size: int, *, init: str = "cayley") -> Matrix:
    """Return a `Matrix` with the map `ComplexCayley`, θ ~ U(0, 2π) and a real A from the skew initialiser ``init``.

    With ``init="haar"`` W starts as a random unitary matrix.
    """
    map = ComplexCayley(size)
    if init == "haar":
        return Matrix(map, *map.right_inverse(haar_unitary(size)))
    return Matrix(map, real_start("ComplexCayley", init, size), torch.empty(size).uniform_(0, 2 * math.pi))


def real_start(who: str, init: str, size: int) -> Tensor:
    """Return a real skew-symmetric A from the skew initialiser named ``init``, packed as skew-Hermitian: n² numbers.

    Raise ValueError, in the name of ``who``, if there is no such initialiser.
    """
    if init not in initialisers.SKEW:
        raise ValueError(f"{who} expects init out of {', '.join([*initialisers.SKEW, 'haar'])}; got {init!r}")
    A = skew(initialisers.SKEW[init](size), size)
    return skew_hermitian_free(A.to(A.dtype.to_complex())).to(A.dtype)
