"""Eigenvalue normalisation: when it switches on, its gradient, and that ρ(W) ≤ 1 in single precision."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from steadygrad.matrices import EigenvalueNormalized, Matrix, build, eigenvalue, spectral_radius
from steadygrad.matrices.eigenvalue import surely_below_one
from tests.rounding import rounding


def random_matrix_of_radius(size, rho):
    T = torch.randn(size, size, dtype=torch.float64)
    return T * rho / spectral_radius(T)


def test_normalisation_switches_on_once_and_stays_on():
    map = EigenvalueNormalized(5)
    small, large = random_matrix_of_radius(5, 0.9), random_matrix_of_radius(5, 1.1)
    assert torch.equal(map(small), small)
    assert not map.normalised
    barely = random_matrix_of_radius(5, 1 - 1e-9)
    assert torch.equal(map(barely), barely)
    assert not map.normalised
    torch.testing.assert_close(map(large), large / 1.1)
    assert map.normalised
    torch.testing.assert_close(map(small), small / 0.9)  # no way back
    other = EigenvalueNormalized(5)
    other.load_state_dict(map.state_dict())
    torch.testing.assert_close(other(small), small / 0.9)


def test_epsilon_keeps_radius_below_one():
    map = EigenvalueNormalized(6, epsilon=0.25)
    assert spectral_radius(map(random_matrix_of_radius(6, 2.0))) == pytest.approx(2 / 2.25)


def test_normalisation_matches_enrnn_oracle(oracle):
    data = oracle("enrnn_grad")
    for k in range(5):
        map = EigenvalueNormalized(9).double()
        map.normalised.fill_(True)
        T = data["T"][k].clone().requires_grad_()
        W = map(T)
        torch.testing.assert_close(W, data["W"][k], rtol=1e-9, atol=1e-12)
        W.backward(data["dL_dW"][k])
        torch.testing.assert_close(T.grad, data["dL_dT"][k], rtol=1e-9, atol=1e-9)
        assert map.multiple == 0


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("size", [1, 2, 3, 6, 7])
def test_gradients_match_finite_differences(size, epsilon):
    """ε > 0 too, where the paper prints another inner factor."""
    map = EigenvalueNormalized(size, epsilon).double()
    T = random_matrix_of_radius(size, 1.5).requires_grad_()
    assert torch.autograd.gradcheck(map, (T,))
    assert map.normalised
    assert map.multiple == 0


def test_gradient_is_that_of_autograd_through_eigvals():
    T = random_matrix_of_radius(30, 1.3).requires_grad_()
    G = torch.randn(30, 30, dtype=torch.float64)
    (ours,) = torch.autograd.grad(EigenvalueNormalized(30).double()(T), T, G)
    (theirs,) = torch.autograd.grad(T / torch.linalg.eigvals(T).abs().max(), T, G)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "T",
    [
        2 * torch.eye(4),  # one eigenvalue, four times
        torch.diag(torch.tensor([2.0, 2.0, 1.0, 0.5])),
        2 * torch.eye(4) + torch.diag(torch.ones(3), 1),  # a Jordan block: one eigenvector
        torch.tensor([[2.0, 1.0], [1e-14, 2.0]]),
        torch.tensor([[2.0, 1e7], [0.0, 1.9]]),  # apart, but with nearly parallel eigenvectors
        torch.tensor([[3.0, 1.0], [-1.0, 1.0]]),  # a Jordan block of 2, seen from another basis
        torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0], [1.0, -1.0, 3.0]]),  # the same of 3
    ],
    ids=["scalar", "double", "Jordan", "nearly Jordan", "parallel", "hidden Jordan", "hidden Jordan of 3"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multiple_eigenvalue_is_counted_and_gradient_is_finite(T, dtype):
    """W stays normalised, the gradient takes ρ as a constant, and the event is counted."""
    map = EigenvalueNormalized(len(T))
    T = T.to(dtype, copy=True).requires_grad_()
    W = map(T)
    # rounding W by eps ‖W‖ moves an n-fold eigenvalue by up to the n-th root of that
    assert spectral_radius(W) <= 1 + rounding(dtype, len(T), scale=float(W.detach().norm())) ** (1 / len(T))
    G = torch.randn_like(W)
    W.backward(G)
    torch.testing.assert_close(T.grad, G / spectral_radius(T), rtol=1e-5, atol=1e-6)
    assert map.multiple == 1
    with torch.no_grad():
        map(T)
    assert map.multiple == 1  # nobody asked for a gradient


@pytest.mark.parametrize(
    "eigenvalues", [[2.0, -2.0, 1.0], [2.0, 1.9, 1.0], [-2.0, 0.5, 0.1]], ids=["±", "close", "negative"]
)
def test_distinct_eigenvalues_keep_their_gradient(eigenvalues):
    map = EigenvalueNormalized(3)
    T = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)).requires_grad_()
    map(T).sum().backward()
    assert map.multiple == 0
    assert T.grad.isfinite().all()


def test_zero_and_nilpotent_matrices_are_returned_unchanged():
    map = EigenvalueNormalized(3)
    map.normalised.fill_(True)
    for T in (torch.zeros(3, 3), torch.ones(3, 3).tril(-1)):
        T.requires_grad_()
        W = map(T)
        assert torch.equal(W, T)
        W.sum().backward()
        assert torch.equal(T.grad, torch.ones(3, 3))


@pytest.mark.parametrize("rho", [0.3, 0.9, 0.98, 1.0001, 3.0])
def test_surely_below_one_matches_spectral_radius(rho):
    for size in (1, 4, 25):
        for T in (
            random_matrix_of_radius(size, rho),
            torch.diag(torch.linspace(0, rho, size + 1, dtype=torch.float64)[1:]),
        ):
            assert not (surely_below_one(T) and rho >= 1)
            assert surely_below_one(T) == (rho < 1)
    assert not surely_below_one(torch.full((2, 2), torch.nan, dtype=torch.float64))


def test_large_off_diagonal_entries_do_not_switch_on_normalisation():
    T = 0.9 * torch.eye(4) + 1e6 * torch.ones(4, 4).tril(-1)
    map = EigenvalueNormalized(4)
    assert torch.equal(map(T), T)
    assert not map.normalised


@pytest.mark.parametrize(("size", "lr"), [(9, 3e-2), (32, 1e-2)])
@pytest.mark.parametrize("radius", ["exact", "power"])
def test_spectral_radius_stays_at_most_one_over_500_updates(size, lr, radius):
    """Single precision; ρ is measured in double precision of the single-precision W."""
    matrix = build({"name": "eigenvalue", "radius": radius}, size)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=lr)
    G, worst = torch.randn(size, size), 0.0
    for _ in range(500):
        optimizer.zero_grad()
        W = matrix()
        worst = max(worst, spectral_radius(W))
        G = 0.9 * G + 0.4 * torch.randn(size, size)
        W.backward(G)
        optimizer.step()
    assert matrix.map.normalised
    assert 0.999 < worst <= 1


@pytest.mark.parametrize("size", [1, 2, 5, 80])
def test_power_method_has_the_exact_gradient(size):
    """After updates small enough for it to go on from the eigenvectors of the last call."""
    power, exact = EigenvalueNormalized(size, radius="power").double(), EigenvalueNormalized(size).double()
    T = random_matrix_of_radius(size, 1.5)
    G = torch.randn(size, size, dtype=torch.float64)
    for _ in range(4):
        T = T + 1e-4 * torch.randn(size, size, dtype=torch.float64)
        leaf = T.clone().requires_grad_()
        results = [map(leaf) for map in (power, exact)]
        # the power method stops at a residual of 1e-10, which the gap between eigenvalues divides
        torch.testing.assert_close(*results, rtol=0, atol=1e-12)
        ours, theirs = (torch.autograd.grad(W, leaf, G)[0] for W in results)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))
    assert power.fallbacks == 0


def test_power_method_falls_back_to_exact_eigenvalues(monkeypatch):
    """Where it does not converge, where an eigenvalue is multiple, and where another T comes along."""
    map, T = EigenvalueNormalized(40, radius="power").double(), random_matrix_of_radius(40, 1.5)
    map(T)
    other = random_matrix_of_radius(40, 3.0)
    torch.testing.assert_close(map(other), other / 3)
    assert map.fallbacks == 1
    torch.testing.assert_close(map(other), other / 3)
    assert map.fallbacks == 1
    monkeypatch.setattr(eigenvalue, "ROUNDS", 0)
    torch.testing.assert_close(map(other), other / 3)
    assert map.fallbacks == 2
    multiple = (2 * torch.eye(40, dtype=torch.float64)).requires_grad_()
    map(multiple).sum().backward()
    assert (map.multiple, map.fallbacks) == (1, 3)
    torch.testing.assert_close(multiple.grad, torch.full_like(multiple, 0.5))


def test_power_method_switches_on_above_radius_one():
    map = EigenvalueNormalized(12, radius="power").double()
    small = random_matrix_of_radius(12, 0.9)
    for _ in range(2):
        assert torch.equal(map(small), small)
    assert not map.normalised
    torch.testing.assert_close(map(small * 1.3), small / 0.9)
    assert map.normalised
    other = EigenvalueNormalized(12, radius="power").double()
    other.load_state_dict(map.state_dict())
    assert torch.equal(other(small), map(small))
    with pytest.raises(ValueError, match="expects radius to be one of exact, power; got 'schur'"):
        EigenvalueNormalized(3, radius="schur")


def test_register_parametrization_normalises_linear_weight():
    layer = nn.Linear(6, 6)
    small = layer.weight.detach().clone()
    register_parametrization(layer, "weight", EigenvalueNormalized(6))
    assert torch.equal(layer.weight, small)
    layer.weight = 10 * small
    torch.testing.assert_close(layer.weight, small / spectral_radius(small))
    layer.weight.sum().backward()
    assert layer.parametrizations.weight.original.grad.dtype == torch.float32


def test_wrong_shape_raises_value_error():
    with pytest.raises(ValueError, match=r"EigenvalueNormalized expects a 3 × 3 matrix; got shape \(2, 3\)"):
        EigenvalueNormalized(3)(torch.zeros(2, 3))


def test_normalised_flag_is_not_a_parameter():
    matrix = Matrix(EigenvalueNormalized(3), torch.eye(3))
    assert [name for name, _ in matrix.named_parameters()] == ["matrix"]


@pytest.mark.parametrize("T", [torch.zeros(4, 4), torch.ones(4, 4).triu(1), 0.1 * torch.eye(4), 2 * torch.eye(4)])
def test_torch_func_gradient_matches_autograd(T):
    """Also where the eigenvalues, which are not needed then, have none."""
    map = EigenvalueNormalized(4).double()
    K = torch.randn(4, 4, dtype=torch.float64)
    found = torch.func.grad(lambda T: (map(T) * K).sum())(T.double())
    if T[0, 0] == 2:  # a multiple eigenvalue: ρ counts as a constant
        assert found.shape == (4, 4)
        return
    leaf = T.double().requires_grad_()
    torch.testing.assert_close(found, *torch.autograd.grad((map(leaf) * K).sum(), leaf))


@pytest.mark.parametrize("size", [2, 5, 13, 32])
@pytest.mark.parametrize("scale", [1e-30, 1.90625, 999424.0, 1e30])
@pytest.mark.parametrize("radius", ["exact", "power"])
def test_matrix_of_equal_entries_is_normalised(size, scale, radius):
    """LAPACK does not converge on some of them (size 13, 999424)."""
    T = torch.full((size, size), scale, requires_grad=True)
    W = EigenvalueNormalized(size, radius=radius)(T)
    assert spectral_radius(W) <= 1 + 1e-5
    if size * scale > 1:
        assert spectral_radius(W) == pytest.approx(1, abs=1e-5)
    W.sum().backward()
    assert T.grad.isfinite().all()
