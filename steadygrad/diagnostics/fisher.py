"""Fisher memory: how much a linear network remembers of a signal in noise (Ganguli et al., 2008; Kerg et al., 2019)."""

import math

import torch
from torch import Tensor

from steadygrad.matrices.measures import doubled, spectral_radius

TAIL = 1e-12  # share of its sum that a curve may leave out
RESOLVED = 1e14  # condition number of the noise's root up to which a curve has six correct digits


def fisher_memory_curve(W: Tensor, v: Tensor, noise: float = 1.0, steps: int | None = None) -> Tensor:
    """Return J(k) = vᴴ(Wᵏ)ᴴ C⁻¹ Wᵏ v,  C = ε Σ Wᵏ(Wᵏ)ᴴ:  the information in h_t about the input at t − k.

    The network is h_t = W h_{t−1} + v s_t + noise, with a scalar signal s_t and independent noise of variance ε =
    ``noise`` in each of the N units. W is (N, N), v is (N,). The result is a tensor (``steps``,) in double precision, k
    = 0, 1, … Without ``steps`` the curve continues until the rest of its sum is negligible. The sum is ‖v‖²/ε for every
    normal W. Only a non-normal W can have more, up to N ‖v‖²/ε.

    Raise ValueError if the spectral radius of W is not below 1, if the shapes, the noise or the steps are invalid, or
    if W amplifies too much for double precision.
    """
    return fisher_factors(W, v, noise, steps).abs().square().sum(0)


def fisher_memory_matrix(W: Tensor, v: Tensor, noise: float = 1.0, steps: int | None = None) -> Tensor:
    """Return the Fisher memory matrix J_kl = vᴴ(Wᵏ)ᴴ C⁻¹ Wˡ v of the network that `fisher_memory_curve` describes.

    The shape is (``steps``, ``steps``). The diagonal is the curve J(k). The other entries show how inputs at different
    times interfere. Arguments and errors are those of `fisher_memory_curve`.
    """
    factors = fisher_factors(W, v, noise, steps)
    return factors.mH @ factors


def fisher_factors(W: Tensor, v: Tensor, noise: float, steps: int | None) -> Tensor:
    """Return the columns L⁻¹ Wᵏ v / √ε, a matrix (N, steps), where C = ε L Lᴴ is the covariance of the noise.

    The squared norm of column k is the Fisher memory J(k). W is (N, N), v is (N,), ``noise`` is ε. Without ``steps``
    there are as many columns as matter. Errors are those of `fisher_memory_curve`.
    """
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
        # beyond N steps J decays at least as fast as radius²ᵏ, up to a factor that the margin of `TAIL` covers
        if steps is None and len(columns) > len(W) and information <= TAIL * total * (1 - radius**2):
            break
    return torch.stack(columns, dim=1) / noise**0.5


def noise_root(W: Tensor) -> Tensor:
    """Return the lower triangular L with L Lᴴ = Σ_{k≥0} Wᵏ(Wᵏ)ᴴ, where W is the matrix of a linear network.

    The sum is the covariance of the state if the noise of each unit has variance 1. L and W are (N, N), and the
    spectral radius of W must be below 1.

    The sum itself is not formed. A chain of 100 units amplifies so much that the condition number of the sum exceeds
    double precision, and the inverse of the sum is wrong in the second digit. Instead, each round doubles the number of
    terms, Σ_{k<2n} = Σ_{k<n} + Wⁿ (Σ_{k<n}) (Wⁿ)ᴴ. The root of the result is computed from the roots of both summands
    by a QR factorisation.
    """
    L, power = torch.eye(len(W), dtype=W.dtype, device=W.device), W
    while power.abs().max() > torch.finfo(W.dtype).tiny ** 0.5:
        L = torch.linalg.qr(torch.cat([(power @ L).mH, L.mH]), mode="r").R.mH
        power = power @ power
    return L


def ganguli_bound(v: Tensor, noise: float = 1.0) -> float:
    """Return N ‖v‖²/ε, an upper bound of Σ J(k) for any W of N units (Ganguli et al., 2008).

    J is the `fisher_memory_curve`, v (N,) the input vector and ε = ``noise``. For a normal W the sum is exactly ‖v‖²/ε.
    Summed over N orthonormal v, the totals are N/ε for every W: what one input direction gains, others lose.
    """
    return float(len(v) * doubled(v).abs().square().sum() / noise)


def delay_line_curve(alpha: float, size: int, noise: float = 1.0) -> Tensor:
    """Return the Fisher memory J(k) = aᵏ (a − 1)/(aᵏ⁺¹ − 1)/ε,  a = α²,  of a delay line, for k < ``size``: (size,).

    The delay line is a chain with α = ``alpha`` on its first sub-diagonal and no other connections. Its input has norm
    1 and enters at the first unit. ``noise`` is the variance ε. For α = 1 the curve is 1/(k + 1)/ε. No network with
    ‖Wᵏv‖ ≤ αᵏ for all k has a larger J(k).
    """
    a = torch.tensor(alpha, dtype=torch.float64) ** 2
    k = torch.arange(size, dtype=torch.float64)
    if a == 1:
        return 1 / (k + 1) / noise
    return a**k * (a - 1) / (a ** (k + 1) - 1) / noise


def feedforward_bound(Theta: Tensor, noise: float = 1.0) -> Tensor:
    """Return a lower bound of the Fisher memory J(k) of Θ: J(k) of its delay line / σ^{2(N−1)} (nnRNN, proposition 1).

    The result is (N,) for Θ (N, N). Θ must be strictly lower triangular with one α > 0 all along the sub-diagonal, and
    N ≥ 2; otherwise ValueError is raised. The delay line D has the same α and no other entries, and σ is the largest
    singular value of A in Θ = D A. ``noise`` is the variance of the noise.
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
    """Return the lower triangular recurrent matrix Θ of a chain of units (eq. 2 of nnRNN).

    Θ is (size, size), in double precision. It has ``diagonal`` on its diagonal, ``alpha`` on the first sub-diagonal and
    ``beta`` in the rest of the triangle.
    """
    index = torch.arange(size)
    gap = index[:, None] - index[None, :]
    below = alpha * (gap == 1).double() + beta * (gap >= 2).double()
    return below + diagonal * torch.eye(size, dtype=torch.float64)


def checked(W: Tensor, v: Tensor, noise: float, steps: int | None) -> tuple[Tensor, Tensor, float]:
    """Return the tuple of W and v in double precision and the spectral radius of W, a float.

    Raise ValueError unless W is square and v (N,) fits it, the spectral radius is below 1, ``noise`` is above 0 and
    ``steps`` is None or at least 1.
    """
    if W.dim() != 2 or W.shape[0] != W.shape[1] or v.shape != W.shape[:1]:
        shapes = f"{tuple(W.shape)} and {tuple(v.shape)}"
        raise ValueError(f"Fisher memory expects a square W and a vector v of its size; got shapes {shapes}")
    if not noise > 0:
        raise ValueError(f"Fisher memory expects noise above 0; got {noise!r}")
    if steps is not None and steps < 1:
        raise ValueError(f"Fisher memory expects at least one step; got {steps}")
    both = torch.promote_types(W.dtype, v.dtype)
    W, v = doubled(W.to(both)), doubled(v.to(both))
    radius = spectral_radius(W)
    if not radius < 1:
        raise ValueError(f"Fisher memory expects a stable W, of spectral radius below 1; got {radius:.6g}")
    return W, v, radius
