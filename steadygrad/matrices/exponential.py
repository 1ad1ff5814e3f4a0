"""Rotations by the matrix exponential (Lezcano-Casado & Martínez-Rubio, 2019), with a fast evaluation of exp(A).

A skew-symmetric A is normal and its eigenvalues are imaginary. A polynomial for exp(A) therefore needs to be accurate
on one interval [-iR, iR] only, not in every direction as Taylor's polynomial is. The Chebyshev series of degree 12 has
float32 accuracy up to R = 3.25, which covers every initialisation in the papers. It takes four matrix products. The
backward pass, written by hand, takes six. A larger A is halved, and the result squared, as often as needed. Each
squaring doubles the rounding errors, so for a very large A eigenvectors are used instead (`spectral`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from steadygrad.check import check_size, is_integer
from steadygrad.kernels import (
    at_least_single,
    exponential_backward,
    exponential_forward,
    in_own_precision,
    matmul,
    needs_plain,
    own_precision,
    wants_graph,
    with_graph,
)
from steadygrad.matrices import init as initialisers
from steadygrad.matrices.matrix import (
    Matrix,
    check_square,
    index_of,
    is_orthogonal,
    nearest_orthogonal,
    skew,
    skew_free,
)
from steadygrad.matrices.parameters import is_own
from steadygrad.matrices.registry import entered
from steadygrad.matrices.spectral import eigen, exp_from_eigen, exp_gradient, is_near_orthogonal, rotation_log


class Scheme(NamedTuple):
    """A polynomial for exp(A) ≈ B₁ + (B₂ + E) E,  E = B₃ + B₄²,  Bⱼ = Σₖ coefficients[j−1][k] Aᵏ,  if ‖A‖₂ ≤ radius."""

    radius: float
    coefficients: tuple[tuple[float, ...], ...]


def chebyshev_exp(radius: float, degree: int = 12) -> list[float]:
    """Return the coefficients of Aᵏ, k = 0 … degree, in the Chebyshev series of exp on [-i·radius, i·radius]."""

    def bessel(k: int) -> float:  # J_k by its power series, without cancellation for the small radii used here
        half = radius / 2
        return sum((-1) ** m * half ** (2 * m + k) / (math.factorial(m) * math.factorial(m + k)) for m in range(30))

    # exp(ix) = J₀ + 2 Σ iᵏ J_k(R) T_k(x/R); with x = A/i the powers of i cancel and all coefficients are real:
    # iᵏ T_k(A/(iR)) is the Chebyshev recurrence with a plus sign.
    previous, current = [1.0], [0.0, 1.0 / radius]
    total = [bessel(0), *[0.0] * degree]
    for k in range(1, degree + 1):
        for power, value in enumerate(current):
            total[power] += 2 * bessel(k) * value
        following = [0.0, *(2 * value / radius for value in current)]
        for power, value in enumerate(previous):
            following[power] += value
        previous, current = current, following
    return total


def four_product_scheme(radius: float) -> Scheme:
    """Return the Chebyshev polynomial of degree 12 for exp as a `Scheme`, so that four matrix products evaluate it.

    Write E = H + L with H = e₄A⁴ + e₅A⁵ + e₆A⁶ and L = l₁A + l₂A². Then B₁ + (B₂ + E) E = H² + H f + L (f − L) + B₁
    with f = B₂ + 2L. The coefficients of A¹², A¹¹, …, A⁴ determine e₆, e₅, e₄, f₃, f₂, f₁, f₀, l₂, l₁ in this order.
    """
    c = chebyshev_exp(radius)
    e6 = math.sqrt(c[12])
    e5 = c[11] / (2 * e6)
    e4 = (c[10] - e5**2) / (2 * e6)
    f3 = (c[9] - 2 * e5 * e4) / e6
    f2 = (c[8] - e4**2 - e5 * f3) / e6
    f1 = (c[7] - e5 * f2 - e4 * f3) / e6
    f0 = (c[6] - e5 * f1 - e4 * f2) / e6
    l2 = (c[5] - e5 * f0 - e4 * f1) / f3
    l1 = (c[4] - e4 * f0 - l2 * (f2 - l2)) / f3
    # H comes from the square B₄² with B₄ = a₁A + a₂A² + a₃A³; B₃ adds L and subtracts the terms of B₄² below A⁴
    a3 = math.sqrt(e6)
    a2 = e5 / (2 * a3)
    a1 = (e4 - a2**2) / (2 * a3)
    B1 = (c[0], c[1] - l1 * f0, c[2] - l2 * f0 - l1 * (f1 - l1), c[3] - l2 * (f1 - l1) - l1 * (f2 - l2))
    B2 = (f0, f1 - 2 * l1, f2 - 2 * l2, f3)
    B3 = (0.0, l1, l2 - a1**2, -2 * a1 * a2)
    B4 = (0.0, a1, a2, a3)
    return Scheme(radius, (B1, B2, B3, B4))


# Truncation error 2 (R/2)¹³/13!, between one and two units in the last place of a number in [1, 2).
SCHEMES = {torch.float32: four_product_scheme(3.25), torch.float64: four_product_scheme(0.667)}
CAREFUL = 3  # halvings from which orthogonality is checked; with fewer, float32 loses less than 1e-4 up to size 1024
WORTH_A_LOOK = 192  # size from which a sharper norm bound costs less than the squaring that it may save


@index_of
def table(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the coefficients of the polynomial for exp(A) in this dtype, as a tensor (4, 4)."""
    return torch.tensor(SCHEMES[dtype].coefficients, dtype=dtype, device=device)


def norm_bound(A: Tensor, A2: Tensor, enough: float) -> float:
    """Return an upper bound of ‖A‖₂ for skew A by row sums. ``A2`` is A².

    If it exceeds ``enough`` and A is large, a Krylov space gives a smaller estimate, with a margin of 1 %.
    """
    bound = min(float(A.abs().sum(0).amax()), math.sqrt(float(A2.abs().sum(0).amax())))
    if bound <= enough or len(A) < WORTH_A_LOOK or not math.isfinite(bound):
        return bound
    # −A² is positive semi-definite with largest eigenvalue ‖A‖₂². A Krylov space of 16 dimensions gives a lower bound.
    # Its root is less than 1 % too small, so 1 % is added. The start vector is fixed, so that runs are reproducible.
    v = torch.cos(torch.arange(len(A), dtype=A.dtype, device=A.device).square_().mul_(0.7))
    columns = []
    for _ in range(16):
        v = torch.mv(A2, v)
        v = v / v.norm()
        columns.append(v)
    Q = torch.linalg.qr(torch.stack(columns, dim=1)).Q
    largest = -float(torch.linalg.eigvalsh(Q.mT @ (A2 @ Q))[0])
    return min(bound, 1.01 * math.sqrt(max(largest, 0.0)))


class SkewExp(torch.autograd.Function):
    """Autograd function of exp(A) for skew A from its packed triangle, with a hand-written backward pass."""

    @staticmethod
    def forward(ctx: Any, free: Tensor, size: int) -> Tensor:
        """Return exp(A) (n, n) from the packed strict lower triangle of A, n(n − 1)/2 numbers."""
        A = skew(free, size)
        if A.dtype not in SCHEMES:  # half precision has too little range
            A = A.float()
        radius = SCHEMES[A.dtype].radius
        A2 = matmul(A, A)
        bound = norm_bound(A, A2, radius)
        ctx.size = size
        if not bound < math.inf:
            return SkewExp.by_eigenvectors(ctx, free)
        halvings = max(0, math.ceil(math.log2(bound / radius))) if bound else 0
        if halvings:
            A *= 0.5**halvings
            A2 *= 0.25**halvings
        X, *parts = exponential_forward(A, A2, table(A.dtype, A.device))
        squares = []
        for _ in range(halvings):
            squares.append(X)
            X = matmul(X, X)
        if halvings >= CAREFUL and not is_near_orthogonal(X, units=400):
            return SkewExp.by_eigenvectors(ctx, free)
        ctx.save_for_backward(free, A, *parts, *squares)
        ctx.scale = 0.5**halvings
        return X.to(free.dtype)

    @staticmethod
    def by_eigenvectors(ctx: Any, free: Tensor) -> Tensor:
        """Return exp(A) for an A so large that squarings would make it lose its orthogonality."""
        angles, V = eigen(skew(free, ctx.size))
        ctx.save_for_backward(free, angles, V)
        return exp_from_eigen(angles, V, free.dtype)

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the packed triangle from that of exp(A)."""
        free, *saved = ctx.saved_tensors
        if wants_graph():
            return with_graph(skew_exp, (free, ctx.size), [grad])
        if len(saved) == 2:
            dA = exp_gradient(grad, *saved)
            return skew_free(dA - dA.mT), None
        A, S, E, B4, *squares = saved
        G = grad.to(A.dtype)
        for X in reversed(squares):
            G = matmul(X.mT, G, add=matmul(G, X.mT))
        dA = exponential_backward(G, A, S, E, B4, table(A.dtype, A.device))
        return skew_free(dA - dA.mT).mul_(ctx.scale).to(free.dtype), None


def skew_exp(free: Tensor, size: int) -> Tensor:
    """Return exp(A) (n, n) by standard torch operations, for skew A from its packed strict lower triangle."""
    A = skew(free, size)
    return torch.linalg.matrix_exp(A if A.dtype in SCHEMES else A.float()).to(free.dtype)


def skew_exponential(free: Tensor, size: int) -> Tensor:
    """Return exp(A) (n, n) for skew A from its packed strict lower triangle, n(n − 1)/2 numbers.

    ``size`` is n. The fastest implementation that can run is used.
    """
    return skew_exp(free, size) if needs_plain(free) else SkewExp.apply(free, size)


class MovingBase(nn.Module):
    """Base class of maps around a rotation ``base`` that changes during training and stays orthogonal in its dtype.

    The `forward` of a subclass may update the base in training, if the free tensor has changed since the previous call.
    Such a map does not work with optimizers that try parameter values and undo them (the line search of LBFGS), nor
    with weight averaging.
    """

    base: Tensor

    def polish(self, base: Tensor) -> Tensor:
        """Return ``base`` after one step towards the nearest orthogonal matrix."""
        return polished(base)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply ``fn`` to all tensors, as `nn.Module` does, and restore the orthogonality of ``base``."""
        super()._apply(fn, recurse)
        self._mend()
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load the tensors, as `nn.Module` does, and restore the orthogonality of ``base`` if its dtype was another."""
        super()._load_from_state_dict(state, prefix, *rest)
        saved = state.get(f"{prefix}base")
        if saved is not None and saved.dtype != self.base.dtype:
            self._mend()

    @torch.no_grad()
    def _mend(self) -> None:
        """Restore the orthogonality of ``base`` after a change of dtype, because rounding errors remain."""
        if "base" not in self._buffers:
            return
        base = at_least_single(self.base)
        for _ in range(3):  # each step squares the error, which is 1e-2 for 8 bits
            base = self.polish(base)
        if base.dtype == self.base.dtype:
            self.base.copy_(base)  # in place: other processes may share this memory
        else:
            self.base = base


class Exponential(MovingBase):
    """Map W = B exp(A),  with A skew-symmetric and B a rotation without gradient, so W is a rotation (det W = +1).

    Without ``rebase_every`` B is always the identity: the static map of expRNN. With ``rebase_every=K``, exp(A) is
    multiplied into B after every K updates of A, and A restarts from 0 (dtriv). The gradient is then that of the
    manifold at B, whereas far from A = 0 it would be distorted.
    """

    seen: Tensor
    updates: Tensor

    kinds = ("skew",)

    def __init__(self, size: int, rebase_every: int | None = None) -> None:
        super().__init__()
        if rebase_every is not None and not is_integer(rebase_every, 1):
            raise ValueError(
                f"Exponential expects rebase_every of at least 1, or None for a static base; got {rebase_every!r}"
            )
        self.size, self.rebase_every = check_size("Exponential", size), rebase_every
        if rebase_every:
            self.register_buffer("base", torch.eye(size))
            self.register_buffer("seen", torch.zeros(size * (size - 1) // 2))
            self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    def forward(self, free: Tensor) -> Tensor:
        """Return W (n, n) from the packed strict lower triangle of A, n(n − 1)/2 numbers.

        In training with ``rebase_every``, it may first change the base and set ``free`` to zero in place.
        """
        if not self.rebase_every:
            return skew_exponential(free, self.size)
        with own_precision(free.device.type):
            if self.training and torch.is_grad_enabled() and not needs_plain(free) and is_own(free):
                self._count(free)
            return self.base.to(free.dtype) @ skew_exponential(free, self.size)

    @torch.no_grad()
    def _count(self, free: Tensor) -> None:
        """Count an update if ``free`` has changed since the last call; rebase at every K-th update."""
        if torch.equal(free, self.seen):
            return
        self.updates += 1
        if self.rebase_every and self.updates >= self.rebase_every:
            self.rebase(free)
        self.seen = free.detach().clone()

    @torch.no_grad()
    def rebase(self, free: Tensor) -> None:
        """Replace the buffer B by B exp(A) and set ``free``, the packed A, to zero in place.

        W stays the same up to rounding. Only a map with ``rebase_every`` has a B.
        """
        # polished, because rounding errors would accumulate over thousands of rebases
        base = self.base.to(free.dtype)
        self.base = polished(base @ SkewExp.apply(free, self.size)).to(self.base.dtype)
        free.zero_()
        self.updates.zero_()

    def right_inverse(self, W: Tensor) -> Tensor:
        """Return the packed A whose matrix is W. A W that is not orthogonal is replaced by the nearest rotation.

        Raise ValueError if W is orthogonal with determinant −1. With ``rebase_every``, A belongs to the current base,
        which takes the dtype of W.
        """
        check_square("Exponential", W, self.size)
        if is_orthogonal(W) and torch.linalg.det(W.double()) < 0:
            raise ValueError(
                "Exponential cannot reach this orthogonal matrix: its determinant is −1, that of rotations 1; "
                "change the sign of a row"
            )
        W = nearest_orthogonal(W, determinant=1)
        if self.rebase_every:
            if self.base.dtype != W.dtype:
                self.base, self.seen = self.base.to(W.dtype), self.seen.to(W.dtype)
                self._mend()
            W = self.base.mT @ W
        return skew_free(rotation_log(W))

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}" + (f", rebase_every={self.rebase_every}" if self.rebase_every else "")


def polished(B: Tensor) -> Tensor:
    """Return B after one Newton step towards the nearest orthogonal matrix."""
    return 1.5 * B - 0.5 * B @ (B.mT @ B)


@entered("exponential")
def exponential(size: int, *, init: str = "henaff", rebase_every: int | None = None) -> Matrix:
    """Return a `Matrix` with the map `Exponential`, initialised by ``init``, a name in `init.SKEW` or `init.FULL`.

    With ``rebase_every`` the initial W is the first base.
    """
    map = Exponential(size, rebase_every)
    free = initialisers.free_tensor(init, map)
    if rebase_every:
        map.rebase(free)
    return Matrix(map, free)


@entered("dtriv")
def dtriv(size: int, *, init: str = "henaff", rebase_every: int | None = 100) -> Matrix:
    """Return the matrix of `exponential` with a base that moves every ``rebase_every`` updates."""
    return exponential(size, init=init, rebase_every=rebase_every)
