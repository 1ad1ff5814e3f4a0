"""(I + A)⁻¹ for skew-symmetric A, mostly by matrix products, which a CPU does best."""

import torch
from torch import Tensor

LEAF = 64


def cayley_inverse(A: Tensor) -> Tensor:
    """F = (I + A)⁻¹.

    The symmetric part of I + A is I, hence positive definite, and every Schur complement inherits that: block
    elimination needs no pivots. It does the work of LU in products, about 3 times as fast at size 1024, and is as
    accurate for ‖A‖₂ up to 50 or so. Beyond that it may not be, so the W it gives is probed, and LU steps in.
    """
    M = A.clone()
    M.diagonal().add_(1)
    if len(M) > 2 * LEAF and M.device.type == "cpu" and not torch.compiler.is_compiling():
        F = by_blocks(M)
        W = 2 * F
        W.diagonal().sub_(1)
        if orthogonality_estimate(W) <= len(M) * torch.finfo(M.dtype).eps:
            return F
    return torch.linalg.inv_ex(M).inverse


def by_blocks(M: Tensor) -> Tensor:
    """M⁻¹ through the Schur complement of the upper left block, recursively."""
    n = len(M)
    if n <= LEAF:
        return torch.linalg.inv_ex(M).inverse
    h = n // 2
    F = by_blocks(M[:h, :h])
    left = M[h:, :h] @ F
    S = by_blocks(torch.addmm(M[h:, h:], left, M[:h, h:], alpha=-1))
    right = F @ M[:h, h:] @ S
    out = torch.empty_like(M)
    out[h:, h:] = S
    torch.neg(right, out=out[:h, h:])
    torch.neg(S @ left, out=out[h:, :h])
    torch.addmm(F, right, left, out=out[:h, :h])
    return out


def orthogonality_estimate(W: Tensor, count: int = 4) -> float:
    """‖WᵀW − I‖_F, estimated: its square is the mean of ‖WᵀW z − z‖² over random signs z."""
    total = 0.0
    # one by one, because a product with four columns takes longer than four with one
    for z in probes(W, count).sign_():
        total += float((W.mT @ (W @ z) - z).square().sum())
    return (total / count) ** 0.5


def probes(like: Tensor, count: int) -> Tensor:
    """A few random vectors, as rows, the same at every call, so that a run can be repeated."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, len(like), dtype=torch.float64, generator=generator).to(like)
