"""Neumann–Cayley: Algorithm 1 number by number, when it solves exactly, what it remembers, how far it drifts."""

import copy
import math

import pytest
import torch

from steadygrad.matrices import (
    Matrix,
    NeumannCayley,
    ReleasedNeumannCayley,
    ScaledCayley,
    build,
    init,
    orthogonality_error,
    skew,
    skew_free,
)
from steadygrad.matrices.neumann import neumann_cayley, norm_below
from tests.rounding import rounding

AS_IN_PAPER = {"name": "neumann", "exact_above": 1.0, "max_drift": math.inf}
UNCHECKED = AS_IN_PAPER | {"exact_above": math.inf}
RELEASED = {"name": "neumann", "reset_every": 49, "released_lr": 1e-3}


def updated(matrix, change):
    with torch.no_grad():
        matrix.packed()[0].add_(change)
    return matrix()


def change_of_norm(map, norm):
    """A change of A such that ‖Ã δA‖₂ is ``norm``."""
    delta = torch.randn_like(map.last)
    return delta * norm / torch.linalg.matrix_norm(map.inverse @ skew(delta, map.size), 2)


def skew_norm(matrix):
    """‖A‖_F, at least the condition number of I + A but for 1."""
    return float(skew(matrix.packed()[0].detach()).norm())


def test_neumann_matches_algorithm_1_oracle(oracle):
    """Twenty Adam updates: A, Ã, U, the defect and the norm after each."""
    data = oracle("ncgru_alg1")
    matrix = Matrix(NeumannCayley(10, 4).double(), skew_free(data["A0"]))
    map = matrix.map
    assert torch.equal(map.D, data["D"])
    optimizer = torch.optim.Adam(matrix.parameters(), lr=float(data["lr"]))

    def close(ours, theirs):
        return torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)

    close(matrix().detach(), data["U0"])
    close(map.inverse, data["A_tilde0"])
    assert map.neumann_norm == 0
    for k in range(20):
        optimizer.zero_grad()
        (matrix() * data["G"][k]).sum().backward()
        close(matrix.skew.grad[0], skew_free(data["gradA"][k]))
        optimizer.step()
        U = matrix().detach()
        close(skew(map.last), data["A"][k])
        close(map.inverse, data["A_tilde"][k])
        close(U, data["U"][k])
        assert map.neumann_norm == pytest.approx(data["neumann_norm"][k].item(), rel=1e-9)
        defect = (U.mT @ U - torch.eye(10, dtype=torch.float64)).abs().max()
        assert defect.item() == pytest.approx(data["orth_defect"][k].item(), rel=1e-4, abs=1e-14)
    assert map.exact_solves == 1


class TensorFlowAdam:
    """p ← p − lr √(1 − β₂ᵗ)/(1 − β₁ᵗ) m/(√v + 1e-8), TensorFlow 1's: ε is not scaled as in torch's."""

    def __init__(self, parameter, lr):
        self.parameter, self.lr, self.updates = parameter, lr, 0
        self.m = self.v = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self):
        self.updates += 1
        self.m = 0.9 * self.m + 0.1 * self.parameter.grad
        self.v = 0.999 * self.v + 0.001 * self.parameter.grad**2
        rate = self.lr * (1 - 0.999**self.updates) ** 0.5 / (1 - 0.9**self.updates)
        self.parameter -= rate * self.m / (self.v.sqrt() + 1e-8)
        self.parameter.grad = None


def test_released_step_matches_oracle(oracle):
    """Twelve updates of the authors' program: A by Adam, the inverse by the raw gradient; G is dL/dW before each."""
    data = oracle("ncgru_released_update")
    reflections = int((data["D"] < 0).sum())
    map = ReleasedNeumannCayley(10, reflections, released_lr=float(data["lr"])).double()
    matrix = Matrix(map, skew_free(data["A0"]))
    assert torch.equal(map.D, data["D"])
    optimizer = TensorFlowAdam(matrix.free[0], float(data["lr"]))

    def close(ours, theirs):
        return torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))

    for k in range(12):
        (matrix().mT * data["G"][k]).sum().backward()
        close(skew(matrix.skew.grad[0]), data["DFA"][k])
        optimizer.step()
        W = matrix().detach().mT
        close(skew(matrix.packed()[0].detach()), data["A"][k])
        close(map.inverse, data["inv"][k])
        close(W, data["W"][k])
        drift = (W.mT @ W - torch.eye(10, dtype=torch.float64)).abs().max()
        assert drift.item() == pytest.approx(data["drift"][k].item(), rel=1e-9, abs=1e-14)
    assert map.exact_solves == 2  # at the start and after the first update
    assert drift > 1e-3


def test_the_released_step_is_exact_after_updates_1_50_and_99(double):
    matrix = build(RELEASED, 6)
    solves = []
    for _ in range(100):
        matrix().sum().backward()
        with torch.no_grad():
            matrix.packed()[0].sub_(1e-3 * torch.randn(15))
        matrix()
        solves.append(int(matrix.map.exact_solves))
    assert [k + 1 for k in range(1, 100) if solves[k] > solves[k - 1]] == [50, 99]
    assert solves[0] == 2


def test_released_step_with_sgd_matches_algorithm_1(double):
    """Then A_old − A_new is the learning rate times the gradient; the program's matrix is the transpose."""
    released = build(RELEASED | {"reflections": 2}, 6)
    printed = build(UNCHECKED | {"reflections": 2, "reset_every": 49}, 6)
    with torch.no_grad():
        printed.packed()[0].copy_(released.packed()[0])
    optimizers = [torch.optim.SGD(matrix.parameters(), lr=1e-3) for matrix in (released, printed)]
    for k in range(20):
        G = torch.randn(6, 6)
        (released() * G.mT).sum().backward()
        (printed() * G).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if k == 0:
            printed.map.age.fill_(48)  # the program's first update is exact
        torch.testing.assert_close(released().mT, printed())
    assert released.map.exact_solves == printed.map.exact_solves == 2


def test_released_step_accumulates_gradients_in_training_only(double):
    """Backward passes add up as in .grad; evaluation leaves no trace, and right_inverse leads back."""
    matrix, twin = (build(RELEASED, 6) for _ in range(2))
    twin.load_state_dict(matrix.state_dict())
    G = torch.randn(2, 6, 6)
    for one in G:
        (matrix() * one).sum().backward()
    matrix.eval()
    torch.autograd.grad(matrix().sum(), matrix.free[0])
    matrix.train()
    (twin() * G.sum(0)).sum().backward()
    torch.testing.assert_close(matrix.map.gradient, twin.map.gradient)
    torch.testing.assert_close(matrix.map.gradient, matrix.skew.grad[0])
    torch.testing.assert_close(twin.map.right_inverse(twin().detach()), twin.packed()[0].detach())


def test_disabled_checks_never_solve_exactly(double):
    matrix = build(UNCHECKED, 8)
    matrix()
    updated(matrix, change_of_norm(matrix.map, 3.0))
    assert matrix.map.exact_solves == 1
    assert orthogonality_error(matrix()) > 1


@pytest.mark.parametrize("order", [1, 2, 3])
def test_series_error_scales_with_next_power_of_step(order, double):
    """The error of order k falls like ‖X‖^(k+1)."""
    errors = []
    for norm in (0.08, 0.04):
        torch.manual_seed(1)
        matrix = build({**AS_IN_PAPER, "order": order}, 8)
        matrix()
        updated(matrix, change_of_norm(matrix.map, norm))
        exact = torch.linalg.inv(torch.eye(8) + skew(matrix.packed()[0].detach()))
        errors.append(float((matrix.map.inverse - exact).norm()))
    assert 2 ** (order + 0.7) < errors[0] / errors[1] < 2 ** (order + 1.3)


@pytest.mark.parametrize("exact_above", [0.1, 0.5, 1.0])
@pytest.mark.parametrize(("factor", "solves"), [(0.99, 1), (1.01, 2), (30.0, 2)])
def test_step_norm_above_threshold_triggers_exact_inverse(exact_above, factor, solves, double):
    matrix = build({**AS_IN_PAPER, "exact_above": exact_above}, 20)
    matrix()
    W = updated(matrix, change_of_norm(matrix.map, factor * exact_above))
    assert matrix.map.neumann_norm == pytest.approx(factor * exact_above, rel=1e-6)
    assert matrix.map.exact_solves == solves
    if solves == 2:
        assert orthogonality_error(W) < rounding(torch.float64, 20, operations=2, scale=1 + skew_norm(matrix))


def test_exact_above_zero_always_solves():
    matrix = build({"name": "neumann", "exact_above": 0.0}, 5)
    for k in range(4):
        assert matrix.map.exact_solves == k
        updated(matrix, 1e-3 * torch.randn(10))


def test_exact_inverse_is_recomputed_every_reset_every_updates(double):
    matrix = build({**AS_IN_PAPER, "reset_every": 5}, 6)
    matrix()
    errors = []
    for k in range(1, 16):
        errors.append(orthogonality_error(updated(matrix, 1e-2 * torch.randn(15))))
        assert matrix.map.exact_solves == 1 + k // 5
        assert matrix.map.age == k % 5
    exact = rounding(torch.float64, 6, operations=2, scale=1 + skew_norm(matrix))
    assert max(errors[4::5]) < exact < 1e-8 < min(errors[3::5])  # at a reset, and just before it


def test_second_evaluation_without_update_changes_nothing(double):
    matrix = build("neumann", 6)
    matrix()
    W = updated(matrix, 1e-2 * torch.randn(15))
    state = {k: v.clone() for k, v in matrix.state_dict().items()}
    assert torch.equal(matrix(), W)
    assert all(torch.equal(v, state[k]) for k, v in matrix.state_dict().items())


def test_norm_below_matches_spectral_norm():
    for size in (1, 2, 7, 60):
        for kind in (torch.randn(size, size), torch.outer(*torch.randn(2, size)), torch.eye(size)):
            X = kind / torch.linalg.matrix_norm(kind, 2)
            assert norm_below(X, 1.01)
            assert not norm_below(X, 0.99)
    assert not norm_below(torch.full((3, 3), torch.nan), 1.0)
    assert not norm_below(torch.full((3, 3), torch.inf), 1.0)
    assert not norm_below(torch.zeros(3, 3), 0.0)


def train_on_random_gradients(matrix, steps, optimizer, look=lambda: None):
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        optimizer.zero_grad()
        (matrix() * torch.randn(matrix.size, matrix.size, generator=generator)).sum().backward()
        optimizer.step()
        look()


def test_training_is_the_same_with_or_without_evaluations():
    watched = build({"name": "neumann", "reset_every": 7}, 12)
    alone = copy.deepcopy(watched)

    def look():
        watched.eval()
        with torch.no_grad():
            watched()
            watched()
        watched.train()

    train_on_random_gradients(watched, 30, torch.optim.Adam(watched.parameters(), lr=1e-2), look)
    look()
    train_on_random_gradients(alone, 30, torch.optim.Adam(alone.parameters(), lr=1e-2))
    assert torch.equal(watched(), alone())
    assert watched.map.exact_solves == alone.map.exact_solves > 1


def test_backward_after_later_updates_uses_its_own_inverse(double):
    """Two graphs alive at once: the state that moves on must not reach into the older one."""
    matrix = build("neumann", 6)
    G = torch.randn(6, 6)
    W = matrix()
    (expected,) = torch.autograd.grad(ScaledCayley(6)(*matrix.packed()), matrix.skew, G)
    matrix.packed()[0].data += 1e-2 * torch.randn(15)
    matrix()
    (late,) = torch.autograd.grad(W, matrix.skew, G)
    torch.testing.assert_close(late, expected)


def test_map_trains_after_call_in_inference_mode():
    map, free = NeumannCayley(6), torch.randn(15, requires_grad=True)
    with torch.inference_mode():
        map(free)
    map(free).sum().backward()
    assert free.grad.isfinite().all()


def test_resumed_run_keeps_its_approximate_inverse():
    """Not merely an equal matrix: the same rounding and truncation, the same next reset."""
    matrix = build({"name": "neumann", "reset_every": 10}, 12)
    train_on_random_gradients(matrix, 17, torch.optim.SGD(matrix.parameters(), lr=1e-3))
    assert matrix.map.age > 0
    resumed = build({"name": "neumann", "reset_every": 10}, 12)
    resumed.load_state_dict(matrix.state_dict())
    train_on_random_gradients(matrix, 12, torch.optim.SGD(matrix.parameters(), lr=1e-3))
    train_on_random_gradients(resumed, 12, torch.optim.SGD(resumed.parameters(), lr=1e-3))
    for key, value in matrix.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


def test_dtype_change_recomputes_exact_inverse():
    single = build("neumann", 6)
    single()
    updated(single, 1e-3 * torch.randn(15))
    double = copy.deepcopy(single).double()
    exact = rounding(torch.float64, 6, operations=2, scale=1 + skew_norm(double))
    assert orthogonality_error(double()) < exact
    loaded = build("neumann", 6).double()
    loaded.load_state_dict(single.state_dict())
    assert orthogonality_error(loaded()) < exact
    other = Matrix(NeumannCayley(6), torch.randn(15, dtype=torch.float64))
    assert orthogonality_error(other()) < rounding(torch.float64, 6, operations=2, scale=1 + skew_norm(other))


def test_huge_parameter_step_keeps_matrix_orthogonal():
    matrix = build("neumann", 6)
    matrix()
    W = updated(matrix, 1e3 * torch.randn(15))
    assert orthogonality_error(W) < rounding(torch.float32, 6, operations=2, scale=1 + skew_norm(matrix))
    W = updated(matrix, -matrix.packed()[0].detach())
    assert orthogonality_error(W) < rounding(torch.float32, 6, operations=2)


def drift(matrix, steps, memory):
    """‖WᵀW − I‖_F at every step of Adam at 1e-3; ``memory`` says how much a gradient has of the one before."""
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
    G, errors = torch.randn(128, 128), []
    for _ in range(steps):
        optimizer.zero_grad()
        W = matrix()
        errors.append(orthogonality_error(W))
        G = memory * G + (1 - memory**2) ** 0.5 * torch.randn(128, 128)
        W.backward(G)
        optimizer.step()
    return errors


@pytest.mark.parametrize("memory", [0.0, 0.95])
def test_orthogonality_error_stays_below_1e_4_over_999_updates(memory):
    """Single precision, size 128, order 2; every update counts, those just before a reset too."""
    matrix = Matrix(NeumannCayley(128, 40, order=2, reset_every=50), init.cayley(128))
    assert max(drift(matrix, 999, memory)) <= 1e-4
    assert matrix.map.exact_solves < 200  # it is the series that did the work


def test_paper_algorithm_drifts_less_with_higher_order_and_resets():
    """Resets help, order helps; without the guards order 1 is far from orthogonal just before a reset."""
    worst = {}
    for order in (1, 2, 3):
        torch.manual_seed(0)
        errors = drift(build({**AS_IN_PAPER, "order": order}, 128), 101, memory=0.95)
        worst[order] = max(errors)
        assert worst[order] in (errors[49], errors[99])  # resets are at 50 and 100
        assert errors[50] < rounding(torch.float32, 128, operations=2, scale=2)  # ‖A‖₂ is still about 1
    assert worst[1] > 1e-2 > worst[2] > 2e-4 > worst[3]


def test_unchanged_parameter_gives_same_matrix_without_evaluation(monkeypatch):
    """Also in training mode without gradients, as in one-step calls: W is exactly the one that was computed before."""
    matrix = neumann_cayley(6, reflections=2)
    with torch.no_grad():
        W = matrix()
        with monkeypatch.context() as patch:
            patch.setattr("steadygrad.matrices.neumann.matmul", None)  # it would be called
            assert torch.equal(matrix(), W)
        assert int(matrix.map.exact_solves) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda matrix: matrix.free[0].data.view(-1)[-1].add_(0.01),
        lambda matrix: matrix.map.inverse.mul_(2),
        lambda matrix: matrix.map.age.fill_(-1),
        lambda matrix: matrix.map.D.neg_(),
        lambda matrix: matrix.double(),
        lambda matrix: matrix.load_state_dict(neumann_cayley(20, reflections=3).state_dict()),
        lambda matrix: matrix().detach().zero_(),
    ],
    ids=["an entry", "inverse", "age", "D", "dtype", "state", "W itself"],
)
def test_matrix_is_evaluated_again_after_any_change(change):
    """Every entry of A counts, unlike in evaluation mode: training updates the inverse as often as before."""
    matrix, other = neumann_cayley(20, reflections=3), neumann_cayley(20, reflections=3)
    other.load_state_dict(matrix.state_dict())
    with torch.no_grad():
        matrix(), other()
        change(matrix)
        other = other.to(matrix.free[0].dtype)
        other.load_state_dict(matrix.state_dict())
        other.map._evaluated = None
        assert torch.equal(matrix(), other())
        assert torch.equal(matrix.map.inverse, other.map.inverse)
