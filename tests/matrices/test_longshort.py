"""The block matrix of ENRNN."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from steadygrad.matrices import (
    Exponential,
    Free,
    LongShort,
    build,
    orthogonality_error,
    spectral_radius,
)
from tests.rounding import rounding

parts = st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(any)


@given(parts, st.booleans())
def test_block_structure_and_number_of_parameters(sizes, coupling):
    q, m = sizes
    matrix = build({"name": "longshort", "short_size": m, "coupling": coupling}, q + m)
    W = matrix()
    assert not W[q:, :q].any()
    assert q == 0 or orthogonality_error(W[:q, :q]) < rounding(torch.float32, q, operations=4)
    if q and m and coupling:
        assert torch.equal(W[:q, q:], matrix.packed()[2])
        assert W[:q, q:].any()
    else:
        assert not W[:q, q:].any()
    assert len(matrix.packed()) == (q > 0) + (m > 0) + bool(q and m and coupling)


@given(parts)
def test_spectral_radius_is_independent_of_coupling(sizes):
    q, m = sizes
    free = [torch.randn(q * (q - 1) // 2, dtype=torch.float64)] * (q > 0) + [
        3 * torch.randn(m, m, dtype=torch.float64)
    ] * (m > 0)
    free += [100 * torch.randn(q, m, dtype=torch.float64)] * bool(q and m)
    W = LongShort(q, m).double()(*free)
    assert spectral_radius(W) <= 1 + 1e-10
    if q:
        assert spectral_radius(W) >= 1 - 1e-10


def test_coupling_starts_with_glorot_bounds():
    C = build("longshort", 100).free[2]
    assert C.shape == (60, 40)
    assert 0.9 * (6 / 100) ** 0.5 < C.abs().max() <= (6 / 100) ** 0.5


@pytest.mark.parametrize("short_size", [3, 5, 7])
def test_orthogonal_coupling_init_has_orthonormal_rows_or_columns(short_size):
    C = build({"name": "longshort", "short_size": short_size, "coupling_init": "orthogonal"}, 10).free[2]
    assert C.shape == (10 - short_size, short_size)
    gram = C.mT @ C if C.shape[0] >= C.shape[1] else C @ C.mT
    assert (gram - torch.eye(len(gram))).abs().max() < rounding(torch.float32, 10, operations=2)
    with pytest.raises(ValueError, match="coupling_init to be one of xavier, orthogonal; got 'haar'"):
        build({"name": "longshort", "coupling_init": "haar"}, 4)


def test_short_part_supports_power_method_radius():
    torch.manual_seed(0)
    matrix = build({"name": "longshort", "radius": "power", "short_size": 12}, 20)
    assert matrix.map.short.radius == "power"
    with torch.no_grad():
        matrix.packed()[1].mul_(5)
    for _ in range(3):
        assert spectral_radius(matrix()[8:, 8:]) <= 1


def test_custom_long_and_short_maps():
    map = LongShort(4, 3, long=Exponential, short=Free, coupling=False)
    T = 5 * torch.randn(3, 3)
    W = map(torch.randn(6), T)
    assert orthogonality_error(W[:4, :4]) < rounding(torch.float32, 4, operations=10)  # exp of ‖A‖ ≈ 3
    assert torch.equal(W[4:, 4:], T)


@pytest.mark.parametrize("sizes", [(3, 2), (5, 0), (0, 5)])
def test_register_parametrization_bounds_spectral_radius(sizes):
    layer = nn.Linear(5, 5, bias=False)
    register_parametrization(layer, "weight", LongShort(*sizes), unsafe=True)  # one tensor becomes up to three
    W = layer.weight
    assert spectral_radius(W) <= 1 + 1e-6
    assert not W[sizes[0] :, : sizes[0]].any()


def test_right_inverse_recovers_parameters():
    map = LongShort(4, 3).double()
    free = torch.randn(6), 0.1 * torch.randn(3, 3), torch.randn(4, 3)
    free = [f.double() for f in free]
    for found, original in zip(map.right_inverse(map(*free)), free, strict=True):
        torch.testing.assert_close(found, original)


def test_invalid_input_raises_value_error():
    with pytest.raises(ValueError, match="two sizes of at least 0, not both 0; got long 0, short 0"):
        LongShort(0, 0)
    with pytest.raises(ValueError, match="got long 3, short -1"):
        LongShort(3, -1)
    with pytest.raises(ValueError, match="free tensors A, T, C; got 2"):
        LongShort(2, 2)(torch.zeros(1), torch.eye(2))
    with pytest.raises(ValueError, match="free tensors T; got 3"):
        LongShort(0, 2)(torch.zeros(1), torch.eye(2), torch.eye(2))
    with pytest.raises(ValueError, match=r"coupling C of shape \(2, 3\); got \(3, 2\)"):
        LongShort(2, 3)(torch.zeros(1), torch.eye(3), torch.zeros(3, 2))
