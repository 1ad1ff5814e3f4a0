"""A matrix without a constraint: the baseline that every other map is compared with."""

import torch
from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.matrix import Matrix, check_square
from steadygrad.matrices.registry import entered


class Free(nn.Module):
    """Map of a matrix without a constraint: W is the free tensor itself."""

    from_skew = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("Free", size)

    def forward(self, M: Tensor) -> Tensor:
        """Return the free tensor M as W. Raise ValueError unless M is (size, size)."""
        return check_square("Free", M, self.size)

    def right_inverse(self, W: Tensor) -> Tensor:
        """Return W as the free tensor. Raise ValueError unless W is (size, size)."""
        return check_square("Free", W, self.size)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}"


class ComplexFree(nn.Module):
    """Map of a complex matrix without a constraint: W = X + iY of two free tensors X and Y (size, size)."""

    complex, from_skew, kinds = True, False, ("matrix", "matrix")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("ComplexFree", size)

    def forward(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return W = X + iY. Raise ValueError unless X and Y are (size, size)."""
        return torch.complex(*(check_square("ComplexFree", part, self.size) for part in (X, Y)))

    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return the real and the imaginary part of W, a tuple. Raise ValueError if the shape of W is wrong."""
        W = check_square("ComplexFree", W, self.size).to(W.dtype.to_complex())
        return W.real.clone(), W.imag.clone()


def frozen(W: Tensor) -> Matrix:
    """Return a `Matrix` without a constraint, in evaluation mode and not trained, with the value W (n, n).

    W is real or complex. The `Matrix` holds a copy of it.
    """
    check_square("frozen", W)
    matrix = Matrix(ComplexFree(len(W)), W.real, W.imag) if W.is_complex() else Matrix(Free(len(W)), W)
    return matrix.eval().requires_grad_(False)


@entered("free")
def free(size: int, *, init: str = "uniform") -> Matrix:
    """Return a `Matrix` (size, size) without a constraint.

    ``init`` is the name of an initialiser in `steadygrad.matrices.init`.
    """
    map = Free(size)
    return Matrix(map, free_tensor(init, map))
