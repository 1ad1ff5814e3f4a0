"""The exponential on the Lie algebra u(n), which can represent every unitary matrix (Hyland & Rätsch, 2017)."""

import torch
from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.matrices.complex import complexify, haar_unitary, nearest_unitary, skew_hermitian, skew_hermitian_free
from steadygrad.matrices.complex_cayley import real_start, turned_cayley
from steadygrad.matrices.exponential import skew_exponential
from steadygrad.matrices.matrix import Matrix, check_square, skew_free
from steadygrad.matrices.registry import entered


class ComplexExponential(nn.Module):
    """Map W = exp(L),  L = −Lᴴ: W can be every unitary matrix (Hyland & Rätsch, 2017).

    The n² free numbers are coordinates of L in the Lie algebra u(n). The exponential is evaluated on the real form of
    twice the size, which is exact: exp(realify(L)) = realify(exp(L)).
    """

    complex = True
    kinds = ("skew",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("ComplexExponential", size)

    def forward(self, free: Tensor) -> Tensor:
        """Return the unitary W = exp(L) (n, n), complex, from the packed L: n² real numbers."""
        return complexify(skew_exponential(skew_free(skew_hermitian(free, self.size)), 2 * self.size))

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor]:
        """Return the packed L of the unitary matrix nearest to W, in a tuple; L has eigenvalues iθ, −π ≤ θ ≤ π."""
        check_square("ComplexExponential", W, self.size)
        A, turn = turned_cayley(nearest_unitary(W))
        # iA is Hermitian with eigenvalues tan(θ/2), so its eigenvectors are orthogonal even where angles are equal
        tangents, V = torch.linalg.eigh(1j * A)
        angles = 2 * tangents.atan() + turn
        angles = torch.atan2(angles.sin(), angles.cos())
        L = (V * (1j * angles)) @ V.mH
        return (skew_hermitian_free((L - L.mH) / 2).to(W.real.dtype),)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}"


@entered("complex-exponential", complex=True)
def complex_exponential(size: int, *, init: str = "henaff") -> Matrix:
    """Return a `Matrix` with the map `ComplexExponential` and a real L from the skew initialiser ``init``.

    With ``init="haar"`` W starts as a random unitary matrix.
    """
    map = ComplexExponential(size)
    if init == "haar":
        return Matrix(map, *map.right_inverse(haar_unitary(size)))
    return Matrix(map, real_start("ComplexExponential", init, size))
