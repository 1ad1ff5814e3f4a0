"""Unitary evolution: a product of cheap unitary matrices (Arjovsky, Shah & Bengio, 2016)."""

import math

import torch
from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.kernels import Operator, needs_plain
from steadygrad.matrices.complex import phases
from steadygrad.matrices.matrix import Matrix
from steadygrad.matrices.registry import entered


class UnitaryEvolution(nn.Module):
    """Map W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁,  D = diag(e^{iθ}), R = I − 2 v vᴴ/‖v‖².

    F is the Fourier transform and Π a fixed permutation.

    W has 7n parameters, and a product with a vector takes O(n log n) operations. The unitary matrices have n²
    dimensions, so for n > 7 most of them cannot be represented.
    """

    permutation: Tensor

    complex = True
    kinds = ("angle", "reflector")
    operator_from = 512
    """size from which a time step is faster without forming W"""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("UnitaryEvolution", size)
        self.register_buffer("permutation", torch.randperm(size))

    def operator(self, angles: Tensor, reflectors: Tensor) -> Operator:
        """Return a function that maps complex rows h (batch, n) to rows h Wᵀ without forming W.

        ``angles`` is (3, n), and ``reflectors`` (2, 2, n) has the real and imaginary parts of two vectors v.
        """
        D1, D2, D3 = phases(angles)
        R1, R2 = unit_reflectors(reflectors)
        permutation = self.permutation

        def multiply(h: Tensor) -> Tensor:
            h = reflected(torch.fft.fft(h * D1, norm="ortho"), R1)[:, permutation]
            return reflected(torch.fft.ifft(h * D2, norm="ortho"), R2) * D3

        return multiply

    def forward(self, angles: Tensor, reflectors: Tensor) -> Tensor:
        """Return W (n, n), complex, from ``angles`` (3, n) and ``reflectors`` (2, 2, n), as in `operator`."""
        I = torch.eye(self.size, dtype=angles.dtype, device=angles.device)
        return self.operator(angles, reflectors)(torch.complex(I, torch.zeros_like(I))).mT

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}"


def unit_reflectors(reflectors: Tensor) -> Tensor:
    """Return the two complex vectors v, scaled to length 1, as rows (2, n).

    ``reflectors`` (2, 2, n) holds the real and imaginary parts of each. Raise ValueError if a vector is 0.
    """
    if not needs_plain(reflectors):
        largest = reflectors.detach().abs().amax((1, 2))
        first, second = sorted(largest.tolist())
        if first == 0:
            raise ValueError("UnitaryEvolution expects reflectors that have a direction; got one that is 0")
        if first < 1e-15 or second > 1e15:
            reflectors = reflectors / largest[:, None, None]  # so that no square overflows or underflows
    v = torch.complex(reflectors[:, 0], reflectors[:, 1])
    return v / v.norm(dim=1, keepdim=True)


def reflected(h: Tensor, v: Tensor) -> Tensor:
    """Return the rows h (batch, n) reflected at v (n): h (I − 2 v vᴴ)ᵀ for ‖v‖ = 1."""
    return h - 2 * (h @ v.conj())[:, None] * v


@entered("evolution", complex=True)
def unitary_evolution(size: int) -> Matrix:
    """Return a `Matrix` with the map `UnitaryEvolution`, initialised as by its authors: θ ~ U(−π, π), v ~ U(−1, 1)."""
    map = UnitaryEvolution(size)
    angles = torch.empty(3, size).uniform_(-math.pi, math.pi)
    return Matrix(map, angles, torch.empty(2, 2, size).uniform_(-1, 1))
