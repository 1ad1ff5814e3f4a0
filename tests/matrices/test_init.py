"""Starts: their shapes at odd and even sizes, their distributions, and how they reach each map."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.matrices import (
    EigenvalueNormalized,
    Exponential,
    Free,
    NeumannCayley,
    ScaledCayley,
    init,
    orthogonality_error,
    skew,
    spectral_radius,
)
from tests.rounding import rounding

INITIALISERS = init.SKEW | init.FULL
every_initialiser = pytest.mark.parametrize("name", INITIALISERS)


@every_initialiser
@given(size=st.integers(1, 9))
def test_initialiser_shape_dtype_and_generator(name, size):
    def draw(seed):
        return INITIALISERS[name](size, generator=torch.Generator().manual_seed(seed))

    value = draw(0)
    assert value.shape == ((size * (size - 1) // 2,) if name in init.SKEW else (size, size))
    assert value.dtype == torch.float32
    assert value.isfinite().all()
    assert torch.equal(value, draw(0))
    if name != "identity" and size > 1:
        assert not torch.equal(value, draw(1))


@every_initialiser
def test_initialiser_uses_default_dtype(name, double):
    assert INITIALISERS[name](5).dtype == torch.float64


@every_initialiser
def test_size_zero_raises_value_error(name):
    with pytest.raises(ValueError, match="size of at least 1; got 0"):
        INITIALISERS[name](0)


def superdiagonal_blocks(A):
    """What stands at (0, 1), (2, 3), … above the diagonal, after checking that all else is zero."""
    even = torch.arange(0, len(A) - 1, 2)
    s = A[even, even + 1].clone()
    rest = A.clone()
    rest[even, even + 1] = rest[even + 1, even] = 0
    assert not rest.any()
    return s


@pytest.mark.parametrize("size", [2000, 2001])
def test_henaff_and_cayley_angle_distributions(size):
    s = superdiagonal_blocks(skew(init.henaff(size), size))
    assert -math.pi <= s.min() < -3.1
    assert -0.04 < s.max() <= 0
    assert s.mean() == pytest.approx(-math.pi / 2, abs=0.15)
    s = superdiagonal_blocks(skew(init.henaff(size, two_sided=True), size))
    assert s.min() < -3.05
    assert s.max() > 3.05
    t = 2 * torch.atan(-superdiagonal_blocks(skew(init.cayley(size), size)))  # tan²(t/2) = (1 − cos t)/(1 + cos t)
    assert 0 <= t.min() < 0.03
    assert 1.54 < t.max() <= math.pi / 2 + rounding(torch.float32, 1, operations=4)
    assert t.mean() == pytest.approx(math.pi / 4, abs=0.08)


def test_haar_is_uniform():
    """E tr Q = 0 and E (tr Q)² = 1; plain QR fails the first."""
    traces = torch.stack([init.haar(6).trace() for _ in range(3000)])
    assert abs(traces.mean()) < 0.08
    assert traces.square().mean() == pytest.approx(1, abs=0.12)
    assert 0.4 < sum(bool(torch.linalg.det(init.haar(5)) > 0) for _ in range(200)) / 200 < 0.6


@pytest.mark.parametrize("determinant", [1, -1])
@pytest.mark.parametrize("size", [1, 4, 5])
def test_haar_has_requested_determinant(size, determinant):
    for _ in range(5):
        Q = init.haar(size, determinant=determinant)
        assert orthogonality_error(Q) < rounding(torch.float32, size)
        assert torch.linalg.det(Q).sign() == determinant


@pytest.mark.parametrize("size", [200, 201])
def test_disc_eigenvalues_lie_in_unit_disc(size):
    T = init.disc(size)
    assert 0.9 < spectral_radius(T) <= 1
    eigenvalues = torch.linalg.eigvals(T)
    assert (eigenvalues.abs() < 0.5).sum() == pytest.approx(size / 2, abs=size / 5)  # moduli are uniform
    assert (eigenvalues.real < 0).any()
    assert (eigenvalues.imag.abs() > 0.5).any()


def test_uniform_xavier_and_identity_values():
    assert 0.099 < init.uniform(100).abs().max() <= 0.1
    assert 0.17 < init.xavier(100).abs().max() <= 0.03**0.5
    assert torch.equal(init.identity(3), torch.eye(3))


@every_initialiser
@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize(
    "kind", [Free, EigenvalueNormalized, Exponential, ScaledCayley, NeumannCayley], ids=lambda k: k.__name__
)
def test_every_initialiser_works_with_every_map(name, kind, size):
    map = kind(size)
    if name == "disc" and size == 5 and isinstance(map, ScaledCayley):
        pytest.skip("its last block may be negative, and then no A leads there")
    W = map(init.free_tensor(name, map))
    assert W.shape == (size, size)
    assert W.isfinite().all()
    if kind not in (Free, EigenvalueNormalized) or name in ("henaff", "cayley", "haar", "identity"):
        assert orthogonality_error(W) < 1e-4


def test_skew_initialiser_gives_same_matrix_for_free_and_constrained_map():
    def generator():
        return torch.Generator().manual_seed(2)

    for name, kind in (("henaff", Exponential), ("cayley", ScaledCayley)):
        constrained, unconstrained = (map(init.free_tensor(name, map, generator())) for map in (kind(5), Free(5)))
        torch.testing.assert_close(constrained, unconstrained)


@pytest.mark.parametrize("reflections", [0, 1, 2, 3])
def test_haar_init_is_orthogonal_for_any_number_of_reflections(reflections):
    map = ScaledCayley(6, reflections).double()
    for _ in range(10):
        W = map(init.free_tensor("haar", map).double())
        assert orthogonality_error(W) < 1e-10


def test_unreachable_identity_raises_value_error():
    with pytest.raises(ValueError, match="choose other reflections"):
        init.free_tensor("identity", ScaledCayley(4, 2))


def test_unknown_initialiser_raises_value_error():
    with pytest.raises(ValueError, match="no initialiser 'hennaf'; choose from henaff, cayley, haar, random-"):
        init.free_tensor("hennaf", Free(3))


@pytest.mark.parametrize("name", init.FULL)
def test_full_initialisers_support_meta_device(name):
    """As a model that is built on the meta device and loaded later."""
    with torch.device("meta"):
        W = init.FULL[name](6)
    assert (W.is_meta, W.shape) == (True, (6, 6))
