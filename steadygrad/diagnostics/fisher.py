"""How much a linear network remembers of a signal in noise: Fisher memory (Ganguli et al., 2008; Kerg et al., 2019)."""

import math

import torch
from torch import Tensor

from steadygrad.matrices.measures import doubled

TAIL = 1e-12  # what a curve may leave out of its sum
RESOLVED = 1e14  # condition of the noise's root up to which a curve has six digits


def fisher_memory_curve(W: Tensor, v: Tensor, noise: float = 1.0, steps: int | None = None) -> Tensor:
    """J(k) = vᴴ(Wᵏ)ᴴ C⁻¹ Wᵏ v,  C = ε Σ Wᵏ(Wᵏ)ᴴ:  what h_t still says of the input at t − k.

    h_t = W h_{t−1} + v s_t + noise of variance ε in every unit. Without ``steps`` it goes on until what is left does
    not count. For a normal W the sum is ‖v‖²/ε whatever W is; only a non-normal one can have more, up to N ‖v‖²/ε.
    """
    return fisher_factors(W, v, noise, steps).abs().square().sum(0)


def fisher_memory_matrix(W: Tensor, v: Tensor, noise: float = 1.0, steps: int | None = None) -> Tensor:
    """J_kl = vᴴ(Wᵏ)ᴴ C⁻¹ Wˡ v; the diagonal is the curve, the rest says how inputs of different times interfere."""
    factors = fisher_factors(W, v, noise, steps)
    return factors.mH @ factors


def fisher_factors(W: Tensor, v: Tensor, noise: float, steps: int | None) -> Tensor:
    """Columns L⁻¹ Wᵏ v / √ε, where C = ε L Lᴴ."""
    W, v, radius = checked(W, v, noise, steps)
    L = noise_root(W)
    condition = float(torch.linalg.cond(L)) if L.isfinite().all() else math.inf
    if condition > RESOLVED:
        raise ValueError(
            "Fisher memory expects a W whose noise double precision can resolve; it amplifies too much: "
            f"the noise's root has condition {condition:.1e}, more than {RESOLVED:.0e}"
        )
    columns: list[Tensor] = []
    total, state = 0.0, v
    while steps is None or len(columns) < steps:
        columns.append(torch.linalg.solve_triangular(L, state[:, None], upper=False)[:, 0])
        information = float(columns[-1].abs().square().sum())
        total += information
        state = W @ state
        # beyond N steps J falls at least as fast as radius²ᵏ, up to a factor that the margin of `TAIL` leaves room for
        if steps is None and len(columns) > len(W) and information <= TAIL * total * (1 - radius**2):
            break
    return torch.stack(columns, dim=1) / noise**0.5


def noise_root(W: Tensor) -> Tensor:
    """Lower triangular L with L Lᴴ = Σ Wᵏ(Wᵏ)ᴴ.

    L and not the sum itself: a chain of 100 units amplifies so much that the sum's condition is beyond double
    precision, where an inverse of it is wrong in the second digit. Each round doubles the number of terms,
    Σ_{k<2n} = Σ_{k<n} + Wⁿ (Σ_{k<n}) (Wⁿ)ᴴ, by a QR factorisation of both roots, one above the other.
    """
    L, power = torch.eye(len(W), dtype=W.dtype, device=W.device), W
    while power.abs().max() > torch.finfo(W.dtype).tiny ** 0.5:
        L = torch.linalg.qr(torch.cat([(power @ L).mH, L.mH]), mode="r").R.mH
        power = power @ power
    return L


def ganguli_bound(v: Tensor, noise: float = 1.0) -> float:
    """Σ J(k) ≤ N ‖v‖²/ε for any W of N units; a normal W has ‖v‖²/ε exactly (Ganguli et al., 2008).

    Summed over N orthonormal v the totals are N/ε for every W: what one input gains, others lose.
    """
    return float(len(v) * doubled(v).abs().square().sum() / noise)


def delay_line_curve(alpha: float, size: int, noise: float = 1.0) -> Tensor:
    """J(k) = aᵏ (a − 1)/(aᵏ⁺¹ − 1)/ε,  a = α²:  a chain with α below its diagonal, the best there is for k < N."""
    a = torch.tensor(alpha, dtype=torch.float64) ** 2
    k = torch.arange(size, dtype=torch.float64)
    if a == 1:
        return 1 / (k + 1) / noise
    return a**k * (a - 1) / (a ** (k + 1) - 1) / noise


def feedforward_bound(Theta: Tensor, noise: float = 1.0) -> Tensor:
    """J(k) ≥ delay line's J(k) / σ^{2(N−1)},  σ the largest singular value of A in Θ = D A (proposition 1 of nnRNN).

    For a strictly lower triangular Θ with one α all along the sub-diagonal, whose delay line D has that α too.
    """
    n = len(Theta)
    alphas = Theta.diagonal(-1)
    if n < 2 or Theta.triu().any() or not torch.allclose(alphas, alphas[:1]) or not alphas[0] > 0:
        raise ValueError(
            "feedforward_bound expects a strictly lower triangular matrix with one α > 0 below its diagonal"
        )
    A = torch.eye(n, dtype=Theta.dtype, device=Theta.device)
    A[:-1] = Theta[1:] / alphas[0]  # D shifts by one and multiplies by α; its last column is zero
    sigma = torch.linalg.matrix_norm(A, 2)
    return delay_line_curve(float(alphas[0]), n, noise) / float(sigma) ** (2 * (n - 1))


def chain(size: int, alpha: float, beta: float = 0.0, diagonal: float = 0.0) -> Tensor:
    """Θ with ``alpha`` right below its ``diagonal`` and ``beta`` in the rest of the triangle (eq. 2 of nnRNN)."""
    index = torch.arange(size)
    gap = index[:, None] - index[None, :]
    below = alpha * (gap == 1).double() + beta * (gap >= 2).double()
    return below + diagonal * torch.eye(size, dtype=torch.float64)


def checked(W: Tensor, v: Tensor, noise: float, steps: int | None) -> tuple[Tensor, Tensor, float]:
    """Both in double precision, and the spectral radius of W."""
    if W.dim() != 2 or W.shape[0] != W.shape[1] or v.shape != W.shape[:1]:
        shapes = f"{tuple(W.shape)} and {tuple(v.shape)}"
        raise ValueError(f"Fisher memory expects a square W and a vector v of its size; got shapes {shapes}")
    if not noise > 0:
        raise ValueError(f"Fisher memory expects noise above 0; got {noise!r}")
    if steps is not None and steps < 1:
        raise ValueError(f"Fisher memory expects at least one step; got {steps}")
    both = torch.promote_types(W.dtype, v.dtype)
    W, v = doubled(W.to(both)), doubled(v.to(both))
    radius = float(torch.linalg.eigvals(W).abs().max())
    if not radius < 1:
        raise ValueError(f"Fisher memory expects a stable W, of spectral radius below 1; got {radius:.6g}")
    return W, v, radius
