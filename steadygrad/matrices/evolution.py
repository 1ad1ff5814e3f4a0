"""Unitary evolution: a product of cheap unitary matrices (Arjovsky, Shah & Bengio, 2016)."""

import math

import torch
from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.kernels import Operator, needs_plain
from steadygrad.matrices.complex import nearest_unitary, phases
from steadygrad.matrices.least_squares import search
from steadygrad.matrices.matrix import Matrix, check_square, is_orthogonal
from steadygrad.matrices.registry import entered

ATTEMPTS = 40
"""number of random starts from which `UnitaryEvolution.right_inverse` searches"""
LARGEST_SEARCH = 32
"""largest size for which `UnitaryEvolution.right_inverse` searches; its memory grows as n³"""


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

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return the angles and reflectors of W, a tuple, found by least squares from random starts.

        A W that is not unitary is replaced by a matrix of the map near to it. A unitary W for which the search finds
        nothing raises ValueError. For sizes up to 32 the search finds most matrices of the map. Sizes of 6 to 10, where
        W has hardly more numbers than the map has parameters, are the hardest. For larger sizes there is no search: a W
        that is not unitary gives a new random start.
        """
        check_square("UnitaryEvolution", W, self.size)
        n, given = self.size, is_orthogonal(W)
        U = nearest_unitary(W)

        def split(x: Tensor) -> tuple[Tensor, Tensor]:
            return x[: 3 * n].view(3, n), x[3 * n :].view(2, 2, n)

        def start() -> Tensor:
            angles = torch.empty(3 * n).uniform_(-math.pi, math.pi)
            return torch.cat([angles, torch.empty(4 * n).uniform_(-1, 1)]).to(U.real)

        if n > LARGEST_SEARCH and given:
            raise ValueError(
                f"UnitaryEvolution finds the parameters of a unitary matrix up to size {LARGEST_SEARCH}; got size {n}. "
                "Copy the free tensors of the other map, or its state dict, in place of its matrix"
            )
        if n > LARGEST_SEARCH:
            x = start()
        else:
            enough = torch.finfo(W.dtype).eps * n
            attempts = ATTEMPTS if given else 1
            x, loss = search(lambda x: torch.view_as_real(self(*split(x)) - U).flatten(), start, attempts, enough**2)
            if given and not loss <= enough:
                raise ValueError(
                    f"UnitaryEvolution has found no parameters of this unitary matrix in {attempts} attempts; most "
                    "unitary matrices have none. Copy the free tensors of the other map, or its state dict, in place "
                    "of its matrix"
                )
        angles, reflectors = split(x)
        return angles.to(W.real.dtype), reflectors.to(W.real.dtype)

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
