"""`baked`: a copy whose matrices are plain, frozen weights."""

import pickle

import pytest
import torch

from steadygrad.layers import LAYERS, NCGRU, NNRNN, Stack
from steadygrad.matrices import Free, Matrix, build, frozen
from steadygrad.models.sequence import SequenceModel
from tests.rounding import rounding

I, N, T = 3, 6, 9
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def close(got, expected):
    expected = expected.detach()
    bound = rounding(expected.dtype, N + I, T, max(1.0, float(expected.abs().max())))
    torch.testing.assert_close(got, expected, rtol=0, atol=bound)


@every_layer
def test_baked_layer_is_frozen_and_computes_the_same(make):
    layer, x = make(I, N, num_layers=2, dropout=0.5), torch.randn(T, 2, I)
    layer.drop_weights(0.5)
    baked = pickle.loads(pickle.dumps(layer.baked()))
    assert layer.training  # the layer itself is not changed
    assert any(part.requires_grad for part in layer.parameters())
    assert not baked.training
    assert not any(part.requires_grad for part in baked.parameters())
    own, plain = layer.eval().matrices(), baked.matrices()
    assert list(own) == list(plain)
    assert all(torch.equal(W, plain[name]) for name, W in own.items())
    assert {part.kinds for part in baked.modules() if isinstance(part, Matrix)} <= {("matrix",), ("matrix", "matrix")}
    assert all(len(part.map.state_dict()) == 0 for part in baked.modules() if isinstance(part, Matrix))
    close(baked(x)[0], layer(x)[0])


@every_layer
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the trace has a fixed length
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_baked_layer_can_be_traced_by_torch_jit(make):
    layer, x = make(I, N).baked(), torch.randn(T, 2, I)
    traced = torch.jit.trace(layer, (torch.zeros_like(x),), check_trace=False)
    close(traced(x)[0], layer(x)[0])


def test_baked_pair_of_the_released_program_has_the_values_of_its_first_evaluation():
    """The matrices of this layer depend on the order in which they are evaluated."""
    layer, x = NCGRU(I, N, released_lr=1e-2, orthogonal="rc"), torch.randn(T, 2, I)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    layer.refresh()  # these values are intended
    close(layer.baked()(x)[0], layer.eval()(x)[0])


def test_baked_matrix_that_cells_share_is_shared():
    W = build("exponential", N)
    baked = NNRNN(I, N).baked()
    assert isinstance(baked.weight_hh_l0.map, Free)
    layer = LAYERS["lstm"](I, N, recurrent=W).baked()
    assert len({id(matrix) for matrix in layer.weight_hh_l0._modules.values()}) == 1


def test_stacks_and_models_are_baked_too():
    x = torch.randn(2, T, I)
    model, stack = SequenceModel(NNRNN(I, N), 5).eval(), Stack([NNRNN(I, N), NCGRU(N, 4)]).eval()
    close(model.baked()(x), model(x))
    close(stack.baked()(x)[0], stack(x)[0])
    assert model.baked().penalty() == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_frozen_matrix_has_the_value_of_its_argument(dtype):
    W = torch.randn(N, N, dtype=dtype)
    matrix = frozen(W)
    assert torch.equal(matrix(), W)
    W.zero_()
    assert matrix().abs().sum() > 0  # a copy
    with pytest.raises(ValueError, match="frozen expects a square matrix"):
        frozen(torch.zeros(2, 3, dtype=dtype))
