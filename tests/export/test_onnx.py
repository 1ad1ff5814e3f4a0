"""ONNX models run in onnxruntime and give what the layers give."""

import pytest
import torch

pytest.importorskip("onnxruntime", reason="pip install steadygrad[export]")

from steadygrad.export import exported_program, graph, onnx_difference, onnx_model
from steadygrad.export.verify import Session
from steadygrad.layers import GRU, LAYERS, LSTM, NCGRU, NNRNN, RecurrentLayer, Stack, StepCell
from steadygrad.layers.recurrent import as_tuple
from steadygrad.models import LanguageModel, PolicyModel
from steadygrad.models.sequence import SequenceModel

I, N, B = 3, 6, 3
LARGEST = 1e-4  # of the largest |output|
GROWING = ("memrnn", "memlstm", "sab")
NATIVE = {
    "rnn": "RNN",
    "rnn-orth": "RNN",
    "irnn": "RNN",
    "lstm": "LSTM",
    "h-detach": "LSTM",
    "gru": "GRU",
}
exportable = pytest.mark.parametrize("name", [name for name in LAYERS if name not in GROWING])


def nodes(model):
    return [node.op_type for node in model.graph.node]


def assert_near(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert float((a - b).abs().max()) <= LARGEST * max(float(b.abs().max()), 1e-3)


@exportable
@torch.no_grad()
def test_layer_in_onnxruntime_is_the_baked_layer_whole_and_step_by_step(name):
    """Traced at 7 steps and batch 2, run at 300 steps and batch 3, then one step at a time."""
    layer = LAYERS[name](I, N)
    run, baked = Session(layer), layer.baked()
    loops = [kind for kind in nodes(run.model) if kind in {"RNN", "GRU", "LSTM", "Scan"}]
    assert loops == [NATIVE.get(name, "Scan")]  # a native node where one is exact
    x = torch.randn(300, B, I)
    state = baked.default_states(B, x)
    output, final = baked(x)
    whole = run(x, *state)
    assert_near(whole, (output, *as_tuple(final)))
    outputs = []
    for row in x[:20].split(1):
        y, *state = run(row, *state)
        outputs.append(y)
    assert_near([torch.cat(outputs)], [whole[0][:20]])


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "nnrnn", "lem"])
@torch.no_grad()
def test_deep_bidirectional_layer_with_batch_first(name):
    layer = LAYERS[name](I, N, num_layers=2, bidirectional=True, batch_first=True)
    assert onnx_difference(layer, steps=40) <= LARGEST


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gru", {"reset": "after", "activation": "relu", "bias": False}),
        ("gru", {"reset": "after", "num_layers": 2, "bidirectional": True}),
        ("gru", {"reset": "after", "activation": "modrelu"}),
        ("lstm", {"proj_size": 3, "num_layers": 2, "bidirectional": True}),
        ("gru", {"recurrent": "cayley"}),
        ("rnn", {"complex": True, "activation": "smoothed-modrelu"}),
        ("rnn", {"bias": False, "activation": "relu"}),
        ("lstm", {"attention": {"short": 4, "relevant": 0}}),
        ("lem", {"attention": {"short": 2, "relevant": 2, "score": "learned", "alignment": "dot"}}),
        ("ncgru", {"released_lr": 1e-3, "orthogonal": "rc"}),
        ("lstm", {"dtype": torch.float64}),
    ],
)
def test_options_of_layers(name, options):
    assert onnx_difference(LAYERS[name](I, N, **options), steps=60) <= LARGEST


def test_names_and_dimensions():
    model = onnx_model(LSTM(I, N))
    assert [value.name for value in model.graph.input] == ["x", "h_0", "c_0"]
    assert [value.name for value in model.graph.output] == ["y", "h_n", "c_n"]
    sizes = [
        [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    ]
    states = [[1, "batch", N]] * 2
    assert sizes == [["time", "batch", I], *states, ["time", "batch", N], *states]
    assert [value.name for value in onnx_model(LAYERS["relrnn"](I, N)).graph.input][:4] == [
        "x",
        "h_0",
        "s_0",
        "states_0",
    ]
    assert [value.name for value in onnx_model(Stack([GRU(I, N), LSTM(N, N)])).graph.input] == [
        "x",
        "0.h_0",
        "1.h_0",
        "1.c_0",
    ]


@pytest.mark.parametrize(
    "model",
    [
        SequenceModel(NNRNN(I, N), 4),
        SequenceModel(LSTM(I, N, bidirectional=True), 4, last_only=True),
        Stack([NCGRU(I, N), LSTM(N, 5)]),
    ],
    ids=["sequence", "last only", "stack"],
)
def test_models_and_stacks(model):
    assert onnx_difference(model, steps=40) <= LARGEST


@torch.no_grad()
def test_language_model():
    model = LanguageModel(LSTM, 11, embedding_size=8, sizes=[6, 8], tied=True).eval()
    tokens = torch.randint(11, (B, 40))
    state = [part for layer in model.layers for part in layer.default_states(B, torch.zeros(1))]
    assert_near([Session(model)(tokens, *state)[0]], [model(tokens)])


@torch.no_grad()
def test_without_state_the_trained_initial_state_is_part_of_the_model():
    layer = GRU(I, N, trained_state=True)
    layer.initial_state[0].normal_()
    run = Session(layer, state=False)
    assert run.names == ["x"]
    x = torch.randn(30, B, I)
    assert_near(run(x), layer(x))


@pytest.mark.parametrize("name", GROWING)
def test_memories_that_grow_are_rejected(name):
    with pytest.raises(ValueError, match="cannot be exported: its memory of past states grows with time"):
        onnx_model(LAYERS[name](I, N))


def test_other_modules_are_rejected():
    with pytest.raises(ValueError, match="export expects a layer, a Stack or a model of steadygrad; got GRU"):
        exported_program(torch.nn.GRU(I, N))
    with pytest.raises(ValueError, match="PolicyModel cannot be exported"):
        onnx_model(PolicyModel(lambda inputs: GRU(inputs, N), 7, [3, 3], 1, 2))


class DigammaCell(StepCell):
    """A step with an operator that has no counterpart in ONNX."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(I))

    def initial_state(self):
        return (torch.ones_like(self.a),)

    def step(self, input, state):
        return (self.a * torch.digamma(input) + state[0],)


def test_unknown_operators_are_named():
    with pytest.raises(ValueError, match=r"export to ONNX does not support the operator aten.digamma"):
        onnx_model(RecurrentLayer(lambda width: DigammaCell(), I, I))


def test_missing_package_is_one_line(monkeypatch):
    monkeypatch.setattr(graph, "onnx", None)
    with pytest.raises(ValueError, match=r"needs the package onnx: pip install steadygrad\[export\]"):
        onnx_model(GRU(I, N))
