"""Matrix products on the CPU that remain fast while another program occupies a core."""

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.arguments import addresses, product_fields
from steadygrad.kernels.backend import choose

SINGLE = 800_000  # multiplications up to which one thread is faster than two


def matmul(A: Tensor, B: Tensor, *, add: Tensor | None = None, out: Tensor | None = None, alpha: float = 1.0) -> Tensor:
    """Return α A B, written to ``out`` if given, or α A B + ``add``, written to ``add``.

    Raise ValueError if both ``out`` and ``add`` are given. A is (m, k), B is (k, n) and α is ``alpha``. It is used in
    hand-written backward passes: autograd does not track it.
    """
    if out is not None and add is not None:
        raise ValueError("matmul expects either out or add; got both")
    target = add if out is None else out
    if (
        choose(A) != "c"
        or not (plain(left := A.stride()) and plain(right := B.stride()) and A.dtype is B.dtype and B.is_cpu)
        or not (target is None or (target.is_contiguous() and target.dtype == A.dtype))
    ):
        if add is not None:
            return add.addmm_(A, B, alpha=alpha)
        product = torch.mm(A, B, out=out)
        return product if alpha == 1 else product.mul_(alpha)
    (M, K), N = A.shape, B.shape[1]
    C = native.empty(A, M, N) if target is None else target
    if 0 in (M, N, K):
        return C.zero_() if add is None else C
    a, b, c = addresses("matmul", product_fields(M, N, K), (A, B, C), A.dtype, strided=True)
    parts = native.threads() if M * N * K > SINGLE else 1
    factors = (a, *left, b, *right)
    native.run("gemm", A.dtype, M, N, K, float(alpha), *factors, c, N, int(add is not None), parts)
    return C


def plain(strides: tuple[int, ...]) -> bool:
    """Return whether these are strides of a matrix stored by rows or by columns, possibly with gaps between them."""
    return len(strides) == 2 and 1 in strides and min(strides) > 0
