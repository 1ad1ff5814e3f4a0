"""Weights that many calls share: one product for the gradients of all steps."""

import pytest
import torch

from steadygrad.kernels import ElmanInputs, Shared, Steps, elman_unroll, elman_unroll_reference
from steadygrad.kernels.backend import VARIABLE
from tests.backends import every_backend
from tests.rounding import assert_same, rounding

TIME, BATCH, I, N = 6, 3, 4, 5


def run(unroll, weights, x, h):
    states = []
    for row in x:
        h = unroll(ElmanInputs(row, *weights, None, h, "tanh", Steps.padded(1, BATCH)))
        states.append(h)
    return torch.stack(states)


@pytest.fixture
def given():
    torch.manual_seed(0)
    shapes = (N, I), (N, N), (TIME, BATCH, I), (BATCH, N)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@every_backend
@pytest.mark.parametrize("wanted", [(0, 1, 2, 3), (0,), (1,), (2, 3)])
def test_gradients_equal_those_of_definition(backend, given, wanted, monkeypatch):
    monkeypatch.setenv(VARIABLE, backend)
    U, W, x, h = (part.requires_grad_(number in wanted) for number, part in enumerate(given))
    own = [part for part in given if part.requires_grad]
    expected = torch.autograd.grad(run(elman_unroll_reference, (U, W), x, h).square().sum(), own)
    shared = [Shared.apply(weight) for weight in (U, W)]
    got = torch.autograd.grad(run(elman_unroll, shared, x, h).square().sum(), own)
    # sums of all rows, through each step forward and backward; states are at most 1, x and weights below 4
    assert_same(list(got), list(expected), rounding(torch.float64, TIME * BATCH + N, 2 * TIME, 16))


def test_pass_that_misses_the_weight_leaves_nothing(given):
    U, W, x, h = given
    shared = Shared.apply(W)
    states = run(elman_unroll, (U, shared), x, h)
    torch.autograd.grad(states.sum(), h, retain_graph=True)
    assert shared.grad_fn.factors == {}
    first = torch.autograd.grad(states.sum(), W, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(states.sum(), W)[0])
    assert shared.grad_fn.factors == {}


def test_other_uses_of_the_weight_count_too(given):
    U, W, x, h = given

    def loss(weight, unroll):
        return run(unroll, (U, weight), x, h).sum() + weight.square().sum()

    expected = torch.autograd.grad(loss(W, elman_unroll_reference), W)
    got = torch.autograd.grad(loss(Shared.apply(W), elman_unroll), W)
    assert_same(list(got), list(expected), rounding(torch.float64, TIME * BATCH + N, 2 * TIME, 16))
