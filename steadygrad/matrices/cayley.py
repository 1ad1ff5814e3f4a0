"""Orthogonal matrices by the scaled Cayley transform (Helfrich, Willmott & Ye, 2018)."""

from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.check import check_size, is_integer
from steadygrad.kernels import in_own_precision, matmul, needs_plain, wants_graph, with_graph
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.inverse import cayley_inverse
from steadygrad.matrices.matrix import Matrix, check_square, is_orthogonal, nearest_orthogonal, skew, skew_free
from steadygrad.matrices.registry import entered


class CayleyGradient(torch.autograd.Function):
    """Autograd function that gives W = (I + A)⁻¹ (I − A) D its gradient with respect to the packed A.

    The caller passes F = (I + A)⁻¹, W and the diagonal D (n). dL/dA = Vᵀ − V,  V = Fᵀ dL/dW (D + Wᵀ)
    """

    @staticmethod
    def forward(ctx: Any, free: Tensor, F: Tensor, W: Tensor, D: Tensor) -> Tensor:
        """Return W, which the caller has computed, and save what the gradient needs."""
        ctx.save_for_backward(free, F, W, D)
        return W

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the packed A from the gradient G of W, and None for the other arguments."""
        free, F, W, D = ctx.saved_tensors
        if wants_graph():
            return (*with_graph(cayley, (free, D), [G]), None, None)
        V = matmul(F.mT, matmul(G, W.mT, add=G * D))  # G D + G Wᵀ
        return skew_free(V.mT.contiguous().sub_(V)), None, None, None


def cayley(free: Tensor, D: Tensor) -> Tensor:
    """Return W = (I + A)⁻¹ (I − A) D by standard torch operations, from the packed skew-symmetric A.

    D (n) is the diagonal of a diagonal matrix.
    """
    A = skew(free, len(D))
    I = torch.eye(len(D), dtype=A.dtype, device=A.device)
    return torch.linalg.solve(I + A, I - A) * D


class ScaledCayley(nn.Module):
    """Map W = (I + A)⁻¹ (I − A) D,  A skew-symmetric and D = diag(1, …, 1, −1, …, −1) fixed, so W is orthogonal.

    ``reflections`` is the number of −1s in D. They allow W to have the eigenvalue −1, which the plain Cayley transform
    excludes, and they fix the determinant: det W = (−1)^reflections.
    """

    D: Tensor

    kinds = ("skew",)

    def __init__(self, size: int, reflections: int = 0) -> None:
        super().__init__()
        self.size = check_size(type(self).__name__, size)
        if not is_integer(reflections, 0) or reflections > size:
            raise ValueError(f"reflections counts the −1s of D, so 0 … {size}; got {reflections!r}")
        self.reflections = reflections
        signs = torch.ones(size)
        signs[size - reflections :] = -1
        self.register_buffer("D", signs)

    @property
    def determinant(self) -> int:
        """Determinant of W, 1 or −1."""
        return (-1) ** self.reflections

    def forward(self, free: Tensor) -> Tensor:
        """Return W (n, n) from the packed strict lower triangle of the skew-symmetric A, n(n − 1)/2 numbers."""
        if needs_plain(free):
            return cayley(free, self.D)
        with torch.no_grad():
            F = cayley_inverse(skew(free, self.size))
            W = 2 * F
            W.diagonal().sub_(1)  # (I + A)⁻¹ (I − A) = 2 (I + A)⁻¹ − I
            W *= self.D  # multiplication by D from the right scales the columns
        return CayleyGradient.apply(free, F, W, self.D)

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> Tensor:
        """Return the packed A whose matrix is W. Raise ValueError if there is none.

        A W that is not orthogonal is first replaced by the nearest orthogonal matrix of determinant det D.
        """
        check_square(type(self).__name__, W, self.size)
        eps = torch.finfo(W.dtype).eps
        I = torch.eye(self.size, dtype=torch.float64, device=W.device)
        U = nearest_orthogonal(W.double(), None if is_orthogonal(W) else self.determinant) * self.D
        if torch.linalg.svdvals(I + U)[-1] < 10 * self.size * eps:
            raise ValueError(
                f"{type(self).__name__} with reflections={self.reflections} cannot reach this orthogonal matrix: "
                "W D has the eigenvalue −1; choose other reflections"
            )
        A = torch.linalg.solve(I + U, I - U)  # the Cayley transform is its own inverse
        return skew_free((A - A.mT) / 2).to(W.dtype)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}, reflections={self.reflections}"


@entered("cayley")
def scaled_cayley(size: int, *, reflections: int = 0, init: str = "cayley") -> Matrix:
    """Return a `Matrix` with the map `ScaledCayley`, initialised by ``init``, the name of an initialiser."""
    map = ScaledCayley(size, reflections)
    return Matrix(map, free_tensor(init, map))
