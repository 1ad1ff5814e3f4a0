"""Matrices with singular values near 1 (Zhang, Lei & Dhillon, 2018; Vorontsov et al., 2017)."""

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice, check_size, is_number
from steadygrad.kernels import in_own_precision, matmul, needs_plain, wants_graph, with_graph
from steadygrad.matrices.exponential import Exponential
from steadygrad.matrices.householder import Householder, start
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.matrix import Matrix, check_square
from steadygrad.matrices.measures import checked
from steadygrad.matrices.registry import entered

BASES = ("householder", "exponential")


class SVDProduct(torch.autograd.Function):
    """Autograd function W = U diag(σ) Vᵀ in one matrix product; its gradient takes two."""

    @staticmethod
    def forward(ctx: Any, U: Tensor, sigma: Tensor, V: Tensor) -> Tensor:
        """Return W (n, n) from U (n, n), σ (n) and V (n, n)."""
        ctx.save_for_backward(U, sigma, V)
        return matmul(U * sigma, V.mT)

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of U, σ and V from the gradient G of W."""
        U, sigma, V = ctx.saved_tensors
        if wants_graph():
            return with_graph(svd_product, (U, sigma, V), [G])
        GV = matmul(G, V)
        return GV * sigma, (GV * U).sum(0), matmul(G.mT, U * sigma)


def svd_product(U: Tensor, sigma: Tensor, V: Tensor) -> Tensor:
    """Return W = U diag(σ) Vᵀ by standard torch operations."""
    return (U * sigma) @ V.mT


class BoundedSVD(nn.Module):
    """Map W = U diag(σ) Vᵀ,  σ = 1 + 2 r (sigmoid(p) − ½) between 1 − r and 1 + r,  U and V orthogonal.

    ``margin`` is r. A product with W changes the norm of a state or a gradient by a factor between 1 − r and 1 + r.
    With r = 0, W is orthogonal and p has no effect. By default U and V are products of ``reflections`` Householder
    reflections each (Spectral RNN). With ``bases="exponential"`` they are exponentials of skew-symmetric matrices and
    reach every rotation: the hard constraint of Vorontsov et al. without their steps along geodesics. In both cases
    det W > 0.
    """

    determinant = 1
    names = ("left", "right", "singular")

    def __init__(
        self, size: int, margin: float = 0.01, reflections: int | None = None, bases: str = "householder"
    ) -> None:
        super().__init__()
        self.size = check_size("BoundedSVD", size)
        if not is_number(margin, 0, 1):
            raise ValueError(f"BoundedSVD expects a margin between 0 and 1; got {margin!r}")
        check_choice("BoundedSVD", "bases", bases, BASES)
        if bases != "householder" and reflections is not None:
            raise ValueError(f"BoundedSVD takes reflections with householder bases; got {reflections!r} with {bases}")
        self.margin = margin
        self.basis: Householder | Exponential = (
            Householder(size, reflections) if bases == "householder" else Exponential(size)
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Tuple of the kind of each free tensor: "reflector" or "skew" for U and for V, then "singular" for p."""
        return (*self.basis.kinds, *self.basis.kinds, "singular")

    def singular_values(self, p: Tensor) -> Tensor:
        """Return the singular values σ of W from p, in the order of the columns of U and V."""
        return 1 + self.margin * torch.tanh(p / 2)  # equal to the formula above, and exactly 1 at p = 0

    def forward(self, left: Tensor, right: Tensor, p: Tensor) -> Tensor:
        """Return W (n, n) from the free tensors ``left`` of U and ``right`` of V, and p (n)."""
        if p.shape != (self.size,):
            raise ValueError(f"BoundedSVD of size {self.size} expects {self.size} numbers in p; got {tuple(p.shape)}")
        product = svd_product if needs_plain(p) else SVDProduct.apply
        return product(self.basis(left), self.singular_values(p), self.basis(right))

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the free tensors (of U, of V, and p) of W. Singular values out of bounds are first moved inside.

        A W within the bounds but with det W < 0 cannot be represented and raises ValueError. Fewer than n − 1
        reflections cannot represent the bases of a general singular value decomposition: a W within the bounds then
        raises ValueError, and for another W the bases are replaced by bases that the reflections can represent.
        """
        check_square("BoundedSVD", W, self.size)
        low, high = 1 - self.margin, 1 + self.margin
        U, sigma, Vh = torch.linalg.svd(checked("BoundedSVD", W))
        tolerance = torch.finfo(W.dtype).eps ** 0.5
        inside = bool(sigma[0] < high + tolerance and sigma[-1] > low - tolerance)
        few = isinstance(self.basis, Householder) and self.basis.reflections < self.size - 1
        if inside and few:
            raise ValueError(
                "BoundedSVD finds a matrix from n or n − 1 reflections only; got "
                f"{self.basis.reflections} of {self.size}"
            )
        if torch.linalg.det(U) * torch.linalg.det(Vh) < 0:
            if inside:
                raise ValueError(
                    "BoundedSVD cannot reach this matrix: its determinant is negative; change the sign of a row"
                )
            U[:, -1], sigma[-1] = -U[:, -1], -sigma[-1]  # the smallest, as in `nearest_orthogonal`
        if torch.linalg.det(U) * getattr(self.basis, "determinant", 1) < 0:
            U[:, 0], Vh[0] = -U[:, 0], -Vh[0]
        p = 2 * torch.atanh(within((sigma - 1) / self.margin)) if self.margin else torch.zeros_like(sigma)
        if few:  # not orthogonal, so the basis takes what is near
            U, Vh = 0.5 * U, 0.5 * Vh
        left, right = self.basis.right_inverse(U), self.basis.right_inverse(Vh.mT)
        return left.to(W.dtype), right.to(W.dtype), p.to(W.dtype)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}, margin={self.margin}"


def within(x: Tensor) -> Tensor:
    """Return x with values outside (−1, 1) replaced by ±0.999, where the gradient of tanh does not vanish."""
    return x.where(x.abs() < 1, 0.999 * x.sign())


@entered("svd")
def bounded_svd(
    size: int,
    *,
    margin: float = 0.01,
    reflections: int | None = None,
    bases: str = "householder",
    init: str = "haar",
) -> Matrix:
    """Return a `Matrix` with the map `BoundedSVD` that starts orthogonal (p = 0); ``init`` initialises U and V.

    For Householder bases it is "haar" or "normal", for exponential bases a name in `init.SKEW` or `init.FULL`.
    """
    map = BoundedSVD(size, margin, reflections, bases)
    basis = map.basis
    left, right = (start(init, basis) if isinstance(basis, Householder) else free_tensor(init, basis) for _ in "UV")
    return Matrix(map, left, right, torch.zeros(size))
