"""Bounds on rounding errors, derived from the computation and not from what one machine happened to give.

Processors differ in the order in which they add, in the width of their vectors and in fused multiply-adds. None of this
changes the bound on a sum of n products (Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 3.5):

    |fl(AB) − AB| ≤ n u |A| |B|  entry by entry,  u = eps / 2.

Rows of A and columns of B of norm at most 1, as in orthogonal matrices, make this n u for each entry. Two ways
to compute such a product may differ by n eps, which is what `rounding` returns. It also bounds the Frobenius norm
of the error of a product of orthogonal matrices: an entry is off by about u / √2, because its errors are independent
and its k-th partial sum is of size √k / n, and n² such entries make n u / √2 = n eps / 2.8.

Besides its sum an operation has divisions, square roots or functions of the library, one rounding or two each: the 4 in
size + 4 stands for them and matters for small sizes.

Errors of successive operations add up, and they scale with the values, hence the two factors. A test states both:
how many products, solves or steps follow each other, and how large the intermediate values may get.
"""

import torch
from torch import Tensor


def rounding(dtype: torch.dtype, size: int, operations: float = 1, scale: float = 1.0) -> float:
    """Return eps · (size + 4) · operations · scale, a bound on the rounding error of a computation.

    Args:
        dtype: type of the computation, real or complex.
        size: number of terms in its sums, usually the order of the matrix.
        operations: number of products, solves or time steps that follow each other.
        scale: bound on the size of the values in between, or on the condition number of a solve.
    """
    return torch.finfo(dtype).eps * (size + 4) * operations * scale


def assert_same(got: list[Tensor], expected: list[Tensor], bound: float) -> None:
    """Compare tensor by tensor, each within ``bound`` times its largest entry, or ``bound`` if that is below 1."""
    for g, e in zip(got, expected, strict=True):
        scale = max(1.0, float(e.detach().abs().max())) if e.numel() else 1.0
        torch.testing.assert_close(g, e, rtol=0, atol=bound * scale)
