"""Unitary evolution: a product of cheap unitary matrices (Arjovsky, Shah & Bengio, 2016)."""

import math

import torch
from torch import Tensor, nn

from steadygrad.kernels import Operator
from steadygrad.matrices.complex import phases
from steadygrad.matrices.matrix import Matrix, check_size


class UnitaryEvolution(nn.Module):
    """W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁,  D = diag(e^{iθ}), R = I − 2 v vᴴ/‖v‖², F the Fourier transform, Π a permutation.

    7 n numbers, and n log n operations for a product with a vector. It reaches a small part of the unitary matrices
    only: there are n² dimensions of them, so for n > 7 most are out of its reach.
    """

    permutation: Tensor

    complex = True
    kinds = ("angle", "reflector")
    operator_from = 512
    """size from which stepping without W is faster"""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("UnitaryEvolution", size)
        self.register_buffer("permutation", torch.randperm(size))

    def operator(self, angles: Tensor, reflectors: Tensor) -> Operator:
        D1, D2, D3 = phases(angles)
        v = torch.complex(reflectors[:, 0], reflectors[:, 1])
        R1, R2 = v / v.norm(dim=1, keepdim=True)
        permutation = self.permutation

        def multiply(h: Tensor) -> Tensor:
            h = reflected(torch.fft.fft(h * D1, norm="ortho"), R1)[:, permutation]
            return reflected(torch.fft.ifft(h * D2, norm="ortho"), R2) * D3

        return multiply

    def forward(self, angles: Tensor, reflectors: Tensor) -> Tensor:
        """W from three times n angles and two reflectors, each as real and imaginary part: (3, n), (2, 2, n)."""
        I = torch.eye(self.size, dtype=angles.dtype.to_complex(), device=angles.device)
        return self.operator(angles, reflectors)(I).mT

    def extra_repr(self) -> str:
        return f"size={self.size}"


def reflected(h: Tensor, v: Tensor) -> Tensor:
    """Rows h (I − 2 v vᴴ)ᵀ for ‖v‖ = 1."""
    return h - 2 * (h @ v.conj())[:, None] * v


def unitary_evolution(size: int) -> Matrix:
    """θ ~ U(−π, π), v ~ U(−1, 1), as the authors start it."""
    map = UnitaryEvolution(size)
    angles = torch.empty(3, size).uniform_(-math.pi, math.pi)
    return Matrix(map, angles, torch.empty(2, 2, size).uniform_(-1, 1))
