"""Non-normal complex matrices with a chosen spectrum, by the Schur form that Kerg et al. (2019) would prefer."""

import math

import torch
from torch import Tensor, nn

from steadygrad.check import check_size
from steadygrad.matrices import init as initialisers
from steadygrad.matrices.complex import below, complexify, phases, skew_hermitian, skew_hermitian_free
from steadygrad.matrices.complex_exponential import ComplexExponential
from steadygrad.matrices.exponential import skew_exponential
from steadygrad.matrices.matrix import Matrix, check_square, skew, skew_free
from steadygrad.matrices.measures import checked
from steadygrad.matrices.registry import entered
from steadygrad.matrices.schur import start_of_moduli
from steadygrad.matrices.schur_basis import any_vector, triangular_basis


class ComplexSchur(nn.Module):
    """Map W = P (Λ + T) Pᴴ,  P = exp(A), A skew-Hermitian, Λ = diag(γₖ e^{iθₖ}), T strictly lower triangular.

    Every complex matrix has this form. The eigenvalues are γₖ e^{iθₖ} for any P and T. There is one free eigenvalue
    per unit, whereas `RealSchur` has conjugate pairs.
    """

    complex = True
    kinds = ("skew", "angle", "modulus", "transient")

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = check_size("ComplexSchur", size)

    @staticmethod
    def free_sizes(size: int) -> tuple[int, int, int, int]:
        """Return how many real numbers the packed A, θ, γ and T hold, as a tuple of four."""
        return size * size, size, size, size * (size - 1)

    def forward(self, basis: Tensor, theta: Tensor, gamma: Tensor, T: Tensor) -> Tensor:
        """Return W = P (Λ + T) Pᴴ (n, n), complex, from four real vectors.

        ``basis`` is the packed skew-Hermitian A of P = exp(A). ``theta`` and ``gamma`` are the angles θ and moduli γ of
        the eigenvalues in Λ. ``T`` is the strictly lower triangular T, packed as in `transients`. Raise ValueError if a
        vector does not have the length in `free_sizes`.
        """
        free = {"basis": basis, "theta": theta, "gamma": gamma, "T": T}
        for (name, tensor), length in zip(free.items(), self.free_sizes(self.size), strict=True):
            if tensor.shape != (length,):
                raise ValueError(
                    f"ComplexSchur of size {self.size} expects {length} numbers in {name}; "
                    f"got shape {tuple(tensor.shape)}"
                )
        P = complexify(skew_exponential(skew_free(skew_hermitian(basis, self.size)), 2 * self.size))
        core = self.transients(T) + torch.diag(gamma * phases(theta))
        return P @ core @ P.mH

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the free tensors A, θ, γ and T of W, a tuple. They come from a Schur form, which every W has."""
        check_square("ComplexSchur", W, self.size)
        M = checked("ComplexSchur", W).to(torch.complex128)
        P = triangular_basis(M, any_vector)
        core = P.mH @ M @ P
        entries = core[tuple(below(self.size, -1, core.device))]
        values = core.diagonal()
        (A,) = ComplexExponential(self.size).right_inverse(P)
        free = A, values.angle(), values.abs(), torch.cat([entries.real, entries.imag])
        A, theta, gamma, T = (f.to(W.real.dtype) for f in free)
        return A, theta, gamma, T

    def transients(self, T: Tensor) -> Tensor:
        """Return the packed T as a strictly lower triangular complex matrix.

        Packed, T holds all real parts and then all imaginary parts of the entries below the diagonal, row by row.
        """
        entries = torch.complex(*T.chunk(2))
        return entries.new_zeros(self.size, self.size).index_put(tuple(below(self.size, -1, T.device)), entries)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}"


@entered("complex-schur", complex=True)
def complex_schur(size: int, *, init: str = "henaff", modulus: float | None = None) -> Matrix:
    """Return a `Matrix` with the map `ComplexSchur` that starts unitary: γ = 1, T = 0, θ ~ U(0, 2π).

    ``init`` is the skew initialiser of the basis P, which starts real. With ``modulus`` every γ has that value and is
    not trained.
    """
    if init not in initialisers.SKEW:
        raise ValueError(f"ComplexSchur expects init out of {', '.join(initialisers.SKEW)}; got {init!r}")
    A = skew(initialisers.SKEW[init](size), size)
    theta = torch.empty(size).uniform_(0, 2 * math.pi)
    gamma = start_of_moduli("ComplexSchur", size, modulus)
    basis = skew_hermitian_free(A.to(A.dtype.to_complex())).to(A.dtype)
    return Matrix(ComplexSchur(size), basis, theta, gamma, torch.zeros(size * (size - 1)))
