"""Weights of torch.nn.RNN, nn.GRU and nn.LSTM in our layers and back: values, gradients, options, refusals."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from steadygrad.layers import (
    GORU,
    GRU,
    LAYERS,
    LSTM,
    NCGRU,
    NNRNN,
    RNN,
    CoRNN,
    HDetachLSTM,
    HenaffRNN,
    OrthogonalRNN,
    Stack,
    from_torch,
    to_torch,
)
from steadygrad.layers.torch_form import NAMES
from tests.backends import every_backend
from tests.rounding import assert_same, rounding

I, N, T, B = 3, 6, 7, 4
KINDS = {
    "tanh": (nn.RNN, {}, RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}, RNN, {"activation": "relu"}),
    "gru": (nn.GRU, {}, GRU, {"reset": "after"}),
    "lstm": (nn.LSTM, {}, LSTM, {}),
    "projected": (nn.LSTM, {"proj_size": 2}, LSTM, {"proj_size": 2}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
FORMS = {
    "plain": {},
    "whole": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"num_layers": 2, "bias": False},
}
every_form = pytest.mark.parametrize("form", FORMS)
BOUND = rounding(torch.float64, I + 2 * N + T * B, operations=4 * T)
"""two levels, both ways; each step adds a sum over inputs and units, each gradient of a weight one over all rows"""


def theirs_of(kind, form="plain", **options):
    make, own, _, _ = KINDS[kind]
    return make(I, N, **own, **FORMS[form], **{"dtype": torch.float64} | options)


def ours_of(kind, form="plain", **options):
    _, _, make, own = KINDS[kind]
    return make(I, N, **own, **FORMS[form], **{"dtype": torch.float64} | options)


def start_of(theirs):
    """A random initial state, as torch's layer takes it."""
    cells = theirs.num_layers * (2 if theirs.bidirectional else 1)
    sizes = [theirs.proj_size or N, N] if theirs.mode == "LSTM" else [N]
    states = tuple(torch.randn(cells, B, size, dtype=torch.float64) for size in sizes)
    return states if len(states) > 1 else states[0]


def tensors(state):
    return list(state) if isinstance(state, tuple) else [state]


def results(layer, x, start):
    """Output, final state, and the gradients of input and initial state by name."""
    leaf = (x.data if isinstance(x, PackedSequence) else x).clone().requires_grad_()
    x = x._replace(data=leaf) if isinstance(x, PackedSequence) else leaf
    start = None if start is None else tuple(part.clone().requires_grad_() for part in tensors(start))
    layer.zero_grad()
    output, final = layer(x, start if start is None or len(start) > 1 else start[0])
    found = [output.data if isinstance(output, PackedSequence) else output, *tensors(final)]
    weights = torch.Generator().manual_seed(2)
    sum((part * torch.randn(part.shape, generator=weights, dtype=part.dtype)).sum() for part in found).backward()
    return [part.detach() for part in found] + [part.grad for part in (leaf, *(start or ()))]


def mapped_gradients(ours, theirs):
    """Pairs of the gradients of each weight of torch's layer: as ours gives it, and its own.

    A bias of ours is the sum of two of torch's, so its gradient is that of each. The rows of torch's z are negated.
    """
    pairs, signs = [], torch.tensor([1.0, -1.0, 1.0]).repeat_interleave(N)
    for name, parameter in theirs.named_parameters():
        own = name.replace("bias_hh", "bias_ih")
        gradient = ours.get_parameter(own).grad
        if theirs.mode == "GRU":
            gradient = gradient * signs.view(-1, *[1] * (gradient.dim() - 1))
            if name.startswith("bias_hh"):
                gradient = torch.cat([gradient[: 2 * N], ours.get_parameter(name.replace("bias_hh", "bias_hn")).grad])
        pairs.append((gradient, parameter.grad))
    return pairs


def assert_equivalent(ours, theirs, x, start):
    assert_same(results(ours, x, start), results(theirs, x, start), BOUND)
    for got, expected in mapped_gradients(ours, theirs):
        assert_same([got], [expected], BOUND)


def padded(theirs):
    x = torch.randn(T, B, I, dtype=torch.float64)
    return x.transpose(0, 1) if theirs.batch_first else x


def packed(theirs):
    return pack_sequence([torch.randn(n, I, dtype=torch.float64) for n in (3, 7, 1, 5)], enforce_sorted=False)


def loaded(theirs, kind, form):
    layer = ours_of(kind, form)
    layer.load_state_dict(theirs.state_dict())
    return layer


def loaded_in_model(theirs, kind, form):
    model = nn.Sequential(nn.Linear(2, I), ours_of(kind, form))
    model.load_state_dict(nn.Sequential(nn.Linear(2, I), theirs).state_dict())
    return model[1]


@every_kind
@every_form
@pytest.mark.parametrize("batch", [padded, packed])
@pytest.mark.parametrize("given", [True, False], ids=["start", "no start"])
def test_converted_layer_has_torchs_outputs_and_gradients(kind, form, batch, given):
    theirs = theirs_of(kind, form)
    ours = from_torch(theirs)
    assert type(ours) is KINDS[kind][2]
    assert_equivalent(ours, theirs, batch(theirs), start_of(theirs) if given else None)


@every_kind
@pytest.mark.parametrize("form", ["plain", "whole"])
@pytest.mark.parametrize("load", [loaded, loaded_in_model])
def test_layer_that_loads_torchs_state_has_its_outputs_and_gradients(kind, form, load):
    theirs = theirs_of(kind, form)
    assert_equivalent(load(theirs, kind, form), theirs, packed(theirs), start_of(theirs))


@pytest.mark.parametrize("kind", ["tanh", "relu", "lstm", "projected"])
def test_state_without_biases_loads_where_torchs_gates_are_ours(kind):
    theirs = theirs_of(kind, "no bias")
    assert_equivalent(loaded(theirs, kind, "no bias"), theirs, padded(theirs), None)


def test_state_of_a_gru_without_biases_is_read_as_our_own():
    ours, twin = ours_of("gru", "no bias"), ours_of("gru", "no bias")
    twin.load_state_dict(ours.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), twin.parameters(), strict=True))


@every_kind
@every_backend
def test_every_backend_computes_torchs_layer(kind, backend, monkeypatch):
    monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
    theirs = theirs_of(kind, "whole")
    assert_equivalent(from_torch(theirs), theirs, padded(theirs), start_of(theirs))


@every_kind
@every_form
def test_back_in_torch_the_layer_computes_the_same(kind, form):
    """Of the second bias only b_hn is not 0."""
    ours = ours_of(kind, form)
    theirs = to_torch(ours)
    assert type(theirs) is KINDS[kind][0]
    assert_equivalent(ours, theirs, padded(theirs), start_of(theirs))
    for name, second in theirs.named_parameters():
        if name.startswith("bias_hh"):
            inner = ours.get_parameter(name.replace("bias_hh", "bias_hn")) if kind == "gru" else torch.zeros(N)
            assert torch.equal(second[-N:].to(inner), inner)
            assert not second[:-N].any()


@every_kind
@every_form
def test_there_and_back_changes_no_number(kind, form):
    ours = ours_of(kind, form)
    again = from_torch(to_torch(ours))
    assert again.state_dict().keys() == ours.state_dict().keys()
    assert all(torch.equal(again.state_dict()[name], value) for name, value in ours.state_dict().items())


@every_kind
def test_options_are_kept(kind):
    theirs = theirs_of(kind, "whole", dropout=0.25, dtype=torch.float32).eval()
    theirs.weight_hh_l1.requires_grad_(False)
    ours = from_torch(theirs)
    for layer in (ours, to_torch(ours), from_torch(to_torch(ours))):
        assert (layer.num_layers, layer.bidirectional, layer.batch_first, layer.dropout) == (2, True, True, 0.25)
        assert (layer.input_size, layer.hidden_size, layer.training) == (I, N, False)
        assert layer.weight_ih_l0.dtype == torch.float32
        assert [name for name, p in layer.named_parameters() if not p.requires_grad] == ["weight_hh_l1"]
    assert f"proj_size={getattr(theirs, 'proj_size', 0)}" in repr(ours) or kind != "projected"


def test_device_is_kept():
    for kind in KINDS:
        ours = from_torch(theirs_of(kind, device="meta"))
        assert {p.device.type for p in [*ours.parameters(), *to_torch(ours).parameters()]} == {"meta"}


def test_weight_norm_of_torchs_layer_is_evaluated():
    theirs = parametrizations.weight_norm(theirs_of("lstm"), "weight_hh_l0")
    ours, x = from_torch(theirs), torch.randn(T, B, I, dtype=torch.float64)
    assert_same([ours(x)[0]], [theirs(x)[0]], BOUND)


def test_weights_that_tools_compute_are_evaluated_on_the_way_back():
    ours, x = parametrizations.weight_norm(LSTM(I, N), "weight_hh_l0"), torch.randn(T, B, I)
    theirs = to_torch(ours)
    assert theirs.weight_hh_l0.requires_grad
    assert_same([theirs(x)[0]], [ours(x)[0]], rounding(torch.float32, I + 2 * N, operations=4 * T))


def test_frozen_free_tensors_of_a_matrix_freeze_torchs_weight():
    layer = RNN(I, N, recurrent="cayley")
    assert to_torch(layer).weight_hh_l0.requires_grad
    layer.weight_hh_l0.requires_grad_(False)
    theirs = to_torch(layer)
    assert [name for name, p in theirs.named_parameters() if not p.requires_grad] == ["weight_hh_l0"]


def test_single_level_with_dropout_converts_without_a_warning():
    with pytest.warns(UserWarning, match="dropout"):
        theirs = nn.GRU(I, N, dropout=0.5)
    assert to_torch(from_torch(theirs)).dropout == 0.5


@pytest.mark.parametrize("module", [nn.Linear(2, 2), nn.LSTMCell(2, 2), GRU(2, 2)], ids=lambda m: type(m).__name__)
def test_from_torch_refuses_other_modules(module):
    with pytest.raises(ValueError, match=rf"from_torch expects a torch.nn.RNN, .* got {type(module).__name__}"):
        from_torch(module)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (NNRNN(I, N), "activations tanh and relu, not modrelu"),
        (RNN(I, N, activation="identity"), "not identity"),
        (RNN(I, N, complex=True, activation="modrelu"), "recurrence of ComplexElmanCell"),
        (HenaffRNN(I, N), "recurrence of HenaffCell"),
        (CoRNN(I, N), "recurrence of CoRNNCell"),
        (GRU(I, N), 'torch.nn.GRU has tanh and reset="after", not tanh and "before"'),
        (GRU(I, N, reset="after", activation="relu"), "not relu"),
        (NCGRU(I, N), "not modrelu"),
        (RNN(I, N, attention={"short": 2}), "recurrence of AttentiveCell"),
        (LSTM(I, N, trained_state=True), "no trained initial state"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_to_torch_says_why_and_what_else(layer, reason):
    who = type(layer).__name__
    message = rf"to_torch expects a layer that torch.nn has; got {who}: .*{re.escape(reason)}.* use {who}\.baked"
    with pytest.raises(ValueError, match=message):
        to_torch(layer)


def test_to_torch_refuses_other_modules():
    with pytest.raises(ValueError, match="to_torch expects a layer of steadygrad; got Stack"):
        to_torch(Stack([RNN(I, N)]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: OrthogonalRNN(I, N),
        lambda: RNN(I, N, recurrent="cayley", activation="relu"),
        lambda: LSTM(I, N, recurrent={"forget": "cayley"}),
        lambda: GRU(I, N, reset="after", recurrent="neumann"),
        lambda: GORU(I, N, activation="tanh"),
        lambda: HDetachLSTM(I, N),
    ],
)
def test_matrices_under_a_constraint_are_evaluated(make):
    layer, x = make().double(), torch.randn(T, B, I, dtype=torch.float64)
    before = copy.deepcopy(layer.state_dict())
    theirs = to_torch(layer)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert theirs.training
    assert all(p.requires_grad for p in theirs.parameters())
    assert_same([theirs(x)[0]], [layer.eval()(x)[0]], BOUND)


def test_gru_with_reset_before_refuses_torchs_state():
    for make in (GRU, NCGRU):
        with pytest.raises(ValueError, match=r'GRU expects reset="after" .* Construct the layer with reset="after"'):
            make(I, N).load_state_dict(nn.GRU(I, N).state_dict())


def test_state_of_another_kind_or_size_is_refused():
    for layer, state in ((CoRNN(I, N), nn.RNN(I, N)), (HenaffRNN(I, N), nn.RNN(I, N)), (GORU(I, N), nn.GRU(I, N))):
        with pytest.raises(RuntimeError, match=r"Unexpected key.*bias_hh_l0"):
            layer.load_state_dict(state.state_dict())
    gru = GRU(I, N, reset="after")
    pairs = (LSTM(I, N), nn.LSTM(I, 5)), (gru, nn.LSTM(I, N)), (gru, nn.RNN(I, N)), (RNN(I, N), nn.GRU(I, N))
    for layer, state in pairs:
        with pytest.raises(RuntimeError, match="size mismatch"):
            layer.load_state_dict(state.state_dict())


def test_loading_leaves_the_state_dict_as_it_is_and_own_states_too():
    theirs, layer = nn.GRU(I, N), GRU(I, N, reset="after")
    state = theirs.state_dict()
    layer.load_state_dict(state)
    assert list(state) == list(theirs.state_dict())
    twin = GRU(I, N, reset="after")
    twin.load_state_dict(layer.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("attention", [None, {"short": 2}])
def test_gru_saved_before_b_hn_loads_with_zeros(attention):
    layer = GRU(I, N, reset="after", num_layers=2, bidirectional=True, attention=attention)
    state = {name: value for name, value in layer.state_dict().items() if not name.startswith("bias_hn")}
    assert len(state) < len(layer.state_dict())
    layer.load_state_dict(state)
    assert not any(p.any() for name, p in layer.named_parameters() if name.startswith("bias_hn"))
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({name: value for name, value in state.items() if not name.startswith("bias")})


def test_only_a_gru_with_reset_after_and_biases_has_b_hn():
    assert GRU(I, N, reset="after").bias_hn_l0.shape == (N,)
    for layer in (GRU(I, N), ours_of("gru", "no bias"), GORU(I, N), GORU(I, N, activation="tanh"), NCGRU(I, N)):
        assert not any("bias_hn" in name for name, _ in layer.named_parameters())
    assert not NCGRU(I, N, reset="after").bias_hn_l0.any()
    assert GRU(I, N, reset="after", activation="modrelu")(torch.randn(T, B, I))[0].isfinite().all()


def test_no_layer_has_a_name_by_which_torchs_state_is_recognised():
    for name, make in LAYERS.items():
        assert not any("bias_hh" in key for key in make(I, N).state_dict()), name
    assert "bias_hh" in NAMES


PROJECTED = {"proj_size": 2, "dtype": torch.float64}


def test_projected_lstm_has_torchs_names_and_shapes():
    options = {"proj_size": 2, "num_layers": 2, "bidirectional": True}
    ours = {name: tuple(p.shape) for name, p in LSTM(I, N, **options).named_parameters()}
    theirs = {name: tuple(p.shape) for name, p in nn.LSTM(I, N, **options).named_parameters() if "bias_hh" not in name}
    assert ours == theirs
    layer = LSTM(I, N, **options)
    assert layer.output_size == 4
    assert all(p.abs().max() <= N**-0.5 for p in layer.parameters())
    assert all(W.shape == (N, N) for W in layer.matrices().values())


def test_projected_lstm_resets_checkpoints_and_streams():
    layer, x = LSTM(I, N, **PROJECTED), torch.randn(T, B, I, dtype=torch.float64)
    output, (h, c) = layer(x)
    assert (h.shape, c.shape) == ((1, B, 2), (1, B, N))
    first, state = layer(x[:3])
    rest, _ = layer(x[3:], state)
    assert_same([torch.cat([first, rest])], [output], BOUND)
    reset = torch.arange(T)[:, None].expand(T, B) == 3
    assert_same([layer(x, reset=reset)[0]], [torch.cat([first, layer(x[3:])[0]])], BOUND)
    assert_same([layer(x, checkpoint=2)[0]], [output], BOUND)
    trained = LSTM(I, N, trained_state=True, **PROJECTED)
    assert [tuple(part.shape) for part in trained.initial_state] == [(1, 2), (1, N)]
    tail = pad_packed_sequence(layer(pack_sequence([x[:5, 0], x[:2, 1]]))[0])[0]
    assert_same([tail[:2, 1]], [output[:2, 1]], BOUND)


def test_projected_lstm_refuses_what_it_cannot_do():
    for size in (-1, N, N + 1, 2.0, True):
        with pytest.raises(ValueError, match=rf"LSTM expects proj_size to be .* from 0 to {N - 1}.*; got {size}"):
            LSTM(I, N, proj_size=size)
    with pytest.raises(ValueError, match=r'expects recurrent="free" with proj_size.*Use proj_size=0'):
        LSTM(I, N, proj_size=2, recurrent="cayley")
    with pytest.raises(ValueError, match=r"expects attention=None with proj_size.*Use proj_size=0"):
        LSTM(I, N, proj_size=2, attention={"short": 2})
