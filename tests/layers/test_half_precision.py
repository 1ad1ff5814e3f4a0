"""Layers whose parameters have 16 bits: computed in single precision inside, no worse than rounding, in C if it can."""

import copy

import pytest
import torch

from steadygrad.kernels import runs_in_c
from steadygrad.layers import LAYERS
from steadygrad.layers.recurrent import as_tuple
from tests.backends import needs_c

I, N, TIME = 4, 6, 5
# SAB selects states by score, h-detach steps by chance: rounding or the draw changes which, and the gradient jumps
smooth = pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("sab", "h-detach")])
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def error(got, expected):
    return float((got.detach().double() - expected.detach()).norm() / expected.detach().norm())


@smooth
@DTYPES
def test_values_and_gradients_are_close_to_those_in_double_precision(name, dtype):
    layer = LAYERS[name](I, N).to(dtype)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(TIME, 3, I).to(dtype).requires_grad_()
    y, state = layer(x)
    expected, _ = exact(given := x.detach().double().requires_grad_())
    assert y.dtype == dtype
    assert {part.dtype for part in as_tuple(state) if part.is_floating_point()} == {dtype}
    # W is rounded to the parameters' type, which is worse than the steps: 2√N eps for N products, TIME times
    bound = 2 * TIME * N * torch.finfo(dtype).eps
    assert error(y, expected) < bound
    y.sum().backward()
    expected.sum().backward()
    assert error(x.grad, given.grad) < 2 * bound
    for parameter in layer.parameters():
        assert parameter.grad is None or parameter.grad.dtype == dtype


@needs_c
@DTYPES
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "rellstm"])
def test_free_matrices_are_as_exact_as_single_precision(name, dtype):
    """What the walk computes differs from single precision only by the rounding of its result."""
    layer = LAYERS[name](I, N).to(dtype)
    single, x = copy.deepcopy(layer).float(), torch.randn(TIME, 3, I).to(dtype)
    assert runs_in_c(x)
    y, state = layer(x)
    expected, _ = single(x.float())
    torch.testing.assert_close(y, expected.to(dtype), rtol=0, atol=0)
    again, _ = layer(x[3:], layer(x[:3])[1], reset=torch.tensor([[True] * 3, [False] * 3]))
    torch.testing.assert_close(again, single(x[3:].float())[0].to(dtype), rtol=0, atol=0)
