"""D₃ R₂ F⁻¹ D₂ Π R₁ F D₁: against explicit matrices in numpy, and its own steps without the matrix."""

import io
import math

import numpy as np
import pytest
import torch

from steadygrad.matrices import UnitaryEvolution, build
from tests.rounding import rounding

every_size = pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12])


def random_free(size: int, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(3, size, dtype=dtype).uniform_(-3, 3), torch.randn(2, 2, size, dtype=dtype)


def dense(map: UnitaryEvolution, angles: torch.Tensor, reflectors: torch.Tensor) -> np.ndarray:
    """The product of the eight matrices."""
    n = map.size
    D1, D2, D3 = (np.diag(np.exp(1j * row)) for row in angles.numpy())
    k = np.arange(n)
    F = np.exp(-2j * np.pi * np.outer(k, k) / n) / np.sqrt(n)
    P = np.zeros((n, n))
    P[k, map.permutation.numpy()] = 1  # (Π h)_k = h_{π(k)}

    def reflection(pair):
        v = pair[0] + 1j * pair[1]
        return np.eye(n) - 2 * np.outer(v, v.conj()) / np.vdot(v, v).real

    R1, R2 = (reflection(pair) for pair in reflectors.numpy())
    return D3 @ R2 @ F.conj().T @ D2 @ P @ R1 @ F @ D1


def bound(size, dtype=torch.float64):
    """Eight factors, each a complex product at most, computed twice."""
    return rounding(dtype, 2 * size, operations=2 * 8)


@every_size
def test_matrix_matches_product_of_its_factors(size):
    map, free = UnitaryEvolution(size), random_free(size)
    np.testing.assert_allclose(map(*free).numpy(), dense(map, *free), rtol=0, atol=bound(size))


def test_permutation_changes_matrix():
    map, free = UnitaryEvolution(8), random_free(8)
    W = map(*free)
    map.permutation = map.permutation.roll(1)
    assert not torch.allclose(map(*free), W)
    np.testing.assert_allclose(map(*free).numpy(), dense(map, *free), rtol=0, atol=bound(8))


@every_size
def test_operator_is_the_matrix_on_rows(size):
    map, free = UnitaryEvolution(size), random_free(size)
    h = torch.randn(4, size, dtype=torch.complex128)
    got = map.operator(*free)(h)
    atol = bound(size) * float(h.norm())
    torch.testing.assert_close(got, h @ map(*free).mT, rtol=0, atol=atol)
    np.testing.assert_allclose(got.numpy().T, dense(map, *free) @ h.numpy().T, rtol=0, atol=atol)


@every_size
def test_matrix_is_unitary(size):
    map = UnitaryEvolution(size)
    I = torch.eye(size, dtype=torch.complex128)
    W = map(*random_free(size))
    torch.testing.assert_close(W.mH @ W, I, rtol=0, atol=bound(size))
    W = map(*random_free(size, torch.float32))
    assert W.dtype == torch.complex64
    torch.testing.assert_close(W.mH @ W, I.to(W.dtype), rtol=0, atol=bound(size, torch.float32))


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_length_of_a_reflector_does_not_matter(scale):
    map, (angles, reflectors) = UnitaryEvolution(6), random_free(6, torch.float32)
    torch.testing.assert_close(map(angles, scale * reflectors), map(angles, reflectors))


def test_zero_reflector_raises_value_error():
    angles, reflectors = random_free(6)
    reflectors[1] = 0
    with pytest.raises(ValueError, match="reflectors that have a direction"):
        UnitaryEvolution(6)(angles, reflectors)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gradients_match_finite_differences(size):
    map, free = UnitaryEvolution(size), tuple(f.requires_grad_() for f in random_free(size))
    assert torch.autograd.gradcheck(map, free)
    h = torch.randn(2, size, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h, *free: map.operator(*free)(h), (h, *free))


@pytest.mark.parametrize("size", [1, 5, 128, 512])
def test_seven_numbers_a_unit(size):
    matrix = build("evolution", size, complex=True)
    assert sum(p.numel() for p in matrix.parameters()) == 7 * size
    assert matrix.kinds == ("angle", "reflector")


def test_builder_initial_ranges_match_authors_code():
    angles, reflectors = build("evolution", 200, complex=True).free
    assert angles.min() >= -math.pi
    assert angles.max() <= math.pi
    assert angles.max() - angles.min() > 6
    assert reflectors.min() >= -1
    assert reflectors.max() <= 1
    assert reflectors.max() - reflectors.min() > 1.9


def test_permutation_is_random_and_saved():
    one, other = (build("evolution", 12, complex=True) for _ in range(2))
    assert one.map.permutation.sort().values.tolist() == list(range(12))
    assert not torch.equal(one.map.permutation, other.map.permutation)
    W = one().detach()
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(one.map.permutation, other.map.permutation)
    assert torch.equal(other(), W)
    other.double()
    assert other.map.permutation.dtype == torch.int64
    torch.testing.assert_close(other().to(torch.complex64), W, rtol=0, atol=bound(12, torch.float32))


def test_cached_value_follows_permutation_change():
    matrix = build("evolution", 6, complex=True).eval()
    with torch.no_grad():
        W = matrix().clone()
        matrix.map.permutation.copy_(matrix.map.permutation.roll(1))
        assert not torch.allclose(matrix(), W)


def test_operator_is_used_from_size_512():
    assert build("evolution", 511, complex=True).operator() is None
    assert build("evolution", 512, complex=True).operator() is not None


def test_operator_rejects_nan_parameters():
    matrix = build("evolution", 600, complex=True)
    with torch.no_grad():
        matrix.packed()[1][0, 0, 3] = torch.nan
    with pytest.raises(ValueError, match="UnitaryEvolution expects finite parameters; got 1 NaN or infinite"):
        matrix.operator()


def test_operator_supports_bfloat16_parameters():
    """The dense path is evaluated in single precision then; so must be the operator."""
    matrix = build("evolution", 512, complex=True)
    h = torch.randn(3, 512, dtype=torch.complex64)
    exact = matrix.operator()(h)
    torch.testing.assert_close(matrix.bfloat16().operator()(h).to(exact.dtype), exact, rtol=0, atol=0.2)


def test_size_zero_raises_value_error():
    with pytest.raises(ValueError, match="UnitaryEvolution expects a size of at least 1; got 0"):
        UnitaryEvolution(0)
