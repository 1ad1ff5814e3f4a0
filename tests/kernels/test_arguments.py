"""C gets no tensor that does not fit: every argument of every kernel is spoilt in turn, and every call is refused."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from steadygrad.kernels import arguments, elman_unroll, matmul, native
from steadygrad.kernels.activations import COMPLEX_MODRELU
from steadygrad.kernels.elman import ElmanInputs
from steadygrad.kernels.steps import Steps
from steadygrad.layers import GORU, GRU, LSTM, RNN, ExpRNN, HDetachLSTM, MemLSTM, MemRNN, RelLSTM, RelRNN, ScuRNN
from tests.backends import needs_c

pytestmark = needs_c

SOURCES = Path(arguments.__file__).parent / "c"
LAYERS = [RNN, GRU, GORU, LSTM, HDetachLSTM, ScuRNN, ExpRNN, MemRNN, MemLSTM, RelRNN, RelLSTM]
DIMS = (4, 3, 1)  # time, batch, slices


def recorded(monkeypatch):
    """Every call of a kernel in the forward and backward passes of the layers: (function, name, arguments)."""
    calls = {}
    for function in ("call", "call_matrices"):
        original = getattr(native, function)

        def spy(name, *given, function=function, original=original):
            calls.setdefault((name, tuple(a is None for a in given)), (original, name, given))
            return original(name, *given)

        monkeypatch.setattr(native, function, spy)
    for make in LAYERS:
        torch.manual_seed(0)
        x = torch.randn(*DIMS[:2], 2, requires_grad=True)
        output, _ = make(2, 5)(x)
        output.pow(2).sum().backward()
    monkeypatch.undo()
    return list(calls.values())


def spoilt(tensor):
    """The tensor with one thing wrong at a time."""
    longer = torch.cat([tensor, tensor[:1]]) if len(tensor) else tensor.new_zeros(1, *tensor.shape[1:])
    yield "longer", longer
    yield "dimensions", tensor[None]
    if len(tensor):
        yield "shorter", tensor[1:].contiguous()
    yield "dtype", tensor.to(torch.float64 if tensor.dtype == torch.float32 else torch.int32)
    yield "meta", tensor.to("meta")
    if tensor.numel() > 1:
        apart = torch.stack([tensor, tensor], dim=-1)[..., 0]
        yield "strides", apart
        empty = tensor.clone()
        empty.untyped_storage().resize_(0)
        yield "storage", empty


def refusal(function, *given):
    """The text of the ValueError that the call raises, or nothing."""
    try:
        function(*given)
    except ValueError as error:
        return str(error)
    return ""


def test_every_spoilt_argument_is_refused_before_anything_runs(monkeypatch):
    calls = recorded(monkeypatch)
    assert {name for _, name, _ in calls} == set(arguments.KERNELS)
    monkeypatch.setattr(native, "run", lambda name, *_: pytest.fail(f"{name} ran"))
    tried = 0
    for original, name, given in calls:
        for place, argument in enumerate(given):
            if not isinstance(argument, torch.Tensor):
                continue
            for how, wrong in spoilt(argument):
                tried += 1
                message = refusal(original, name, *given[:place], wrong, *given[place + 1 :])
                assert re.match(rf"{name} expects .*; got", message), f"{name}, argument {place}, {how}: {message}"
    assert tried > 1000


def test_missing_and_surplus_arguments_are_refused(monkeypatch):
    calls = recorded(monkeypatch)
    monkeypatch.setattr(native, "run", lambda name, *_: pytest.fail(f"{name} ran"))
    for original, name, given in calls:
        required = next(place for place, a in enumerate(given) if isinstance(a, torch.Tensor))
        for wrong in ([*given[:required], None, *given[required + 1 :]], [*given, 1]):
            with pytest.raises(ValueError, match=r"expects|zip"):
                original(name, *wrong)


def test_fields_are_those_of_the_c_structs():
    sources = "".join(file.read_text("utf-8") for file in sorted(SOURCES.glob("*.h")))
    sources = re.sub(r"/\*.*?\*/", "", sources, flags=re.DOTALL)
    walk = arguments.Walk(time=4, rows=12, batch=3, slices=1)
    for name, kernel in arguments.KERNELS.items():
        if name.startswith("exponential"):  # takes its arguments one by one
            continue
        (body,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {name}_t;", sources)
        body = body.replace("memory_t memory", "int64_t a, b, c")
        pointers = re.findall(r"\*(\w+)", body)
        assert [field.name for field in kernel(walk, *[2] * arguments.SIZES[name])] == pointers
        numbers = [name for kind, names in re.findall(r"(int64_t|double) ([^*;]*);", body) for name in names.split(",")]
        assert len(numbers) == arguments.SIZES[name] + 1  # slices come last


def test_sizes_and_slices_that_make_no_sense_are_refused():
    for slices in (0, -1, 4):
        with pytest.raises(ValueError, match="elman_forward expects positive sizes and 1 to 3 slices"):
            arguments.expected("elman_forward", 4, 12, 3, slices, 5, 2, 0)
    with pytest.raises(ValueError, match="expects positive sizes"):
        arguments.expected("elman_forward", 4, 12, 3, 1, 0, 2, 0)
    tensors = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(5, 5), None, torch.zeros(1, 5)
    with pytest.raises(ValueError, match="expects an even number of units, real and imaginary parts; got 5"):
        elman_unroll(ElmanInputs(*tensors, COMPLEX_MODRELU, Steps.padded(2, 1)))


def test_matmul_refuses_factors_that_do_not_fit():
    A, B = torch.randn(4, 5), torch.randn(5, 3)
    for wrong in ({"B": B[1:]}, {"out": torch.empty(4, 4)}, {"add": torch.zeros(3, 3)}, {"out": torch.empty(12)}):
        with pytest.raises(ValueError, match=r"matmul expects [BC] of shape \(\d, 3\)"):
            matmul(A, **{"B": B} | wrong)


@pytest.mark.parametrize("make", [MemRNN, RelRNN, MemLSTM, RelLSTM])
def test_weights_of_attention_that_do_not_fit_are_refused(make):
    layer, x = make(3, 8), torch.randn(5, 2, 3)
    layer.weight_query_l0 = nn.Parameter(torch.zeros(3, 8))
    with pytest.raises(ValueError, match=r"attention_forward expects A of shape \(8, 8\)"):
        layer(x)


@pytest.mark.parametrize("age", [-1, 2**63 - 1])
def test_impossible_age_of_a_memory_is_refused(age):
    layer, x = RelRNN(3, 8), torch.randn(5, 2, 3)
    *rest, ages = layer(x)[1]
    with pytest.raises(ValueError, match="attention expects ages of 0 to"):
        layer(x, (*rest, torch.full_like(ages, age)))


def test_lazily_negated_input_is_negated():
    """A real view of a conjugated complex number has a flag in place of its sign. C does not see such flags."""
    for make in (RNN, LSTM, MemRNN):
        layer = make(1, 3)
        x = torch.randn(1, 1, 1, dtype=torch.complex64).conj().imag
        assert x.is_neg()
        torch.testing.assert_close(layer(x)[0], layer(x.clone())[0])
