"""A matrix without a constraint: the baseline that every other map is compared with."""

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
        """Return the free tensor as W. Raise ValueError if its shape is wrong."""
        return check_square("Free", M, self.size)

    def right_inverse(self, W: Tensor) -> Tensor:
        """Return W as the free tensor. Raise ValueError if its shape is wrong."""
        return check_square("Free", W, self.size)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}"


@entered("free")
def free(size: int, *, init: str = "uniform") -> Matrix:
    """Return a `Matrix` without a constraint, initialised by ``init``, the name of an initialiser."""
    map = Free(size)
    return Matrix(map, free_tensor(init, map))
