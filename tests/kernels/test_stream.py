"""Streams in C: one step at a time gives what the loop over the whole sequence gives, for every kind of level."""

import gc
import threading

import pytest
import torch

from steadygrad.kernels import ACTIVATIONS, native
from steadygrad.kernels.backend import VARIABLE
from steadygrad.layers import GRU, LSTM, NCGRU, NNRNN, RNN, HenaffRNN, RelLSTM, RelRNN, ScuRNN, Stack
from tests.backends import needs_c
from tests.rounding import assert_same, rounding

pytestmark = needs_c

MEMORY = {"short": 3, "relevant": 2}
LAYERS = {
    **{f"rnn, {name}": (RNN, {"activation": name}) for name in ACTIVATIONS},
    "rnn, no bias": (RNN, {"bias": False}),
    "rnn, modrelu with two biases": (RNN, {"activation": "modrelu", "added_bias": "inputs"}),
    "complex": (ScuRNN, {}),
    "complex, no bias": (RNN, {"complex": True, "activation": "modrelu", "recurrent": "evolution", "bias": False}),
    "henaff, relu": (HenaffRNN, {}),
    "henaff, modrelu": (HenaffRNN, {"activation": "modrelu"}),
    "lstm": (LSTM, {}),
    "lstm, no bias": (LSTM, {"bias": False}),
    "gru, before": (GRU, {}),
    "gru, before, modrelu": (GRU, {"activation": "modrelu"}),
    "gru, after": (GRU, {"reset": "after"}),
    "gru, after, modrelu": (GRU, {"reset": "after", "activation": "modrelu"}),
    "gru, after, no bias": (GRU, {"reset": "after", "bias": False}),
    "relrnn": (RelRNN, MEMORY),
    "relrnn, modrelu with two biases": (RelRNN, {"activation": "modrelu", **MEMORY}),
    "relrnn, one recent state": (RelRNN, {"short": 1, "relevant": 1}),
    "rellstm": (RelLSTM, MEMORY),
    "rellstm, no relevant states": (RelLSTM, {"short": 4, "relevant": 0}),
    "rellstm, dot, add": (RelLSTM, {"alignment": "dot", "combine": "add", **MEMORY}),
}
every_layer = pytest.mark.parametrize("name", LAYERS)
STEPS = 24


def built(name, I, N, dtype=torch.float64, **options):
    """A layer whose biases, which may start at 0, are random."""
    make, own = LAYERS[name]
    layer = make(I, N, dtype=dtype, **own, **options).eval()
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            if "bias" in key:
                parameter.uniform_(-0.2, 0.2)
    return layer


def parts(state):
    return list(state) if isinstance(state, tuple) else [state]


def bound(layer, dtype, steps=STEPS):
    """Up to four sums a level and step (products, scores, attended states); states are at most of size 10 or so.

    At these sizes the recurrences amplify a difference no more than their largest state exceeds 1.
    """
    size = layer.output_size + layer.input_size + 5
    return rounding(dtype, size, operations=4 * layer.num_layers * steps, scale=10)


def compare(layer, batch, steps=STEPS):
    """Stream a sequence, half of it from the walk's state, and compare outputs and states with the whole walk."""
    dtype = next(layer.parameters()).dtype
    x = torch.randn(steps, batch, layer.input_size, dtype=dtype)
    with torch.no_grad():
        expected, end = layer(x)
        _, middle = layer(x[: steps // 2])
    stream = layer.stream(batch)
    assert stream.backend == "c"
    found = [stream(row) for row in x]
    assert not any(row.requires_grad for row in found)
    limit = bound(layer, dtype, steps)
    assert_same([torch.stack(found), *parts(stream.state)], [expected, *parts(end)], limit)
    stream.state = middle
    again = [stream(row) for row in x[steps // 2 :]]
    assert_same([torch.stack(again), *parts(stream.state)], [expected[steps // 2 :], *parts(end)], limit)
    with torch.no_grad():  # the layer goes on from the stream's state
        stream.reset()
        first = [stream(row) for row in x[: steps // 2]]
        second, last = layer(x[steps // 2 :], stream.state)
    assert_same([torch.cat([torch.stack(first), second]), *parts(last)], [expected, *parts(end)], limit)


@every_layer
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stream_matches_whole_walk(name, batch, dtype):
    """With sizes below, at and above the width of a panel, and odd ones."""
    for I, N in ((1, 1), (2, 5), (9, 33), (7, 64)):
        compare(built(name, I, N, dtype), batch)


@every_layer
@pytest.mark.parametrize("isa", [0, 1, 2])
def test_every_instruction_set_streams(name, isa):
    library = native.library()
    if library.steadygrad_set_isa(isa) != isa:
        library.steadygrad_set_isa(-1)
        pytest.skip(f"this processor does not have {native.INSTRUCTION_SETS[isa]}")
    try:
        for dtype in (torch.float32, torch.float64):
            for batch in (1, 13):
                compare(built(name, 3, 19, dtype), batch)
    finally:
        library.steadygrad_set_isa(-1)


def test_stream_keeps_its_instruction_set():
    """Its weights are packed for one, so a later choice of another must not matter."""
    layer, x = LSTM(3, 40), torch.randn(10, 1, 3)
    stream = layer.stream()
    expected = [stream(row) for row in x]
    stream.reset()
    native.library().steadygrad_set_isa(0)
    try:
        assert all(map(torch.equal, [stream(row) for row in x], expected))
    finally:
        native.library().steadygrad_set_isa(-1)


@every_layer
def test_two_levels_match_whole_walk(name):
    for batch in (1, 2):
        compare(built(name, 3, 8, num_layers=2), batch)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("early", [True, False])
def test_large_queries_and_keys_end_the_use_of_exponentials(batch, early):
    """At once, or in the middle of a sequence, when the inputs become large."""
    torch.manual_seed(1)
    layer = RelRNN(2, 8, dtype=torch.float64, activation="identity", **MEMORY).eval()
    with torch.no_grad():
        layer.weight_key_l0.mul_(400 if early else 1)
        layer.weight_score_l0.mul_(0.1)
    x = torch.randn(12, batch, 2, dtype=torch.float64)
    x[6:] *= 2000
    with torch.no_grad():
        expected, end = layer(x)
    assert (expected.abs().max() > 170) or early  # the limit of exponentials in double precision
    stream = layer.stream(batch)
    found = torch.stack([stream(row) for row in x])
    assert_same([found, *parts(stream.state)], [expected, *parts(end)], bound(layer, torch.float64))


def test_infinite_and_nan_inputs_pass_through():
    for name in LAYERS:
        layer = built(name, 2, 5)
        stream = layer.stream()
        assert stream(torch.full((1, 2), torch.nan, dtype=torch.float64)).isnan().any(), name


def test_stack_of_different_layers_matches_whole_walk():
    stack = Stack([NCGRU(3, 20), RelLSTM(20, 7, 2, **MEMORY), NNRNN(7, 70)]).double().eval()
    x = torch.randn(STEPS, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        expected, end = stack(x)
    stream = stack.stream(2)
    found = torch.stack([stream(row) for row in x])
    limit = rounding(torch.float64, 100, operations=4 * 4 * STEPS, scale=10)
    assert_same([found, *stream.state], [expected, *end], limit)


def test_memory_of_streams_is_freed_with_them():
    before = native.library().steadygrad_borrowed()
    streams = [RelLSTM(3, 600, **MEMORY).stream(), LSTM(3, 4, 2).stream(5), Stack([GRU(2, 3), RNN(3, 4)]).stream()]
    assert native.library().steadygrad_borrowed() == before + len(streams)
    streams[0].refresh()  # takes new memory and frees the old
    assert native.library().steadygrad_borrowed() == before + len(streams)
    thread = threading.Thread(target=streams.pop)  # freed by another thread
    thread.start()
    thread.join()
    streams.clear()
    gc.collect()
    assert native.library().steadygrad_borrowed() == before


def test_stream_without_memory_raises_and_leaks_nothing(monkeypatch):
    monkeypatch.setenv(VARIABLE, "c")
    library, layer = native.library(), RelLSTM(3, 40, **MEMORY)
    before = library.steadygrad_borrowed()
    library.steadygrad_fail_request(1)
    with pytest.raises(MemoryError, match="stream_open"):
        layer.stream()
    assert library.steadygrad_fail_request(0) == 0
    assert library.steadygrad_borrowed() == before
    stream, x = layer.stream(), torch.randn(1, 3)
    library.steadygrad_fail_request(1)
    try:
        stream(x), stream.reset()  # no step needs memory
        with pytest.raises(MemoryError, match="stream_open"):
            LSTM(3, 4).stream()
    finally:
        library.steadygrad_fail_request(0)


def test_failed_refresh_leaves_the_stream_as_it_was():
    layer, x = LSTM(3, 20), torch.randn(6, 1, 3)
    stream, other = layer.stream(), layer.stream()
    first = [stream(row) for row in x[:3]]
    assert all(map(torch.equal, [other(row) for row in x[:3]], first))
    native.library().steadygrad_fail_request(1)
    with pytest.raises(MemoryError):
        stream.refresh()
    assert native.library().steadygrad_fail_request(0) == 0
    assert all(torch.equal(stream(row), other(row)) for row in x[3:])
