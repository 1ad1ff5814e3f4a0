"""How a recurrent matrix transforms a signal: its eigenvalues for the long run, its powers for the transients."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from steadygrad.matrices.measures import (
    departure_from_normality,
    doubled,
    eigenvalues_of,
    largest_singular_values,
    spectral_radius,
)


@dataclass(frozen=True)
class Spectrum:
    """Spectral measures of a matrix W (N, N): eigenvalues, singular values, distance from normal, transients.

    ``eigenvalues`` (N,) are complex, the largest modulus first, and ``singular_values`` (N,) real, the largest first.
    ``radius`` is the spectral radius ρ and ``departure`` the departure from normality, 0 for a normal W.
    ``largest_power`` is max ‖Wᵏ‖₂ and ``at`` its k. ``pseudospectral_radius`` belongs to ε = ``epsilon``; a value above
    ρ + ε indicates transients.
    """

    eigenvalues: Tensor
    singular_values: Tensor
    radius: float
    departure: float
    largest_power: float
    at: int
    pseudospectral_radius: float
    epsilon: float


def spectrum(W: Tensor, powers: int = 200, epsilon: float = 1e-2) -> Spectrum:
    """Return the `Spectrum` of W (N, N), computed in double precision.

    The powers Wᵏ are computed for k = 0 … ``powers``. ``epsilon`` is that of `pseudospectral_radius`.
    """
    W = doubled(W)
    eigenvalues = eigenvalues_of(W)
    norms = power_norms(W, powers)
    return Spectrum(
        eigenvalues=eigenvalues[eigenvalues.abs().argsort(descending=True)],
        singular_values=torch.linalg.svdvals(W),
        radius=spectral_radius(W),
        departure=departure_from_normality(W),
        largest_power=float(norms.max()),
        at=int(norms.argmax()),
        pseudospectral_radius=pseudospectral_radius(W, epsilon),
        epsilon=epsilon,
    )


def power_norms(W: Tensor, steps: int) -> Tensor:
    """Return ‖Wᵏ‖₂ for k = 0 … steps, in double precision: a tensor (steps + 1,) that begins with 1."""
    W = doubled(W)
    power = torch.eye(len(W), dtype=W.dtype, device=W.device)
    norms = [torch.ones((), dtype=torch.float64, device=W.device)]
    for _ in range(steps):
        power = W @ power
        norms.append(largest_singular_values(power[None])[0])
    return torch.stack(norms)


def pseudospectral_radius(W: Tensor, epsilon: float) -> float:
    """Return max |z| with σ_min(zI − W) ≤ ε: the largest spectral radius that a change of W by ε can cause.

    W is (N, N), σ_min the smallest singular value and ε = ``epsilon``, which must be above 0, else ValueError is
    raised. The change is a matrix E with ‖E‖₂ ≤ ε.

    This is the criss-cross search of Mengi & Overton (2005). It follows a ray outwards to the boundary of the
    pseudospectrum, finds the arcs inside the pseudospectrum on the circle of that radius, and follows the rays through
    the middles of these arcs. It converges quadratically.
    """
    if not epsilon > 0:
        raise ValueError(f"pseudospectral_radius expects epsilon above 0; got {epsilon!r}")
    W = W.detach().to(torch.complex128)
    eigenvalues = eigenvalues_of(W)
    angles = [float(eigenvalues[eigenvalues.abs().argmax()].angle())]
    radius = 0.0
    for _ in range(50):
        reached = max(outermost(W, epsilon, angle) for angle in angles)
        if reached <= radius * (1 + 1e-12):
            break
        radius = reached
        angles = arcs(W, epsilon, radius) or angles
    return radius


def outermost(W: Tensor, epsilon: float, angle: float) -> float:
    """Return the largest r such that ε is a singular value of r e^{iθ} I − W; 0.0 if there is none.

    W is complex (N, N), ε is ``epsilon`` and θ is ``angle``. r is the largest real eigenvalue of a matrix of twice the
    size.
    """
    turn, I = complex(math.cos(angle), math.sin(angle)), torch.eye(len(W), dtype=W.dtype, device=W.device)
    found = eigenvalues_of(block(turn * W.mH, epsilon * I, epsilon * I, turn.conjugate() * W))
    real = found[found.imag.abs() < 1e-8 * (1 + found.abs().max())].real
    return float(real.max()) if len(real) else 0.0


def arcs(W: Tensor, epsilon: float, radius: float) -> list[float]:
    """Return the angles of the middles of the arcs of the circle |z| = radius on which σ_min(zI − W) < ε, as a list.

    W is complex (N, N), σ_min is the smallest singular value and ε is ``epsilon``.
    """
    I = torch.eye(len(W), dtype=W.dtype, device=W.device)
    P, Q = block(epsilon * I, W, radius * I, 0 * I), block(0 * I, radius * I, W.mH, epsilon * I)
    shift = 0.3 + 0.4j  # P − λQ may be singular at λ = 0 or ∞, but hardly at this shift
    found = shift + 1 / eigenvalues_of(torch.linalg.solve(P - shift * Q, Q))
    on_circle = found[(found.abs() - 1).abs() < 1e-6]
    crossings = sorted(on_circle.angle().tolist())
    ends = [*crossings[1:], *(angle + 2 * math.pi for angle in crossings[:1])]
    middles = [(begin + end) / 2 for begin, end in zip(crossings, ends, strict=True)]
    points = {angle: radius * complex(math.cos(angle), math.sin(angle)) for angle in middles}
    return [angle for angle, z in points.items() if torch.linalg.svdvals(z * I - W)[-1] < epsilon]


def block(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Return the block matrix [[a, b], [c, d]]."""
    return torch.cat([torch.cat([a, b], dim=1), torch.cat([c, d], dim=1)])
