"""Measures: values known by hand, and what they refuse."""

import pytest
import torch

from steadygrad.matrices import departure_from_normality, init, orthogonality_error, spectral_radius
from steadygrad.matrices.measures import largest_singular_values
from tests.rounding import rounding

MEASURES = [orthogonality_error, spectral_radius, departure_from_normality]


def test_orthogonality_error_known_values():
    assert orthogonality_error(2 * torch.eye(4)) == pytest.approx(6)  # 3 on each of four diagonal entries
    assert orthogonality_error(init.haar(20)) < rounding(torch.float32, 20)


def test_spectral_radius_known_values():
    assert spectral_radius(torch.tensor([[0.0, -3.0], [3.0, 0.0]])) == pytest.approx(3)
    assert spectral_radius(torch.ones(3, 3).tril(-1)) == 0
    assert spectral_radius(-2 * torch.eye(1)) == 2


def test_departure_from_normality_known_values():
    assert departure_from_normality(torch.tensor([[1.0, 5.0], [0.0, 2.0]])) == pytest.approx(5)
    for normal in (init.haar(9), torch.diag(torch.randn(9)), init.disc(9)):
        assert departure_from_normality(normal) < 2e-3


@pytest.mark.parametrize("measure", MEASURES)
def test_measures_return_double_precision_floats(measure):
    W = torch.randn(5, 5, requires_grad=True)
    value = measure(W)
    assert type(value) is float
    assert value == measure(W.detach().double())


@pytest.mark.parametrize("measure", MEASURES)
def test_invalid_input_raises_value_error(measure):
    with pytest.raises(ValueError, match=rf"{measure.__name__} expects a square matrix; got shape \(2, 3\)"):
        measure(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="square matrix"):
        measure(torch.zeros(2, 2, 2))
    with pytest.raises(ValueError, match=f"{measure.__name__} expects finite entries; got 2 NaN or infinite values"):
        measure(torch.tensor([[torch.nan, 1.0], [0.0, torch.inf]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e-30, 1e-37, 1e30])
@pytest.mark.parametrize("shape", [(7, 6, 2), (5, 1, 1), (4, 2, 6), (3, 4, 4)])
def test_largest_singular_values_match_matrix_norm(dtype, scale, shape):
    """Squares of 1e-30 are nothing in single precision."""
    exact = torch.promote_types(dtype, torch.float64)
    M = torch.randn(shape, dtype=exact).mul(scale).to(dtype)
    found = largest_singular_values(M)
    assert (found.dtype, found.shape) == (M.real.dtype, shape[:1])
    expected = torch.linalg.matrix_norm(M.to(exact), 2)
    bound = rounding(dtype, max(shape[1:]), operations=2)
    torch.testing.assert_close(found.double() / expected, torch.ones_like(expected), rtol=bound, atol=0)


def test_largest_singular_values_of_zero_and_rank_one():
    assert largest_singular_values(torch.zeros(2, 4, 3)).tolist() == [0.0, 0.0]
    u, v = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0, 2.0])
    assert largest_singular_values(torch.outer(u, v)[None]).item() == pytest.approx(15.0)
