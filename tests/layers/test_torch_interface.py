"""Constructor, attributes, errors and repr of layers, where programs expect those of torch.nn.RNN, GRU and LSTM."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from steadygrad.check import InputError
from steadygrad.layers import GRU, LAYERS, LSTM, NCGRU, NNRNN, RNN, SAB, RecurrentLayer, RelRNN, Stack, StepCell
from steadygrad.layers.naming import Owned
from steadygrad.matrices import Matrix

I, N = 3, 4
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
every_twin = pytest.mark.parametrize(("make", "twin"), [(RNN, nn.RNN), (GRU, nn.GRU), (LSTM, nn.LSTM)])
FORM = {"num_layers": 2, "bidirectional": True}


def described(layer):
    return {name: getattr(layer, name) for name in ("num_layers", "bias", "batch_first", "dropout", "bidirectional")}


@every_layer
def test_arguments_by_position_are_those_by_name(make):
    fourth = ("tanh",) if make is RNN else ()
    layer = make(I, N, 2, *fourth, False, True, 0.5, True)
    named = {"num_layers": 2, "bias": False, "batch_first": True, "dropout": 0.5, "bidirectional": True}
    assert described(layer) == named
    assert repr(layer) == repr(make(I, N, **named))
    count = 8 if make in (RNN, LSTM) else 7
    with pytest.raises(TypeError, match=rf"{make.__name__} expects at most {count} positional arguments, .*; got 9"):
        make(I, N, 2, *fourth, False, True, 0.5, True, *(0,) * (2 - len(fourth)))
    with pytest.raises(TypeError, match=rf"{make.__name__} got two values for bias"):
        make(I, N, 2, *fourth, False, bias=True)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'hidden_size'"):
        make(I)


@every_twin
def test_positional_arguments_are_in_the_order_of_torch(make, twin):
    arguments = (I, N, 2, *(("relu",) if make is RNN else ()), False, True, 0.25, True)
    arguments += (2,) if make is LSTM else ()
    ours, theirs = make(*arguments), twin(*arguments)
    assert described(ours) == described(theirs)
    assert (ours.mode, ours.proj_size) == (theirs.mode, theirs.proj_size)


@every_layer
def test_signature_has_the_order_of_torch(make):
    kinds = inspect.signature(make).parameters
    positional = [name for name, one in kinds.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    fourth = ["nonlinearity"] if make is RNN else []
    common = ["bias", "batch_first", "dropout", "bidirectional", *(["proj_size"] if make is LSTM else [])]
    assert positional == ["input_size", "hidden_size", "num_layers", *fourth, *common]
    assert {one.kind for name, one in kinds.items() if name not in positional} == {inspect.Parameter.KEYWORD_ONLY}


@every_layer
@pytest.mark.parametrize("options", [{}, FORM | {"trained_state": True}])
def test_layer_without_bias_has_no_bias(make, options):
    layer = make(I, N, bias=False, **options)
    assert layer.bias is False
    assert make(I, N).bias is True
    assert any("bias" in name for name, _ in make(I, N).named_parameters())
    assert not [name for name, _ in layer.named_parameters() if "bias" in name]
    output, state = layer(torch.randn(5, 2, I))
    output.sum().backward()
    assert output.isfinite().all()
    assert "bias=False" in repr(layer)
    layer.reset_parameters()
    twin = pickle.loads(pickle.dumps(layer))
    assert twin.load_state_dict(layer.state_dict()) == nn.modules.module._IncompatibleKeys([], [])


@every_layer
def test_layer_without_bias_is_the_layer_with_a_bias_of_zero(make):
    layer, plain = make(I, N, dtype=torch.float64).eval(), make(I, N, dtype=torch.float64, bias=False).eval()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "bias" in name:
                parameter.zero_()
    assert not plain.load_state_dict(layer.state_dict(), strict=False).missing_keys
    x = torch.randn(5, 2, I, dtype=torch.float64)
    torch.testing.assert_close(plain(x)[0], layer(x)[0])


def test_second_biases_are_absent_without_bias():
    """The bias added before modReLU, and that of a learned score."""
    for layer in (
        RNN(I, N, activation="modrelu", added_bias="inputs", bias=False),
        RelRNN(I, N, score="learned", activation="modrelu", bias=False),
        NNRNN(I, N, complex=True, bias=False),
    ):
        assert not [name for name, _ in layer.named_parameters() if "bias" in name]
        layer(torch.randn(30, 2, I))[0].sum().backward()
    assert "weight_relevance_l0" in dict(RelRNN(I, N, score="learned", bias=False).named_parameters())
    with pytest.raises(ValueError, match="LSTM expects bias=True with a forget_bias"):
        LSTM(I, N, bias=False, forget_bias=1.0)


class Leak(StepCell):
    """A cell that always has a bias."""

    bias_leak = Owned()

    def __init__(self, size):
        super().__init__()
        self.bias_leak = nn.Parameter(torch.zeros(size))

    def initial_state(self):
        return (torch.zeros_like(self.bias_leak),)

    def step(self, input, state):
        return (state[0] + self.bias_leak + input,)


def test_cell_that_ignores_bias_raises_value_error():
    class Leaky(RecurrentLayer):
        def __init__(self, size, **options):
            super().__init__(Leak, size, size, **options)

    assert Leaky(I, bidirectional=True).mode == "LEAKY"
    with pytest.raises(ValueError, match=r"Leaky has no form without bias, .* makes bias_leak_l0 .*; got bias=False"):
        Leaky(I, bias=False)


@pytest.mark.parametrize("name", ["bias", "batch_first", "bidirectional"])
@pytest.mark.parametrize("value", [0, 1, "True", None])
def test_flags_must_be_booleans(name, value):
    for error in (TypeError, ValueError):
        with pytest.raises(error, match=rf"GRU expects {name} to be True or False; got {value!r}"):
            GRU(I, N, **{name: value})


@pytest.mark.parametrize("sizes", [(3.0, 4), ("3", 4), (3, 4.0), (3, 4, 1.0), (3, True)])
def test_sizes_of_another_type_raise_type_error(sizes):
    for error in (TypeError, ValueError):
        with pytest.raises(error, match=r"GRU expects \w+ to be an integer of at least 1; got"):
            GRU(*sizes)
    with pytest.raises(ValueError, match="to be an integer of at least 1; got 0") as found:
        GRU(I, 0)
    assert not isinstance(found.value, TypeError)


def test_nonlinearity_is_a_name_of_activation():
    for options in ({"nonlinearity": "relu"}, {"activation": "relu"}, {"nonlinearity": "relu", "activation": "relu"}):
        layer = RNN(I, N, **options)
        assert (layer.cells[0].activation, layer.nonlinearity, layer.mode) == ("relu", "relu", "RNN_RELU")
    assert RNN(I, N).nonlinearity == "tanh"
    for first, second in (("relu", "tanh"), ("tanh", "relu")):
        with pytest.raises(ValueError, match=f"RNN expects one activation, .*'{first}' and nonlinearity='{second}'"):
            RNN(I, N, activation=first, nonlinearity=second)
    with pytest.raises(ValueError, match=r"RNN expects an activation out of .*; got 'sigmoid'"):
        RNN(I, N, nonlinearity="sigmoid")
    assert NNRNN(I, N).nonlinearity == "modrelu"
    assert RelRNN(I, N, activation="relu").nonlinearity == "relu"
    with pytest.raises(AttributeError, match="'LSTM' object has no attribute 'nonlinearity'"):
        _ = LSTM(I, N).nonlinearity


def test_modes_are_distinct_and_those_of_torch():
    modes = {name: make(I, N).mode for name, make in LAYERS.items()}
    assert modes == {name: name.upper() for name in LAYERS} | {"rnn": "RNN_TANH"}


@every_layer
@pytest.mark.parametrize("options", [{}, FORM])
def test_all_weights_lists_each_parameter_once(make, options):
    layer = make(I, N, **options)
    cells = layer.num_layers * layer.directions
    assert len(layer.all_weights) == cells
    listed = [id(p) for weights in layer.all_weights for p in weights]
    assert sorted(listed) == sorted(map(id, layer.parameters()))
    names = {id(p): name for name, p in layer.named_parameters()}
    ends = ["_l0", "_l0_reverse", "_l1", "_l1_reverse"][:cells]
    for end, weights in zip(ends, layer.all_weights, strict=True):
        assert {names[id(p)].split(".")[0].partition("_l")[2] for p in weights} == {end[2:]}
    assert layer.proj_size == 0
    assert layer.flatten_parameters() is None


@every_twin
def test_all_weights_begin_as_those_of_torch(make, twin):
    for ours, theirs in zip(make(I, N, **FORM).all_weights, twin(I, N, **FORM).all_weights, strict=True):
        assert [p.shape for p in ours][:3] == [p.shape for p in theirs][:3]


def test_all_weights_include_parameters_that_stay_in_the_cell():
    class Scaled(Leak):
        def __init__(self, size):
            super().__init__(size)
            self.scale = nn.Parameter(torch.ones(()))

    layer = RecurrentLayer(Scaled, I, I, 11)
    assert [len(weights) for weights in layer.all_weights] == [2] * 11


def wrong_calls(layer):
    """Calls that torch.nn.GRU refuses, by name."""
    x, size = torch.randn(5, 2, I), layer.state_sizes[0]
    state = layer(x)[1]
    state = state if isinstance(state, tuple) else (state,)
    packed = PackedSequence(torch.randn(3, I), torch.tensor([4, -1]))

    def with_first(first):
        return (first, *state[1:]) if len(state) > 1 else first

    return {
        "features": (torch.randn(5, 2, I + 1),),
        "dimensions": (torch.randn(5, 2, 2, I),),
        "dtype": (x.double(),),
        "device": (x.to("meta"),),
        "empty": (x[:0],),
        "batch of a state": (x, with_first(torch.randn(1, 3, size))),
        "size of a state": (x, with_first(torch.randn(1, 2, size + 1))),
        "dimensions of a state": (x, with_first(torch.randn(2, size))),
        "dtype of a state": (x, with_first(torch.randn(1, 2, size).double())),
        "device of a state": (x, with_first(torch.randn(1, 2, size, device="meta"))),
        "number of states": (x, (*state, state[0])),
        "batch sizes": (packed,),
    }


@every_layer
def test_wrong_inputs_and_states_raise_value_error_and_runtime_error(make):
    layer = make(I, N)
    for name, arguments in wrong_calls(layer).items():
        with pytest.raises(InputError, match=make.__name__) as found:
            layer(*arguments)
        assert isinstance(found.value, RuntimeError), name
        assert isinstance(found.value, ValueError), name


@every_twin
def test_torch_refuses_the_same_calls(make, twin):
    """The calls of the test above, so that they are errors of torch too."""
    theirs = twin(I, N)
    for name, arguments in wrong_calls(make(I, N)).items():
        if name != "number of states":  # torch finds that a tuple has no dimensions: AttributeError
            with pytest.raises((ValueError, RuntimeError)):
                theirs(*arguments)


def test_wrong_resets_raise_both_errors():
    for reset in (
        torch.zeros(5, 3, dtype=torch.bool),
        torch.zeros(5, 2),
        torch.zeros(5, 2, dtype=torch.bool).to("meta"),
    ):
        with pytest.raises(InputError, match="GRU expects reset"):
            GRU(I, N)(torch.randn(5, 2, I), reset=reset)


def test_wrong_number_of_states_of_a_stack_raises_both_errors():
    with pytest.raises(InputError, match="Stack expects a state of 3 tensors"):
        Stack([GRU(I, N), LSTM(N, N)])(torch.randn(5, 2, I), torch.zeros(1, 2, N))


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (lambda: RNN(3, 4), "RNN(3, 4, activation=tanh)"),
        (lambda: LSTM(3, 4), "LSTM(3, 4)"),
        (lambda: LSTM(3, 4, 2, proj_size=2), "LSTM(3, 4, proj_size=2, num_layers=2)"),
        (
            lambda: GRU(3, 4, 2, False, True, 0.5, True),
            "GRU(3, 4, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True, activation=tanh, "
            "reset=before)",
        ),
        (lambda: NNRNN(3, 4), "NNRNN(3, 4, activation=modrelu, recurrent=schur)"),
        (lambda: NCGRU(3, 4), "NCGRU(3, 4, activation=modrelu, reset=before, recurrent=candidate: neumann)"),
        (
            lambda: NCGRU(3, 4, orthogonal="rc"),
            "NCGRU(3, 4, activation=modrelu, reset=before, recurrent=reset/candidate: neumann)",
        ),
        (lambda: LSTM(3, 4, recurrent="cayley"), "LSTM(3, 4, recurrent=cayley)"),
        (
            lambda: LSTM(3, 4, recurrent={"cell": "cayley", "input": "schur"}),
            "LSTM(3, 4, recurrent=input: schur; cell: cayley)",
        ),
        (lambda: RNN(3, 4, recurrent="givens"), "RNN(3, 4, activation=tanh, recurrent=givens)"),
        (
            lambda: RNN(3, 4, recurrent=lambda size: Matrix(nn.Identity(), torch.eye(size))),
            "RNN(3, 4, activation=tanh, recurrent=Identity)",
        ),
        (
            lambda: NNRNN(3, 4, attention={"short": 5, "relevant": 2}),
            "NNRNN(3, 4, activation=modrelu, recurrent=schur, short=5, relevant=2)",
        ),
        (lambda: LSTM(3, 4, attention={"short": None}), "LSTM(3, 4, short=None)"),
        (lambda: SAB(3, 4, truncate=5), "SAB(3, 4, every=2, top=10, truncate=5)"),
        (lambda: LAYERS["h-detach"](3, 4), "HDetachLSTM(3, 4, detach_probability=0.25)"),
        (lambda: LAYERS["cornn"](3, 4), "CoRNN(3, 4, dt=0.042, gamma=2.7, epsilon=4.7)"),
        (lambda: LAYERS["urnn"](3, 4), "URNN(3, 4, activation=complex-modrelu, recurrent=evolution)"),
    ],
)
def test_repr_names_activation_reset_and_matrix(layer, text):
    assert repr(layer()) == text
    assert repr(nn.Sequential(layer())) == f"Sequential(\n  (0): {text}\n)"


@every_layer
def test_repr_is_one_line_after_copies_and_for_inference(make):
    layer = make(I, N)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(other) == repr(layer)
    assert "\n" not in repr(layer.baked())
    assert repr(layer).startswith(f"{make.__name__}({I}, {N}")


@every_layer
def test_assignment_to_a_cell_reaches_the_layer(make):
    layer = make(I, N, 2)
    x = torch.randn(5, 2, I)
    cell = layer.cells[1]
    cell = getattr(cell, "cell", cell)
    before = layer(x)[0]
    U = nn.Parameter(torch.randn_like(cell.weight_ih))
    cell.weight_ih = U
    assert layer.weight_ih_l1 is U
    assert cell.weight_ih is U
    assert U in set(layer.parameters())
    assert not torch.equal(layer(x)[0], before)
    with pytest.raises(TypeError, match=r"cannot assign 'torch.FloatTensor' as parameter 'weight_ih_l1'"):
        cell.weight_ih = torch.zeros_like(U)
    assert layer.weight_ih_l1 is U


def test_assignment_to_parts_of_cells_and_other_attributes():
    layer = RelRNN(I, N, score="learned")
    cell = layer.cells[0]
    for part, name in ((cell.alignment, "weight_query"), (cell.memory.score, "weight_relevance")):
        value = nn.Parameter(torch.ones_like(getattr(part, name)))
        setattr(part, name, value)
        assert layer.get_parameter(f"{name}_l0") is value
    cell.cell.bias_ih = None
    assert layer.bias_ih_l0 is None
    assert "bias_ih_l0" not in layer.state_dict()
    cell.cell.activation = "relu"
    assert layer.nonlinearity == "relu"


@every_layer
@pytest.mark.parametrize("batch_first", [False, True])
def test_state_of_zeros_is_the_default_state(make, batch_first):
    """Zeros for every tensor of the state; a memory of past states is then empty."""
    layer = make(I, N, batch_first=batch_first, **FORM).eval()
    x = torch.randn(5, 2, I)
    state = tuple(torch.zeros_like(part) for part in layer.default_states(x.shape[0 if batch_first else 1], x))
    torch.testing.assert_close(layer(x, state if len(state) > 1 else state[0]), layer(x), rtol=0, atol=0)


@every_layer
def test_dropout_can_be_changed_after_construction(make):
    """With a probability of 1 the second level receives zeros, whatever the input is."""
    layer = make(I, N, 2, dtype=torch.float64)
    x = torch.randn(5, 2, I, dtype=torch.float64)
    whole = layer.eval()(x)[0]
    layer.train().dropout = 1.0
    output = layer(x)[0]
    assert torch.equal(output, layer(2 * x)[0])
    assert torch.equal(layer.eval()(x)[0], whole)
    layer.train().dropout = 0.0
    torch.testing.assert_close(layer(x)[0], whole)


@every_layer
def test_backward_passes_of_a_retained_graph_are_equal(make):
    layer, x = make(I, N), torch.randn(5, 2, I, requires_grad=True)
    leaves = [x, *layer.parameters()]
    loss = layer(x)[0].square().sum()
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(loss, leaves, retain_graph=True), first, rtol=0, atol=0)
