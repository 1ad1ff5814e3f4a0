"""Cells with the call of torch.nn.GRUCell: one for every layer, whose steps equal the walk of the layer."""

import inspect
import pickle

import pytest
import torch
from torch import nn

from steadygrad.layers import LAYERS, HDetachLSTM, RecurrentLayer, StepCell, cells
from steadygrad.layers.naming import Owned
from tests.backends import needs_c
from tests.rounding import assert_same, rounding

I, N, TIME, BATCH = 3, 6, 5, 4
DOUBLE = torch.float64
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
BOUND = rounding(DOUBLE, TIME * BATCH * N, operations=2 * TIME, scale=10)
"""sums over all rows, through as many steps forward and backward; no value of these small layers exceeds 10"""


def pair(make, **options):
    """A layer and its cell with the same parameters."""
    torch.manual_seed(3)
    layer = make(I, N, dtype=DOUBLE, **options)
    cell = cells.cell_class(make)(I, N, dtype=DOUBLE, **options)
    cell.load_state_dict({name.replace("_l0", ""): value for name, value in layer.state_dict().items()})
    if isinstance(layer, HDetachLSTM):  # in training it drops gradients at random
        layer.eval(), cell.eval()
    return layer, cell


def parts(state):
    return state if isinstance(state, tuple) else (state,)


@every_layer
@pytest.mark.parametrize("context", ["plain", "cached"])
def test_steps_equal_walk_in_values_and_gradients(make, context):
    layer, cell = pair(make)
    torch.manual_seed(4)
    x = torch.randn(TIME, BATCH, I, dtype=DOUBLE)
    _, end = layer(x)
    expected = [part.squeeze(0) for part in parts(end)]
    loss = sum(part.square().sum() for part in expected if part.requires_grad)
    layer_grads = torch.autograd.grad(loss, list(layer.parameters()), allow_unused=True)

    def run():
        state = None
        for row in x:
            state = cell(row, state)
        return list(parts(state))

    if context == "cached":
        with cell.cached():
            found = run()
    else:
        found = run()
    assert_same(found, expected, BOUND)
    loss = sum(part.square().sum() for part in found if part.requires_grad)
    grads = torch.autograd.grad(loss, list(cell.parameters()), allow_unused=True)
    zero = torch.zeros((), dtype=DOUBLE)
    assert_same([zero if g is None else g for g in grads], [zero if g is None else g for g in layer_grads], BOUND)


@every_layer
def test_input_without_batch(make):
    _, cell = pair(make)
    x = torch.randn(2, I, dtype=DOUBLE)
    expected = cell(x[1:], cell(x[:1]))
    found = cell(x[1], cell(x[0]))
    assert_same(list(parts(found)), [part.squeeze(0) for part in parts(expected)], BOUND)


@every_layer
def test_cell_is_found_by_name_and_pickled(make):
    name = f"{make.__name__}Cell"
    kind = getattr(cells, name)
    assert kind.__name__ == name in dir(cells)
    cell = kind(I, N)
    x = torch.randn(BATCH, I)
    again = pickle.loads(pickle.dumps(cell.eval()))
    assert all(map(torch.equal, parts(again(x)), parts(cell(x))))
    assert not any("_l0" in key for key in cell.state_dict())
    cell.reset_parameters()
    taken = inspect.signature(kind).parameters
    assert list(taken)[:2] == ["input_size", "hidden_size"]
    assert not {"num_layers", "batch_first", "dropout", "bidirectional"} & taken.keys()
    assert "bias" not in taken or list(taken)[2] == "bias"
    for key in taken.keys() - {"input_size", "hidden_size"}:
        kind(I, N, **{key: taken[key].default})


@every_layer
def test_baked_cell_computes_the_same(make):
    _, cell = pair(make)
    x = torch.randn(BATCH, I, dtype=DOUBLE)
    with torch.no_grad():
        assert_same(list(parts(cell.baked()(x))), list(parts(cell.eval()(x))), BOUND)


@pytest.mark.parametrize(
    ("name", "twin", "options"),
    [("RNNCell", nn.RNNCell, {}), ("LSTMCell", nn.LSTMCell, {}), ("GRUCell", nn.GRUCell, {"reset": "after"})],
)
@pytest.mark.parametrize("bias", [True, False])
def test_free_cells_compute_what_those_of_torch_do(name, twin, options, bias):
    """torch's update gate z is 1 − u, so its rows are those of u with the other sign."""
    theirs = twin(I, N, bias, dtype=DOUBLE)
    ours = getattr(cells, name)(I, N, bias, dtype=DOUBLE, **options)
    state = {key: value.clone() for key, value in theirs.state_dict().items()}
    if bias:
        second = state.pop("bias_hh")
        if name == "GRUCell":
            state["bias_hn"] = second[2 * N :].clone()  # the reset gate multiplies this bias
            second[2 * N :] = 0
        state["bias_ih"] = state["bias_ih"] + second
    assert [(key, p.shape) for key, p in ours.named_parameters()] == [(key, p.shape) for key, p in state.items()]
    if name == "GRUCell":
        for key in state.keys() - {"bias_hn"}:
            state[key][N : 2 * N] *= -1
    ours.load_state_dict(state)
    x, h = torch.randn(2, BATCH, I, dtype=DOUBLE), None
    expected = None
    for row in x:
        h, expected = ours(row, h), theirs(row, expected)
    assert_same(list(parts(h)), list(parts(expected)), BOUND)


def test_arguments_by_position_are_those_of_torch():
    assert repr(cells.RNNCell(I, N, False, "relu")) == repr(cells.RNNCell(I, N, bias=False, activation="relu"))
    assert cells.RNNCell(I, N, True, "relu").mode == nn.RNN(I, N, nonlinearity="relu").mode
    with pytest.raises(TypeError, match="LSTMCell has no option nonlinearity"):
        cells.LSTMCell(I, N, True, "relu")


def test_layer_of_your_own():
    class DecayCell(StepCell):
        weight_ih = Owned()

        def __init__(self, input_size, hidden_size):
            super().__init__()
            self.weight_ih = nn.Parameter(torch.randn(hidden_size, input_size))

        def initial_state(self):
            return (torch.zeros(len(self.weight_ih)),)

        def step(self, input, state):
            return (state[0] / 2 + nn.functional.linear(input, self.weight_ih),)

    class Decay(RecurrentLayer):
        def __init__(self, input_size, hidden_size, **common):
            super().__init__(lambda width: DecayCell(width, hidden_size), input_size, hidden_size, **common)

    cell = cells.cell_class(Decay)(I, N)
    x = torch.randn(BATCH, I)
    torch.testing.assert_close(cell(x, cell(x)), 1.5 * x @ cell.weight_ih.T)
    assert type(cell).__name__ == "DecayCell"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda cell: cell(torch.zeros(2, 5)), ValueError, r"input of shape \(batch, 3\) or \(3,\); got \(2, 5\)"),
        (lambda cell: cell(torch.zeros(1, 2, I)), ValueError, r"got \(1, 2, 3\)"),
        (lambda cell: cell(torch.zeros(2, I), torch.zeros(1, 2, N)), ValueError, r"shape \(2, 6\); got \(1, 2, 6\)"),
        (lambda cell: cell(torch.zeros(I), torch.zeros(1, N)), ValueError, r"shape \(6,\); got \(1, 6\)"),
        (lambda cell: cell(torch.zeros(2, I, dtype=DOUBLE)), ValueError, r"type torch.float32.*got torch.float64"),
        (lambda cell: cell([0.0] * I), TypeError, "a tensor; got list"),
        (lambda cell: type(cell)(I, N, num_layers=2), TypeError, "no option num_layers.*use NCGRU"),
        (lambda cell: type(cell)(I, N, nonsense=2), TypeError, "NCGRUCell has no option nonsense; it has input_size"),
    ],
)
def test_wrong_calls(call, error, message):
    with pytest.raises(error, match=message):
        call(cells.NCGRUCell(I, N))


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'NonsenseCell'"):
        _ = cells.NonsenseCell


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("name", ["NNRNNCell", "LSTMCell", "CoRNNCell", pytest.param("RelRNNCell", marks=needs_c)])
def test_compiled_exported_and_under_autocast(name):
    cell, x = getattr(cells, name)(I, N).eval(), torch.randn(BATCH, I)
    expected = list(parts(cell(x)))
    bound = rounding(torch.float32, N + I, operations=20, scale=10)  # W is computed by other operations
    compiled = torch.compile(cell, backend="eager", fullgraph=True)
    assert_same(list(parts(compiled(x))), expected, bound)
    exported = torch.export.export(cell, (x,)).module()
    assert_same(list(parts(exported(x))), expected, bound)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(list(parts(cell(x))), expected, bound)


def test_compiled_inside_cached():
    cell, x = cells.NNRNNCell(I, N), torch.randn(BATCH, I)
    expected = cell(x, cell(x))
    compiled = torch.compile(cell, backend="eager", fullgraph=True)
    with cell.cached():
        found = cell(x, compiled(x))
    assert_same([found], [expected], rounding(torch.float32, N + I, operations=20, scale=10))
