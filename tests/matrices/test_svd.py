"""A matrix by its singular value decomposition: values within the margin, bases as they should be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from steadygrad.matrices import BoundedSVD, Exponential, Householder, build, orthogonality_error
from tests.rounding import rounding

both = pytest.mark.parametrize("bases", ["householder", "exponential"])


def random_free(map, spread=2.0):
    n = map.size
    numbers = map.basis.free_size if isinstance(map.basis, Householder) else n * (n - 1) // 2
    return (*torch.randn(2, numbers, dtype=torch.float64), spread * torch.randn(n, dtype=torch.float64))


def singular_values(W):
    return torch.linalg.svdvals(W.detach().double())


@both
@given(size=st.integers(1, 9), margin=st.sampled_from([0.0, 0.01, 0.5, 1.0]))
def test_singular_values_match_formula(bases, size, margin):
    map = BoundedSVD(size, margin, bases=bases)
    left, right, p = random_free(map)
    W = map(left, right, p)
    bound = rounding(torch.float64, size, operations=2 * size + 2, scale=1 + margin)  # 2n reflections, two products
    sigma = 1 + 2 * margin * (torch.sigmoid(p) - 0.5)
    torch.testing.assert_close(singular_values(W), sigma.sort(descending=True).values, rtol=0, atol=bound)
    torch.testing.assert_close(map.singular_values(p), sigma, rtol=0, atol=rounding(torch.float64, 4))
    torch.testing.assert_close(W, map.basis(left) @ sigma.diag() @ map.basis(right).mT, rtol=0, atol=bound)
    assert torch.linalg.det(W) > 0


@pytest.mark.parametrize(("bases", "basis"), [("householder", Householder(6, 3)), ("exponential", Exponential(6))])
def test_bases_match_householder_and_exponential(bases, basis):
    map = BoundedSVD(6, 0.3, reflections=3 if bases == "householder" else None, bases=bases)
    left, right, p = random_free(map)
    U, V = basis(left), basis(right)
    bound = rounding(torch.float64, 6, operations=4 * 6 + 4, scale=1.3)  # both bases twice, and four products
    torch.testing.assert_close(U.mT @ map(left, right, p) @ V, map.singular_values(p).diag(), rtol=0, atol=bound)


@both
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("margin", [0.0, 0.4])
def test_gradients_match_finite_differences(bases, size, margin):
    map = BoundedSVD(size, margin, bases=bases)
    assert torch.autograd.gradcheck(map, tuple(f.requires_grad_() for f in random_free(map)))


@both
def test_initial_matrix_is_orthogonal(bases):
    matrix = build({"name": "svd", "bases": bases}, 64).double()
    assert orthogonality_error(matrix()) < rounding(torch.float64, 64, operations=2 * 64 + 2)
    assert not matrix.packed()[2].any()


def test_zero_margin_is_orthogonal_and_ignores_p():
    matrix = build({"name": "svd", "margin": 0.0}, 7).double()
    W = matrix()
    with torch.no_grad():
        matrix.packed()[2].normal_()
    assert torch.equal(matrix(), W)
    assert orthogonality_error(W) < rounding(torch.float64, 7, operations=2 * 7 + 2)
    matrix().square().mul(torch.randn(7, 7)).sum().backward()
    assert not matrix.free[2].grad.any()
    assert matrix.free[0].grad.any()


@pytest.mark.parametrize(
    ("options", "counts", "kinds"),
    [
        ({}, (2080, 2080, 64), ("reflector", "reflector", "singular")),
        ({"reflections": 16}, (904, 904, 64), ("reflector", "reflector", "singular")),
        ({"bases": "exponential"}, (2016, 2016, 64), ("skew", "skew", "singular")),
    ],
)
def test_parameter_counts_and_kinds(options, counts, kinds):
    matrix = build({"name": "svd", **options}, 64)
    assert tuple(f.numel() for f in matrix.packed()) == counts
    assert matrix.kinds == kinds


@pytest.mark.parametrize("options", [{}, {"reflections": 16}, {"bases": "exponential"}, {"margin": 0.5}], ids=str)
def test_singular_values_stay_within_the_margin_over_999_updates(options):
    """Single precision, size 64, Adam at 1e-2 on a random objective that pulls all the same way."""
    matrix = build({"name": "svd", **options}, 64)
    margin = matrix.map.margin
    slack = rounding(torch.float32, 64, operations=4, scale=1 + margin)  # two bases, each in blocks, and two products
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-2)
    for k in range(999):
        optimizer.zero_grad()
        W = matrix()
        if k % 37 == 0 or k == 998:
            sigma = singular_values(W)
            assert 1 - margin - slack < sigma[-1]
            assert sigma[0] < 1 + margin + slack
        W.backward(torch.randn(64, 64) - 0.5 * W.detach())
        optimizer.step()
    assert singular_values(matrix()).mean() > 1 + 0.5 * margin  # it did go somewhere


@both
@given(size=st.integers(1, 9), margin=st.sampled_from([0.01, 0.5, 1.0]))
def test_right_inverse_recovers_matrix(bases, size, margin):
    map = BoundedSVD(size, margin, bases=bases)
    W = map(*random_free(map))
    torch.testing.assert_close(map(*map.right_inverse(W)), W, rtol=0, atol=1e-9)


@pytest.mark.parametrize("reflections", [6, 7])
def test_right_inverse_of_n_or_one_less_reflections(reflections):
    map = BoundedSVD(7, 0.2, reflections)
    W = map(*random_free(map))
    torch.testing.assert_close(map(*map.right_inverse(W)), W, rtol=0, atol=1e-11)


@both
@pytest.mark.parametrize("determinant", [1, -1])
def test_right_inverse_clamps_singular_values_to_margin(bases, determinant):
    """The singular vectors stay, the values come in; where det W < 0 the smallest comes from the other side of 0."""
    U, V = (Exponential(4).double()(torch.randn(6, dtype=torch.float64)) for _ in range(2))
    sigma = torch.tensor([2.0, 1.1, 0.95, 0.1 * determinant], dtype=torch.float64)
    map = BoundedSVD(4, 0.2, bases=bases)
    found = map(*map.right_inverse(U @ sigma.diag() @ V.mT))
    expected = torch.tensor([1.2, 1.1, 0.95, 0.8], dtype=torch.float64)
    torch.testing.assert_close(found, U @ expected.diag() @ V.mT, rtol=0, atol=1e-3)


@both
@pytest.mark.parametrize("size", [1, 4, 7])
def test_register_parametrization_bounds_singular_values(bases, size):
    layer = nn.Linear(size, size)
    register_parametrization(layer, "weight", BoundedSVD(size, 0.1, bases=bases))
    sigma = singular_values(layer.weight)
    slack = rounding(torch.float32, size, operations=2 * size + 2, scale=1.1)
    assert sigma[-1] > 0.9 - slack
    assert sigma[0] < 1.1 + slack
    layer(torch.randn(2, size)).sum().backward()
    assert layer.parametrizations.weight.original2.grad.all()  # no singular value is stuck at its bound


def test_unreachable_matrix_raises_value_error():
    with pytest.raises(ValueError, match="BoundedSVD cannot reach this matrix: its determinant is negative"):
        BoundedSVD(3).right_inverse(torch.diag(torch.tensor([1.0, 1.0, -1.0])))
    with pytest.raises(ValueError, match="BoundedSVD finds a matrix from n or n − 1 reflections only; got 2 of 4"):
        BoundedSVD(4, reflections=2).right_inverse(torch.eye(4))


def test_invalid_input_raises_value_error():
    for margin in (-0.1, 1.1, float("nan"), "0.1", True):
        with pytest.raises(ValueError, match=f"BoundedSVD expects a margin between 0 and 1; got {margin!r}"):
            BoundedSVD(4, margin)
    with pytest.raises(ValueError, match="expects bases to be one of householder, exponential; got 'cayley'"):
        BoundedSVD(4, bases="cayley")
    with pytest.raises(ValueError, match="takes reflections with householder bases; got 2 with exponential"):
        BoundedSVD(4, reflections=2, bases="exponential")
    with pytest.raises(ValueError, match=r"reflections counts the vectors of Householder, so 1 … 4; got 5"):
        BoundedSVD(4, reflections=5)
    with pytest.raises(ValueError, match="BoundedSVD expects a size of at least 1; got 0"):
        BoundedSVD(0)
    with pytest.raises(ValueError, match=r"BoundedSVD of size 4 expects 4 numbers in p; got \(3,\)"):
        BoundedSVD(4)(torch.ones(10), torch.ones(10), torch.ones(3))
    with pytest.raises(ValueError, match=r"BoundedSVD expects a 4 × 4 matrix; got shape \(3, 3\)"):
        BoundedSVD(4).right_inverse(torch.eye(3))
    with pytest.raises(ValueError, match="BoundedSVD expects finite entries; got 1 NaN or infinite values"):
        BoundedSVD(2).right_inverse(torch.tensor([[1.0, torch.nan], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="no initialiser 'henaff' of reflections"):
        build({"name": "svd", "init": "henaff"}, 4)
    with pytest.raises(ValueError, match="no initialiser 'normal'"):
        build({"name": "svd", "bases": "exponential", "init": "normal"}, 4)
