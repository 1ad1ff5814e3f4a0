"""Resets inside a sequence equal sequences that are split by hand, in values and gradients, for every layer."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.testing import assert_close

from steadygrad.kernels import Steps
from steadygrad.layers import GRU, LAYERS, LSTM, NCGRU, RNN, ExpRNN, MemRNN, RelLSTM, Stack, resets
from steadygrad.layers.recurrent import as_tuple
from steadygrad.layers.resets import cut
from tests.backends import needs_c
from tests.rounding import assert_same, rounding

I, N = 3, 5
# h-detach draws its detached steps anew in every call, so only its values can be compared
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def split(layer, x, mask, state=None):
    """Return the outputs and final states of x (time, batch, features), each segment in a call of its own."""
    outputs, finals = [], []
    for b in range(x.shape[1]):
        cuts = sorted({0, *mask[:, b].nonzero()[:, 0].tolist()})
        own = None if state is None or mask[0, b] else tuple(part[:, b : b + 1] for part in as_tuple(state))
        pieces = []
        for begin, end in pairwise([*cuts, len(x)]):
            y, final = layer(x[begin:end, b : b + 1], own)
            pieces.append(y)
            own = None
        outputs.append(torch.cat(pieces))
        finals.append(as_tuple(final))
    return torch.cat(outputs, 1), finals


def gradients(layer, x, y, weight):
    """Return the gradients of a weighted sum of y, of x and all parameters that have one."""
    wanted = [x, *layer.parameters()]
    found = torch.autograd.grad(y, wanted, weight, allow_unused=True, retain_graph=True)
    return [gradient for gradient in found if gradient is not None]


@every_layer
@pytest.mark.parametrize("bidirectional", [False, True])
def test_resets_equal_sequences_split_by_hand(make, bidirectional):
    torch.manual_seed(0)
    layer = make(I, N, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    x = torch.randn(9, 4, I, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(9, 4) < 0.3
    mask[0, 1] = mask[4, 2] = True
    y, final = layer(x, reset=mask)
    expected, finals = split(layer, x, mask)
    bound = rounding(torch.float64, 2 * N + I, 2 * 9, 10.0)  # two levels of nine steps, values below 10
    assert_close(y, expected, rtol=0, atol=bound)
    for b, own in enumerate(finals):
        for i in range(len(layer.state_sizes)):
            assert_close(as_tuple(final)[i][:, b : b + 1], own[i], rtol=0, atol=bound)
    if make is not LAYERS["h-detach"]:
        weight = torch.randn_like(y)
        assert_same(gradients(layer, x, y, weight), gradients(layer, x, expected, weight), 36 * bound)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_any_mask_and_any_lengths(data):
    time = data.draw(st.integers(1, 7))
    lengths = data.draw(st.lists(st.integers(1, time), min_size=1, max_size=4))
    layer = data.draw(st.sampled_from([RNN, LSTM, NCGRU, RelLSTM, MemRNN]))(I, N, dtype=torch.float64)
    x = [torch.randn(length, I, dtype=torch.float64) for length in lengths]
    masks = [torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))) for n in lengths]
    packed, mask = (pack_sequence(parts, enforce_sorted=False) for parts in (x, masks))
    _, state = layer(torch.randn(2, len(x), I, dtype=torch.float64))
    y, final = layer(packed, state, reset=mask)
    padded, _ = pad_packed_sequence(y)
    bound = rounding(torch.float64, N + I, time, 10.0)
    for b, length in enumerate(lengths):
        own = tuple(part[:, b : b + 1] for part in as_tuple(state))
        expected, finals = split(layer, x[b][:, None], masks[b][:, None], own)
        assert_close(padded[:length, b], expected[:, 0], rtol=0, atol=bound)
        for i in range(len(layer.state_sizes)):
            assert_close(as_tuple(final)[i][:, b : b + 1], finals[0][i], rtol=0, atol=bound)
    rows, _ = layer(packed, state, reset=mask.data)  # the flags of the rows alone
    assert torch.equal(rows.data, y.data)


@needs_c
@pytest.mark.parametrize("name", ["exprnn", "urnn", "ncgru", "gru", "goru", "lstm", "h-detach", "relrnn", "rellstm"])
def test_kernels_reset_inside_the_walk(name, monkeypatch):
    monkeypatch.setattr(resets, "cut", None)  # an error if it is called
    layer = LAYERS[name](I, N, num_layers=2)
    y, _ = layer(torch.randn(6, 3, I), reset=torch.rand(6, 3) < 0.3)
    y.sum().backward()
    with pytest.raises(TypeError, match="NoneType"):
        LAYERS[name](I, N, bidirectional=True)(torch.randn(6, 3, I), reset=torch.rand(6, 3) < 0.3)


@pytest.mark.parametrize("name", ["relrnn", "rellstm", "memrnn"])
@pytest.mark.parametrize("packed", [False, True])
def test_memory_holds_only_states_since_the_reset(name, packed):
    layer = LAYERS[name](I, N, dtype=torch.float64, **({} if name == "memrnn" else {"short": 2, "relevant": 2}))
    lengths, cuts = ([9, 9, 9, 9], [3, 8, 0, 5]) if not packed else ([9, 8, 7, 5], [3, 7, 0, 4])
    _, before = layer(torch.randn(7, 4, I, dtype=torch.float64))
    mask, x = torch.zeros(9, 4, dtype=torch.bool), torch.randn(9, 4, I, dtype=torch.float64)
    for b, begin in enumerate(cuts):
        mask[begin, b] = True
    flags = [mask[:length, b] for b, length in enumerate(lengths)]
    given = pack_sequence([x[:length, b] for b, length in enumerate(lengths)]) if packed else x
    _, after = layer(given, before, reset=pack_sequence(flags) if packed else mask)
    bound = rounding(torch.float64, N + I, 9, 10.0)
    for b, (begin, length) in enumerate(zip(cuts, lengths, strict=True)):
        _, expected = layer(x[begin:length, b : b + 1])
        for part, own in zip(after, expected, strict=True):
            part = part[:, b : b + 1]
            if part.dim() > 2 and part.shape[2] > own.shape[2]:  # memory without limit: empty places in front
                front, part = part.split([part.shape[2] - own.shape[2], own.shape[2]], dim=2)
                assert not front.any()
            assert_close(part, own, rtol=0, atol=bound)


@every_layer
def test_a_mask_without_resets_changes_nothing(make):
    layer = make(I, N).eval()
    x = torch.randn(6, 3, I)
    (y, final), (expected, state) = layer(x, reset=torch.zeros(6, 3, dtype=torch.bool)), layer(x)
    bound = rounding(torch.float32, 2 * N + I, 6, 10.0)
    assert_close(y, expected, rtol=0, atol=bound)
    assert_same(list(as_tuple(final)), list(as_tuple(state)), bound)


def test_batch_first_and_unbatched_inputs():
    layer, first = GRU(I, N), GRU(I, N, batch_first=True)
    first.load_state_dict(layer.state_dict())
    x, mask = torch.randn(6, 3, I), torch.rand(6, 3) < 0.4
    expected, final = layer(x, reset=mask)
    y, state = first(x.transpose(0, 1), reset=mask.T)
    assert torch.equal(y, expected.transpose(0, 1))
    assert torch.equal(state, final)
    y, state = layer(x[:, 0], reset=mask[:, 0])
    bound = rounding(torch.float32, 2 * N + I, 6)
    assert_close(y, expected[:, 0], rtol=0, atol=bound)
    assert_close(state, final[:, 0], rtol=0, atol=bound)


def test_a_reset_starts_from_the_trained_state():
    layer = ExpRNN(I, N, trained_state=True)
    torch.nn.init.normal_(layer.initial_state[0])
    x = torch.randn(2, 1, I)
    y, _ = layer(x, torch.zeros(1, 1, N), reset=torch.tensor([[False], [True]]))
    assert_close(y[1:], layer(x[1:])[0])
    y.sum().backward()
    assert layer.initial_state[0].grad.abs().sum() > 0


def test_a_stack_resets_all_layers():
    stack = Stack([GRU(I, N), LSTM(N, 4)])
    x, mask = torch.randn(6, 1, I), torch.zeros(6, 1, dtype=torch.bool)
    mask[2] = True
    y, _ = stack(x, reset=mask)
    assert_close(y[2:], stack(x[2:])[0], rtol=0, atol=rounding(torch.float32, 2 * N + I, 6))


def test_second_derivatives_and_autocast():
    layer = GRU(I, N, dtype=torch.float64)
    x, mask = torch.randn(4, 2, I, dtype=torch.float64, requires_grad=True), torch.rand(4, 2) < 0.5
    assert torch.autograd.gradgradcheck(lambda x: layer(x, reset=mask)[0], x)
    layer, x = layer.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = layer(x, reset=mask)
    assert torch.equal(y, layer(x, reset=mask)[0])


WRONG = {
    "numbers": (torch.zeros(4, 2), r"GRU expects reset to be a Boolean tensor of shape \(4, 2\); got torch.float32"),
    "list": ([True], r"expects reset to be a Boolean tensor .*; got list"),
    "shape": (
        torch.zeros(2, 4, dtype=torch.bool),
        r"expects reset of shape \(4, 2\), as its input; got shape",
    ),
    "device": (torch.zeros(4, 2, dtype=torch.bool, device="meta"), "expects reset on cpu, as its input is; got meta"),
}


@pytest.mark.parametrize(("mask", "words"), WRONG.values(), ids=WRONG)
def test_wrong_masks_raise_value_error(mask, words):
    with pytest.raises(ValueError, match=words):
        GRU(I, N)(torch.randn(4, 2, I), reset=mask)


def test_segments_keep_every_row_once():
    reset = torch.rand(12) < 0.4
    steps = Steps((4, 3, 3, 2))
    segments = cut(reset, steps)
    assert segments.order.sort().values.tolist() == list(range(12))
    assert torch.equal(segments.order[segments.place], torch.arange(12))
    assert segments.steps.rows == 12
    x = pack_padded_sequence(torch.arange(16.0).view(4, 4, 1), [4, 4, 3, 1]).data
    assert torch.equal(segments.batch_rows(segments.rows(x)), x)
