"""A matrix without a constraint: the baseline that every other map is compared with."""

from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.matrix import Matrix, check_square


class Free(nn.Module):
    """W = M."""

    from_skew = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("Free", size)

    def forward(self, M: Tensor) -> Tensor:
        return check_square("Free", M, self.size)

    def right_inverse(self, W: Tensor) -> Tensor:
        return check_square("Free", W, self.size)

    def extra_repr(self) -> str:
        return f"size={self.size}"


def free(size: int, *, init: str = "uniform") -> Matrix:
    """Return a matrix without a constraint, initialised by ``init``."""
    map = Free(size)
    return Matrix(map, free_tensor(init, map))
