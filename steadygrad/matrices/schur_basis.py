"""Orthonormal bases in which a matrix is triangular, for the right inverses of the Schur maps.

Eigenvectors are split off one after another. After each, the matrix is restricted to the rest of the space, where the
other eigenvectors are projected. They are computed anew only if rounding errors have made them inaccurate.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from steadygrad.matrices.inverse import probes
from steadygrad.matrices.measures import eigenvectors_of

Choice = tuple[tuple[int, ...], Tensor]
"""the numbers of one or two eigenvectors, and an orthonormal basis of their span as columns"""


def triangular_basis(W: Tensor, choose: Callable[[Tensor, Tensor], Choice]) -> Tensor:
    """Return a unitary P such that Pᴴ W P is lower triangular, except for blocks of the spans that ``choose`` returns.

    ``choose`` takes the eigenvalues and the eigenvectors (as columns) that are left, and returns a `Choice`. The
    choices fill the columns of P from the last to the first. W is a square matrix in double precision, real or complex;
    of a real W, ``choose`` sees the eigenvalues with imaginary part ≥ 0 alone. If eigenvectors are parallel, those of a
    matrix take their place that differs from W by 1e-11.
    """
    space = torch.eye(len(W), dtype=W.dtype, device=W.device)
    columns: list[Tensor] = []
    (values, vectors), tries = half_of_eigenvectors(W), 1
    while len(W):
        chosen, Q = choose(values, vectors)
        size = torch.linalg.matrix_norm(W)
        if tries < 2 and torch.linalg.matrix_norm(W @ Q - Q @ (Q.mH @ W @ Q)) > 1e-12 * size:
            noise = probes(W, len(W)).to(W.dtype) * (1e-11 / len(W)) * size
            (values, vectors), tries = half_of_eigenvectors(W + tries * noise), tries + 1
            continue
        columns.insert(0, space @ Q)
        rest = torch.linalg.qr(Q, mode="complete").Q[:, Q.shape[1] :]
        W, space = rest.mH @ W @ rest, space @ rest
        left = [k for k in range(len(values)) if k not in chosen]
        values, vectors, tries = values[left], normalised(rest.mH.to(vectors.dtype) @ vectors[:, left]), 0
    return torch.cat(columns, dim=1)


def half_of_eigenvectors(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors (as columns) of W; one of each conjugate pair if W is real."""
    values, vectors = eigenvectors_of(W)
    kept = torch.ones_like(values.real, dtype=torch.bool) if W.is_complex() else values.imag >= 0
    return values[kept], normalised(vectors[:, kept])


def normalised(columns: Tensor) -> Tensor:
    """Return the columns scaled to length 1."""
    return columns / torch.linalg.vector_norm(columns, dim=0).clamp_min(torch.finfo(columns.dtype).tiny)


def any_vector(values: Tensor, vectors: Tensor) -> Choice:
    """Return the last eigenvector, for a complex matrix, whose eigenvalues may have any order."""
    return (len(values) - 1,), torch.linalg.qr(vectors[:, -1:]).Q


def normal_pair(values: Tensor, vectors: Tensor) -> Choice:
    """Return the pair of real dimensions on which a real matrix is closest to a rotation times a number.

    That is the span of a conjugate pair or of two real eigenvectors. If an odd number of dimensions is left, the result
    is the real eigenvector whose eigenvalue is farthest from the other real eigenvalues.
    """
    real = (values.imag == 0).nonzero().flatten()
    real = real[values[real].real.argsort()]
    levels = values[real].real
    if len(real) % 2:
        end = levels.new_full((1,), math.inf)
        gaps = torch.cat([end, levels.diff(), end])
        lonely = int(real[torch.minimum(gaps[1:], gaps[:-1]).argmax()])
        return (lonely,), torch.linalg.qr(vectors[:, lonely, None].real).Q
    upper = (values.imag > 0).nonzero().flatten()
    first, second = real[0::2], real[1::2]
    pairs = [*((k,) for k in upper.tolist()), *zip(first.tolist(), second.tolist(), strict=True)]
    # Re v and Im v are orthogonal and of equal length, if and only if vᵀv = 0
    turned = values[upper].imag * slope((vectors[:, upper] ** 2).sum(0))
    stretched = levels.diff()[0::2] * (1 + slope((vectors[:, first].real * vectors[:, second].real).sum(0)))
    defects = torch.cat([turned, stretched]).nan_to_num(math.inf)
    chosen = pairs[len(pairs) - 1 - int(defects.flip(0).argmin())]  # of equal ones the last, so that P = I for W = I
    V = vectors[:, chosen]
    return chosen, torch.linalg.qr(torch.cat([V.real, V.imag], dim=1) if len(chosen) == 1 else V.real).Q


def slope(overlap: Tensor) -> Tensor:
    """Return s/√(1 − s²) of s = |overlap|, the cosine of an angle between vectors: 0 for a right angle, ∞ for none."""
    s = overlap.abs().clamp_max(1)
    return s / (1 - s.square()).sqrt()


def equalised(block: Tensor) -> Tensor:
    """Return the rotation G (2, 2) for which the diagonal entries of Gᵀ ``block`` G are equal."""
    # the difference of the diagonal entries is d cos 2t + o sin 2t
    d, o = block[0, 0] - block[1, 1], block[0, 1] + block[1, 0]
    t = torch.atan2(-d, o) / 2 if o or d else torch.zeros_like(d)
    c, s = t.cos(), t.sin()
    return torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
