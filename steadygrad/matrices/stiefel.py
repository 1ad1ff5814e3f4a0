"""Steps along the Stiefel manifold, which reach every unitary matrix (Wisdom et al., 2016)."""

import math

import torch
from torch import Tensor

from steadygrad.check import check_size
from steadygrad.kernels import needs_plain, own_precision
from steadygrad.matrices.complex import below, complexify, haar_unitary, nearest_unitary, realify
from steadygrad.matrices.complex_cayley import cayley_unitary
from steadygrad.matrices.exponential import MovingBase, polished
from steadygrad.matrices.matrix import Matrix, check_square
from steadygrad.matrices.parameters import is_own
from steadygrad.matrices.registry import entered


class StiefelSteps(MovingBase):
    """Map W = (I + A/2)⁻¹ (I − A/2) B,  A skew-Hermitian; after every update B ← W and A ← 0.

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
        """Return the unitary W (n, n), complex, from the packed A: n² real numbers.

        In training, first move the base B to W and set ``free`` to zero in place, if A has changed.
        """
        counts = self.training and torch.is_grad_enabled() and not needs_plain(free) and is_own(free)
        with own_precision(free.device.type):
            if counts and not torch.equal(free, self.seen):
                self.step(free)
            return complexify(self._moved(free))

    @torch.no_grad()
    def step(self, free: Tensor) -> None:
        """Set B ← W and A ← 0, which leaves W unchanged. ``free``, the packed A, is set to zero in place."""
        self.base = self.polish(self._moved(free)).to(self.base.dtype)
        free.zero_()
        self.seen = free.detach().clone()

    def _moved(self, free: Tensor) -> Tensor:
        """Return W = (I + A/2)⁻¹ (I − A/2) B in real form, from the packed A."""
        if self.full_diagonal:
            rows, cols = below(self.size, 0, free.device)
            real, imaginary = free.split([self.size * (self.size - 1) // 2, len(rows)])
            scale = torch.ones_like(imaginary).masked_fill(rows == cols, math.sqrt(2))
            free = torch.cat([real, scale * imaginary])
        return cayley_unitary(free / 2, self.size) @ self.base.to(free.dtype)

    def polish(self, base: Tensor) -> Tensor:
        """Return ``base`` after one step towards the nearest unitary matrix; both are in real form (2n, 2n)."""
        return polished(structured(base))

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor]:
        """Set B to the unitary matrix nearest to W, in the precision of W, and return the packed A = 0 in a tuple."""
        check_square("StiefelSteps", W, self.size)
        self.base = realify(nearest_unitary(W)).to(W.real.dtype)
        zeros = self.base.new_zeros(self.size**2)
        self.seen = zeros.clone()
        return (zeros,)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}, full_diagonal={self.full_diagonal}"


@entered("stiefel", complex=True)
def stiefel(size: int, *, full_diagonal: bool = False) -> Matrix:
    """Return a `Matrix` with the map `StiefelSteps` that starts as a random unitary matrix."""
    map = StiefelSteps(size, full_diagonal)
    start = map.right_inverse(haar_unitary(size))  # in single precision
    return Matrix(map, *start).to(torch.get_default_dtype())


def structured(R: Tensor) -> Tensor:
    """Return R with the exact form [[X, −Y], [Y, X]] of a complex matrix, from which rounding makes it deviate."""
    return realify(complexify(R))
