"""Matrices whose spectral radius may not exceed 1, by normalisation (Helfrich & Ye, 2020)."""

import sys
from typing import Any

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
    """

    from_skew = False
    normalised: Tensor
    multiple: Tensor

    def __init__(self, size: int, epsilon: float = 0.0) -> None:
        super().__init__()
        self.size = check_size("EigenvalueNormalized", size)
        if not is_between(epsilon, 0, sys.float_info.max):
            raise ValueError(f"EigenvalueNormalized expects a finite epsilon of at least 0; got {epsilon!r}")
        self.epsilon = epsilon
        self.register_buffer("normalised", torch.tensor(False))
        self.register_buffer("multiple", torch.tensor(0))

    def forward(self, T: Tensor) -> Tensor:
        check_square("EigenvalueNormalized", T, self.size)
        if needs_plain(T):
            return self._plain(T)
        # in double precision, because the rounding errors of single precision alone move ρ by more than 1e-6
        T64 = T.detach().double()
        if not self.normalised and surely_below_one(T64):
            return T
        eigenvalues = torch.linalg.eigvals(T64)
        dominant = eigenvalues[eigenvalues.abs().argmax()]
        rho = abs(dominant.item())
        if rho > 1:
            self.normalised.fill_(True)
        if not self.normalised or rho == 0:
            return T
        C = None
        if torch.is_grad_enabled() and T.requires_grad:
            # a double eigenvalue, once rounded, is two that lie √eps apart
            tolerance = max(torch.finfo(T.dtype).eps ** 0.5, 1e-6)
            C = radius_gradient(T64, eigenvalues, dominant, tolerance)
            C = None if C is None else C.to(T.dtype)
            self.multiple += C is None
        # a few units in the last place larger than ρ + ε, so that rounding W cannot carry it past 1
        scale = (rho + self.epsilon) * (1 + 4 * torch.finfo(T.dtype).eps)
        return Normalised.apply(T, scale, rho, C)

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
        return f"size={self.size}, epsilon={self.epsilon}"


def surely_below_one(T: Tensor) -> bool:
    """Whether ρ(T) < 1 follows from ρ(T)ᵏ ≤ ‖Tᵏ‖_F for k = 1, 2, 4 … 512: products are far cheaper than eigenvalues."""
    for _ in range(10):
        norm = float(torch.linalg.vector_norm(T))
        if norm < 0.5 or not norm < 1e3:  # far enough from 1, and from overflow, for rounding not to matter
            return norm < 0.5
        T = T @ T
    return False


def radius_gradient(T: Tensor, eigenvalues: Tensor, dominant: Tensor, tolerance: float) -> Tensor | None:
    """C = Re(λ̄ S), S = v̄ uᵀ / (v* u), with T u = λ u and v* T = λ v*: ρ times the gradient of ρ(T).

    None where another eigenvalue is closer to λ than ``tolerance`` ρ, or its condition number exceeds 1/``tolerance``.
    """
    rho = abs(dominant.item())
    gaps = (eigenvalues - dominant).abs()
    if len(T) > 1 and float(gaps.kthvalue(2).values) <= tolerance * rho:  # the smallest is λ to itself
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
    overlap = (v.mH @ u).squeeze()
    complex_T = T.to(M.dtype)
    residual = max(
        float(torch.linalg.vector_norm(complex_T @ u - dominant * u)),
        float(torch.linalg.vector_norm(complex_T.mT @ v - dominant.conj() * v)),
    )
    if not (float(overlap.abs()) > tolerance and residual < 1e-8 * float(torch.linalg.vector_norm(T))):
        return None
    return (v.conj() @ (u.mT * (dominant.conj() / overlap))).real.contiguous()


def eigenvalue_normalized(size: int, *, epsilon: float = 0.0, init: str = "disc") -> Matrix:
    map = EigenvalueNormalized(size, epsilon)
    return Matrix(map, free_tensor(init, map))
