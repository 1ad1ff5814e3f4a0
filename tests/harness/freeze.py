"""Write numbers.txt, the calls of the C kernels that harness.c repeats: `python -m tests.harness.freeze`.

The calls are those of small layers in float64 with random weights, sequences of unequal length and two threads. Every
output and gradient is compared with the reference definition before it is written.

A call is the name of its function, then its arguments in the order of the C struct, then a point. An argument is
``i`` and an integer, ``d`` and a number, ``n`` for a null pointer, or an array: ``r`` for reals, ``l`` for integers of
64 bits, ``b`` for bytes, then the count, then 0 and the numbers of an array that the call does not change, 1 and the
numbers before and after the call of one that it changes, or 2 and the numbers after the call of one that it fills.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from steadygrad.kernels import Steps, native
from steadygrad.kernels.activations import C_ENUM, COMPLEX_MODRELU
from tests.kernels import test_attention, test_unrolls
from tests.rounding import assert_same, rounding

FILE = Path(__file__).with_name("numbers.txt")
KINDS = {torch.float64: "r", torch.int64: "l", torch.bool: "b"}
N, INPUTS, SIZES = 6, 2, (2, 2, 1)  # units (even for complex modReLU), inputs, rows of each step
CASES = [
    *(("elman", activation) for activation in C_ENUM),
    *(("gru", "tanh"), ("gru", "modrelu"), ("gru-after", "tanh"), ("lstm", "tanh"), ("lstm-detached", "tanh")),
]
"""cell and activation, as in tests/kernels/test_unrolls.py"""
ATTENTIVE = [("elman", "tanh", "additive"), ("elman", "modrelu", "dot"), ("lstm", "tanh", "additive")]
"""cell, activation and score, as in tests/kernels/test_attention.py"""


def short(tensor: Tensor | None) -> Tensor | None:
    """Return the tensor rounded to multiples of 1/64, which need few digits."""
    return None if tensor is None or not tensor.is_floating_point() else tensor.detach().mul(64).round().div(64)


def numbers(tensor: Tensor) -> str:
    return " ".join(f"{value:.13g}" if isinstance(value, float) else str(int(value)) for value in tensor.tolist())


def array(before: Tensor, after: Tensor) -> str:
    """Return the line of one array."""
    before, after = before.flatten(), after.flatten()
    assert not after.is_floating_point() or after.isfinite().all()
    if before.is_floating_point() and len(before) and before.isnan().all():
        what = ["2", numbers(after)]
    elif torch.equal(before, after):
        what = ["0", numbers(after)]
    else:
        what = ["1", numbers(before), numbers(after)]
    return " ".join([KINDS[before.dtype], str(len(before)), *what])


def argument(before: Any, after: Any) -> str:
    """Return the line of one argument."""
    if before is None:
        return "n"
    if isinstance(before, Tensor):
        return array(before, after)
    return f"{'d' if isinstance(before, float) else 'i'} {before!r}"


@contextmanager
def recorded(lines: list[str]) -> Iterator[None]:
    """Append each call of a walk to ``lines``. Uninitialised memory is NaN, and two threads share the batch."""
    call = native.call

    def record(name: str, steps: Steps, *arguments: Any) -> int:
        before = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
        code = call(name, steps, *arguments)
        offsets = steps.offsets_tensor
        walk = [len(steps.sizes), steps.batch, offsets, int(steps.reverse), steps.resets]
        lines.append(name)
        lines.extend(map(argument, [*walk, *before], [*walk, *arguments]))
        lines.append(".")
        return code

    threads = torch.get_num_threads()
    with mock.patch.object(native, "call", record), mock.patch.object(native, "SMALL", 0):
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(2)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(threads)


def text() -> str:
    """Return the contents of the file."""
    lines: list[str] = []
    steps, dtype = Steps(SIZES), torch.float64
    bound = rounding(dtype, N + steps.rows, operations=6 * (len(SIZES) + 3))
    for index, (cell, activation) in enumerate(CASES):
        torch.manual_seed(index)
        case = test_unrolls.problem(cell, activation, steps.reversed if index % 2 else steps, N, INPUTS, dtype)
        case.tensors = [short(tensor) for tensor in case.tensors]
        if activation == COMPLEX_MODRELU:
            case.tensors[3] = case.tensors[3][: N // 2]  # a complex unit is two real ones with one bias
        with recorded(lines):
            got = case.solve("c")
        assert_same(got, case.solve("reference"), bound)
    for index, (cell, activation, alignment) in enumerate(ATTENTIVE):
        torch.manual_seed(index)
        module = test_attention.make_cell(cell, activation, N, INPUTS, dtype, short=2, relevant=1, alignment=alignment)
        for parameter in module.parameters():
            parameter.data = short(parameter)
        start = test_attention.start_of(module, steps.batch, dtype)
        x, more = (short(torch.randn(rows, INPUTS, dtype=dtype)) for rows in (steps.rows, 3 * steps.batch))
        arguments = (module, x, steps, start, more)
        with recorded(lines):
            got = test_attention.solve(*arguments, "c")
        assert_same(got, test_attention.solve(*arguments, "reference"), bound)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    warnings.simplefilter("error")
    FILE.write_text(text(), "utf-8")
