"""The scaled Cayley transform: known values, its inverse, its drift, the inverse matrix behind it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from steadygrad.matrices import Matrix, NeumannCayley, ScaledCayley, build, init, orthogonality_error, skew, skew_free
from steadygrad.matrices.inverse import by_blocks, cayley_inverse
from tests.rounding import rounding

both_maps = pytest.mark.parametrize("kind", [ScaledCayley, NeumannCayley])
sizes_and_reflections = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


def test_cayley_of_2x2_is_known_rotation():
    """n = 2, A = [[0, −a], [a, 0]]: a rotation by −2 atan(a)."""
    for a in (1.0, 0.25, -3.0):
        t = -2 * torch.atan(torch.tensor(a, dtype=torch.float64))
        expected = torch.stack([t.cos(), -t.sin(), t.sin(), t.cos()]).view(2, 2)
        free = torch.tensor([a], dtype=torch.float64)
        torch.testing.assert_close(ScaledCayley(2).double()(free), expected)
        torch.testing.assert_close(ScaledCayley(2, 1).double()(free), expected * torch.tensor([1.0, -1.0]))


def test_reflections_are_last_entries_of_d():
    assert ScaledCayley(5, 2).D.tolist() == [1, 1, 1, -1, -1]


@both_maps
@given(sizes_and_reflections, st.floats(-3, 3))
def test_map_is_orthogonal_for_any_parameters(kind, size_and_reflections, magnitude):
    size, reflections = size_and_reflections
    map = kind(size, reflections).double()
    free = 10**magnitude * torch.randn(size * (size - 1) // 2, dtype=torch.float64)
    W = map(free)
    # one solve, whose condition number is at most that of I + A, and a product
    bound = rounding(torch.float64, size, operations=2, scale=1 + float(skew(free, size).norm()))
    torch.testing.assert_close(W.mT @ W, torch.eye(size, dtype=torch.float64), atol=bound, rtol=0)
    assert torch.linalg.det(W).sign() == map.determinant == (-1) ** reflections


@both_maps
@given(sizes_and_reflections)
def test_right_inverse_recovers_parameters(kind, size_and_reflections):
    size, reflections = size_and_reflections
    map = kind(size, reflections).double()
    free = torch.randn(size * (size - 1) // 2, dtype=torch.float64)
    torch.testing.assert_close(map.right_inverse(map(free)), free)


@both_maps
@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize("reflections", [0, 1])
def test_register_parametrization_projects_linear_weight(kind, size, reflections):
    layer = nn.Linear(size, size)
    target = layer.weight.detach().clone()
    register_parametrization(layer, "weight", kind(size, reflections))
    # the way back and the way forth each solve with I + A
    A = skew(layer.parametrizations.weight.original.detach(), size)
    bound = rounding(torch.float32, size, operations=4, scale=1 + float(A.norm()))
    assert orthogonality_error(layer.weight) < bound
    if torch.linalg.det(target) * (-1) ** reflections > 0:
        P = layer.weight.mT @ target  # symmetric: the weight is the polar factor of what it was
        torch.testing.assert_close(P, P.mT, atol=bound, rtol=0)
    layer(torch.randn(2, size)).sum().backward()
    assert layer.parametrizations.weight.original.grad.shape == (size * (size - 1) // 2,)


@both_maps
def test_unreachable_matrix_raises_value_error(kind):
    with pytest.raises(ValueError, match=r"reflections=0 cannot reach.*eigenvalue −1; choose other reflections"):
        kind(3).right_inverse(torch.diag(torch.tensor([1.0, 1.0, -1.0])))
    with pytest.raises(ValueError, match="reflections=1 cannot reach"):
        kind(3, 1).right_inverse(torch.eye(3))
    assert kind(3, 1).right_inverse(torch.diag(torch.tensor([1.0, 1.0, -1.0]))).tolist() == [0, 0, 0]


@both_maps
def test_invalid_input_raises_value_error(kind):
    with pytest.raises(ValueError, match="reflections counts the −1s of D, so 0 … 4; got 5"):
        kind(4, 5)
    with pytest.raises(ValueError, match="got -1"):
        kind(4, -1)
    with pytest.raises(ValueError, match=f"{kind.__name__} expects a size of at least 1; got 0"):
        kind(0)
    with pytest.raises(ValueError, match=rf"{kind.__name__} expects a 4 × 4 matrix; got shape \(3, 3\)"):
        kind(4).right_inverse(torch.eye(3))


@both_maps
def test_cayley_matches_scornn_oracle(kind, oracle):
    data = oracle("scornn")
    map = kind(10, 3).double()
    assert torch.equal(map.D, data["D"])
    free = skew_free(data["A"]).requires_grad_()
    W = map(free)
    torch.testing.assert_close(W, data["W"], rtol=1e-9, atol=1e-12)
    W.backward(data["grad_W"])
    torch.testing.assert_close(free.grad, skew_free(data["grad_A"]), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("reflections", [0, 40])
def test_stays_orthogonal_over_999_updates(reflections):
    """Single precision, size 128, Adam at 1e-3."""
    matrix = Matrix(ScaledCayley(128, reflections), init.cayley(128))
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
    G, worst = torch.randn(128, 128), 0.0
    for k in range(999):
        optimizer.zero_grad()
        W = matrix()
        if k % 37 == 0:
            worst = max(worst, orthogonality_error(W))
        G = 0.95 * G + 0.3 * torch.randn(128, 128)
        W.backward(G)
        optimizer.step()
    assert max(worst, orthogonality_error(matrix())) <= rounding(torch.float32, 128, operations=2)


@pytest.mark.parametrize("size", [129, 200, 301])
@pytest.mark.parametrize("norm", [1.0, 30.0])
def test_blockwise_inverse_matches_exact_inverse(size, norm):
    A = skew(torch.randn(size * (size - 1) // 2, dtype=torch.float64))
    A *= norm / torch.linalg.matrix_norm(A, 2)
    exact = torch.linalg.inv(torch.eye(size, dtype=torch.float64) + A)
    bounds = {dtype: rounding(dtype, size, scale=1 + norm) for dtype in (torch.float32, torch.float64)}
    blocks = by_blocks(torch.eye(size, dtype=torch.float64) + A)
    torch.testing.assert_close(blocks, exact, rtol=0, atol=bounds[torch.float64])
    torch.testing.assert_close(cayley_inverse(A.float()).double(), exact, rtol=0, atol=bounds[torch.float32])


def test_cayley_inverse_falls_back_when_blocks_are_inaccurate():
    """A of rank 2 with a huge norm: block elimination is useless in single precision, pivots are not."""
    x, y = torch.randn(2, 256, dtype=torch.float64)
    A = 100 * (torch.outer(x, y) - torch.outer(y, x))
    I = torch.eye(256, dtype=torch.float64)
    exact = torch.linalg.inv(I + A)
    assert (by_blocks((I + A).float()).double() - exact).abs().max() > 0.01
    assert (cayley_inverse(A.float()).double() - exact).abs().max() < 0.005


def test_builder_initial_angles_match_paper():
    """Rotations of the planes by angles in (−π/2, 0), times D."""
    W = build({"name": "cayley", "reflections": 10}, 64)().detach() * ScaledCayley(64, 10).D
    pairs = torch.arange(0, 64, 2)
    assert (W.diagonal() > 0).all()
    assert (W[pairs, pairs + 1] > 0).all()
    rest = W.clone()
    rest[pairs, pairs + 1] = rest[pairs + 1, pairs] = 0
    assert torch.equal(rest, torch.diag(W.diagonal()))
