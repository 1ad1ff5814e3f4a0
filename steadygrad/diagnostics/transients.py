"""Transients: what a non-normal matrix does before its eigenvalues take over (Kerg et al., 2019)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steadygrad.matrices import ComplexSchur, Matrix, RealSchur
from steadygrad.matrices.complex import Realified
from steadygrad.matrices.measures import doubled


def trajectories(W: Tensor, steps: int, samples: int = 100, seed: int = 0) -> Tensor:
    """h_t = Wᵗ h_0 for t = 0 … steps from random h_0 on the unit sphere: (samples, steps + 1, N) (nnRNN, figure 1b)."""
    W = doubled(W)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(samples, len(W), dtype=W.dtype, device="cpu", generator=generator).to(W.device)
    states = [nn.functional.normalize(start, dim=1)]
    for _ in range(steps):
        states.append(states[-1] @ W.mT)
    return torch.stack(states, dim=1)


def unit_triangular(size: int, x: float) -> Tensor:
    """1 on the diagonal, x above it: entry (i, j) of its t-th power is a polynomial in t of degree j − i.

    So a matrix whose eigenvalues all lie on the unit circle lets gradients grow polynomially at the most, never
    exponentially (thesis, proposition 3.4.2).
    """
    return torch.eye(size, dtype=torch.float64) + x * torch.ones(size, size, dtype=torch.float64).triu(1)


@dataclass(frozen=True)
class LearnedSchur:
    """Λ and T that an nnRNN has learned: ``mean_by_subdiagonal[k − 1]`` is the mean |T| k below the diagonal."""

    angles: Tensor
    moduli: Tensor
    T: Tensor
    mean_by_subdiagonal: Tensor

    @property
    def transient_share(self) -> float:
        """‖T‖_F / ‖Λ + T‖_F, as if T left the blocks alone: 0 for a normal matrix."""
        # as many moduli as angles and fewer than units: blocks γ rot(θ) with ‖·‖_F² = 2 γ², and a last γ of an odd size
        paired = len(self.moduli) < len(self.T)
        blocks = torch.full_like(self.moduli, 2.0 if paired else 1.0)
        blocks[len(self.angles) :] = 1.0
        rotations, transients = (blocks * self.moduli.square()).sum(), self.T.abs().square().sum()
        return float((transients / (transients + rotations)).sqrt())


def learned_schur(module: nn.Module) -> dict[str, LearnedSchur]:
    """Of every Schur-form matrix inside, by its name (nnRNN, figures 3 and 5). Angles lie in [0, 2π)."""
    found = schur_forms(module)
    if not found:
        raise ValueError(f"learned_schur expects a module with a Schur-form matrix; {type(module).__name__} has none")
    return found


def schur_forms(module: nn.Module) -> dict[str, LearnedSchur]:
    """The same, empty where there is none."""
    found = {}
    for name, part in module.named_modules():
        map = getattr(part, "map", None)
        map = map.inner if isinstance(map, Realified) else map
        if isinstance(part, Matrix) and isinstance(map, RealSchur | ComplexSchur):
            _, theta, gamma, packed = (free.detach() for free in part.free)
            T = map.transients(packed)
            means = [T.diagonal(-k).abs().mean() for k in range(1, len(T))]
            means_by = torch.stack(means) if means else gamma.new_zeros(0)
            found[name] = LearnedSchur(theta % (2 * math.pi), gamma, T, means_by)
    return found
