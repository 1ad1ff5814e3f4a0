"""Matrices whose spectral radius may not exceed 1, by normalisation (Helfrich & Ye, 2020)."""

import math
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.kernels import in_own_precision, needs_plain, wants_graph, with_graph
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.inverse import probes
from steadygrad.matrices.matrix import Matrix, check_size, check_square, is_between


class Normalised(torch.autograd.Function):
    """W = T / scale,  scale = ρ(T) + ε;  C/ρ is the gradient of ρ(T), or C is None to take ρ as a constant.

    dL/dT = (dL/dW − C Σ(dL/dW ∘ W) / ρ) / scale  (Prop. 3.2; its inner factor 1/(ρ + ε) holds for ε = 0 only)
    """

    @staticmethod
    def forward(ctx: Any, T: Tensor, scale: float, rho: float, C: Tensor | None) -> Tensor:
        W = (T.double() / scale).to(T.dtype)
        ctx.save_for_backward(T, W, C)
        ctx.scale, ctx.rho = scale, rho
        return W

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        T, W, C = ctx.saved_tensors
        if wants_graph():
            return with_graph(normalised, (T, ctx.scale, ctx.rho, C), [G])
        if C is not None:
            G = G - C * ((G * W).sum() / ctx.rho)
        return G / ctx.scale, None, None, None


def normalised(T: Tensor, scale: float, rho: float, C: Tensor | None) -> Tensor:
    """The same by plain operations."""
    if C is None:
        return T / scale
    return T / (largest_modulus(T) - rho + scale).to(T.dtype)


def largest_modulus(T: Tensor) -> Tensor:
    return torch.linalg.eigvals(T.double()).abs().amax()


class EigenvalueNormalized(nn.Module):
    """W = T until the first time that ρ(T) > 1,  W = T / (ρ(T) + ε) ever after.

    The gradient knows of the normalisation, except where the dominant eigenvalue is so close to a multiple one that
    its eigenvectors mean nothing. The paper's remedy is to train on with the usual gradient until the eigenvalues
    have separated. Here W stays normalised meanwhile, so that ρ(W) ≤ 1 always holds, and ρ counts as a constant for
    that step; ``multiple`` counts such steps.

    ``radius`` is how ρ(T) is found: ``"exact"`` by all eigenvalues, which takes O(n³) operations, or ``"power"`` by the
    power method of section 3.2, which takes O(n²) for each of its iterations. The power method starts from exact
    eigenvectors, follows the `BLOCK` largest eigenvalues and goes on from those of the last call. Exact eigenvalues
    take over where its residual does not become small, and where T has moved so far since the last exact ones that an
    eigenvalue that is not followed could have become the largest; ``fallbacks`` counts such calls. The number of
    iterations varies, and as in the paper it may be less efficient: at n = 400 on one core of a CPU it took twice as
    long as the exact eigenvalues.
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
        if not is_between(epsilon, 0, sys.float_info.max):
            raise ValueError(f"EigenvalueNormalized expects a finite epsilon of at least 0; got {epsilon!r}")
        if radius not in RADII:
            raise ValueError(f"EigenvalueNormalized expects radius to be one of {', '.join(RADII)}; got {radius!r}")
        self.epsilon, self.radius = epsilon, radius
        self.register_buffer("normalised", torch.tensor(False))
        self.register_buffer("multiple", torch.tensor(0))
        if radius == "power":
            block = min(size, BLOCK)
            self.register_buffer("right", torch.zeros(size, block))  # where the power method goes on; 0 at first
            self.register_buffer("left", torch.zeros(size, block))
            self.register_buffer("anchor", torch.zeros(size, size))  # T of the last exact eigenvalues
            self.register_buffer("others", torch.tensor(0.0))  # the largest modulus there that is not followed
            self.register_buffer("fallbacks", torch.tensor(0))

    def forward(self, T: Tensor) -> Tensor:
        check_square("EigenvalueNormalized", T, self.size)
        if needs_plain(T):
            return self._plain(T)
        # in double precision, because the rounding errors of single precision alone move ρ by more than 1e-6
        T64 = T.detach().double()
        wants_gradient = torch.is_grad_enabled() and T.requires_grad
        # a double eigenvalue, once rounded, is two that lie √eps apart
        tolerance = max(torch.finfo(T.dtype).eps ** 0.5, 1e-6)
        precision = max(8 * torch.finfo(T.dtype).eps, 1e-10)
        pair = self._followed(T64, tolerance, precision) if self.radius == "power" else None
        eigenvalues = None
        if pair is not None:
            rho = abs(pair.value)
        else:
            if not self.normalised and surely_below_one(T64):
                return T
            eigenvalues = torch.linalg.eigvals(T64)
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
        # a few units in the last place larger than ρ + ε, so that rounding W cannot carry it past 1
        scale = (rho + self.epsilon) * (1 + 4 * torch.finfo(T.dtype).eps)
        return Normalised.apply(T, scale, rho, C)

    def _followed(self, T: Tensor, tolerance: float, precision: float) -> "Pair | None":
        """Return the dominant eigenvalue by the power method, or None where exact eigenvalues are needed."""
        if self.right.any():
            pair, right, left = power_method(T, self.right.double(), self.left.double(), tolerance, precision)
            if pair is not None and float(self.others) + norm_estimate(T - self.anchor) < abs(pair.value):
                self.right, self.left = right.to(self.right.dtype), left.to(self.left.dtype)
                return pair
            self.fallbacks += 1
        block, dtype = self.right.shape[1], self.right.dtype
        (values, vectors), (left_values, left_vectors) = torch.linalg.eig(T), torch.linalg.eig(T.mT)
        self.right = leading_space(values, vectors, block).to(dtype)
        self.left = leading_space(left_values, left_vectors, block).to(dtype)
        moduli = values.abs().sort(descending=True).values
        self.others.fill_(moduli[block] if block < len(moduli) else -math.inf)
        self.anchor = T.to(dtype)
        return None

    def _plain(self, T: Tensor) -> Tensor:
        """W by plain operations; whether ρ(T) > 1 has been met is not noted."""
        normal = self.normalised | (largest_modulus(T.detach()) > 1)
        # a gradient goes through what is not chosen too: it must have one
        harmless = torch.arange(1, self.size + 1, dtype=T.dtype, device=T.device).diag()
        rho = largest_modulus(torch.where(normal, T, harmless))
        scale = (rho + self.epsilon) * (1 + 4 * torch.finfo(T.dtype).eps)
        return torch.where(normal, T / scale.to(T.dtype), T)

    def right_inverse(self, W: Tensor) -> Tensor:
        """W itself; with ρ(W) > 1 it comes back divided by its spectral radius."""
        return check_square("EigenvalueNormalized", W, self.size)

    def extra_repr(self) -> str:
        return f"size={self.size}, epsilon={self.epsilon}, radius={self.radius}"


def surely_below_one(T: Tensor) -> bool:
    """Whether ρ(T) < 1 follows from ρ(T)ᵏ ≤ ‖Tᵏ‖_F for k = 1, 2, 4 … 512: products are far cheaper than eigenvalues."""
    for _ in range(10):
        norm = float(torch.linalg.vector_norm(T))
        if norm < 0.5 or not norm < 1e3:  # far enough from 1, and from overflow, for rounding not to matter
            return norm < 0.5
        T = T @ T
    return False


class Pair(NamedTuple):
    """A dominant eigenvalue λ with its vectors (n, 1): T u = λ u, v* T = λ v*."""

    value: complex
    u: Tensor
    v: Tensor

    def gradient(self) -> Tensor:
        """C = Re(λ̄ S), S = v̄ uᵀ / (v* u): ρ times the gradient of ρ(T)."""
        overlap = (self.v.mH @ self.u).squeeze()
        return (self.v.conj() @ (self.u.mT * (self.value.conjugate() / overlap))).real.contiguous()

    def residual(self, T: Tensor) -> float:
        """The larger of ‖T u − λ u‖ and ‖Tᵀ v − λ̄ v‖."""
        T = T.to(self.u.dtype)
        of_u = torch.linalg.vector_norm(T @ self.u - self.value * self.u)
        of_v = torch.linalg.vector_norm(T.mT @ self.v - self.value.conjugate() * self.v)
        return max(float(of_u), float(of_v))

    def overlap(self) -> float:
        """|v* u|, the inverse of the condition number of λ."""
        return float((self.v.mH @ self.u).abs())


def inverse_iteration(T: Tensor, eigenvalues: Tensor, tolerance: float) -> Pair | None:
    """Return the dominant of these eigenvalues with its vectors.

    None where another eigenvalue is closer to λ than ``tolerance`` ρ, or its condition number exceeds 1/``tolerance``.
    """
    dominant = eigenvalues[eigenvalues.abs().argmax()]
    if closest(eigenvalues, dominant) <= tolerance * abs(dominant.item()):
        return None
    if dominant.imag == 0:
        dominant = dominant.real
    # Inverse iteration. The shift misses λ by enough for a sound LU and by far less than the gap, so a few steps do.
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
    """Return the distance from one of the eigenvalues to the nearest other."""
    return float((eigenvalues - one).abs().kthvalue(2).values) if len(eigenvalues) > 1 else math.inf


RADII = ("exact", "power")
BLOCK = 8
"""eigenvalues that the power method follows, the largest ones"""
ROUNDS, PRODUCTS = 20, 6
"""of the power method: each round multiplies a few times and takes the best of all powers"""


def power_method(
    T: Tensor, right: Tensor, left: Tensor, tolerance: float, precision: float
) -> tuple[Pair | None, Tensor, Tensor]:
    """Return the dominant eigenvalue of T, and the spaces (n, `BLOCK`) of T and Tᵀ from which to go on.

    The pair is None where its residual stays above ``precision`` ρ or another eigenvalue is within ``tolerance`` ρ.
    """
    for _ in range(ROUNDS):
        Q, P = powers(T, right), powers(T.mT, left)
        B, C = Q.mT @ (T @ Q), P.mT @ (T.mT @ P)
        values, vectors = torch.linalg.eig(B)
        left_values, left_vectors = torch.linalg.eig(C)
        moduli = values.abs()
        dominant = values[moduli.argmax()]
        rho, block = abs(dominant.item()), right.shape[1]
        if closest(values, dominant) <= tolerance * rho or not 0 < rho < math.inf:
            break
        right, left = Q @ leading_space(values, vectors, block), P @ leading_space(left_values, left_vectors, block)
        u = Q.to(values.dtype) @ vectors[:, moduli.argmax(), None]
        v = P.to(values.dtype) @ left_vectors[:, (left_values - dominant.conj()).abs().argmin(), None]
        overlap = (v.mH @ u).squeeze()
        quotient = (v.mH @ (T.to(u.dtype) @ u)).squeeze() / overlap  # its error is the product of both residuals
        pair = Pair(quotient.item(), u, v)
        if pair.overlap() > tolerance and pair.residual(T) <= precision * rho:
            return pair, right, left
    return None, right, left


def powers(T: Tensor, X: Tensor) -> Tensor:
    """Return an orthonormal basis of X, T X, T² X, …"""
    columns = [X]
    for _ in range(PRODUCTS):
        columns.append(T @ columns[-1])
    return torch.linalg.qr(torch.cat(columns, dim=1)).Q


def norm_estimate(M: Tensor) -> float:
    """Return ‖M‖₂ by ten iterations with MᵀM, which may fall short by a few percent, and a quarter more."""
    x = probes(M, 1).mT
    for _ in range(10):
        x = M.mT @ (M @ (x / torch.linalg.vector_norm(x).clamp_min(torch.finfo(x.dtype).tiny)))
    return 1.25 * float(torch.linalg.vector_norm(x)) ** 0.5


def leading_space(values: Tensor, vectors: Tensor, block: int) -> Tensor:
    """Return an orthonormal basis (n, block) of the eigenvectors that belong to the largest eigenvalues."""
    order = values.abs().argsort(descending=True)
    order = order[values[order].imag >= 0]  # of a complex pair one will do: its real and its imaginary part
    upper, paired = vectors[:, order], values[order].imag > 0
    parts = torch.stack([upper.real, upper.imag], dim=2).flatten(1)
    there = torch.stack([torch.ones_like(paired), paired], dim=1).flatten()  # a real vector has no imaginary part
    return torch.linalg.qr(parts[:, there][:, :block]).Q


def eigenvalue_normalized(size: int, *, epsilon: float = 0.0, radius: str = "exact", init: str = "disc") -> Matrix:
    """Return an `EigenvalueNormalized` matrix with its start."""
    map = EigenvalueNormalized(size, epsilon, radius)
    return Matrix(map, free_tensor(init, map))
