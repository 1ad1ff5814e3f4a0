"""Maps with full capacity: each can represent every unitary matrix.

The complex scaled Cayley transform (Maduranga, Helfrich & Ye, 2019), the exponential on the Lie algebra u(n) (Hyland &
Rätsch, 2017), and steps along the Stiefel manifold (Wisdom et al., 2016).
"""

import math

import torch
from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.kernels import needs_plain, own_precision
from steadygrad.matrices import init as initialisers
from steadygrad.matrices.cayley import CayleyGradient, cayley
from steadygrad.matrices.complex import (
    below,
    complexify,
    haar_unitary,
    phases,
    realify,
    skew_hermitian,
    skew_hermitian_free,
)
from steadygrad.matrices.exponential import MovingBase, polished, skew_exponential
from steadygrad.matrices.inverse import cayley_inverse
from steadygrad.matrices.matrix import Matrix, check_square, skew, skew_free


def cayley_unitary(free: Tensor, size: int) -> Tensor:
    """Return (I + A)⁻¹ (I − A) for the packed skew-Hermitian A, in its real form of twice the size."""
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
    """W = (I + A)⁻¹ (I − A) D,  A skew-Hermitian, D = diag(e^{iθ}) learned: W can be every unitary matrix."""

    complex = True
    kinds = ("skew", "angle")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("ComplexCayley", size)

    def forward(self, free: Tensor, theta: Tensor) -> Tensor:
        return complexify(cayley_unitary(free, self.size)) * phases(theta)  # multiplication by D scales the columns

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return A and θ of the unitary matrix nearest to W.

        All θ are equal and chosen so that W D⁻¹ has no eigenvalue near −1.
        """
        check_square("ComplexCayley", W, self.size)
        A, theta = turned_cayley(nearest_unitary(W))
        real = W.real.dtype
        return skew_hermitian_free(A).to(real), theta.to(real).expand(self.size).clone()

    def extra_repr(self) -> str:
        return f"size={self.size}"


def turned_cayley(U: Tensor) -> tuple[Tensor, Tensor]:
    """Return A and θ with U = (I + A)⁻¹ (I − A) e^{iθ}, A skew-Hermitian, for a unitary U and one angle θ.

    θ rotates the middle of the widest gap between the eigenvalues of U to −1, the pole of the Cayley transform.
    """
    angles = torch.linalg.eigvals(U).angle().sort().values
    gaps = torch.cat([angles[1:], angles[:1] + 2 * math.pi]) - angles
    widest = int(gaps.argmax())
    theta = angles[widest] + gaps[widest] / 2 - math.pi
    U = U * phases(-theta)
    I = torch.eye(len(U), dtype=U.dtype, device=U.device)
    A = torch.linalg.solve(I + U, I - U)
    return (A - A.mH) / 2, theta


def complex_cayley(size: int, *, init: str = "cayley") -> Matrix:
    """Return a `ComplexCayley` matrix with θ ~ U(0, 2π) and a real A from the skew initialiser ``init``.

    With ``init="haar"`` W starts as a random unitary matrix.
    """
    map = ComplexCayley(size)
    if init == "haar":
        return Matrix(map, *map.right_inverse(haar_unitary(size)))
    return Matrix(map, real_start("ComplexCayley", init, size), torch.empty(size).uniform_(0, 2 * math.pi))


def real_start(who: str, init: str, size: int) -> Tensor:
    """Return the packed form of the real skew-symmetric A from the skew initialiser ``init``."""
    if init not in initialisers.SKEW:
        raise ValueError(f"{who} expects init out of {', '.join([*initialisers.SKEW, 'haar'])}; got {init!r}")
    A = skew(initialisers.SKEW[init](size), size)
    return skew_hermitian_free(A.to(A.dtype.to_complex())).to(A.dtype)


class ComplexExponential(nn.Module):
    """W = exp(L),  L = −Lᴴ: W can be every unitary matrix (Hyland & Rätsch, 2017).

    The n² free numbers are coordinates of L in the Lie algebra u(n). The exponential is evaluated on the real form of
    twice the size, which is exact: exp(realify(L)) = realify(exp(L)).
    """

    complex = True
    kinds = ("skew",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("ComplexExponential", size)

    def forward(self, free: Tensor) -> Tensor:
        return complexify(skew_exponential(skew_free(skew_hermitian(free, self.size)), 2 * self.size))

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> Tensor:
        """Return the packed L of the nearest unitary matrix, with eigenvalues iθ, −π ≤ θ ≤ π."""
        check_square("ComplexExponential", W, self.size)
        A, turn = turned_cayley(nearest_unitary(W))
        # iA is Hermitian with eigenvalues tan(θ/2), so its eigenvectors are orthogonal even where angles are equal
        tangents, V = torch.linalg.eigh(1j * A)
        angles = 2 * tangents.atan() + turn
        angles = torch.atan2(angles.sin(), angles.cos())
        L = (V * (1j * angles)) @ V.mH
        return skew_hermitian_free((L - L.mH) / 2).to(W.real.dtype)

    def extra_repr(self) -> str:
        return f"size={self.size}"


def complex_exponential(size: int, *, init: str = "henaff") -> Matrix:
    """Return a `ComplexExponential` matrix with a real L from the skew initialiser ``init``.

    With ``init="haar"`` W starts as a random unitary matrix.
    """
    map = ComplexExponential(size)
    if init == "haar":
        return Matrix(map, map.right_inverse(haar_unitary(size)))
    return Matrix(map, real_start("ComplexExponential", init, size))


class StiefelSteps(MovingBase):
    """W = (I + A/2)⁻¹ (I − A/2) B,  A skew-Hermitian; after every update B ← W and A ← 0.

    An optimizer step on A is thus a step along the Stiefel manifold: at A = 0 the gradient with respect to A is the
    Riemannian gradient at W = B. B is polished after each step, because rounding errors would accumulate over thousands
    of products.

    With G = dL/dW and K = G Wᴴ − W Gᴴ, gradient descent with rate λ on the free numbers gives A = λ K off the diagonal
    and λ K/2 on it, because an entry off the diagonal appears in A twice. With ``full_diagonal`` the diagonal of A is
    √2 times its free numbers, and descent gives A = λ K everywhere: the step of Wisdom et al. The option is off by
    default because it changes the A that saved free numbers stand for.
    """

    seen: Tensor

    complex = True
    kinds = ("skew",)

    def __init__(self, size: int, full_diagonal: bool = False) -> None:
        super().__init__()
        self.size, self.full_diagonal = check_size("StiefelSteps", size), full_diagonal
        self.register_buffer("base", torch.eye(2 * size))  # in real form
        self.register_buffer("seen", torch.zeros(size * size))

    def forward(self, free: Tensor) -> Tensor:
        counts = self.training and torch.is_grad_enabled() and free.is_leaf and not needs_plain(free)
        with own_precision(free.device.type):
            if counts and not torch.equal(free, self.seen):
                self.step(free)
            return complexify(self._moved(free))

    @torch.no_grad()
    def step(self, free: Tensor) -> None:
        """Set B ← W and A ← 0, which leaves W unchanged."""
        self.base = self.polish(self._moved(free)).to(self.base.dtype)
        free.zero_()
        self.seen = free.detach().clone()

    def _moved(self, free: Tensor) -> Tensor:
        """Return (I + A/2)⁻¹ (I − A/2) B in real form."""
        if self.full_diagonal:
            rows, cols = below(self.size, 0, free.device)
            real, imaginary = free.split([self.size * (self.size - 1) // 2, len(rows)])
            scale = torch.ones_like(imaginary).masked_fill(rows == cols, math.sqrt(2))
            free = torch.cat([real, scale * imaginary])
        return cayley_unitary(free / 2, self.size) @ self.base.to(free.dtype)

    def polish(self, base: Tensor) -> Tensor:
        return polished(structured(base))

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> Tensor:
        """Set B to the unitary matrix nearest to W and return A = 0."""
        check_square("StiefelSteps", W, self.size)
        self.base = realify(nearest_unitary(W)).to(self.base.dtype)
        return self.seen.new_zeros(self.size**2)

    def extra_repr(self) -> str:
        return f"size={self.size}, full_diagonal={self.full_diagonal}"


def stiefel(size: int, *, full_diagonal: bool = False) -> Matrix:
    """Return a `StiefelSteps` matrix that starts as a random unitary matrix."""
    map = StiefelSteps(size, full_diagonal)
    return Matrix(map, map.right_inverse(haar_unitary(size)))


def structured(R: Tensor) -> Tensor:
    """Return R with the exact structure of a real form, from which rounding errors make it deviate."""
    return realify(complexify(R))


def nearest_unitary(W: Tensor) -> Tensor:
    """Return the unitary matrix nearest to W, in double precision."""
    if not W.is_meta and not W.isfinite().all():
        raise ValueError(
            f"nearest_unitary expects finite entries; got {int((~W.isfinite()).sum())} NaN or infinite values"
        )
    U, _, Vh = torch.linalg.svd(W.detach().to(torch.complex128))
    return U @ Vh
