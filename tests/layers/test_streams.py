"""Promises of streams, for every layer: one step a call gives the outputs and states of the whole walk."""

import copy
import os
import pickle
import threading

import numpy
import pytest
import torch

from steadygrad.kernels import native
from steadygrad.kernels.backend import VARIABLE
from steadygrad.layers import GRU, LAYERS, LSTM, NNRNN, RNN, HDetachLSTM, MemRNN, RelRNN, Score, Stack, Stream, cells
from tests.backends import needs_c
from tests.rounding import assert_same, rounding

I, N, STEPS = 3, 6, 200
IN_PYTHON = {"cornn", "lem", "antisymmetric", "memrnn", "memlstm", "sab"}
"""layers without a step in C"""
every_layer = pytest.mark.parametrize("name", LAYERS)


def parts(state):
    return list(state) if isinstance(state, tuple) else [state]


@pytest.fixture
def x():
    return torch.randn(8, 1, I)


@every_layer
@pytest.mark.parametrize("levels", [1, 2])
def test_stream_matches_whole_walk(name, levels):
    """A step of a level has up to four sums, and the layers as built let no difference grow faster than it adds up.

    All but `SAB`, which divides by differences of scores. In single precision they may be as small as rounding errors.
    """
    for dtype in (torch.float64,) if name == "sab" else (torch.float32, torch.float64):
        for batch in (1, 3):
            torch.manual_seed(0)  # a memory chooses by scores: no two of these are equal up to rounding
            layer = LAYERS[name](I, N, num_layers=levels, dtype=dtype).eval()
            x = torch.randn(STEPS, batch, I, dtype=dtype)
            with torch.no_grad():
                expected, end = layer(x)
            stream = layer.stream(batch)
            found = torch.stack([stream(row) for row in x])
            limit = rounding(dtype, layer.output_size + I, operations=4 * levels * STEPS)
            assert_same([found, *parts(stream.state)], [expected, *parts(end)], limit)


@needs_c
@every_layer
def test_layers_with_a_walk_in_c_are_streamed_in_c(name):
    assert LAYERS[name](I, N).stream().backend == ("python" if name in IN_PYTHON else "c")


@every_layer
@pytest.mark.parametrize("backend", ["python", "reference"])
def test_python_path_has_the_same_results(name, backend, monkeypatch):
    layer, x = LAYERS[name](I, N, num_layers=2, dtype=torch.float64), torch.randn(12, 2, I, dtype=torch.float64)
    stream = layer.stream(2)
    expected = [stream(row) for row in x]
    monkeypatch.setenv(VARIABLE, backend)
    other = layer.stream(2)
    assert other.backend == "python"
    limit = rounding(torch.float64, layer.output_size + I, operations=4 * 2 * len(x))
    assert_same([other(row) for row in x], expected, limit)
    assert_same(parts(other.state), parts(stream.state), limit)


class Newest(Score):
    """The score is the number of the state's first entry."""

    def forward(self, states, received):
        return states[:, 0]


@pytest.mark.parametrize(
    "layer",
    [
        RNN(I, N, complex=True, activation="smoothed-modrelu"),
        RelRNN(I, N, short=3, relevant=2, score="learned"),
        RelRNN(I, N, short=3, relevant=2, score=lambda units: Newest()),
        RelRNN(I, N, short=3, relevant=2, combine="concatenate"),
        GRU(I, N, attention={"short": 3, "relevant": 2}),
        HDetachLSTM(I, N, attention={"short": 3, "relevant": 2}),
        MemRNN(I, N),
        LSTM(I, N, proj_size=2),
        LSTM(I, N, dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_layers_without_a_step_in_c_have_the_same_interface(layer):
    dtype = next(layer.parameters()).dtype
    x = torch.randn(12, 2, I, dtype=dtype)
    with torch.no_grad():
        expected, end = layer.eval()(x)
    stream = layer.stream(2)
    assert stream.backend == "python"
    found = [stream(row) for row in x]
    limit = rounding(dtype, layer.output_size + I, operations=4 * len(x))
    assert_same([torch.stack(found), *parts(stream.state)], [expected, *parts(end)], limit)
    out = torch.empty_like(found[0])
    stream.reset()
    assert stream(x[0], out=out) is out
    assert torch.equal(out, found[0])


@every_layer
def test_reset_goes_back_to_the_initial_state(name, x):
    layer = LAYERS[name](I, N)
    stream = layer.stream()
    start = parts(stream.state)
    assert_same(start, list(layer.default_states(1, x)), 0)
    first = [stream(row) for row in x]
    stream.reset()
    assert all(map(torch.equal, parts(stream.state), start))
    assert all(map(torch.equal, [stream(row) for row in x], first))


@every_layer
def test_state_is_a_copy_that_can_be_assigned(name, x):
    stream = LAYERS[name](I, N, num_layers=2).stream()
    for row in x[:4]:
        stream(row)
    middle = stream.state
    saved = [part.clone() for part in parts(middle)]
    second = [stream(row) for row in x[4:]]
    assert all(map(torch.equal, parts(middle), saved))
    stream.state = middle
    for part in parts(middle):
        part.zero_()  # the stream has a copy of its own
    again = [stream(row) for row in x[4:]]  # C computes the keys of a memory anew, and together
    assert_same(again, second, rounding(torch.float32, stream.output_size + I, operations=4 * 2 * len(x)))


def test_trained_initial_state_begins_a_stream(x):
    layer = GRU(I, N, 2, trained_state=True)
    with torch.no_grad():
        layer.initial_state[0].normal_()
    stream = layer.stream()
    with torch.no_grad():
        expected, _ = layer(x)
    assert_same([torch.stack([stream(row) for row in x])], [expected], rounding(torch.float32, N + I, 4 * 2 * len(x)))


@every_layer
def test_stream_is_a_snapshot_until_it_is_refreshed(name, x):
    layer = LAYERS[name](I, N)
    stream, untouched = layer.stream(), layer.stream()
    for row in x[:4]:
        assert torch.equal(stream(row), untouched(row))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1)
    assert torch.equal(stream(x[4]), untouched(x[4]))
    stream.refresh()
    assert all(map(torch.equal, parts(stream.state), parts(untouched.state)))
    assert not torch.equal(stream(x[5]), untouched(x[5]))
    fresh = layer.stream()
    fresh.state = stream.state
    assert torch.equal(fresh(x[6]), stream(x[6]))


def test_refresh_takes_over_another_dtype(x):
    layer = LSTM(I, N)
    stream = layer.stream()
    stream(x[0])
    before = stream.state
    layer.double()
    stream.refresh()
    assert all(torch.equal(new, old.double()) for new, old in zip(stream.state, before, strict=True))
    assert stream(x[1].double()).dtype == torch.float64
    with pytest.raises(ValueError, match=r"expects x of type torch\.float64"):
        stream(x[1])


def test_stream_computes_what_the_layer_computes_in_evaluation_mode(x):
    layer = LSTM(I, N, 2, dropout=0.5)
    layer.drop_weights(0.5)
    stream = layer.stream()  # made in training mode, which stays
    assert layer.training
    found = torch.stack([stream(row) for row in x])
    with torch.no_grad():
        expected, _ = layer.eval()(x)
    assert_same([found], [expected], rounding(torch.float32, N + I, 4 * 2 * len(x)))


@pytest.mark.parametrize("layer", [LSTM(I, N), LSTM(I, N, batch_first=True), MemRNN(I, N, batch_first=True)], ids=str)
def test_one_sequence_may_have_no_batch(layer, x):
    stream, other = layer.stream(), layer.stream()
    for row in x:
        without, with_batch = stream(row[0]), other(row)
        assert without.shape == (layer.output_size,)
        assert with_batch.shape == (1, layer.output_size)
        assert torch.equal(without, with_batch[0])


def test_calls_return_new_tensors_or_fill_out(x):
    stream = LSTM(I, N).stream()
    first = stream(x[0])
    kept = first.clone()
    second = stream(x[1])
    assert torch.equal(first, kept)
    assert first.data_ptr() != second.data_ptr()
    out = torch.empty(1, N)
    version = out._version
    assert stream(x[2], out) is out
    assert out._version > version  # autograd notices the new values
    with torch.inference_mode():
        inside = torch.empty(1, N)
        assert stream(x[3], out=inside) is inside


def test_outputs_have_no_graph(x):
    layer = LSTM(I, N)
    for stream in (layer.stream(), MemRNN(I, N).stream()):
        found = stream(x[0].clone().requires_grad_())
        assert not found.requires_grad
        assert not any(part.requires_grad for part in stream.state)


WRONG = {
    "batch": (torch.zeros(2, I), r"expects x, a tensor of shape \(1, 3\) or \(3,\); got \(2, 3\)"),
    "features": (torch.zeros(1, I + 1), r"got \(1, 4\)"),
    "time": (torch.zeros(1, 1, I), r"got \(1, 1, 3\)"),
    "dtype": (torch.zeros(1, I).double(), "expects x of type torch.float32.*got torch.float64"),
    "integers": (torch.zeros(1, I).long(), "expects x of type torch.float32.*got torch.int64"),
    "layout": (torch.zeros(1, I).to_sparse(), "expects x of layout torch.strided; got torch.sparse_coo"),
    "strides": (torch.zeros(1, 2 * I)[:, ::2], r"expects x to be contiguous; got strides \(6, 2\)"),
    "device": (torch.zeros(1, I, device="meta"), "expects x to hold data in memory"),
    "array": (numpy.zeros((1, I), "float32"), "got ndarray"),
    "list": ([0.0] * I, "got list"),
    "nothing": (None, "got NoneType"),
}


@pytest.mark.parametrize("layer", [LSTM(I, N), MemRNN(I, N)], ids=str)
@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_refused(layer, case):
    """And change nothing."""
    given, message = WRONG[case]
    stream = layer.stream()
    before = parts(stream.state)
    with pytest.raises(ValueError, match=f"a stream of {type(layer).__name__} .*{message}"):
        stream(given)
    assert all(map(torch.equal, parts(stream.state), before))


WRONG_OUT = {
    "shape": (torch.empty(N), r"expects out, a tensor of shape \(1, 6\) without gradient; got shape \(6,\)"),
    "dtype": (torch.empty(1, N).double(), "expects out of type torch.float32"),
    "gradient": (torch.empty(1, N, requires_grad=True), "that requires a gradient"),
    "strides": (torch.empty(1, 2 * N)[:, ::2], "expects out to be contiguous"),
    "meta": (torch.empty(1, N, device="meta"), "expects out on cpu"),
    "number": (1.0, "got float"),
}


@pytest.mark.parametrize("case", WRONG_OUT)
def test_wrong_out_is_refused(case):
    out, message = WRONG_OUT[case]
    with pytest.raises(ValueError, match=message):
        LSTM(I, N).stream()(torch.zeros(1, I), out=out)


@pytest.mark.parametrize("layer", [LSTM(I, N), MemRNN(I, N)], ids=str)
def test_torch_func_and_tracing_are_refused(layer):
    stream, x = layer.stream(), torch.zeros(1, I)
    message = "expects x to hold data in memory.*Call the layer instead"
    with pytest.raises(ValueError, match=message):
        torch.vmap(stream)(torch.zeros(4, 1, I))
    with pytest.raises(ValueError, match=message):
        torch.func.grad(lambda x: stream(x).sum())(x)


def test_negated_views_have_their_values(x):
    stream = LSTM(I, N).stream()
    first = stream(torch._neg_view(x[0]))
    stream.reset()
    assert torch.equal(first, stream(-x[0]))


WRONG_STATES = {
    "number": (torch.zeros(1, 1, N), "expects a state of 2 tensors; got 1"),
    "none": (None, "expects a state of 2 tensors; got 1"),
    "shape": ((torch.zeros(1, 1, N), torch.zeros(1, 2, N)), r"shape \(1, 1, 6\); got \(1, 2, 6\)"),
    "dtype": ((torch.zeros(1, 1, N), torch.zeros(1, 1, N).double()), "type torch.float32; got torch.float64"),
}


@pytest.mark.parametrize("case", WRONG_STATES)
def test_wrong_states_are_refused(case):
    state, message = WRONG_STATES[case]
    stream = LSTM(I, N).stream()
    with pytest.raises(ValueError, match=message):
        stream.state = state


@needs_c
@pytest.mark.parametrize("age", [-1, 2**62 + 1])
def test_impossible_ages_are_refused(age, x):
    stream = RelRNN(I, N, short=3, relevant=2).stream()
    stream(x[0])
    before = stream.state
    with pytest.raises(ValueError, match="expects ages of 0 to"):
        stream.state = (*before[:-1], torch.full((1, 1), age))
    assert all(map(torch.equal, stream.state, before))


def test_streams_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"expects unidirectional layers.*bidirectional=True in layer 0"):
        LSTM(I, N, bidirectional=True).stream()
    for batch in (0, True, 1.0, "1"):
        with pytest.raises(ValueError, match="expects batch to be an integer of at least 1"):
            LSTM(I, N).stream(batch)


def test_weights_that_are_not_finite_are_refused():
    layer = LSTM(I, N)
    with torch.no_grad():
        layer.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        layer.stream()


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_cannot_be_copied(copier):
    stream = LSTM(I, N).stream()
    with pytest.raises(TypeError, match="a stream of LSTM cannot be copied or pickled; make another one"):
        copier(stream)


def test_layer_with_a_stream_can_be_copied_and_pickled(x):
    layer = LSTM(I, N)
    stream = layer.stream()
    stream(x[0])
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], layer(x)[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_has_a_stream_of_its_own(x):
    stream = LSTM(I, N).stream()
    stream(x[0])
    state = stream.state
    expected = stream(x[1])
    stream.state = state
    if (child := os.fork()) == 0:
        os._exit(0 if torch.equal(stream(x[1]), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(torch.equal, stream.state, state))  # the step of the child did not change it
    assert torch.equal(stream(x[1]), expected)


def test_call_from_another_thread_meanwhile_is_refused(x, monkeypatch):
    """A step of one thread waits inside the stream until another thread has called."""
    stream, inside, leave, found = LSTM(I, N).stream(), threading.Event(), threading.Event(), []
    step = stream._checked_out

    def slow(*given):
        inside.set()
        leave.wait(10)
        return step(*given)

    monkeypatch.setattr(stream, "_checked_out", slow)
    out = torch.empty(1, N)
    thread = threading.Thread(target=lambda: found.append(stream(x[0], out)))
    thread.start()
    assert inside.wait(10)
    try:
        for use in (lambda: stream(x[0]), lambda: stream.state, stream.reset, stream.refresh):
            with pytest.raises(RuntimeError, match="one call at a time; got a second one from another thread"):
                use()
    finally:
        leave.set()
        thread.join()
    assert found[0] is out
    stream(x[1])  # free again


def test_threads_with_a_stream_each_get_the_same_numbers():
    layer, x = NNRNN(I, 40), torch.randn(200, 1, I)
    stream = layer.stream()
    expected = [stream(row) for row in x]
    results = [None] * 4

    def run(number):
        own = layer.stream()
        results[number] = [own(row) for row in x]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(all(map(torch.equal, found, expected)) for found in results)


def test_an_error_frees_the_stream(x):
    stream = LSTM(I, N).stream()
    with pytest.raises(ValueError, match="expects x"):
        stream(x)
    assert stream(x[0]).shape == (1, N)


def test_large_stream_releases_the_lock_of_python():
    """From a million multiplications on; both kinds of call give the same numbers."""
    layer, x = RNN(I, 1100), torch.randn(2, 1, I)
    stream = layer.stream()
    with torch.no_grad():
        expected, _ = layer(x)
    found = torch.stack([stream(row) for row in x])
    assert_same([found], [expected], rounding(torch.float32, 1100 + I, 4 * len(x)))


def test_stack_has_the_state_of_a_stack(x):
    stack = Stack([GRU(I, N), LSTM(N, 4, num_layers=2)])
    stream = stack.stream()
    assert isinstance(stream, Stream)
    with torch.no_grad():
        expected, end = stack(x)
    found = torch.stack([stream(row) for row in x])
    limit = rounding(torch.float32, N + I, 4 * 3 * len(x))
    assert_same([found, *stream.state], [expected, *end], limit)
    stream.state = list(end)
    with torch.no_grad():
        more, _ = stack(x[:1], end)
    assert_same([stream(x[0])], [more[0]], limit)


@pytest.mark.parametrize("make", [cells.NCGRUCell, cells.LEMCell, cells.RelLSTMCell])
def test_cells_are_streamed_as_their_layers(make, x):
    cell, found, state = make(I, N), [], None
    for row in x:
        state = cell.eval()(row, state)
        found.append(parts(state)[0].detach())
    stream = cell.stream()
    streamed = torch.stack([stream(row) for row in x])
    assert_same([streamed], [torch.stack(found)], rounding(torch.float32, N + I, 4 * len(x)))


def test_compiled_caller_calls_the_stream(x):
    """torch.compile leaves the call out of its graph."""
    stream = LSTM(I, N).stream()
    expected = 2 * stream(x[0])
    stream.reset()
    compiled = torch.compile(lambda x: 2 * stream(x), backend="eager")
    assert torch.equal(compiled(x[0]), expected)


@needs_c
def test_missing_library_means_python(monkeypatch, x):
    layer = LSTM(I, N)
    monkeypatch.setattr(native, "library", lambda: "it was not built")
    stream = layer.stream()
    assert stream.backend == "python"
    assert stream(x[0]).shape == (1, N)
