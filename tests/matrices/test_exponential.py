"""The exponential is exact, fast in products, a rotation while it learns, and the same after its base has moved."""

import cmath
import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from steadygrad.matrices import Exponential, Matrix, build, init, orthogonality_error, skew, skew_free
from steadygrad.matrices.exponential import SCHEMES, WORTH_A_LOOK, SkewExp, norm_bound, rotation_log
from tests.rounding import rounding


@pytest.mark.parametrize("dtype", SCHEMES, ids=str)
def test_polynomial_reaches_dtype_precision_within_its_radius(dtype):
    """Against cmath.exp, up to the radius where the scheme says it holds, and not as good beyond."""
    radius, coefficients = SCHEMES[dtype]
    # the first term that the series leaves out, with 5 % for the later ones, and four products of sums of four terms
    error = 1.05 * 2 * (radius / 2) ** 13 / math.factorial(13) + rounding(torch.float64, 4, operations=4)

    def value(z):
        B1, B2, B3, B4 = (sum(c * z**k for k, c in enumerate(row)) for row in coefficients)
        E = B3 + B4**2
        return B1 + (B2 + E) * E

    points = [1j * radius * k / 500 for k in range(-500, 501)]
    assert max(abs(value(z) - cmath.exp(z)) for z in points) < error
    assert abs(value(2j * radius) - cmath.exp(2j * radius)) > 100 * error


@given(size=st.integers(1, 24), scale=st.sampled_from([0.0, 1e-3, 0.3, 1.0, 4.0, 20.0]))
def test_exponential_matches_spectral_formula(size, scale):
    """iA is Hermitian, so its eigenvectors give exp(A) to the last digits."""
    free = scale * torch.randn(size * (size - 1) // 2, dtype=torch.float64)
    A = skew(free, size)
    angles, V = torch.linalg.eigh(1j * A)
    expected = ((V * torch.exp(-1j * angles)) @ V.mH).real
    # eigenvectors, four products of the polynomial, and squarings: each doubles the error, their number grows with ‖A‖
    bound = rounding(torch.float64, size, operations=8, scale=1 + float(angles.abs().max()))
    torch.testing.assert_close(SkewExp.apply(free, size), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("backend", ["auto", "python"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_gradient_equals_torch(scale, backend, monkeypatch):
    """Norms with and without squarings, both paths, against autograd through torch.matrix_exp."""
    monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
    free = (scale * torch.randn(66, dtype=torch.float64)).requires_grad_()
    G = torch.randn(12, 12, dtype=torch.float64)
    (ours,) = torch.autograd.grad(SkewExp.apply(free, 12), free, G)
    (theirs,) = torch.autograd.grad(torch.linalg.matrix_exp(skew(free, 12)), free, G)
    # torch takes up to five products and twice as many on the way back, ours six; squarings as in the test above
    norm = float(torch.linalg.matrix_norm(skew(free.detach(), 12), 2))
    bound = rounding(torch.float64, 12, operations=16, scale=(1 + norm) * float(G.norm()))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=bound)


@pytest.mark.parametrize("size", [1, 7, 40, 133])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 2])
def test_c_and_python_agree(size, dtype, threads, monkeypatch):
    torch.set_num_threads(threads)
    free = torch.randn(size * (size - 1) // 2, dtype=dtype).div_(size**0.5).requires_grad_()
    G = torch.randn(size, size, dtype=dtype)
    results = []
    for backend in ("auto", "python"):
        monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
        W = SkewExp.apply(free, size)
        results.append((W.detach(), *torch.autograd.grad(W, free, G)))
    # four products forward; six backward, of matrices as large as G
    for scale, c, python in zip((4, 10 * float(G.norm())), *results, strict=True):
        torch.testing.assert_close(c, python, rtol=0, atol=rounding(dtype, size, scale=scale))


@pytest.mark.parametrize("angle", [0.0, 1e-6, 1.0, 3.0, 30.0])
def test_exponential_of_2x2_is_rotation_by_angle(angle):
    W = Exponential(2).double()(torch.tensor([angle], dtype=torch.float64))
    c, s = math.cos(angle), math.sin(angle)
    torch.testing.assert_close(W, torch.tensor([[c, -s], [s, c]], dtype=torch.float64))


@pytest.mark.parametrize("size", [2, 9, 64, 200, 401])
@pytest.mark.parametrize("kind", ["henaff", "dense", "one plane"])
def test_norm_bound_is_close_to_spectral_norm(size, kind):
    """The estimate decides about squarings: it may be generous, but not short by more than the polynomial forgives."""
    free = torch.randn(size * (size - 1) // 2, dtype=torch.float64)
    if kind == "henaff":
        free = 3 * init.henaff(size).double()
    if kind == "one plane":
        free = torch.zeros_like(free).index_fill(0, torch.tensor([0]), 7.0)
    A = skew(free, size)
    true = float(torch.linalg.matrix_norm(A, 2))
    bound = norm_bound(A, A @ A, enough=1e-3)
    assert bound >= 0.999 * true
    if size >= WORTH_A_LOOK:
        assert bound <= 1.015 * true


@pytest.mark.parametrize("rebase_every", [None, 100])
def test_stays_orthogonal_over_999_updates(rebase_every):
    """Single precision, size 128, Adam at 1e-3 on a random objective."""
    matrix = build({"name": "exponential", "rebase_every": rebase_every}, 128)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
    start, worst = matrix().detach(), 0.0
    for k in range(999):
        optimizer.zero_grad()
        W = matrix()
        if k % 37 == 0:
            worst = max(worst, orthogonality_error(W.detach()))
        W.backward(torch.randn(128, 128) + 0.5 * start)
        optimizer.step()
    assert max(worst, orthogonality_error(matrix().detach())) <= 1e-4
    assert (matrix() - start).norm() > 1  # it did go somewhere


@given(size=st.integers(1, 16), scale=st.sampled_from([1e-4, 0.1, 0.6]))
def test_right_inverse_recovers_parameters(size, scale):
    map = Exponential(size).double()
    free = scale * torch.randn(size * (size - 1) // 2, dtype=torch.float64) / size**0.5
    torch.testing.assert_close(map.right_inverse(map(free)), free, rtol=1e-9, atol=1e-9)


@given(size=st.integers(1, 9), turns=st.integers(0, 4))
def test_rotation_log_handles_eigenvalues_minus_one(size, turns):
    """Pairs of eigenvalues −1 have no plane of their own; any will do, if exp leads back."""
    Q = init.haar(size).double()
    Q = torch.linalg.qr(Q)[0]
    signs = torch.ones(size, dtype=torch.float64)
    signs[: 2 * min(turns, size // 2)] = -1
    W = Q @ signs.diag() @ Q.mT
    A = rotation_log(W)
    torch.testing.assert_close(A, -A.mT)
    torch.testing.assert_close(SkewExp.apply(skew_free(A), size), W)


def test_register_parametrization_makes_linear_weight_orthogonal():
    linear = torch.nn.Linear(5, 5)
    register_parametrization(linear, "weight", Exponential(5))
    assert orthogonality_error(linear.weight.detach()) < rounding(torch.float32, 5, operations=4)
    linear(torch.randn(2, 5)).sum().backward()
    assert linear.parametrizations.weight.original.grad.any()


class TestMovingBase:
    def updated(self, matrix, times):
        """After ``times`` updates by hand, each followed by an evaluation as training does."""
        for k in range(times):
            with torch.no_grad():
                matrix.packed()[0].add_(
                    0.1 * torch.randn(matrix.packed()[0].shape, generator=torch.Generator().manual_seed(k))
                )
            before = matrix.map.base @ SkewExp.apply(matrix.packed()[0].detach(), matrix.size)
            yield before, matrix()

    def test_rebase_changes_the_coordinates_and_not_the_matrix(self):
        matrix = build({"name": "exponential", "rebase_every": 3}, 7).double()
        for k, (before, after) in enumerate(self.updated(matrix, 7), start=1):
            torch.testing.assert_close(after, before, rtol=0, atol=rounding(torch.float64, 7, operations=10))
            assert (matrix.packed()[0] == 0).all() == (k % 3 == 0)
        assert orthogonality_error(matrix.map.base) < rounding(torch.float64, 7, operations=4)

    def test_moving_base_starts_with_zero_parameters_at_initial_matrix(self):
        torch.manual_seed(3)
        moving = build({"name": "exponential", "rebase_every": 10}, 8)
        torch.manual_seed(3)
        static = build("exponential", 8)
        assert not moving.packed()[0].any()
        torch.testing.assert_close(moving(), static())

    def test_only_training_updates_count_towards_rebase(self):
        matrix = build({"name": "exponential", "rebase_every": 2}, 4)
        for _ in range(5):
            matrix()
        assert matrix.map.updates == 0
        matrix.eval()
        with torch.no_grad():
            matrix.packed()[0].add_(0.1)
            matrix()
        assert matrix.map.updates == 0
        matrix.train()
        matrix()
        assert matrix.map.updates == 1

    def test_moving_base_resumes_from_state_dict(self):
        matrix, other = (build({"name": "exponential", "rebase_every": 4}, 6) for _ in range(2))
        assert len(list(self.updated(matrix, 6))) == 6
        other.load_state_dict(copy.deepcopy(matrix.state_dict()))
        for (_, a), (_, b) in zip(self.updated(matrix, 5), self.updated(other, 5), strict=True):
            assert torch.equal(a, b)

    def test_gradient_after_rebase_is_riemannian_gradient(self):
        """d/dA of <G, B exp(A)> at A = 0 is the skew part of BᵀG: no distortion right after a rebase."""
        matrix = build({"name": "exponential", "rebase_every": 5}, 6).double()
        G = torch.randn(6, 6, dtype=torch.float64)
        matrix().backward(G)
        M = matrix.map.base.mT @ G
        torch.testing.assert_close(matrix.skew.grad[0], skew_free(M - M.mT))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Exponential(0), "Exponential expects a size of at least 1; got 0"),
        (lambda: Exponential(4.0), "Exponential expects a size of at least 1; got 4.0"),
        (lambda: Exponential(True), "Exponential expects a size of at least 1; got True"),
        (lambda: Exponential(4, rebase_every=2.5), "expects rebase_every of at least 1, or None .*; got 2.5"),
        (lambda: Exponential(4, rebase_every=0), "expects rebase_every of at least 1, or None .*; got 0"),
        (lambda: Matrix(Exponential(4), torch.full((6,), torch.nan))(), "Exponential expects finite parameters; got 6"),
        (lambda: Exponential(4)(torch.zeros(5)), "expects 6 numbers for size 4"),
        (lambda: Exponential(4).right_inverse(torch.eye(5)), "Exponential expects a 4 × 4 matrix; got shape"),
        (lambda: Exponential(3).right_inverse(torch.diag(torch.tensor([1.0, 1, -1]))), "its determinant is −1"),
    ],
)
def test_invalid_input_raises_value_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ["dtriv", "stiefel"])
def test_moved_base_is_orthogonal_after_dtype_changes(name):
    """After a detour through 8 bits, and in double precision, converted or loaded.

    The polish of the base, the map around it and their product are three products of the order in real form.
    """
    order = 64 if name == "stiefel" else 32
    single, double = (rounding(dtype, order, operations=3) for dtype in (torch.float32, torch.float64))
    matrix = build(name, 32, complex=name == "stiefel")
    optimizer = torch.optim.SGD(matrix.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        W = matrix()
        (W.real * torch.linspace(-1, 1, W.numel()).view_as(W)).sum().backward()
        optimizer.step()
    saved = matrix.state_dict()
    assert orthogonality_error(copy.deepcopy(matrix).bfloat16().float().eval()()) < single
    assert orthogonality_error(copy.deepcopy(matrix).double().eval()()) < double
    loaded = build(name, 32, complex=name == "stiefel").double()
    loaded.load_state_dict(saved)
    assert orthogonality_error(loaded.eval()()) < double
    same = build(name, 32, complex=name == "stiefel")
    same.load_state_dict(saved)
    assert torch.equal(same.map.base, matrix.map.base)  # or a run would not go on as it was


def test_autocast_keeps_moving_base_in_float32():
    linear = nn.Linear(32, 32)
    register_parametrization(linear, "weight", Exponential(32, rebase_every=2))
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            assert linear.weight.dtype == torch.float32
            loss = linear(torch.ones(1, 32)).square().sum()
        loss.backward()
        optimizer.step()
    assert orthogonality_error(linear.weight) < rounding(torch.float32, 32, operations=6)


def test_rebased_double_linear_weight_stays_orthogonal():
    linear = nn.Linear(8, 8, dtype=torch.float64)
    register_parametrization(linear, "weight", Exponential(8, rebase_every=2))
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        linear(torch.ones(1, 8, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
    # the base is as fine as its own type, single precision
    assert orthogonality_error(linear.weight) < rounding(torch.float32, 8, operations=2)
