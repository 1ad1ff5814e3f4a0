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

from steadygrad.kernels import ACTIVATIONS, Steps, elman_unroll, gru_unroll, lstm_unroll, native
from steadygrad.kernels.backend import VARIABLE

TOLERANCE = {torch.float64: 1e-11, torch.float32: 5e-5}

needs_c = pytest.mark.skipif(isinstance(native.library(), str), reason=f"no C kernel: {native.library()}")


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
        return [o.detach() for o in outputs] + [leaf.grad for leaf in leaves if leaf is not None]


def problem(cell: str, activation: str, steps: Steps, N: int, I: int, dtype: torch.dtype, bias: bool = True) -> Problem:
    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, dtype=dtype)

    gates = {"elman": 1, "gru": 3, "lstm": 4}[cell]
    x, initial = random(steps.rows, I), random(steps.batch, N)
    W, U = random(gates * N, I), random(gates * N, N, scale=0.7 / N**0.5)
    b = random(gates * N, scale=0.3) if bias else None
    if cell == "elman":
        return Problem(elman_unroll, [x, W, U, b, initial], (activation, steps))
    if cell == "gru":
        modulus = random(N, scale=0.3) if activation == "modrelu" else None
        return Problem(gru_unroll, [x, W, U, b, modulus, initial], (activation, steps))
    return Problem(lstm_unroll, [x, W, U, b, initial, random(steps.batch, N)], (steps,))


def assert_same(got: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    for g, e in zip(got, expected, strict=True):
        scale = max(1.0, float(e.abs().max())) if e.numel() else 1.0
        torch.testing.assert_close(g, e, rtol=0, atol=TOLERANCE[dtype] * scale)


CELLS = [*(("elman", a) for a in ACTIVATIONS), *(("gru", a) for a in ACTIVATIONS), ("lstm", "tanh")]
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
def test_three_paths_agree(cell, activation, lengths, reverse, N, I, dtype, bias, threads):
    torch.set_num_threads(threads)
    case = problem(cell, activation, steps_of(lengths, reverse), N, I, dtype, bias)
    expected = case.solve("reference")
    assert_same(case.solve("python"), expected, dtype)
    assert_same(case.solve("c"), expected, dtype)


@needs_c
@every_cell
@pytest.mark.parametrize("isa", range(3), ids=native.INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
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
            assert_same(case.solve("c"), expected, dtype)
    finally:
        library.steadygrad_set_isa(-1)


@needs_c
@every_cell
def test_non_contiguous_tensors(cell, activation):
    case = problem(cell, activation, Steps.padded(5, 4), 9, 3, torch.float64)
    expected = case.solve("reference")
    case.tensors = [None if t is None else torch.stack([t, t], dim=-1)[..., 0] for t in case.tensors]
    assert not case.tensors[0].is_contiguous()
    assert_same(case.solve("c"), expected, torch.float64)
    assert_same(case.solve("python"), expected, torch.float64)


@needs_c
@every_cell
@pytest.mark.parametrize("backend", ["c", "python"])
def test_a_gradient_that_is_one_number_spread_out(cell, activation, backend):
    """``output.sum()`` hands back an expanded tensor, without memory of its own."""
    case = problem(cell, activation, Steps.padded(4, 3), 5, 2, torch.float64)

    def gradients(backend: str) -> list[Tensor]:
        os.environ[VARIABLE] = backend
        leaves = [None if t is None else t.detach().requires_grad_() for t in case.tensors]
        output = case.kernel(*leaves, *case.rest)
        (output[0] if isinstance(output, tuple) else output).sum().backward()
        del os.environ[VARIABLE]
        return [leaf.grad for leaf in leaves if leaf is not None]

    assert_same(gradients(backend), gradients("reference"), torch.float64)


@needs_c
@every_cell
@pytest.mark.parametrize("backend", ["c", "python"])
def test_gradcheck(cell, activation, backend, monkeypatch):
    monkeypatch.setenv(VARIABLE, backend)
    case = problem(cell, activation, Steps((3, 2, 2)), 5, 2, torch.float64)
    present = [t.requires_grad_() for t in case.tensors if t is not None]

    def run(*values: Tensor) -> Any:
        left = iter(values)
        return case.kernel(*(None if t is None else next(left) for t in case.tensors), *case.rest)

    assert torch.autograd.gradcheck(run, present)


@needs_c
@every_cell
def test_two_python_threads_at_once(cell, activation):
    torch.set_num_threads(2)
    cases = [problem(cell, activation, Steps.padded(40, 16), 48, 8, torch.float64) for _ in range(2)]
    os.environ[VARIABLE] = "c"  # held for both threads, so neither takes it from under the other
    try:
        expected = [case.solve("c") for case in cases]
        wrong: list[BaseException] = []

        def work(which: int) -> None:
            try:
                for _ in range(10):
                    assert_same(cases[which].solve("c"), expected[which], torch.float64)
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


FORKING = """
import os, sys, torch
from steadygrad.kernels import Steps, gru_unroll
torch.manual_seed(0)
torch.set_num_threads(2)
x, W, U, h = torch.randn(2000, 4), torch.randn(96, 4), torch.randn(96, 32) / 6, torch.zeros(40, 32)
run = lambda: gru_unroll(x, W, U, None, None, h, "tanh", Steps.padded(50, 40))
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
def test_after_a_fork():
    """In a process of its own, with a deadline: an OpenMP pool that is used after a fork hangs for ever."""
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=120, env=os.environ | {VARIABLE: "c"})


@needs_c
@every_cell
@pytest.mark.parametrize("backend", ["c", "python"])
def test_nan_goes_through(cell, activation, backend):
    """A run that diverges must look diverged, whatever the activation does with a comparison."""
    case = problem(cell, activation, Steps.padded(3, 2), 4, 2, torch.float32)
    case.tensors[0][1, 0] = float("nan")  # second sequence, first step
    states = case.solve(backend)[0].view(3, 2, 4)
    assert states[:, 1].isnan().all()
    assert not states[:, 0].isnan().any()


@needs_c
@every_cell
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_large_and_small_numbers(cell, activation, dtype):
    """The kernel's own exp keeps its accuracy in the tails, where gates close and tanh saturates."""
    case = problem(cell, activation, Steps.padded(1, 1), 64, 1, dtype)
    case.tensors = [None if t is None else torch.zeros_like(t) for t in case.tensors]  # z is W, to the last digit
    case.tensors[0] = torch.ones(1, 1, dtype=dtype)
    rows = len(case.tensors[1])
    sizes = torch.logspace(-12, 2.5, rows, dtype=torch.float64).to(dtype)
    case.tensors[1] = (sizes * torch.where(torch.arange(rows) % 2 == 0, 1, -1)).to(dtype)[:, None]
    got, expected = case.solve("c")[0], case.solve("reference")[0]
    torch.testing.assert_close(got, expected, rtol=2e-6 if dtype == torch.float32 else 1e-14, atol=1e-30)


def test_other_types_take_the_python_path():
    case = problem("elman", "tanh", Steps.padded(3, 2), 4, 2, torch.float32)
    expected = case.solve("reference")[0]
    case.tensors = [t.bfloat16() for t in case.tensors]
    assert case.solve("auto")[0].dtype == torch.bfloat16
    torch.testing.assert_close(case.solve("auto")[0].float(), expected, rtol=0.1, atol=0.1)


def test_empty_batch():
    case = problem("elman", "tanh", Steps.padded(3, 0), 4, 2, torch.float32)
    for backend in ("reference", "python", "auto"):
        assert case.solve(backend)[0].shape == (0, 4)
