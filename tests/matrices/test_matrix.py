"""The object that owns free tensors, and the packing of skew-symmetric matrices."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

from steadygrad.layers import OrthogonalRNN, ScoRNN
from steadygrad.matrices import Free, Matrix, ScaledCayley, build, nearest_orthogonal, skew, skew_free
from steadygrad.matrices.cached import Cached


@given(size=st.integers(1, 12))
def test_skew_packs_and_unpacks(size):
    free = torch.randn(size * (size - 1) // 2)
    A = skew(free)
    assert A.shape == (size, size)
    assert torch.equal(A, -A.mT)
    assert torch.equal(skew_free(A), free)
    assert torch.equal(skew(free, size), A)


def test_skew_known_value():
    A = skew(torch.tensor([1.0, 2.0, 3.0]))
    assert A.tolist() == [[0, -1, -2], [1, 0, -3], [2, 3, 0]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_skew_passes_gradcheck_and_gradgradcheck(size):
    free = torch.randn(size * (size - 1) // 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(skew, (free,))
    assert torch.autograd.gradgradcheck(lambda f: skew(f).sin(), (free,))


@pytest.mark.parametrize("shape", [(4,), (2, 3), ()])
def test_skew_rejects_non_triangular_number_of_entries(shape):
    with pytest.raises(ValueError, match=r"skew expects n\(n − 1\)/2 numbers.*got shape"):
        skew(torch.zeros(shape))


def test_skew_refuses_another_size():
    with pytest.raises(ValueError, match=r"skew expects 6 numbers for size 4.*got shape \(3,\)"):
        skew(torch.zeros(3), 4)
    with pytest.raises(ValueError, match=r"skew_free expects a square matrix; got shape \(2, 3\)"):
        skew_free(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="expects 6 numbers for size 4"):
        ScaledCayley(4)(torch.zeros(5))


def test_skew_index_cached_in_inference_mode_works_in_training():
    with torch.inference_mode():
        skew(torch.zeros(171))  # a size that no other test uses
    free = torch.zeros(171, requires_grad=True)
    skew(free).square().sum().backward()
    assert free.grad is not None


def test_matrix_copies_tensors_and_shares_parameters():
    tensor, parameter = torch.zeros(3), torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    assert Matrix(ScaledCayley(3), tensor).skew.data_ptr() != tensor.data_ptr()
    row = Matrix(ScaledCayley(3), parameter).skew  # another parameter, of two dimensions
    assert (row.data_ptr(), tuple(row.shape), row.requires_grad) == (parameter.data_ptr(), (1, 3), False)
    parameter = torch.nn.Parameter(torch.eye(3))
    assert Matrix(Free(3), parameter).matrix is parameter


def test_free_tensors_are_named_and_have_two_dimensions():
    class Sum(nn.Module):
        size = 2

        def forward(self, scale, first, second):
            return scale * (first + second.diag())

    matrix = Matrix(Sum(), torch.tensor(2.0), torch.eye(2), torch.ones(2))
    shapes = {name: tuple(free.shape) for name, free in matrix.named_parameters()}
    assert shapes == {"matrix_0": (1, 1), "matrix_1": (2, 2), "matrix_2": (1, 2)}
    assert torch.equal(matrix(), 4 * torch.eye(2))
    matrix().sum().backward()
    assert matrix.matrix_2.grad.tolist() == [[2.0, 2.0]]


def test_free_tensors_saved_under_earlier_names_are_loaded():
    matrix, other = build("schur", 5), build("schur", 5)
    old = {f"free.{i}": free for i, free in enumerate(other.packed())}
    matrix.load_state_dict(old | {k: v for k, v in other.state_dict().items() if k.startswith("map")})
    assert torch.equal(matrix(), other())


def test_value_is_cached_only_in_eval_mode_without_gradients():
    matrix = Matrix(ScaledCayley(3), torch.randn(3))
    with torch.no_grad():
        assert matrix() is not matrix()  # training
    matrix.eval()
    assert matrix().requires_grad
    assert matrix() is not matrix()
    with torch.no_grad():
        assert matrix() is matrix()


def test_frozen_matrix_is_cached_in_eval_mode_with_gradients_enabled():
    matrix = Matrix(ScaledCayley(3), torch.randn(3)).eval().requires_grad_(False)
    assert matrix() is matrix()
    matrix.train()
    assert matrix() is not matrix()


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch's own, when it loads forward derivatives
def test_jvp_through_functional_call_ignores_cached_value():
    matrix = Matrix(Free(2), torch.eye(2)).eval().requires_grad_(False)
    matrix()
    free, tangent = torch.eye(2), torch.randn(2, 2)
    _, found = torch.func.jvp(
        lambda free: torch.func.functional_call(matrix, {"matrix": free}, ()), (free,), (tangent,)
    )
    torch.testing.assert_close(found, tangent)


def test_cached_value_follows_buffers_and_in_place_changes():
    matrix = Matrix(ScaledCayley(3), torch.randn(3)).eval()
    with torch.no_grad():
        before = matrix().clone()
        matrix.map.D[2] = -1
        torch.testing.assert_close(matrix(), before * torch.tensor([1.0, 1.0, -1.0]))
        matrix().zero_()
        torch.testing.assert_close(matrix(), before * torch.tensor([1.0, 1.0, -1.0]))
        matrix.skew = torch.nn.Parameter(torch.zeros(1, 3, dtype=torch.float64))
        assert matrix().dtype == torch.float64


def test_cached_value_of_free_matrix_follows_in_place_update():
    matrix = Matrix(Free(2), torch.eye(2)).eval()
    with torch.no_grad():
        matrix()
        matrix.packed()[0].mul_(3)
        assert torch.equal(matrix(), 3 * torch.eye(2))


def test_value_is_cached_for_matrix_created_in_inference_mode():
    with torch.inference_mode():
        matrix = Matrix(ScaledCayley(3), torch.randn(3)).eval()
        assert matrix() is matrix()


@pytest.mark.parametrize(
    "edit",
    [
        lambda free: free.data.uniform_(),
        lambda free: free.data.mul_(2),
        lambda free: setattr(free, "data", free.data + 1),
        lambda free: torch.nn.utils.vector_to_parameters(torch.ones(free.numel()), [free]),
    ],
)
def test_cached_value_follows_edit_through_data(edit):
    matrix = Matrix(Free(100), torch.randn(100, 100)).eval()
    with torch.no_grad():
        matrix()
        edit(matrix.packed()[0])
        assert torch.equal(matrix(), matrix.packed()[0])


def test_refresh_updates_cache_after_partial_edit_through_data():
    layer = ScoRNN(3, 100).eval()
    matrix = layer.weight_hh_l0
    with torch.no_grad():
        first = matrix()
        matrix.packed()[0].data[-1] += 1  # changes no version counter, no pointer and none of the first entries
        assert matrix() is first
        layer.refresh()
        torch.testing.assert_close(matrix(), matrix.map(*matrix.packed()))


@given(size=st.integers(1, 8), determinant=st.sampled_from([None, 1, -1]))
def test_nearest_orthogonal_is_polar_factor_with_given_determinant(size, determinant):
    W = torch.randn(size, size, dtype=torch.float64)
    Q = nearest_orthogonal(W, determinant)
    torch.testing.assert_close(Q.mT @ Q, torch.eye(size, dtype=torch.float64))
    if determinant:
        assert torch.linalg.det(Q).sign() == determinant
    else:
        P = Q.mT @ W  # the other polar factor: symmetric, positive definite
        torch.testing.assert_close(P, P.mT)
        assert (torch.linalg.eigvalsh(P) > 0).all()


def test_nearest_orthogonal_minimises_distance_for_given_determinant():
    """No rotation of the plane is nearer to diag(1, −0.1) than the one found."""
    W = torch.diag(torch.tensor([1.0, -0.1], dtype=torch.float64))
    Q = nearest_orthogonal(W, 1)
    t = torch.linspace(0, 6.29, 1000, dtype=torch.float64)
    rotations = torch.stack([t.cos(), -t.sin(), t.sin(), t.cos()], -1).view(-1, 2, 2)
    assert (Q - W).norm() <= (rotations - W).flatten(1).norm(dim=1).min() + 1e-6


def test_nearest_orthogonal_refuses_bad_input():
    with pytest.raises(ValueError, match=r"square matrix; got shape \(2, 3\)"):
        nearest_orthogonal(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="finite entries; got 1 NaN or infinite values"):
        nearest_orthogonal(torch.tensor([[1.0, torch.nan], [0.0, 1.0]]))


def test_free_refuses_another_shape():
    with pytest.raises(ValueError, match=r"Free expects a 3 × 3 matrix; got shape \(2, 2\)"):
        Free(3)(torch.eye(2))


@pytest.mark.parametrize("name", ["complex-cayley", "longshort"])
def test_weight_dropout_zeroes_and_rescales_entries(name):
    """Complex ones too, for which torch has no dropout; what is left grows, so that the mean stays."""
    matrix = build(name, 40, complex=name == "complex-cayley")
    W = matrix().detach()
    matrix.dropout = 0.25
    dropped = matrix().detach()
    left = dropped != 0
    torch.testing.assert_close(dropped[left], W[left] / 0.75)
    assert (W != 0).sum() * 0.6 < left.sum() < (W != 0).sum() * 0.9
    torch.testing.assert_close(matrix.eval()().detach(), W)


def test_cache_cleared_by_another_thread_is_recomputed(monkeypatch):
    matrix = build("cayley", 6).eval()
    with torch.no_grad():
        W = matrix()

        def forgetful(*remembered):
            matrix.refresh()
            return True

        monkeypatch.setattr(Cached, "is_current", forgetful)
        torch.testing.assert_close(matrix(), W)


def test_pruned_and_parametrised_tensors_are_used():
    matrix = build("free", 8)
    prune.l1_unstructured(matrix, "matrix", amount=0.75)
    assert (matrix() == 0).sum() == 48
    matrix = build("free", 8)
    with torch.no_grad():
        W = matrix().clone()
        weight_norm(matrix, "matrix")
        torch.testing.assert_close(matrix(), W)
        matrix.parametrizations.matrix.original0.mul_(2)
        torch.testing.assert_close(matrix(), 2 * W)


def test_map_with_own_parameter_is_tracked_and_gets_gradient():
    class Scaled(nn.Module):
        size = 3

        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, free):
            return self.gain * free

    matrix = Matrix(Scaled(), torch.eye(3)).eval()
    with torch.no_grad():
        assert matrix()[0, 0] == 1
        matrix.map.gain.fill_(0.5)
        assert matrix()[0, 0] == 0.5
    matrix.free[0].requires_grad_(False)
    matrix().sum().backward()
    assert matrix.map.gain.grad == 3


def test_weight_dropout_does_not_affect_penalty_or_matrices():
    layer = OrthogonalRNN(3, 32, pull=1.0)
    layer.drop_weights(0.5)
    assert layer.penalty().item() < 1e-6
    assert (layer.matrices()["recurrent_l0"].detach() != 0).all()


@pytest.mark.parametrize("name", ["exponential", "cayley", "schur", "householder"])
def test_functionalize_and_fake_mode_leave_no_cached_tensors(name):
    size = 11  # which no other test has made an index for
    torch.func.functionalize(lambda: build(name, size)())()
    with contextlib.suppress(Exception), FakeTensorMode():  # in which no module can be built
        build(name, size)()
    assert build(name, size)().isfinite().all()
