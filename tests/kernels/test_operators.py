"""The operators behind torch.compile and torch.export, against eager calls."""

import subprocess
import sys

import pytest
import torch
from torch.export import Dim, export
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint

from steadygrad.kernels import Steps, TracedSteps, scanned, unroll
from steadygrad.kernels.attention_operator import attention_backward, attention_forward
from steadygrad.kernels.elman import elman_backward, elman_forward
from steadygrad.kernels.gru import gru_backward, gru_forward
from steadygrad.kernels.lstm import lstm_backward, lstm_forward
from steadygrad.kernels.traced import real_steps
from steadygrad.layers import LAYERS
from tests.backends import every_backend, needs_c, traced_layers
from tests.rounding import assert_same, rounding

I, N, T, B = 3, 4, 5, 3
SIZES = torch.tensor([3, 3, 2, 1])
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
every_layout = pytest.mark.parametrize("sizes", [None, SIZES], ids=["padded", "packed"])
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def rows_of(sizes):
    return T * B if sizes is None else int(sizes.sum())


def check(operator, arguments):
    torch.library.opcheck(operator, tuple(arguments))


def check_backward(operator, arguments):
    """The backward operator has no derivatives of its own."""
    detached = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)
    torch.library.opcheck(
        operator, detached, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    )


@every_layout
@both_ways
@pytest.mark.parametrize("activation", ["tanh", "complex-modrelu"])
def test_elman_operators(sizes, reverse, activation):
    rows, bias = rows_of(sizes), random(N // 2 if activation.startswith("complex") else N)
    given = (random(rows, I), random(N, I), random(N, N), bias, random(B, N), sizes, activation, reverse)
    check(elman_forward, given)
    check_backward(elman_backward, (random(rows, N), elman_forward(*given), *given, True, True))
    check_backward(elman_backward, (random(rows, N), elman_forward(*given), *given, False, False))


@every_layout
@pytest.mark.parametrize(("activation", "reset"), [("tanh", "before"), ("modrelu", "after")])
def test_gru_operators(sizes, activation, reset):
    rows, modulus = rows_of(sizes), random(N) if activation == "modrelu" else None
    bias_hn = random(N) if reset == "after" else None
    tensors = (random(rows, I), random(3 * N, I), random(3 * N, N), random(3 * N), modulus, bias_hn, random(B, N))
    given = (*tensors, sizes, activation, reset, False)
    check(gru_forward, given)
    check_backward(gru_backward, (random(rows, N), *gru_forward(*given), *given, True))


@every_layout
@pytest.mark.parametrize("detached", [False, True])
def test_lstm_operators(sizes, detached):
    rows, time = rows_of(sizes), T if sizes is None else len(sizes)
    mask = torch.arange(time) % 2 == 0 if detached else None
    tensors = (random(rows, I), random(4 * N, I), random(4 * N, N), random(4 * N), random(B, N), random(B, N))
    given = (*tensors, mask, sizes, False)
    check(lstm_forward, given)
    check_backward(lstm_backward, (random(rows, N), None, *lstm_forward(*given), *given, True))


@needs_c
@every_layout
@pytest.mark.parametrize("activation", ["tanh", ""], ids=["elman", "lstm"])
def test_attention_operators(sizes, activation):
    rows, short, relevant, width = rows_of(sizes), 2, 2, N if activation else 4 * N
    weights = (random(width, I), random(width, N), random(width), random(N, N), random(N, N), random(N))
    state = (random(B, N), None if activation else random(B, N), random(B, N))
    counters = (torch.zeros(B, short), torch.zeros(B, relevant), torch.zeros(B, relevant), torch.zeros(B))
    received, scores, times, ages = counters[0].double(), counters[1].double(), counters[2].long(), counters[3].long()
    inputs = (random(rows, I), *weights, *state, random(B, short + relevant, N))
    settings = (sizes, activation, 0.5, short, relevant, False)
    given = (*inputs, received, scores, times, ages, *settings)
    check(attention_forward, given)
    results = attention_forward(*given)
    gradients = (random(*results[0].shape), None if activation else random(rows, N), random(rows, N))
    check_backward(attention_backward, (*gradients, *results[:9], *inputs, ages, *settings, True, True))


def test_operator_refuses_sizes_of_another_batch():
    with pytest.raises(ValueError, match="a packed batch of 3 sequences expects as many states; got 2"):
        real_steps(9, 2, SIZES, False)
    with pytest.raises(ValueError, match="add up to its 8 rows"):
        real_steps(8, 3, SIZES, False)


@every_layout
@both_ways
def test_traced_steps_say_what_steps_say(sizes, reverse):
    rows, time = rows_of(sizes), T if sizes is None else len(sizes)
    steps, traced = real_steps(rows, B, sizes, reverse), TracedSteps(time, B, rows, sizes, reverse)
    states, start, W = random(rows, N), random(B, N), random(N, N)
    assert torch.equal(traced.last(states), steps.last(states))
    assert torch.equal(traced.packed(traced.padded(states)[0]), states)
    assert isinstance(steps, Steps)

    def step(row, state):
        return ((row + state[0] @ W).tanh(),)

    expected = unroll(step, states.split(steps.sizes), (start,), steps)
    (end,), (found,) = scanned(step, states, (start,), traced)
    assert_same([traced.packed(found), end], [expected[0], steps.last(expected[0])], rounding(torch.float64, N, time))


def build(name, **options):
    torch.manual_seed(0)
    return LAYERS[name](I, 6, dtype=torch.float64, **options)


def trained(call, layer, *inputs):
    """Output, final state and gradients of a call."""
    torch.manual_seed(1)
    output, state = call(*inputs)
    output = output.data if isinstance(output, PackedSequence) else output
    state = state if isinstance(state, tuple) else (state,)
    values = [output, *(part for part in state if part.is_floating_point())]
    parameters = [p for p in layer.parameters() if p.requires_grad]
    x = [part for part in inputs if isinstance(part, torch.Tensor) and part.requires_grad]
    loss = sum(part.square().sum() for part in values)
    return [*values, *torch.autograd.grad(loss, [*x, *parameters], materialize_grads=True)]


def same(got, expected):
    # W of the map is the result of another formula, whose condition number is below 100 for these layers
    assert_same(got, expected, rounding(torch.float64, 6, 20, 100))


TRACEABLE = [name for name in LAYERS if name != "sab"]  # its memory grows step by step, outside the kernel


@pytest.mark.parametrize("name", traced_layers(TRACEABLE))
def test_compiled_layer_is_one_graph(name):
    torch._dynamo.reset()
    layer, x = build(name), random(4, 2, I)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    same(trained(compiled, layer, x), trained(layer, layer, x))


@pytest.mark.parametrize("name", traced_layers(["rnn", "gru", "h-detach", "ncgru", "memlstm", "antisymmetric"]))
def test_one_graph_serves_all_shapes(name):
    torch._dynamo.reset()
    layer = build(name)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for time, batch in ((5, 2), (8, 3)):
            x = random(time, batch, I)
            same(trained(compiled, layer, x), trained(layer, layer, x))


OPTIONS = {
    "deep, both ways": ("lstm", {"num_layers": 2, "bidirectional": True, "trained_state": True}),
    "attention": ("rnn", {"attention": {"short": 2, "relevant": 2}}),
    "smoothed": ("full-urnn", {"activation": "smoothed-modrelu"}),
    "structured": ("ornn", {"reflections": 3}),
}


@pytest.mark.parametrize("option", [pytest.param(key, marks=needs_c) if key == "attention" else key for key in OPTIONS])
def test_compiled_packed_sequences(option):
    torch._dynamo.reset()
    name, options = OPTIONS[option]
    layer, x = build(name, **options), random(6, 3, I)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    packed = [pack_sequence([x[:3, 0], x[:, 1], x[:4, 2]], enforce_sorted=False) for _ in range(2)]
    same(trained(compiled, layer, packed[0]), trained(layer, layer, packed[1]))
    assert isinstance(compiled(packed[0])[0], PackedSequence)


@pytest.mark.parametrize(("name", "whole"), [("rnn", True), ("cornn", False)])
def test_inductor(name, whole):
    """A layer with a kernel as one graph, and one that steps by `scan` where graphs may break."""
    torch._dynamo.reset()
    layer, x = build(name), random(5, 2, I)
    same(trained(torch.compile(layer, fullgraph=whole), layer, x), trained(layer, layer, x))


@pytest.mark.parametrize("name", traced_layers(["rnn", "gru", "rellstm", "memrnn", "cornn"]))
@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_time_and_batch(name, strict):
    torch._dynamo.reset()
    layer = build(name).eval()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = export(layer, (random(5, 2, I).detach(),), dynamic_shapes=shapes, strict=strict)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())
    for time, batch in ((1, 1), (1, 3), (50, 3)):
        x = random(time, batch, I)
        same(trained(program.module(), layer, x)[:2], trained(layer, layer, x)[:2])


def test_layer_whose_memory_grows_says_so_in_export():
    with pytest.raises(ValueError, match="SAB cannot be exported with this input"):
        export(build("sab").eval(), (random(5, 2, I).detach(),))


@pytest.mark.parametrize("name", ["sab", "gru"])
def test_call_that_cannot_be_traced_runs_in_eager(name):
    """SAB, and any layer with resets, stays outside the graph of a model around it."""
    torch._dynamo.reset()
    layer, x = build(name), random(5, 2, I)
    mask = torch.zeros(5, 2, dtype=torch.bool)
    mask[2, 1] = True
    compiled = torch.compile(lambda x: layer(2 * x, reset=mask), backend="aot_eager")
    same(trained(compiled, layer, x), trained(lambda x: layer(2 * x, reset=mask), layer, x))


def test_attention_without_a_kernel_stays_outside_the_graph():
    """Inductor of torch 2.13 makes wrong gradients of its steps."""
    torch._dynamo.reset()
    layer, x = build("rnn", attention={"short": 2, "relevant": 2, "score": "learned"}), random(5, 2, I)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    same(trained(torch.compile(layer), layer, x), trained(layer, layer, x))


def test_normalised_matrix_stays_normalised_after_compiled_training():
    """The buffer that remembers a spectral radius above 1 is updated in a compiled call, and not by an export."""
    torch._dynamo.reset()
    layer = build("enrnn")
    (matrix,) = (part.map.short for part in layer.modules() if hasattr(getattr(part, "map", None), "short"))
    with torch.no_grad():
        next(p for p in layer.parameters() if p.shape == (matrix.size, matrix.size)).mul_(10)
    export(layer, (random(5, 2, I).detach(),))
    assert not matrix.normalised
    torch.compile(layer, fullgraph=True, backend="aot_eager")(random(5, 2, I))
    assert matrix.normalised


@pytest.mark.parametrize("name", LAYERS)
def test_batched_gradients_and_checkpoint(name):
    layer, x = build(name).eval(), random(4, 2, I)
    tensors = [x, *(p for p in layer.parameters() if p.requires_grad)]
    output = layer(x)[0]
    upstream = torch.randn(2, *output.shape, dtype=torch.float64)
    options = {"retain_graph": True, "materialize_grads": True}
    batch = torch.autograd.grad(output, tensors, upstream, is_grads_batched=True, **options)
    for i, one in enumerate(upstream):
        same([g[i] for g in batch], torch.autograd.grad(output, tensors, one, **options))
    once = checkpoint(lambda x: layer(x)[0], x, use_reentrant=False)
    same(torch.autograd.grad(once, tensors, upstream[0], **options), [g[0] for g in batch])


@every_backend
def test_vectorised_jacobian(backend, monkeypatch):
    monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
    for name in ("rnn", "gru", "lstm"):
        layer, x = build(name), random(3, 2, I)
        jacobian = torch.autograd.functional.jacobian
        same(*([jacobian(lambda x: layer(x)[0], x, vectorize=way)] for way in (True, False)))  # noqa: B023


@pytest.mark.parametrize("name", ["rnn", "gru", "lstm", "relrnn", "exprnn"])
def test_forward_derivatives_are_those_of_the_backward_pass(name):
    """A plain operator would have tangents of zero, in eager and in a compiled call."""
    layer, x, tangent = build(name).eval(), random(4, 2, I), torch.randn(4, 2, I, dtype=torch.float64)
    output = layer(x)[0]
    upstream = torch.randn_like(output)
    (gradient,) = torch.autograd.grad(output, x, upstream)
    for call in (layer, torch.compile(layer, backend="aot_eager")):
        torch._dynamo.reset()
        _, along = torch.func.jvp(lambda x: call(x)[0], (x.detach(),), (tangent,))  # noqa: B023
        same([(along * upstream).sum()], [(gradient * tangent).sum()])
    batch = torch.randn(2, 4, 2, I, dtype=torch.float64)
    same([torch.vmap(lambda x: layer(x)[0])(batch)], [torch.stack([layer(x)[0] for x in batch])])


def test_import_leaves_the_compiler_out():
    code = "import sys, steadygrad.layers; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
