"""Checkpoints along time change neither values nor gradients, for every layer, and bound the memory of a step."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.testing import assert_close

from steadygrad.kernels import Steps
from steadygrad.layers import GRU, LAYERS, LSTM, RelLSTM, Stack
from steadygrad.layers.cell import Lookup
from steadygrad.layers.recurrent import as_tuple
from tests.rounding import assert_same, rounding

I, N, TIME = 3, 5, 8
BOUND = rounding(torch.float64, 2 * N + I, 2 * TIME, 10.0)  # two levels, values below 10
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def gradients(layer, x, outputs):
    """Return the gradients of a fixed weighted sum of all outputs, of x and all parameters that have one."""
    generator = torch.Generator().manual_seed(1)
    outputs = [part for part in outputs if part is not None and part.requires_grad]
    weights = [torch.randn(part.shape, generator=generator, dtype=part.dtype) for part in outputs]
    found = torch.autograd.grad(outputs, [x, *layer.parameters()], weights, allow_unused=True, retain_graph=True)
    return [part for part in found if part is not None]


def parts(result):
    y, final = result
    return [y.data if isinstance(y, PackedSequence) else y, *as_tuple(final)]


def compare(layer, x, found, expected):
    assert_same(found, expected, BOUND)
    assert_same(gradients(layer, x, found), gradients(layer, x, expected), 36 * BOUND)


@every_layer
@pytest.mark.parametrize("bidirectional", [False, True])
def test_values_and_gradients_are_those_without_checkpoints(make, bidirectional):
    layer = make(I, N, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    if make is LAYERS["h-detach"]:
        layer.eval()  # in training each chunk draws its own steps
    x = torch.randn(TIME, 4, I, dtype=torch.float64, requires_grad=True)
    _, state = layer(torch.randn(2, 4, I, dtype=torch.float64))
    state = tuple(part.detach() for part in as_tuple(state))
    compare(layer, x, parts(layer(x, state, checkpoint=3)), parts(layer(x, state)))


@every_layer
def test_random_numbers_are_those_of_a_loop_over_chunks(make):
    layer = make(I, N, num_layers=2, dropout=0.5, dtype=torch.float64)
    x = torch.randn(TIME, 4, I, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(2)
    found = parts(layer(x, checkpoint=4))
    torch.manual_seed(2)
    first, state = layer(x[:4])
    second, final = layer(x[4:], state)
    expected = [torch.cat([first, second]), *as_tuple(final)]
    torch.manual_seed(3)  # the backward pass must not depend on the generator, nor change it
    before = torch.get_rng_state()
    compare(layer, x, found, expected)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["exprnn", "lstm", "cornn", "rellstm", "memrnn", "sab"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("resets", [False, True])
def test_packed_batches_and_resets(name, bidirectional, resets):
    layer = LAYERS[name](I, N, bidirectional=bidirectional, dtype=torch.float64)
    lengths = [5, 8, 2, 7]
    x = torch.randn(sum(lengths), I, dtype=torch.float64, requires_grad=True)
    packed = pack_sequence(x.split(lengths), enforce_sorted=False)
    _, state = layer(torch.randn(3, 4, I, dtype=torch.float64))
    state = tuple(part.detach() for part in as_tuple(state))
    reset = pack_sequence([torch.rand(n) < 0.3 for n in lengths], enforce_sorted=False) if resets else None
    expected = parts(layer(packed, state, reset=reset))
    compare(layer, x, parts(layer(packed, state, reset=reset, checkpoint=3)), expected)


@every_layer
def test_without_output_only_the_state_is_returned(make):
    layer = make(I, N, batch_first=True, dtype=torch.float64).eval()
    x = torch.randn(4, TIME, I, dtype=torch.float64, requires_grad=True)
    _, expected = layer(x)
    for options in ({}, {"checkpoint": True}):
        y, final = layer(x, output=False, **options)
        assert y is None
        compare(layer, x, list(as_tuple(final)), list(as_tuple(expected)))
    assert layer(pack_sequence(list(x)), output=False)[0] is None


def test_forward_stores_a_state_for_each_chunk_and_no_outputs():
    layer, x = LSTM(I, N), torch.randn(100, 2, I)
    sizes = {}

    def note(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _, (h, _) = layer(x, checkpoint=10, output=False)
    assert sum(sizes.values()) < 4 * 2 * N * 100  # the outputs of all steps
    h.sum().backward()
    assert layer.weight_ih_l0.grad.abs().sum() > 0


def test_second_derivatives():
    layer = GRU(I, N, dtype=torch.float64)
    x = torch.randn(4, 2, I, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: layer(x, checkpoint=2)[0], x)


def test_matrices_are_evaluated_once_and_drop_the_same_weights_in_all_chunks():
    layer = LAYERS["exprnn"](I, N, dtype=torch.float64)
    layer.drop_weights(0.5)
    x = torch.randn(TIME, 2, I, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(2)
    found = parts(layer(x, checkpoint=3))
    torch.manual_seed(2)
    compare(layer, x, found, parts(layer(x)))


def test_lookup_autocast_unbatched_and_no_grad():
    layer = GRU(I, N)
    table, rows = torch.randn(4, I), torch.nn.functional.one_hot(torch.randint(4, (TIME, 2)), 4).float()
    bound = rounding(torch.float32, N + I, TIME)
    assert_close(layer(Lookup(rows, table), checkpoint=3)[0], layer(Lookup(rows, table))[0], rtol=0, atol=bound)
    x = torch.randn(TIME, I)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(layer(x, checkpoint=3)[0], layer(x)[0], rtol=0, atol=bound)
    with torch.no_grad():
        y, h = layer(x, checkpoint=True)
    assert_close(h[0], y[-1])


def test_under_torch_func():
    layer, x = GRU(I, N), torch.randn(3, TIME, 2, I)
    expected = torch.stack([layer(part)[0] for part in x])
    found = torch.vmap(lambda x: layer(x, checkpoint=3)[0])(x)
    assert_close(found, expected, rtol=0, atol=rounding(torch.float32, N + I, TIME))


@pytest.mark.parametrize("value", [0, -1, 2.5, "all", None])
def test_wrong_values_raise_value_error(value):
    with pytest.raises(ValueError, match="GRU expects checkpoint to be True, False or a number of time steps; got"):
        GRU(I, N)(torch.randn(4, 2, I), checkpoint=value)


def test_chunks_of_steps():
    steps = Steps((4, 3, 3, 2, 1)).with_resets(torch.arange(13) % 2 == 0)
    pieces = steps.chunks(2)
    assert [piece.sizes for piece in pieces] == [(4, 3), (3, 2), (1,)]
    assert torch.equal(torch.cat([piece.resets for piece in pieces]), steps.resets)
    assert [piece.reverse for piece in Steps((2, 2, 2)).reversed.chunks(2)] == [True, True]


def test_a_stack_and_nonreentrant_checkpoint_of_torch():
    stack, x = Stack([RelLSTM(I, N), LSTM(N, 4)]).double(), torch.randn(TIME, 2, I, dtype=torch.float64)
    x.requires_grad_()
    expected = parts(stack(x))
    found = parts(torch.utils.checkpoint.checkpoint(stack, x, use_reentrant=False))
    compare(stack, x, found, expected)
