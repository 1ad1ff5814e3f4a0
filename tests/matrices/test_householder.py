"""Products of reflections: against the reflections one by one, what they reach, and how they stay there."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from steadygrad.matrices import Householder, Matrix, build, orthogonality_error
from tests.rounding import assert_same, rounding

sizes_and_reflections = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def random_free(size, reflections, dtype=torch.float64):
    return torch.randn(sum(size - i for i in range(reflections)), dtype=dtype)


def product_of_reflections(free, size, reflections):
    """H_1 … H_k, each written out."""
    W = torch.eye(size, dtype=free.dtype)
    for i, u in enumerate(free.split([size - i for i in range(reflections)])):
        u = torch.cat([torch.zeros(i, dtype=free.dtype), u])
        W = W @ (torch.eye(size, dtype=free.dtype) - 2 * torch.outer(u, u) / (u @ u))
    return W


def orthogonal(size, determinant):
    Q = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q
    Q[:, 0] *= torch.linalg.det(Q).sign() * determinant
    return Q


def assert_reaches(map, W):
    """Back and forth: two sets of reflections, and the decomposition in between."""
    atol = rounding(W.dtype, len(W), operations=3 * map.reflections)
    torch.testing.assert_close(map(map.right_inverse(W)), W, rtol=0, atol=atol)


@given(sizes_and_reflections)
def test_matrix_matches_product_of_single_reflections(size_and_reflections):
    free = random_free(*size_and_reflections).requires_grad_()
    W, expected = Householder(*size_and_reflections)(free), product_of_reflections(free, *size_and_reflections)
    size, reflections = size_and_reflections
    torch.testing.assert_close(W, expected, rtol=0, atol=rounding(torch.float64, size, operations=2 * reflections))
    G = torch.randn_like(W)
    (ours,), (theirs,) = torch.autograd.grad(W, free, G), torch.autograd.grad(expected, free, G)
    # a vector of length |u| has gradients 1/|u| times as large as those of a unit vector
    shortest = min(float(u.norm()) for u in free.detach().split([size - i for i in range(reflections)]))
    bound = rounding(torch.float64, size, operations=4 * reflections, scale=float(G.norm()) / shortest)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=bound)


def test_two_reflections_rotate_by_twice_their_angle():
    W = Householder(3, 2)(torch.tensor([0.0, 0.0, 2.0, math.sin(0.4), math.cos(0.4)], dtype=torch.float64))
    c, s = math.cos(0.8), math.sin(0.8)
    torch.testing.assert_close(W, torch.tensor([[1, 0, 0], [0, c, -s], [0, s, c]], dtype=torch.float64))


@given(sizes_and_reflections, st.floats(-3, 3))
def test_matrix_is_orthogonal_for_any_parameters(size_and_reflections, magnitude):
    size, reflections = size_and_reflections
    map = Householder(size, reflections)
    W = map(10**magnitude * random_free(size, reflections))
    assert orthogonality_error(W) < rounding(torch.float64, size, operations=2 * reflections)
    assert torch.linalg.det(W).sign() == map.determinant == (-1) ** reflections
    assert torch.linalg.matrix_rank(W - torch.eye(size, dtype=W.dtype), atol=1e-9) <= reflections


@pytest.mark.parametrize("reflections", [1, 16, 199, 200])
def test_orthogonal_in_single_precision(reflections):
    W = build({"name": "householder", "reflections": reflections}, 200)()
    assert (W.mT @ W - torch.eye(200)).abs().max() < rounding(
        torch.float32, 200
    )  # an entry is one sum of 200 terms after each block of reflections


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e6, 3e37])
def test_length_does_not_matter(scale):
    """Not even where the squares of a vector leave the range of single precision."""
    free = random_free(6, 4, torch.float32)
    bound = rounding(torch.float32, 6, operations=2 * 4)
    torch.testing.assert_close(Householder(6, 4)(scale * free), Householder(6, 4)(free), rtol=0, atol=bound)


@pytest.mark.parametrize(("size", "reflections"), [(1, 1), (2, 1), (5, 2), (5, 4), (6, 6)])
def test_gradients_match_finite_differences(size, reflections):
    map, free = Householder(size, reflections), random_free(size, reflections).requires_grad_()
    assert torch.autograd.gradcheck(map, free)
    h = torch.randn(3, size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda free, h: map.operator(free)(h), (free, h))


@pytest.mark.parametrize(("size", "reflections"), [(1, 1), (7, 2), (7, 7), (64, 16), (64, 63)])
def test_operator_is_the_matrix(size, reflections):
    """On rows, in values and gradients, without W."""
    map, free = Householder(size, reflections), random_free(size, reflections).requires_grad_()
    h, G = torch.randn(2, 5, size, dtype=torch.float64)
    h.requires_grad_()
    results = [(y, *torch.autograd.grad(y, (free, h), G)) for y in (map.operator(free)(h), h @ map(free).mT)]
    for a, b in zip(*results, strict=True):
        assert_same([a], [b], rounding(torch.float64, size, operations=4 * reflections))


def test_nn_module_apply_is_not_overridden():
    """torch's own `apply`, which a method of that name would have broken."""
    seen = []
    nn.Sequential(Householder(3)).apply(lambda module: seen.append(type(module)))
    assert seen == [Householder, nn.Sequential]


@pytest.mark.parametrize("backend", ["auto", "python"])
def test_float32_gradient_matches_float64_for_each_backend(backend, monkeypatch):
    monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
    free = random_free(133, 40, torch.float32).requires_grad_()
    G = torch.randn(133, 133)
    (ours,) = torch.autograd.grad(Householder(133, 40)(free), free, G)
    (exact,) = torch.autograd.grad(Householder(133, 40)(free.double()), free, G.double())
    shortest = min(float(u.norm()) for u in free.detach().split([133 - i for i in range(40)]))
    bound = rounding(torch.float32, 133, operations=4, scale=float(G.norm()) / shortest)  # in blocks, not one by one
    torch.testing.assert_close(ours, exact, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("size", "reflections", "count"), [(128, 1, 128), (128, 16, 1928), (8, 8, 36), (8, 7, 35), (1, 1, 1)]
)
def test_parameter_count_excludes_structural_zeros(size, reflections, count):
    matrix = build({"name": "householder", "reflections": reflections}, size)
    assert sum(p.numel() for p in matrix.parameters()) == matrix.map.free_size == count
    assert matrix.kinds == ("reflector",)


@given(sizes_and_reflections)
def test_right_inverse_recovers_unit_vectors(size_and_reflections):
    """The vectors themselves, at length 1 and perhaps turned round."""
    map, free = Householder(*size_and_reflections), random_free(*size_and_reflections)
    W = map(free)
    found = map.right_inverse(W)
    torch.testing.assert_close(map(found), W, rtol=0, atol=1e-11)
    lengths = [size_and_reflections[0] - i for i in range(map.reflections)]
    for u, v in zip(free.split(lengths), found.split(lengths), strict=True):
        torch.testing.assert_close(v * (u @ v).sign(), u / u.norm(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "reflections"), [(64, 1), (64, 16), (64, 62), (64, 63), (64, 64)])
@pytest.mark.parametrize("start", ["normal", "haar"])
def test_right_inverse_does_not_amplify_rounding(size, reflections, start, dtype):
    """As elimination column by column would, by 1e6 and more for few reflections."""
    matrix = build({"name": "householder", "reflections": reflections, "init": start}, size).to(dtype)
    W = matrix().detach()
    assert_reaches(matrix.map, W)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 40])
@pytest.mark.parametrize("fewer", [0, 1])
def test_n_or_n_minus_1_reflections_reach_any_matrix_of_determinant(size, fewer):
    if size > fewer:
        map = Householder(size, size - fewer)
        assert_reaches(map, orthogonal(size, map.determinant))


DTYPE = torch.float64
PLANE_ROTATION = torch.block_diag(
    torch.eye(2, dtype=DTYPE), torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=DTYPE), torch.eye(2, dtype=DTYPE)
)


@pytest.mark.parametrize(
    ("W", "reflections"),
    [
        (torch.eye(6, dtype=DTYPE), [2, 4, 6]),
        (-torch.eye(6, dtype=DTYPE), [6]),
        (torch.diag(torch.tensor([1, 1, 1, -1, 1, 1], dtype=DTYPE)), [1, 3, 5]),
        (torch.diag(torch.tensor([1, 1, 1, -1, 1, -1], dtype=DTYPE)), [2, 4, 6]),
        (PLANE_ROTATION, [2, 4, 6]),
        (torch.eye(6, dtype=DTYPE).roll(1, 0), [5]),
    ],
    ids=["identity", "its negative", "one axis", "two axes", "a plane far down", "a cycle"],
)
def test_right_inverse_exists_exactly_for_matrices_of_low_rank_change(W, reflections):
    for k in range(1, 7):
        if k in reflections:
            assert_reaches(Householder(6, k), W)
        else:
            with pytest.raises(ValueError, match=rf"reflections={k} cannot reach.*rank\(W − I\) ≤ {k}; choose other"):
                Householder(6, k).right_inverse(W)


@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize("fewer", [0, 1])
def test_register_parametrization_projects_linear_weight(size, fewer):
    if size == fewer:
        return
    layer = nn.Linear(size, size)
    target = layer.weight.detach().clone()
    map = Householder(size, size - fewer)
    register_parametrization(layer, "weight", map)
    bound = rounding(torch.float32, size, operations=2 * size)
    assert orthogonality_error(layer.weight) < bound
    if torch.linalg.det(target) * map.determinant > 0:
        P = layer.weight.mT @ target  # symmetric: the weight is the polar factor of what it was
        torch.testing.assert_close(P, P.mT, atol=bound, rtol=0)
    layer(torch.randn(2, size)).sum().backward()
    assert layer.parametrizations.weight.original.grad.shape == (map.free_size,)


def test_training_reaches_random_orthogonal_matrix():
    target, matrix = orthogonal(8, 1), build("householder", 8).double()
    optimizer = torch.optim.Adam(matrix.parameters(), lr=0.2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
    for _ in range(800):
        optimizer.zero_grad()
        (matrix() - target).square().sum().backward()
        optimizer.step()
        schedule.step()
    assert (matrix() - target).abs().max() < 1e-3


@pytest.mark.parametrize("reflections", [16, 128])
def test_stays_orthogonal_over_999_updates(reflections):
    """Single precision, size 128, Adam at 1e-3 on a random objective."""
    matrix = build({"name": "householder", "reflections": reflections}, 128)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
    start, worst = matrix().detach(), 0.0
    for k in range(999):
        optimizer.zero_grad()
        W = matrix()
        if k % 37 == 0:
            worst = max(worst, orthogonality_error(W))
        W.backward(torch.randn(128, 128) + 0.5 * start)
        optimizer.step()
    assert max(worst, orthogonality_error(matrix())) <= 1e-4
    assert (matrix() - start).norm() > 1  # it did go somewhere


def test_last_vector_of_full_set_has_zero_gradient():
    matrix = build("householder", 5)
    with torch.no_grad():
        matrix.packed()[0][-1] = 0.3
    matrix().square().mul(torch.randn(5, 5)).sum().backward()
    assert matrix.reflector.grad[0, -1] == 0
    assert matrix.reflector.grad[0, :-1].all()


@pytest.mark.parametrize("start", ["normal", "haar"])
def test_initial_vectors_have_unit_norm(start):
    for size, reflections in ((1, 1), (9, 4), (9, 9)):
        matrix = build({"name": "householder", "reflections": reflections, "init": start}, size)
        for u in matrix.packed()[0].split([size - i for i in range(reflections)]):
            assert u.norm().item() == pytest.approx(1, abs=rounding(torch.float32, size))


def test_haar_init_is_uniform_and_normal_init_is_not():
    """Of a uniform orthogonal matrix every entry has the variance 1/n and no preferred sign."""
    for start, uniform in (("haar", True), ("normal", False)):
        W = torch.stack([build({"name": "householder", "init": start}, 4)().detach() for _ in range(400)])
        spread = (W.square().mean(0) - 1 / 4).abs().max()
        assert (max(spread, W.mean(0).abs().max()) < 0.12) == uniform


def test_zero_vector_raises_value_error():
    matrix = build({"name": "householder", "reflections": 3}, 5)
    with torch.no_grad():
        matrix.packed()[0][5:9] = 0
    for call in (matrix, lambda: matrix.map.operator(matrix.packed()[0])):
        with pytest.raises(ValueError, match="Householder expects vectors that have a direction; number 2 of 3 is 0"):
            call()


def test_invalid_input_raises_value_error():
    for reflections in (0, 5, -1, 2.0, True, "2"):
        with pytest.raises(
            ValueError, match=f"reflections counts the vectors of Householder, so 1 … 4; got {reflections!r}"
        ):
            Householder(4, reflections)
    with pytest.raises(ValueError, match="Householder expects a size of at least 1; got 0"):
        Householder(0)
    with pytest.raises(ValueError, match=r"Householder expects a 4 × 4 matrix; got shape \(3, 3\)"):
        Householder(4).right_inverse(torch.eye(3))
    with pytest.raises(ValueError, match=r"size 4 with 2 reflections expects 7 numbers; got shape \(8,\)"):
        Householder(4, 2)(torch.ones(8))
    with pytest.raises(ValueError, match="no initialiser 'henaff' of reflections; choose from haar, normal"):
        build({"name": "householder", "init": "henaff"}, 4)
    with pytest.raises(ValueError, match="finite entries"):
        Householder(2).right_inverse(torch.full((2, 2), torch.nan))


def test_repr_and_deepcopy():
    matrix = Matrix(Householder(4, 2), torch.ones(7))
    assert repr(matrix.map) == "Householder(size=4, reflections=2)"
    torch.testing.assert_close(copy.deepcopy(matrix)(), matrix())
