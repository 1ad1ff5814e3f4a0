"""The matrix products in exp(A) of a skew-symmetric A: one call for the forward and one for the backward pass.

A scheme is a 4 × 4 table: exp(A) ≈ B₁ + (B₂ + E) E,  E = B₃ + B₄²,  Bⱼ = Σₖ table[j, k] Aᵏ, k ≤ 3.
`steadygrad.matrices.exponential` explains the scheme.
"""

from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.backend import choose
from steadygrad.kernels.products import SINGLE, matmul


def exponential_forward(A: Tensor, A2: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (X, S, E, B₄), all (n, n): X = exp(A) of a skew-symmetric A and, for the backward pass, S = B₂ + E, E, B₄.

    ``A2`` is A². ``table`` (4, 4) has the coefficients of exp(A) ≈ B₁ + (B₂ + E) E,  E = B₃ + B₄²,
    Bⱼ = Σₖ table[j, k] Aᵏ, j counted from 1, k from 0. The constants of B₃ and B₄ must be 0.

    A must be so small that this polynomial is accurate: it is not scaled here.
    """
    if in_c(A):
        n = len(A)
        X, S, E, B4 = (native.empty(A, n, n) for _ in range(4))
        native.call_matrices("exponential_forward", n, threads(n), table, *native.contiguous((A, A2)), X, S, E, B4)
        return X, S, E, B4
    A3 = matmul(A2, A)
    B1, B2, B3, B4 = (A * c1 + A2 * c2 + A3 * c3 for _, c1, c2, c3 in table)
    for B, constant in zip((B1, B2), table[:2, 0], strict=True):
        B.diagonal().add_(constant)
    E = matmul(B4, B4, add=B3)
    S = B2.add_(E)
    return matmul(S, E, add=B1), S, E, B4


def exponential_backward(G: Tensor, A: Tensor, S: Tensor, E: Tensor, B4: Tensor, table: Tensor) -> Tensor:
    """Return the gradient of A from the gradient G of X = exp(A). Only its skew-symmetric part is meaningful.

    S, E and B4 are what `exponential_forward` returned for this A and ``table``. All matrices are (n, n).
    """
    if in_c(A):
        n = len(A)
        dA = native.empty(A, n, n)
        native.call_matrices("exponential_backward", n, threads(n), table, *native.contiguous((G, A, S, E, B4)), dA)
        return dA
    dS = matmul(G, E.mT)
    dE = matmul(S.mT, G, add=dS.clone())
    dB4 = matmul(B4.mT, dE, add=matmul(dE, B4.mT))
    dA, dA2, dA3 = (sum(c * d for c, d in zip(column, (G, dS, dE, dB4), strict=True)) for column in table.mT[1:])
    # A is skew, A² symmetric and A³ skew, so only these parts of their gradients are needed. With K the skew part of
    # dA³ and Y = A K, one product covers the paths through A³ = A² A and A² = A A: dA = A (Y − 2M), M = sym(dA² − Yᵀ).
    Y = matmul(A, (dA3 - dA3.mT).mul_(0.5))
    dA2 = dA2 - Y.mT
    return matmul(A, Y.sub_(dA2).sub_(dA2.mT), add=dA)


def in_c(A: Tensor) -> bool:
    """Return whether the C kernel computes the exponential of A."""
    return choose(A) == "c"


def threads(n: int) -> int:
    """Return the number of threads for products of n × n matrices: 1 if they are small."""
    return native.threads() if n**3 > SINGLE else 1
