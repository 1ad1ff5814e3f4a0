"""C files compile without warnings and compute what the layers compute."""

import re
import shutil
import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from steadygrad.export import c_source, export
from steadygrad.export.c.file import check_prefix
from steadygrad.layers import GRU, LAYERS, LSTM, NCGRU, NNRNN, RecurrentLayer, Stack, StepCell
from steadygrad.models import LanguageModel, PolicyModel
from steadygrad.models.sequence import SequenceModel
from tests.export.compiled import COMPILER, WARNINGS, Compiled, compile_c, needs_compiler
from tests.rounding import rounding

I, N, T = 3, 6, 250
GROWING = ("memrnn", "memlstm", "sab")
exportable = pytest.mark.parametrize("name", [name for name in LAYERS if name not in GROWING])
pytestmark = needs_compiler


def precise(module, double=False):
    """The baked copy of a module in one precision."""
    return module.baked().to(torch.float64 if double else torch.float32)


def assert_near(got, wanted, steps=T):
    """Each of ``steps`` steps rounds sums over the inputs and units, in another order; none of the networks expands."""
    scale = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got, wanted, rtol=0, atol=rounding(wanted.dtype, N + I, steps, scale))


@exportable
@pytest.mark.parametrize("double", [False, True], ids=["float", "double"])
@torch.no_grad()
def test_compiled_layer_is_the_baked_layer(name, double, tmp_path):
    layer, x = LAYERS[name](I, N), torch.randn(T, I)
    run = Compiled(tmp_path, c_source(layer, double=double), double=double)
    assert_near(run(run.new(), x), precise(layer, double)(x.double() if double else x)[0])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rnn", {"num_layers": 3, "bias": False, "activation": "relu"}),
        ("rnn", {"complex": True, "activation": "smoothed-modrelu"}),
        ("lstm", {"num_layers": 2, "batch_first": True, "dropout": 0.5}),
        ("lstm", {"dtype": torch.float64, "recurrent": "cayley"}),
        ("gru", {"reset": "after", "bias": False}),
        ("ncgru", {"released_lr": 1e-3, "orthogonal": "rc"}),
        ("relrnn", {"num_layers": 2, "short": 3, "relevant": 2}),
        ("nnrnn", {"attention": {"short": 4, "relevant": 0}}),
        ("eurnn", {"attention": {"short": 2, "relevant": 3, "combine": "concatenate"}}),
        ("lem", {"attention": {"short": 2, "relevant": 2, "score": "learned", "alignment": "dot"}}),
        ("cornn", {"attention": {"short": 1, "relevant": 1}, "num_layers": 2}),
    ],
)
@torch.no_grad()
def test_options_of_layers(name, options, tmp_path):
    layer, x = LAYERS[name](I, N, **options), torch.randn(T, I)
    for parameter in layer.parameters():  # also those that start at 0
        parameter.add_(0.01 * torch.randn_like(parameter))
    layer.refresh()  # these values are intended
    run = Compiled(tmp_path, c_source(layer, double=True), double=True)
    levels = layer.num_layers
    assert_near(run(run.new(), x), precise(layer, True)(x.double())[0], T * levels)


@torch.no_grad()
def test_trained_initial_state_and_reset(tmp_path):
    layer, x = LAYERS["rellstm"](I, N, num_layers=2, trained_state=True), torch.randn(T, I)
    for start in layer.initial_state:
        start.normal_()
    run = Compiled(tmp_path, c_source(layer))
    state = run.new()
    first = run(state, x)
    assert_near(first, precise(layer)(x)[0], 2 * T)
    assert not torch.equal(run(state, x), first)  # it goes on from the state
    run.reset(state)
    assert torch.equal(run(state, x), first)


@torch.no_grad()
def test_instances_side_by_side_do_not_touch_each_other(tmp_path):
    layer, x = LAYERS["rellstm"](I, N), torch.randn(2, T, I)
    run = Compiled(tmp_path, c_source(layer))
    alone = [run(run.new(), one) for one in x]
    states = run.new(), run.new()
    rows = [[run(state, one[t : t + 1]) for state, one in zip(states, x, strict=True)] for t in range(T)]
    for wanted, got in zip(alone, zip(*rows, strict=True), strict=True):
        assert torch.equal(torch.cat(got), wanted)


@pytest.mark.parametrize(
    "model",
    [
        lambda: SequenceModel(NNRNN(I, N), 4),
        lambda: SequenceModel(LSTM(I, N, num_layers=2), 1),
        lambda: Stack([NCGRU(I, N), LSTM(N, 5), GRU(5, 4)]),
    ],
    ids=["sequence", "one output", "stack"],
)
@torch.no_grad()
def test_models_and_stacks(model, tmp_path):
    module, x = model(), torch.randn(T, I, dtype=torch.float64)
    run = Compiled(tmp_path, c_source(module, double=True), double=True)
    batched = x[:, None] if isinstance(module, Stack) else x[None]
    wanted = (
        module.baked().double().walk(batched)[0] if not isinstance(module, Stack) else precise(module, True)(batched)[0]
    )
    assert_near(run(run.new(), x), wanted.reshape(T, -1), 3 * T)


@torch.no_grad()
def test_model_of_the_last_step_has_an_output_at_every_step(tmp_path):
    model, x = SequenceModel(GRU(I, N), 2, last_only=True), torch.randn(T, I)
    run = Compiled(tmp_path, c_source(model))
    y = run(run.new(), x)
    for t in (1, 20, T):
        assert_near(y[t - 1], precise(model)(x[None, :t])[0])


@torch.no_grad()
def test_language_model_takes_tokens(tmp_path):
    model = LanguageModel(LSTM, 11, embedding_size=8, sizes=[6, 8], tied=True).eval()
    tokens = torch.randint(11, (T, 1))
    run = Compiled(tmp_path, c_source(model), tokens=True)
    y = run(run.new(), tokens)
    assert y.shape == (T, 11)
    assert_near(y, precise(model).walk_on(tokens.mT)[0][0], 2 * T)
    first = run(run.new(), torch.tensor([[0]]))
    for outside in (-1, 11, 2**31 - 1, -(2**31)):  # read as token 0, not beyond the table
        assert torch.equal(run(run.new(), torch.tensor([[outside]])), first)


PROGRAM = """
#define FIRST_DECLARATIONS
#include "first.c"
#define other_2_DECLARATIONS
#define OTHER_2_DECLARATIONS
#include "other_2.c"
#include <stdio.h>
int main(void)
{
    static first_state a;
    static other_2_state b;
    float x[FIRST_INPUTS] = {1, -2, 3}, y[FIRST_OUTPUTS], z[OTHER_2_OUTPUTS];
    first_init(&a);
    other_2_init(&b);
    for (int t = 0; t < 5; t++) {
        first_step(&a, x, y);
        other_2_step(&b, x, z);
    }
    printf("%.9g %.9g", (double)y[FIRST_OUTPUTS - 1], (double)z[OTHER_2_OUTPUTS - 1]);
    return 0;
}
"""


@torch.no_grad()
def test_two_files_in_one_program_linked_or_included(tmp_path):
    layers = {"first": LAYERS["rellstm"](I, N), "other_2": LAYERS["rellstm"](I, 5)}
    for prefix, layer in layers.items():
        (tmp_path / f"{prefix}.c").write_text(c_source(layer, prefix), "utf-8")
    (tmp_path / "main.c").write_text(PROGRAM, "utf-8")
    compile_c(tmp_path, "main.c", "first.c", "other_2.c", "-lm", "-o", "linked")
    (tmp_path / "one.c").write_text(re.sub("(?m)^#define.*$", "", PROGRAM), "utf-8")
    compile_c(tmp_path, "one.c", "-lm", "-o", "included")
    x = torch.tensor([1.0, -2.0, 3.0]).expand(5, -1)
    wanted = [float(precise(layer)(x)[0][-1, -1]) for layer in layers.values()]
    for program in ("linked", "included"):
        done = subprocess.run([tmp_path / program], capture_output=True, text=True, check=True)
        got = [float(word) for word in done.stdout.split()]
        assert got == pytest.approx(wanted, rel=0, abs=rounding(torch.float32, N + I, 5))


@pytest.mark.parametrize("double", [False, True], ids=["float", "double"])
@torch.no_grad()
def test_main_reads_and_writes_numbers(double, tmp_path):
    layer, x = LAYERS["nnrnn"](I, N), torch.randn(20, I, dtype=torch.float64)
    (tmp_path / "net.c").write_text(c_source(layer, "net", double=double), "utf-8")
    compile_c(tmp_path, "-DNET_MAIN", "net.c", "-lm", "-o", "net")
    text = "\n".join(" ".join(f"{float(number):.17g}" for number in row) for row in x)
    done = subprocess.run([tmp_path / "net"], input=text, capture_output=True, text=True, check=True)
    got = torch.tensor([[float(word) for word in line.split()] for line in done.stdout.splitlines()])
    run = Compiled(tmp_path / "library", c_source(layer, double=double), double=double)
    assert torch.equal(got.to(run.dtype), run(run.new(), x).float().to(run.dtype))
    for bad in ("1 2", "1 2 three", "x"):  # an incomplete step, and no number
        assert (
            subprocess.run([tmp_path / "net"], input=bad, capture_output=True, text=True, check=False).returncode == 1
        )


@torch.no_grad()
def test_sanitizers_find_nothing(tmp_path):
    """Every layer in one program, whose numbers are all in the heap, for 60 steps: also the memory is filled then."""
    lines, calls = [], []
    for name in LAYERS:
        if name in GROWING:
            continue
        prefix = name.replace("-", "_")
        (tmp_path / f"{prefix}.c").write_text(c_source(LAYERS[name](I, N), prefix), "utf-8")
        lines.append(f'#include "{prefix}.c"')
        macro = prefix.upper()
        calls.append(
            f"{{ {prefix}_state *s = malloc(sizeof *s); float *x = calloc({macro}_INPUTS, 4), "
            f"*y = malloc({macro}_OUTPUTS * 4); {prefix}_init(s); for (int t = 0; t < 60; t++) {{ x[t % 3] += 0.5f; "
            f"{prefix}_step(s, x, y); sum += y[0]; }} free(s); free(x); free(y); }}"
        )
    body = "\n".join([*lines, "#include <stdlib.h>", "int main(void) { float sum = 0;", *calls, "return sum != sum; }"])
    (tmp_path / "main.c").write_text(body, "utf-8")
    options = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    if subprocess.run([str(COMPILER), *options, probe, "-o", tmp_path / "probe"], capture_output=True).returncode:
        pytest.skip("the compiler has no sanitizers")
    compile_c(tmp_path, *options, "main.c", "-lm", "-o", "main")
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang")
def test_clang_and_cplusplus_have_no_warnings_either(tmp_path):
    for name in ("lstm", "rellstm", "lem", "eurnn"):
        (tmp_path / "model.c").write_text(c_source(LAYERS[name](I, N)), "utf-8")
        command = ["clang", *WARNINGS, "-c", "model.c"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (tmp_path / "use.cpp").write_text('#define MODEL_DECLARATIONS\n#include "model.c"\nmodel_state state;\n')
        done = subprocess.run(
            ["clang++", "-Wall", "-Werror", "-c", "use.cpp"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


class Scaled(StepCell):
    """Base class of cells with one parameter."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))


class Swap(Scaled):
    """Two tensors of the state change places, and a third one turns: each overwrites what another one needs."""

    def initial_state(self):
        return torch.arange(4.0), torch.ones(4), torch.arange(4.0)

    def step(self, input, state):
        a, b, c = state
        return b, a + 0, torch.cat([c[:, -1:] * self.scale + input[:, :1], c[:, :-1]], dim=1)


class Delay(Scaled):
    """A line of past inputs: all of it moves by one place, in either direction."""

    def initial_state(self):
        return torch.zeros(5), torch.arange(5.0)

    def step(self, input, state):
        a, b = state
        return torch.cat([a[:, 1:], input[:, :1] + b[:, :1]], dim=1), torch.cat(
            [b[:, 4:] * self.scale, b[:, :4]], dim=1
        )


class Many(StepCell):
    """One of each operation that cells are made of."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, I))
        self.matrix = nn.Parameter(torch.randn(4, 4) / 4)

    def initial_state(self):
        return (torch.zeros(4), torch.ones(4))

    def step(self, input, state):
        h, z = state
        a = nn.functional.linear(input, self.weight) + nn.functional.linear(h, self.matrix)
        b = (a**2 + 1).sqrt().log1p().clamp(0.1, 2) / (1 + a.abs().pow(1.5)) + torch.exp(-a.abs()).clamp(max=0.9)
        c = torch.maximum(a.sin(), b.cos()) * torch.minimum(a.erf(), b.reciprocal()) + torch.rsqrt(b + 1)
        d = torch.where((a > 0) & ~(b <= 0.5) | (c == 0), torch.tanh(c), torch.sigmoid(-c)) - c.mean(1, keepdim=True)
        e = d * d.softmax(1) + d.amax(1, keepdim=True) - d.amin(dim=1, keepdim=True) * (d > 0).any(dim=1, keepdim=True)
        outer = (e[:, :, None] @ z[:, None]) @ d[:, :, None]  # (batch, 4, 4) times (batch, 4, 1)
        return torch.tanh(outer[:, :, 0] + e), (z + d.sign() * e.relu()).sigmoid()


@pytest.mark.parametrize("cell", [Swap, Delay, Many])
@torch.no_grad()
def test_cells_of_ones_own(cell, tmp_path):
    layer, x = RecurrentLayer(lambda width: cell(), I, 4), torch.randn(T, I)
    run = Compiled(tmp_path, c_source(layer, double=True), double=True)
    assert_near(run(run.new(), x), precise(layer, True)(x.double())[0], 10 * T)


class Digamma(StepCell):
    """A step with an operator that has no counterpart in libm."""

    def initial_state(self):
        return (torch.ones(I),)

    def step(self, input, state):
        return (torch.digamma(state[0] + input),)


def test_unknown_operators_are_named():
    layer = RecurrentLayer(lambda width: Digamma(), I, I, trained_state=True)
    with pytest.raises(
        ValueError, match=r"export to C does not support the operator aten.digamma.*; use .onnx or .pt2"
    ):
        c_source(layer)


def test_equal_weights_give_equal_bytes_and_the_file_tells_its_size(tmp_path):
    texts = []
    for _ in range(2):
        torch.manual_seed(0)
        layer = LAYERS["rellstm"](I, N)
        texts.append(c_source(layer, about="commit 1234"))
    assert texts[0] == texts[1]
    head = texts[0].partition("*/")[0]
    assert "RelLSTM(3, 6" in head
    assert "h_t" in head
    assert "commit 1234" in head
    assert f"{sum(part.numel() for part in layer.parameters()):,} parameters" in head
    size = Compiled(tmp_path, texts[0]).size
    assert f" {size:,} bytes of model_state" in head


def test_weights_are_exact(tmp_path):
    layer = LSTM(I, N)
    text = c_source(layer)
    numbers = [float.fromhex(word) for word in re.findall(r"(-?0x[^ ]*?)f,", text)]
    for parameter in layer.parameters():
        assert set(parameter.flatten().tolist()) <= set(numbers)


@given(st.text(max_size=12) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True))
def test_prefix_is_an_identifier_or_an_error(prefix):
    if prefix.isascii() and prefix.isidentifier():
        check_prefix(prefix)
    else:
        with pytest.raises(ValueError, match="export to C expects a prefix of letters, digits and _"):
            check_prefix(prefix)


TINY = LAYERS["rnn"](1, 1)


@pytest.mark.parametrize("prefix", ["int", "A", "_x", "e1", "memset", "H"])
def test_prefixes_that_resemble_words_of_c_compile(prefix, tmp_path):
    assert Compiled(tmp_path, c_source(TINY, prefix), prefix).outputs == 1


@pytest.mark.parametrize("name", GROWING)
def test_memories_that_grow_are_rejected(name):
    with pytest.raises(ValueError, match="cannot be exported: its memory of past states grows with time"):
        c_source(LAYERS[name](I, N))


def test_other_modules_and_options_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="run forward in time; got LSTM with bidirectional=True"):
        c_source(LSTM(I, N, bidirectional=True))
    with pytest.raises(ValueError, match="export expects a layer, a Stack or a model of steadygrad; got GRU"):
        c_source(nn.GRU(I, N))
    with pytest.raises(ValueError, match="PolicyModel cannot be exported"):
        c_source(PolicyModel(lambda inputs: GRU(inputs, N), 7, [3, 3], 1, 2))
    with pytest.raises(ValueError, match="expects a prefix of letters, digits and _ that begins with no digit; got 3"):
        c_source(TINY, 3)
    with pytest.raises(ValueError, match=r"export to C expects state=True"):
        export(TINY, tmp_path / "x.c", state=False)
    with pytest.raises(ValueError, match=r"prefix and double are options of C files, which end in .c; got x.pt2"):
        export(TINY, tmp_path / "x.pt2", prefix="net")
    assert not list(tmp_path.iterdir())
