"""Trajectories, powers and learned Schur forms against what theory says of them."""

import math

import pytest
import torch
from torch import nn

from steadygrad.diagnostics import chain, learned_schur, power_norms, trajectories, unit_triangular
from steadygrad.layers import NNRNN
from steadygrad.matrices import Matrix
from steadygrad.matrices.complex_cayley import complex_cayley


def test_trajectories_of_chain_vanish_after_its_length():
    states = trajectories(chain(12, 1.05, 0.005), steps=15, samples=20)
    assert states.shape == (20, 16, 12)
    torch.testing.assert_close(states[:, 0].norm(dim=1), torch.ones(20, dtype=torch.float64))
    assert states[:, 11].any()
    assert not states[:, 12:].any()


def test_a_unitary_matrix_keeps_every_length():
    W = complex_cayley(8)()
    states = trajectories(W, 6)
    assert states.is_complex()
    torch.testing.assert_close(states.norm(dim=-1), torch.ones(100, 7, dtype=torch.float64), rtol=1e-5, atol=0)


def test_amplification_grows_with_alpha():
    sizes = [trajectories(chain(30, alpha), 10)[:, -1].norm().item() for alpha in (0.95, 1.0, 1.05)]
    assert sizes[1] / sizes[0] == pytest.approx(0.95**-10)
    assert sizes[2] / sizes[1] == pytest.approx(1.05**10)


@pytest.mark.parametrize("gap", [1, 2, 3])
def test_powers_of_a_unit_triangular_matrix_are_polynomials_in_time(gap):
    """Differences of order gap + 1 vanish, those of order gap do not: the degree is the distance from the diagonal."""
    A = unit_triangular(5, 0.5)
    entries = torch.stack([torch.linalg.matrix_power(A, t)[0, gap] for t in range(1, 12)])
    assert torch.diff(entries, n=gap + 1).abs().max() < 1e-9
    assert torch.diff(entries, n=gap).abs().min() > 1e-3


def test_power_norms_of_unit_triangular_matrix_grow_polynomially():
    norms = power_norms(unit_triangular(4, 0.3), 400)
    assert norms[400] / norms[200] < 2**3.1  # t³, where even 1.05ᵗ would give 17,000


@pytest.mark.parametrize(("size", "in_block"), [(6, False), (7, False), (6, True)])
def test_learned_schur_matches_matrix_parameters(size, in_block):
    torch.manual_seed(0)
    layer = NNRNN(3, size, in_block=in_block).double()
    (matrix,) = (part for part in layer.modules() if isinstance(part, Matrix))
    start = learned_schur(layer)["weight_hh_l0"]
    assert (start.transient_share, bool(start.T.any())) == (0.0, False)
    with torch.no_grad():
        matrix.transient.copy_(torch.randn_like(matrix.transient))
    found = learned_schur(layer)["weight_hh_l0"]
    assert ((found.angles >= 0) & (found.angles < 2 * math.pi)).all()
    assert not found.T.triu().any()
    assert found.T.norm() == pytest.approx(float(matrix.transient.detach().norm()))
    torch.testing.assert_close(found.mean_by_subdiagonal[-1], found.T[-1, 0].abs())
    if not in_block:
        share = found.T.norm() / torch.linalg.matrix_norm(matrix().detach())
        assert found.transient_share == pytest.approx(float(share))


def test_learned_schur_rejects_module_without_schur_matrix():
    with pytest.raises(ValueError, match="GRU has none"):
        learned_schur(nn.GRU(2, 3))
