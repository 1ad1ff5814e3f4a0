"""Transients: how a non-normal matrix acts before its eigenvalues dominate (Kerg et al., 2019)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steadygrad.matrices import ComplexSchur, Matrix, RealSchur
from steadygrad.matrices.complex import Realified
from steadygrad.matrices.measures import doubled


def trajectories(W: Tensor, steps: int, samples: int = 100, seed: int = 0) -> Tensor:
    """Return h_t = Wᵗ h_0 for t = 0 … steps from random unit vectors h_0 (nnRNN, figure 1b).

    The shape is (samples, steps + 1, N) for W (N, N), in double precision. ``seed`` determines the h_0.
    """
    W = doubled(W)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(samples, len(W), dtype=W.dtype, device="cpu", generator=generator).to(W.device)
    states = [nn.functional.normalize(start, dim=1)]
    for _ in range(steps):
        states.append(states[-1] @ W.mT)
    return torch.stack(states, dim=1)


def unit_triangular(size: int, x: float) -> Tensor:
    """Return the matrix (size, size) with 1 on the diagonal and x everywhere above it, in double precision.

    Entry (i, j) of its t-th power is a polynomial in t of degree j − i. So gradients grow at most polynomially, never
    exponentially, if all eigenvalues of a matrix lie on the unit circle (thesis, proposition 3.4.2).
    """
    return torch.eye(size, dtype=torch.float64) + x * torch.ones(size, size, dtype=torch.float64).triu(1)


@dataclass(frozen=True)
class LearnedSchur:
    """The Schur form Λ + T that an nnRNN has learned: angles and moduli of the rotations Λ, and the transients T.

    For N real units ``angles`` are (⌊N/2⌋,) and ``moduli`` (⌈N/2⌉,), one for each 2 × 2 block of Λ; an odd N ends with
    a modulus alone. For complex units both are (N,), and T is complex. ``T`` is (N, N), strictly lower
    triangular.
    ``mean_by_subdiagonal[k − 1]`` is the mean |T| on sub-diagonal k, (N − 1,).
    """

    angles: Tensor
    moduli: Tensor
    T: Tensor
    mean_by_subdiagonal: Tensor

    @property
    def transient_share(self) -> float:
        """Share of the transients, ‖T‖_F / ‖Λ + T‖_F, from 0 (W is normal) to 1.

        It is computed as if T had no entries inside the blocks of Λ.
        """
        # fewer moduli than units: Λ has blocks γ rot(θ) with ‖·‖_F² = 2 γ² and, for an odd size, a last 1 × 1 block γ
        paired = len(self.moduli) < len(self.T)
        blocks = torch.full_like(self.moduli, 2.0 if paired else 1.0)
        blocks[len(self.angles) :] = 1.0
        rotations, transients = (blocks * self.moduli.square()).sum(), self.T.abs().square().sum()
        return float((transients / (transients + rotations)).sqrt())


def learned_schur(module: nn.Module) -> dict[str, LearnedSchur]:
    """Return a dict of a `LearnedSchur` for every Schur-form matrix of a module (nnRNN, figures 3 and 5).

    The keys are the names of the matrices in ``named_modules()``. The angles lie in [0, 2π). All tensors are detached.
    Raise ValueError if there is no such matrix.
    """
    found = schur_forms(module)
    if not found:
        raise ValueError(f"learned_schur expects a module with a Schur-form matrix; {type(module).__name__} has none")
    return found


def schur_forms(module: nn.Module) -> dict[str, LearnedSchur]:
    """Return the dict that `learned_schur` returns; an empty dict if the module has no Schur-form matrix."""
    found = {}
    for name, part in module.named_modules():
        map = getattr(part, "map", None)
        map = map.inner if isinstance(map, Realified) else map
        if isinstance(part, Matrix) and isinstance(map, RealSchur | ComplexSchur):
            _, theta, gamma, packed = (free.detach() for free in part.packed())
            T = map.transients(packed)
            means = [T.diagonal(-k).abs().mean() for k in range(1, len(T))]
            means_by = torch.stack(means) if means else gamma.new_zeros(0)
            found[name] = LearnedSchur(theta % (2 * math.pi), gamma, T, means_by)
    return found
