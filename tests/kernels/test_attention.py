"""The fused walk with attention = its definition step by step, in values, memories and every gradient."""

import os
import threading

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from steadygrad.kernels import ACTIVATIONS, Steps, native
from steadygrad.kernels.backend import VARIABLE
from steadygrad.layers import LSTM, RNN
from tests.backends import needs_c
from tests.kernels.test_unrolls import lengths, steps_of
from tests.rounding import assert_same, rounding

pytestmark = needs_c


def make_cell(cell, activation, N, I, dtype, **attention):
    layer = LSTM(I, N, attention=attention) if cell == "lstm" else RNN(I, N, activation=activation, attention=attention)
    return layer.to(dtype).cells[0]


def solve(cell, x, steps, start, more, backend):
    """Outputs, states, memories and gradients of a walk and of another that goes on from it."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = backend
    try:
        own = len(cell.state_sizes) + 1  # with the states of the memory; its counters have no gradient
        leaves = [t.detach().clone().requires_grad_() for t in (x, more, *start[:own])]
        weights = cell.weights()
        first, state = cell.walk(weights, leaves[0], steps, (*leaves[2:], *start[own:]))
        second, end = cell.walk(weights, leaves[1], Steps.padded(len(more) // steps.batch, steps.batch), state)
        generator = torch.Generator().manual_seed(1)
        smooth = (first, second, *end[:own])
        loss = sum((o * torch.randn(o.shape, generator=generator, dtype=o.dtype)).sum() for o in smooth)
        gradients = torch.autograd.grad(loss, [*leaves, *cell.parameters()], materialize_grads=True)
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
    return [first.detach(), second.detach(), *(part.detach() for part in (*state, *end)), *gradients]


def bound(cell, x, steps):
    """Three sums a step (recurrence, scores, weighted states), there and back; gradients of weights add over rows."""
    return rounding(x.dtype, cell.output_size + len(x), operations=6 * (len(steps.sizes) + 3))


def start_of(cell, batch, dtype, walked=0, I=2):
    """Any h, c and s; the memory empty, or what a walk has left."""
    empty = cell.initial_states(batch, torch.empty(0, dtype=dtype))
    own = len(cell.state_sizes)
    state = (*map(torch.randn_like, empty[:own]), *empty[own:])
    if walked:
        with torch.no_grad():
            steps = Steps.padded(walked, batch)
            _, state = cell.walk(cell.weights(), torch.randn(walked * batch, I, dtype=dtype), steps, state)
    return state


@given(
    lengths=lengths,
    reverse=st.booleans(),
    cell=st.sampled_from(["elman", "lstm"]),
    activation=st.sampled_from(ACTIVATIONS),
    hidden=st.integers(1, 21),
    short=st.one_of(st.none(), st.integers(1, 5)),
    relevant=st.integers(0, 4),
    alignment=st.sampled_from(["additive", "dot"]),
    combine=st.sampled_from(["add", "average"]),
    walked=st.integers(0, 8),
)
@example([6, 6], False, "elman", "tanh", 4, 3, 0, "additive", "average", 0)  # no R: nobody asks what S received
def test_c_kernel_matches_reference_steps(
    lengths, reverse, cell, activation, hidden, short, relevant, alignment, combine, walked
):
    steps, dtype = steps_of(sorted(lengths, reverse=True), reverse), torch.float64
    memory = {"short": None} if short is None else {"short": short, "relevant": relevant}
    module = make_cell(cell, activation, hidden, 2, dtype, **memory, alignment=alignment, combine=combine)
    x, more = torch.randn(steps.rows, 2, dtype=dtype), torch.randn(3 * steps.batch, 2, dtype=dtype)
    start = start_of(module, steps.batch, dtype, walked)
    got, expected = (solve(module, x, steps, start, more, backend) for backend in ("c", "reference"))
    assert_same(got, expected, bound(module, x, steps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("isa", range(3), ids=native.INSTRUCTION_SETS)
@pytest.mark.parametrize("cell", ["elman", "lstm"])
def test_every_instruction_set_and_thread_count_agrees(cell, isa, dtype):
    library = native.library()
    if library.steadygrad_set_isa(isa) != isa:
        library.steadygrad_set_isa(-1)
        pytest.skip(f"this machine has no {native.INSTRUCTION_SETS[isa]}")
    try:
        module = make_cell(cell, "tanh", 70, 3, dtype, short=6, relevant=3)
        steps = Steps.padded(25, 15)
        x, more = torch.randn(steps.rows, 3, dtype=dtype), torch.randn(45, 3, dtype=dtype)
        start = start_of(module, 15, dtype)
        expected = solve(module, x, steps, start, more, "reference")
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(solve(module, x, steps, start, more, "c"))
            assert_same(results[-1], expected, bound(module, x, steps))
        for one, two in zip(results[0][:8], results[1][:8], strict=True):
            assert torch.equal(one, two)  # what a sequence does is no matter of which thread does it
    finally:
        library.steadygrad_set_isa(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [3.0, 10.0, 50.0, 100.0, 3000.0])
def test_large_queries_and_keys_match_reference(dtype, scale):
    """Where their exponentials would overflow, or a large one of each sign would cancel."""
    module = make_cell("elman", "tanh", 20, 3, dtype, short=4, relevant=0)  # no choices: saturated scores are all alike
    with torch.no_grad():
        module.alignment.weight_query.mul_(scale)
        module.alignment.weight_key.mul_(-scale)
        module.alignment.weight_score.div_(10)  # or the softmax picks one, and every rounding error is a choice
    steps = Steps.padded(12, 3)
    x, more = torch.randn(36, 3, dtype=dtype), torch.randn(9, 3, dtype=dtype)
    start = start_of(module, 3, dtype)
    got, expected = (solve(module, x, steps, start, more, backend)[:4] for backend in ("c", "reference"))
    assert_same(got, expected, scale * bound(module, x, steps))  # rounding errors of q + k are as large as these are


def test_concurrent_python_threads_get_same_outputs():
    modules = [make_cell("elman", "tanh", 40, 3, torch.float64, short=4, relevant=2) for _ in range(2)]
    steps = Steps.padded(60, 6)
    x = torch.randn(steps.rows, 3, dtype=torch.float64)
    expected = [m.walk(m.weights(), x, steps, start_of_zeros(m, 6))[0] for m in modules]
    found = [None, None]

    def work(i):
        for _ in range(5):
            found[i] = modules[i].walk(modules[i].weights(), x, steps, start_of_zeros(modules[i], 6))[0]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def start_of_zeros(cell, batch):
    return cell.initial_states(batch, torch.empty(0, dtype=torch.float64))


def test_repeated_backward_gives_same_gradient():
    """Nothing saved for the way back is used up by it."""
    cell = make_cell("lstm", "tanh", 9, 3, torch.float64, short=4, relevant=2)
    steps = Steps.padded(20, 3)
    x = torch.randn(60, 3, dtype=torch.float64, requires_grad=True)
    output, _ = cell.walk(cell.weights(), x, steps, start_of_zeros(cell, 3))
    first, second = (torch.autograd.grad(output.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    (expanded,) = torch.autograd.grad(output, x, torch.ones(1, 1, dtype=torch.float64).expand_as(output))
    assert torch.equal(first, expanded)
