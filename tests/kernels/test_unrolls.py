"""C kernel = Python path = reference, in values and in every gradient, for all shapes, types and situations."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from steadygrad.kernels import (
    ACTIVATIONS,
    ElmanInputs,
    GRUInputs,
    LSTMInputs,
    Steps,
    elman_unroll,
    gru_unroll,
    lstm_unroll,
    native,
    runs_in_c,
)
from steadygrad.kernels.backend import VARIABLE
from steadygrad.layers import GRU, LSTM, RNN
from tests.backends import needs_c
from tests.rounding import assert_same, rounding

DTYPES = (torch.float64, torch.float32)


def elman(*arguments: Any) -> Tensor:
    return elman_unroll(ElmanInputs(*arguments))


def gru(*arguments: Any) -> Tensor:
    return gru_unroll(GRUInputs(*arguments))


def lstm(*arguments: Any) -> tuple[Tensor, Tensor]:
    return lstm_unroll(LSTMInputs(*arguments))


class Problem:
    """One call of a kernel with random tensors, and its outputs and gradients by any backend."""

    def __init__(self, kernel: Callable[..., Any], tensors: list[Tensor | None], rest: tuple[Any, ...]) -> None:
        self.kernel, self.tensors, self.rest = kernel, tensors, rest

    def solve(self, backend: str) -> list[Tensor]:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = backend
        try:
            leaves = [None if t is None else t.detach().requires_grad_() for t in self.tensors]
            outputs = self.kernel(*leaves, *self.rest)
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        weights = torch.Generator().manual_seed(1)
        sum((o * torch.randn(o.shape, generator=weights, dtype=o.dtype)).sum() for o in outputs).backward()
        # a leaf from which everything is detached has no gradient by definition, and zeros by the fast paths
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves if leaf is not None]
        return [o.detach() for o in outputs] + gradients


def problem(cell: str, activation: str, steps: Steps, N: int, I: int, dtype: torch.dtype, bias: bool = True) -> Problem:
    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, dtype=dtype)

    gates = {"elman": 1, "gru": 3, "gru-after": 3, "lstm": 4, "lstm-detached": 4}[cell]
    x, initial = random(steps.rows, I), random(steps.batch, N)
    W, U = random(gates * N, I), random(gates * N, N, scale=0.7 / N**0.5)
    b = random(gates * N, scale=0.3) if bias else None
    if cell == "elman":
        return Problem(elman, [x, W, U, b, initial], (activation, steps))
    if cell.startswith("gru"):
        modulus = random(N, scale=0.3) if activation == "modrelu" else None
        b_hn = random(N, scale=0.3) if cell == "gru-after" and bias else None
        rest = (activation, steps, "after") if cell == "gru-after" else (activation, steps)
        return Problem(gru, [x, W, U, b, modulus, b_hn, initial], rest)
    rest = (steps, torch.rand(len(steps.sizes)) < 0.5) if cell == "lstm-detached" else (steps,)
    return Problem(lstm, [x, W, U, b, initial, random(steps.batch, N)], rest)


def bound(case: Problem) -> float:
    """Each step, there and back, adds a sum over inputs and units, each gradient of a weight one over all rows."""
    x, W, U = case.tensors[:3]
    steps = next(part for part in case.rest if isinstance(part, Steps))
    return rounding(x.dtype, W.shape[1] + U.shape[1] + len(x), operations=2 * len(steps.sizes))


CELLS_WITH_EXACT_GRADIENTS = [
    *((cell, a) for cell in ("elman", "gru", "gru-after") for a in ACTIVATIONS),
    ("lstm", "tanh"),
]
CELLS = [*CELLS_WITH_EXACT_GRADIENTS, ("lstm-detached", "tanh")]  # which leaves gradients out on purpose
every_cell = pytest.mark.parametrize(("cell", "activation"), CELLS)
lengths = st.lists(st.integers(1, 9), min_size=1, max_size=14)


def steps_of(lengths: list[int], reverse: bool) -> Steps:
    """The packed layout of sequences of these lengths."""
    return Steps(tuple(sum(length > t for length in lengths) for t in range(max(lengths))), reverse)


@needs_c
@every_cell
@given(
    lengths=lengths | st.tuples(st.integers(1, 30), st.integers(1, 6)).map(lambda s: [s[1]] * s[0]),
    reverse=st.booleans(),
    N=st.integers(1, 40),
    I=st.integers(1, 20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    bias=st.booleans(),
    threads=st.integers(1, 2),
)
def test_c_and_python_match_reference(cell, activation, lengths, reverse, N, I, dtype, bias, threads):
    torch.set_num_threads(threads)
    case = problem(cell, activation, steps_of(lengths, reverse), N, I, dtype, bias)
    expected = case.solve("reference")
    assert_same(case.solve("python"), expected, bound(case))
    assert_same(case.solve("c"), expected, bound(case))


@needs_c
@every_cell
@pytest.mark.parametrize("isa", range(3), ids=native.INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_instruction_set_and_thread_count_agrees(cell, activation, isa, dtype):
    """Sizes beyond the tile of every instruction set, so that each loop and each remainder runs."""
    library = native.library()
    if library.steadygrad_set_isa(isa) != isa:
        library.steadygrad_set_isa(-1)
        pytest.skip(f"this machine has no {native.INSTRUCTION_SETS[isa]}")
    try:
        case = problem(cell, activation, Steps((29, 29, 17, 3)), 67, 5, dtype)
        expected = case.solve("reference")
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert_same(case.solve("c"), expected, bound(case))
    finally:
        library.steadygrad_set_isa(-1)


@needs_c
@every_cell
def test_non_contiguous_tensors_match_reference(cell, activation):
    case = problem(cell, activation, Steps.padded(5, 4), 9, 3, torch.float64)
    expected = case.solve("reference")
    case.tensors = [None if t is None else torch.stack([t, t], dim=-1)[..., 0] for t in case.tensors]
    assert not case.tensors[0].is_contiguous()
    assert_same(case.solve("c"), expected, bound(case))
    assert_same(case.solve("python"), expected, bound(case))


@needs_c
@every_cell
@pytest.mark.parametrize("backend", ["c", "python"])
def test_expanded_output_gradient_matches_reference(cell, activation, backend, monkeypatch):
    """``output.sum()`` hands back an expanded tensor, without memory of its own."""
    case = problem(cell, activation, Steps.padded(4, 3), 5, 2, torch.float64)

    def gradients(backend: str) -> list[Tensor]:
        monkeypatch.setenv(VARIABLE, backend)
        leaves = [None if t is None else t.detach().requires_grad_() for t in case.tensors]
        output = case.kernel(*leaves, *case.rest)
        (output[0] if isinstance(output, tuple) else output).sum().backward()
        return [leaf.grad for leaf in leaves if leaf is not None]

    assert_same(gradients(backend), gradients("reference"), bound(case))


@needs_c
@pytest.mark.parametrize(("cell", "activation"), CELLS_WITH_EXACT_GRADIENTS)
@pytest.mark.parametrize("backend", ["c", "python"])
def test_gradcheck(cell, activation, backend, monkeypatch):
    monkeypatch.setenv(VARIABLE, backend)
    case = problem(cell, activation, Steps((3, 2, 2)), 5, 2, torch.float64)
    present = [t.requires_grad_() for t in case.tensors if t is not None]

    def run(*values: Tensor) -> Any:
        left = iter(values)
        return case.kernel(*(None if t is None else next(left) for t in case.tensors), *case.rest)

    assert torch.autograd.gradcheck(run, present)


def detached_problem(mask: Tensor | None, steps: Steps, dtype: torch.dtype) -> Problem:
    torch.manual_seed(0)
    case = problem("lstm", "tanh", steps, 21, 3, dtype)
    case.rest = (steps, mask)
    return case


MASKS = {"none": [0, 0, 0, 0, 0], "all": [1, 1, 1, 1, 1], "some": [0, 1, 1, 0, 1]}
LAYOUTS = {"padded": (5, 5, 5, 5, 5), "packed": (5, 4, 4, 2, 1)}


@needs_c
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_detached_steps_change_only_gradients(mask, sizes, reverse, dtype):
    """Values never change, gradients do as in the definition; where no step is detached nothing changes at all."""
    steps = Steps(sizes, reverse)
    expected = detached_problem(torch.tensor(mask), steps, dtype).solve("reference")
    for backend in ("c", "python", "reference"):
        case = detached_problem(torch.tensor(mask), steps, dtype)
        got = case.solve(backend)
        plain = detached_problem(None, steps, dtype).solve(backend)
        assert_same(got, expected, bound(case))
        assert all(torch.equal(a, b) for a, b in zip(got[:2], plain[:2], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True)) == (not any(mask))
        as_floats = detached_problem(torch.tensor(mask, dtype=dtype), steps, dtype).solve(backend)
        assert all(torch.equal(a, b) for a, b in zip(got, as_floats, strict=True))


@needs_c
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("backend", ["c", "python", "reference"])
def test_detached_step_matches_two_separate_unrolls(backend, reverse, monkeypatch):
    """One sequence, one step detached: the state that it starts from gets nothing from the other side but through c."""
    monkeypatch.setenv(VARIABLE, backend)
    steps, N, T, t = Steps((1,) * 6, reverse), 4, 6, 2
    x, W, U, b, initial, cells = problem("lstm", "tanh", steps, N, 2, torch.float64).tensors
    detached = torch.arange(T) == t
    cut = lstm(x, W, U.requires_grad_(), b, initial, cells, steps, detached)[0]
    beyond = range(t + 1) if reverse else range(t, T)  # steps that come after the cut
    (got,) = torch.autograd.grad(cut[list(beyond)].sum(), U)
    # the same by two walks: one up to the cut, and one from there on whose h is a constant
    early, late = (range(t + 1, T), range(t + 1)) if reverse else (range(t), range(t, T))
    first = lstm(x[list(early)], W, U, b, initial, cells, Steps((1,) * len(early), reverse))
    last = slice(0, 1) if reverse else slice(-1, None)
    second = lstm(x[list(late)], W, U, b, first[0][last].detach(), first[1][last], Steps((1,) * len(late), reverse))
    (expected,) = torch.autograd.grad(second[0].sum(), U)
    torch.testing.assert_close(got, expected)


@needs_c
@pytest.mark.parametrize("backend", ["c", "python"])
def test_gradcheck_with_no_step_detached(backend, monkeypatch):
    monkeypatch.setenv(VARIABLE, backend)
    case = problem("lstm", "tanh", Steps((3, 2, 2)), 5, 2, torch.float64)
    present = [t.requires_grad_() for t in case.tensors]
    assert torch.autograd.gradcheck(lambda *values: lstm(*values, case.rest[0], torch.zeros(3)), present)


def test_detached_mask_of_wrong_length_raises_value_error():
    case = detached_problem(torch.zeros(4), Steps.padded(5, 2), torch.float32)
    with pytest.raises(ValueError, match=r"lstm_unroll expects detached of shape \(5,\); got \(4,\)"):
        case.solve("auto")


@pytest.mark.parametrize("reset", ["before", "after"])
def test_gru_saves_products_only_with_reset_after(reset):
    case = problem("gru", "tanh", Steps.padded(3, 2), 4, 2, torch.float32)
    case.tensors[0].requires_grad_()
    output = gru(*case.tensors, *case.rest, reset)  # without it torch 2.7 frees the saved tensors
    *_, products = output.grad_fn.saved_tensors
    assert (products is None) == (reset == "before")


@needs_c
@every_cell
def test_concurrent_python_threads_get_same_results(cell, activation):
    torch.set_num_threads(2)
    cases = [problem(cell, activation, Steps.padded(40, 16), 48, 8, torch.float64) for _ in range(2)]
    os.environ[VARIABLE] = "c"  # held for both threads, so neither takes it from under the other
    try:
        expected = [case.solve("c") for case in cases]
        wrong: list[BaseException] = []

        def work(which: int) -> None:
            try:
                for _ in range(10):
                    assert_same(cases[which].solve("c"), expected[which], bound(cases[which]))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
    finally:
        del os.environ[VARIABLE]


FORK_SCRIPT = """
import os, sys, torch
from steadygrad.kernels import GRUInputs, Steps, gru_unroll
torch.manual_seed(0)
torch.set_num_threads(2)
x, W, U, h = torch.randn(2000, 4), torch.randn(96, 4), torch.randn(96, 32) / 6, torch.zeros(40, 32)
run = lambda: gru_unroll(GRUInputs(x, W, U, None, None, None, h, "tanh", Steps.padded(50, 40)))
torch.mm(torch.randn(600, 600), torch.randn(600, 600))  # wakes torch's own threads
expected = run()
child = os.fork()
if not child:
    # compared by bytes, because torch.equal would hang in torch's own broken pool
    os._exit(0 if run().numpy().tobytes() == expected.numpy().tobytes() else 1)
_, status = os.waitpid(child, 0)
assert torch.equal(run(), expected)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@needs_c
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_c_kernel_works_after_fork():
    """In a process of its own, with a deadline: an OpenMP pool that is used after a fork hangs for ever."""
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", FORK_SCRIPT], check=True, timeout=120, env=os.environ | {VARIABLE: "c"})


@needs_c
@every_cell
@pytest.mark.parametrize("backend", ["c", "python"])
def test_nan_input_propagates_within_its_sequence(cell, activation, backend):
    """A run that diverges must look diverged, whatever the activation does with a comparison."""
    case = problem(cell, activation, Steps.padded(3, 2), 4, 2, torch.float32)
    case.tensors[0][1, 0] = float("nan")  # second sequence, first step
    states = case.solve(backend)[0].view(3, 2, 4)
    assert states[:, 1].isnan().all()
    assert not states[:, 0].isnan().any()


@needs_c
@every_cell
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_are_accurate_for_large_and_small_inputs(cell, activation, dtype):
    """The kernel's own exp keeps its accuracy in the tails, where gates close and tanh saturates."""
    case = problem(cell, activation, Steps.padded(1, 1), 64, 1, dtype)
    case.tensors = [None if t is None else torch.zeros_like(t) for t in case.tensors]  # z is W, to the last digit
    case.tensors[0] = torch.ones(1, 1, dtype=dtype)
    rows = len(case.tensors[1])
    sizes = torch.logspace(-12, 2.5, rows, dtype=torch.float64).to(dtype)
    case.tensors[1] = (sizes * torch.where(torch.arange(rows) % 2 == 0, 1, -1)).to(dtype)[:, None]
    got, expected = case.solve("c")[0], case.solve("reference")[0]
    torch.testing.assert_close(got, expected, rtol=rounding(dtype, 1, operations=3), atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tensors_of_16_bits_are_computed_in_single_precision(dtype):
    case = problem("elman", "tanh", Steps.padded(3, 2), 4, 2, torch.float32)
    case.tensors = [t.to(dtype) for t in case.tensors]
    got = case.solve("auto")[0]
    case.tensors = [t.float() for t in case.tensors]
    assert got.dtype == dtype
    if runs_in_c(torch.zeros(1)):
        torch.testing.assert_close(got, case.solve("auto")[0].to(dtype), rtol=0, atol=0)
    else:
        torch.testing.assert_close(got.float(), case.solve("auto")[0], rtol=0.1, atol=0.1)


def test_empty_batch_returns_empty_states():
    case = problem("elman", "tanh", Steps.padded(3, 0), 4, 2, torch.float32)
    for backend in ("reference", "python", "auto"):
        assert case.solve(backend)[0].shape == (0, 4)


@needs_c
def test_mismatched_dtype_device_or_shape_raises_value_error():
    layer, x = RNN(3, 8), torch.randn(5, 2, 3)
    layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.detach().double())
    with pytest.raises(ValueError, match=r"elman_forward expects W .*torch.float32, on the CPU.*; got .*torch.float64"):
        layer(x)
    layer.weight_hh_l0 = torch.nn.Parameter(layer.weight_hh_l0.detach().to("meta"))
    with pytest.raises(ValueError, match=r"got .*torch.float64, on meta"):
        layer(x)
    for layer in (RNN(3, 8), GRU(3, 8), LSTM(3, 8)):
        layer.bias_ih_l0 = torch.nn.Parameter(torch.zeros(3))
        with pytest.raises(ValueError, match=r"_forward expects bias of shape \(\d+,\) .*; got \(3,\)"):
            layer(x)
