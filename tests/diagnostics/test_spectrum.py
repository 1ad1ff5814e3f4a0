"""Spectra and powers against closed forms, the pseudospectrum against a fine grid."""

import math

import pytest
import torch

from steadygrad.diagnostics import chain, power_norms, pseudospectral_radius, spectrum


def scaled_orthogonal(size=6, radius=0.9):
    torch.manual_seed(0)
    return radius * torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q


def test_spectrum_of_normal_matrix_has_no_transient_growth():
    found = spectrum(scaled_orthogonal())
    torch.testing.assert_close(found.eigenvalues.abs(), torch.full((6,), 0.9, dtype=torch.float64))
    torch.testing.assert_close(found.singular_values, torch.full((6,), 0.9, dtype=torch.float64))
    assert found.departure < 1e-6
    assert (found.largest_power, found.at) == (1.0, 0)
    assert found.pseudospectral_radius == pytest.approx(0.9 + 1e-2, rel=1e-9)


def test_power_norms_of_chain_grow_then_vanish():
    norms = power_norms(chain(10, 1.1), 12)
    torch.testing.assert_close(norms[:10], 1.1 ** torch.arange(10, dtype=torch.float64))
    assert not norms[10:].any()
    found = spectrum(chain(10, 1.1))
    assert (found.radius, found.at) == (0.0, 9)
    assert found.pseudospectral_radius > 0.5


def pseudospectral_radius_on_grid(W, epsilon):
    """The largest |z| with σ_min ≤ ε on 180 rays, in steps of 0.01."""
    best = 0.0
    for angle in torch.linspace(0, 2 * math.pi, 181)[:-1].tolist():
        z = complex(math.cos(angle), math.sin(angle))
        radii = torch.linspace(0, 2, 201, dtype=torch.float64)
        I = torch.eye(len(W), dtype=torch.complex128)
        smallest = torch.linalg.svdvals(radii[:, None, None] * z * I - W)[:, -1]
        inside = radii[smallest <= epsilon]
        best = max(best, float(inside.max()) if len(inside) else 0.0)
    return best


@pytest.mark.parametrize("epsilon", [0.3, 0.05])
@pytest.mark.parametrize("kind", ["chain", "random", "singular", "scalar"])
def test_pseudospectral_radius_matches_grid_search(kind, epsilon):
    torch.manual_seed(1)
    W = {
        "chain": chain(5, 0.9, 0.1, 0.3),
        "random": torch.randn(4, 4, dtype=torch.float64) / 2,
        "singular": torch.diag(torch.tensor([0.5, 0.0, -0.7])).double() + chain(3, 0.6),
        "scalar": torch.tensor([[0.4]], dtype=torch.float64),
    }[kind]
    assert pseudospectral_radius(W, epsilon) == pytest.approx(pseudospectral_radius_on_grid(W, epsilon), abs=0.012)


def test_epsilon_is_positive():
    with pytest.raises(ValueError, match="epsilon above 0; got 0"):
        pseudospectral_radius(torch.eye(2), 0)
