"""Matrices whose spectral radius is kept at 1 or below by normalisation (Helfrich & Ye, 2020)."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice, check_size, is_number
from steadygrad.kernels import in_own_precision, needs_plain, traced, wants_graph, with_graph
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.inverse import probes
from steadygrad.matrices.matrix import Matrix, check_square
from steadygrad.matrices.measures import eigenvalues_of, eigenvectors_of
from steadygrad.matrices.registry import entered


class Normalised(torch.autograd.Function):
    """Autograd function W = T / (ρ(T) + ε), where ρ(T) is the spectral radius of T and ε a constant.

    ``scale`` is the value of ρ(T) + ε, and ``rho`` the value of ρ(T). C (n, n) is ρ(T) times the gradient of ρ(T) with
    respect to T. If C is None, the backward pass treats ρ(T) as a constant. Otherwise the gradient is

    dL/dT = (dL/dW − C Σ(dL/dW ∘ W) / ρ) / scale

    The inner factor in proposition 3.2 of the paper is 1/(ρ + ε), which is right for ε = 0 only.
    """

    @staticmethod
    def forward(ctx: Any, T: Tensor, scale: float, rho: float, C: Tensor | None) -> Tensor:
        """Return W = T / ``scale`` in the dtype of T, divided in double precision."""
        W = (T.double() / scale).to(T.dtype)
        ctx.save_for_backward(T, W, C)
        ctx.scale, ctx.rho = scale, rho
        return W

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of T from the gradient G of W, and None for the other arguments."""
        T, W, C = ctx.saved_tensors
        if wants_graph():
            return with_graph(normalised, (T, ctx.scale, ctx.rho, C), [G])
        if C is not None:
            G = G - C * ((G * W).sum() / ctx.rho)
        return G / ctx.scale, None, None, None


def normalised(T: Tensor, scale: float, rho: float, C: Tensor | None) -> Tensor:
    """Return W = T / (ρ(T) + ε), as `Normalised` does, by standard torch operations, for second derivatives.

    ρ(T) is the spectral radius of T. ``scale`` is the value of ρ(T) + ε, and ``rho`` the value of ρ(T). If C is None,
    autograd treats ρ(T) as a constant. Otherwise autograd differentiates ρ(T), too. The values of C, which `Normalised`
    needs, are not used.
    """
    if C is None:
        return T / scale
    return T / (largest_modulus(T) - rho + scale).to(T.dtype)


def largest_modulus(T: Tensor) -> Tensor:
    """Return the spectral radius ρ(T), the largest modulus of an eigenvalue, as a tensor with gradient."""
    return eigenvalues_of(T.double()).abs().amax()


class EigenvalueNormalized(nn.Module):
    """Map W = T until ρ(T) > 1 for the first time,  W = T / (ρ(T) + ε) from then on.

    ρ(T) is the spectral radius of T, and ε is ``epsilon``. The gradient includes the derivative of ρ(T), with one
    exception: the dominant eigenvalue may be so close to a multiple eigenvalue that its eigenvectors are meaningless.
    The paper then trains with the usual gradient until the eigenvalues have separated. Here W stays normalised
    meanwhile, so that ρ(W) ≤ 1 always holds, and ρ is treated as a constant in such a step. ``multiple`` counts these
    steps.

    ``radius`` selects how ρ(T) is computed. ``"exact"`` computes all eigenvalues in O(n³) operations. ``"power"`` uses
    the power method of section 3.2, with O(n²) operations per iteration. The power method starts from exact
    eigenvectors, tracks the `BLOCK` largest eigenvalues and continues from the result of the previous call. Exact
    eigenvalues are computed instead if the residual does not become small. They are also computed if T has changed so
    much since the last exact computation that an untracked eigenvalue could be the largest now. ``fallbacks`` counts
    both cases. The number of iterations varies and, as in the paper, the power method can be less efficient: at n = 400
    on one CPU core it took twice as long as the exact eigenvalues.
    """

    from_skew = False
    normalised: Tensor
    multiple: Tensor
    fallbacks: Tensor
    right: Tensor
    left: Tensor
    anchor: Tensor
    others: Tensor

    def __init__(self, size: int, epsilon: float = 0.0, radius: str = "exact") -> None:
        super().__init__()
        self.size = check_size("EigenvalueNormalized", size)
        if not is_number(epsilon, 0):
            raise ValueError(f"EigenvalueNormalized expects a finite epsilon of at least 0; got {epsilon!r}")
        check_choice("EigenvalueNormalized", "radius", radius, RADII)
        self.epsilon, self.radius = epsilon, radius
        self.register_buffer("normalised", torch.tensor(False))
        self.register_buffer("multiple", torch.tensor(0))
        if radius == "power":
            block = min(size, BLOCK)
            self.register_buffer("right", torch.zeros(size, block))  # start of the next power iteration; 0 at first
            self.register_buffer("left", torch.zeros(size, block))
            self.register_buffer("anchor", torch.zeros(size, size))  # T at the last exact computation
            self.register_buffer("others", torch.tensor(0.0))  # largest untracked modulus of that T
            self.register_buffer("fallbacks", torch.tensor(0))

    def forward(self, T: Tensor) -> Tensor:
        """Return W from T, both (n, n). Once ρ(T) has exceeded 1, W is always normalised; a buffer remembers this."""
        check_square("EigenvalueNormalized", T, self.size)
        if needs_plain(T):
            return self._plain(T)
        # in double precision, because rounding in single precision alone changes ρ by more than 1e-6
        T64 = T.detach().double()
        wants_gradient = torch.is_grad_enabled() and T.requires_grad
        # rounding splits a double eigenvalue into two that are √eps apart
        tolerance = max(torch.finfo(T.dtype).eps ** 0.5, 1e-6)
        precision = max(8 * torch.finfo(T.dtype).eps, 1e-10)
        pair = self._followed(T64, tolerance, precision) if self.radius == "power" else None
        eigenvalues = None
        if pair is not None:
            rho = abs(pair.value)
        else:
            if not self.normalised and surely_below_one(T64):
                return T
            eigenvalues = eigenvalues_of(T64)
            rho = float(eigenvalues.abs().amax())
        if rho > 1:
            self.normalised.fill_(True)
        if not self.normalised or rho == 0:
            return T
        C = None
        if wants_gradient:
            pair = inverse_iteration(T64, eigenvalues, tolerance) if eigenvalues is not None else pair
            C = None if pair is None else pair.gradient().to(T.dtype)
            self.multiple += C is None
        # a few units in the last place larger than ρ + ε, so that rounding of W cannot give ρ(W) > 1
        scale = (rho + self.epsilon) * (1 + 4 * torch.finfo(T.dtype).eps)
        return Normalised.apply(T, scale, rho, C)

    def _followed(self, T: Tensor, tolerance: float, precision: float) -> "Pair | None":
        """Return the dominant eigenvalue of T with its eigenvectors, a `Pair`, by the power method.

        Return None if the exact eigenvalues are needed. The eigenvectors from which the next call starts are then
        computed exactly. ``tolerance`` and ``precision`` are those of `power_method`.
        """
        if self.right.any():
            pair, right, left = power_method(T, self.right.double(), self.left.double(), tolerance, precision)
            if pair is not None and float(self.others) + norm_estimate(T - self.anchor) < abs(pair.value):
                self.right, self.left = right.to(self.right.dtype), left.to(self.left.dtype)
                return pair
            self.fallbacks += 1
        block, dtype = self.right.shape[1], self.right.dtype
        (values, vectors), (left_values, left_vectors) = eigenvectors_of(T), eigenvectors_of(T.mT)
        self.right = leading_space(values, vectors, block).to(dtype)
        self.left = leading_space(left_values, left_vectors, block).to(dtype)
        moduli = values.abs().sort(descending=True).values
        self.others.fill_(moduli[block] if block < len(moduli) else -math.inf)
        self.anchor = T.to(dtype)
        return None

    def _plain(self, T: Tensor) -> Tensor:
        """Return W by standard torch operations.

        The buffer ``normalised`` is updated only in calls that torch.compile traces.
        """
        normal = self.normalised | (largest_modulus(T.detach()) > 1)
        if traced() and not torch.compiler.is_exporting():
            self.normalised.copy_(normal)
        # autograd also differentiates the branch that `where` discards, so that branch needs distinct eigenvalues
        harmless = torch.arange(1, self.size + 1, dtype=T.dtype, device=T.device).diag()
        rho = largest_modulus(torch.where(normal, T, harmless))
        scale = (rho + self.epsilon) * (1 + 4 * torch.finfo(T.dtype).eps)
        return torch.where(normal, T / scale.to(T.dtype), T)

    def right_inverse(self, W: Tensor) -> Tensor:
        """Return W unchanged, as the free tensor T. Raise ValueError if its shape is wrong.

        The buffer ``normalised`` becomes False, as in a new module. `forward` returns W for this T unless the spectral
        radius ρ(W) exceeds 1; then it returns W / (ρ(W) + ε), where ε is ``epsilon``.
        """
        check_square("EigenvalueNormalized", W, self.size)
        self.normalised = torch.zeros_like(self.normalised)
        return W

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}, epsilon={self.epsilon}, radius={self.radius}"


def surely_below_one(T: Tensor) -> bool:
    """Return True if ρ(T) < 1 follows from ρ(T)ᵏ ≤ ‖Tᵏ‖_F for some k = 1, 2, 4, …, 512.

    Matrix products are far cheaper than eigenvalues.
    """
    for _ in range(10):
        norm = float(torch.linalg.vector_norm(T))
        if norm < 0.5 or not norm < 1e3:  # far enough from 1 that rounding does not matter; stop before overflow
            return norm < 0.5
        T = T @ T
    return False


class Pair(NamedTuple):
    """A dominant eigenvalue λ with its right and left eigenvectors (n, 1): T u = λ u, v* T = λ v*.

    ``value`` is λ, and v* is the conjugate transpose of v. Both vectors have length 1.
    """

    value: complex
    u: Tensor
    v: Tensor

    def gradient(self) -> Tensor:
        """Return C = Re(λ̄ S),  S = v̄ uᵀ / (v* u).  C/ρ is the gradient of the spectral radius ρ(T) = |λ|."""
        overlap = (self.v.mH @ self.u).squeeze()
        return (self.v.conj() @ (self.u.mT * (self.value.conjugate() / overlap))).real.contiguous()

    def residual(self, T: Tensor) -> float:
        """Return the larger of ‖T u − λ u‖ and ‖Tᵀ v − λ̄ v‖."""
        T = T.to(self.u.dtype)
        of_u = torch.linalg.vector_norm(T @ self.u - self.value * self.u)
        of_v = torch.linalg.vector_norm(T.mT @ self.v - self.value.conjugate() * self.v)
        return max(float(of_u), float(of_v))

    def overlap(self) -> float:
        """Return |v* u|, the reciprocal of the condition number of λ."""
        return float((self.v.mH @ self.u).abs())


def inverse_iteration(T: Tensor, eigenvalues: Tensor, tolerance: float) -> Pair | None:
    """Return the largest of T's ``eigenvalues`` in modulus, λ, with its eigenvectors, or None if they are unreliable.

    The result is a `Pair`, and ρ = |λ|. The eigenvectors are unreliable if another eigenvalue is closer to λ than
    ``tolerance`` ρ, if the condition number of λ exceeds 1/``tolerance``, or if the residual does not become small.
    """
    dominant = eigenvalues[eigenvalues.abs().argmax()]
    if closest(eigenvalues, dominant) <= tolerance * abs(dominant.item()):
        return None
    if dominant.imag == 0:
        dominant = dominant.real
    # Inverse iteration. The shift differs from λ by enough for a stable LU, and by far less than the gap to the next
    # eigenvalue, so a few iterations suffice.
    M = T.to(dominant.dtype, copy=True)
    M.diagonal().sub_(dominant * (1 + 1e-11))
    LU, pivots = torch.linalg.lu_factor_ex(M)[:2]
    u = v = probes(M, 1).mT
    for _ in range(4):
        u = torch.linalg.lu_solve(LU, pivots, u)
        v = torch.linalg.lu_solve(LU, pivots, v, adjoint=True)
        u, v = u / torch.linalg.vector_norm(u), v / torch.linalg.vector_norm(v)
    pair = Pair(dominant.item(), u, v)
    reached = pair.overlap() > tolerance and pair.residual(T) < 1e-8 * float(torch.linalg.vector_norm(T))
    return pair if reached else None


def closest(eigenvalues: Tensor, one: Tensor) -> float:
    """Return the distance from the eigenvalue ``one`` to the nearest other eigenvalue."""
    return float((eigenvalues - one).abs().kthvalue(2).values) if len(eigenvalues) > 1 else math.inf


RADII = ("exact", "power")
BLOCK = 8
"""number of eigenvalues, the largest ones, that the power method tracks"""
ROUNDS, PRODUCTS = 20, 6
"""largest number of rounds of the power method, and products with T in each; a round searches the span of all powers"""


def power_method(
    T: Tensor, right: Tensor, left: Tensor, tolerance: float, precision: float
) -> tuple[Pair | None, Tensor, Tensor]:
    """Return the tuple (pair, right, left): the dominant eigenvalue of T with its vectors, and bases to continue from.

    The dominant eigenvalue λ, with ρ = |λ|, is in a `Pair`. The pair is None if its residual stays above ``precision``
    ρ, if another eigenvalue is within ``tolerance`` ρ, or if the condition number of λ exceeds 1/``tolerance``.

    The columns of the bases span the eigenvectors of the largest eigenvalues of T and of Tᵀ. The bases are (n, block),
    where block is the smaller of n and `BLOCK`. The arguments ``right`` and ``left`` are the bases of an earlier call.
    """
    for _ in range(ROUNDS):
        Q, P = powers(T, right), powers(T.mT, left)
        B, C = Q.mT @ (T @ Q), P.mT @ (T.mT @ P)
        (values, vectors), (left_values, left_vectors) = eigenvectors_of(B), eigenvectors_of(C)
        moduli = values.abs()
        dominant = values[moduli.argmax()]
        rho, block = abs(dominant.item()), right.shape[1]
        if closest(values, dominant) <= tolerance * rho or not 0 < rho < math.inf:
            break
        right, left = Q @ leading_space(values, vectors, block), P @ leading_space(left_values, left_vectors, block)
        u = Q.to(values.dtype) @ vectors[:, moduli.argmax(), None]
        v = P.to(values.dtype) @ left_vectors[:, (left_values - dominant.conj()).abs().argmin(), None]
        overlap = (v.mH @ u).squeeze()
        quotient = (v.mH @ (T.to(u.dtype) @ u)).squeeze() / overlap  # error: product of both residuals
        pair = Pair(quotient.item(), u, v)
        if pair.overlap() > tolerance and pair.residual(T) <= precision * rho:
            return pair, right, left
    return None, right, left


def powers(T: Tensor, X: Tensor) -> Tensor:
    """Return an orthonormal basis, as columns, of the span of the columns of X, T X, T² X, …, T⁶ X."""
    columns = [X]
    for _ in range(PRODUCTS):
        columns.append(T @ columns[-1])
    return torch.linalg.qr(torch.cat(columns, dim=1)).Q


def norm_estimate(M: Tensor) -> float:
    """Return an estimate of the spectral norm ‖M‖₂, a float: 1.25 times the result of ten power iterations with MᵀM.

    Power iterations underestimate the norm. The factor 1.25 allows for this, but the estimate is no upper bound.
    """
    x = probes(M, 1).mT
    for _ in range(10):
        x = M.mT @ (M @ (x / torch.linalg.vector_norm(x).clamp_min(torch.finfo(x.dtype).tiny)))
    return 1.25 * float(torch.linalg.vector_norm(x)) ** 0.5


def leading_space(values: Tensor, vectors: Tensor, block: int) -> Tensor:
    """Return an orthonormal real basis of the span of the eigenvectors of the largest eigenvalues.

    ``values`` are all eigenvalues of a real matrix, and the columns of ``vectors`` its eigenvectors. The basis is (n,
    ``block``).
    """
    order = values.abs().argsort(descending=True)
    order = order[values[order].imag >= 0]  # one of a conjugate pair: its real and imaginary parts
    upper, paired = vectors[:, order], values[order].imag > 0
    parts = torch.stack([upper.real, upper.imag], dim=2).flatten(1)
    there = torch.stack([torch.ones_like(paired), paired], dim=1).flatten()  # a real vector: no imaginary part
    return torch.linalg.qr(parts[:, there][:, :block]).Q


@entered("eigenvalue")
def eigenvalue_normalized(size: int, *, epsilon: float = 0.0, radius: str = "exact", init: str = "disc") -> Matrix:
    """Return a `Matrix` with the map `EigenvalueNormalized`, initialised by ``init``, the name of an initialiser."""
    map = EigenvalueNormalized(size, epsilon, radius)
    return Matrix(map, free_tensor(init, map))
