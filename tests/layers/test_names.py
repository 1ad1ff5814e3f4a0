"""Names of parameters: those of torch, tools that use them, initialisation loops, initial values, earlier names."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from steadygrad.layers import GRU, LAYERS, LSTM, NCGRU, RNN, ExpRNN, RecurrentLayer, ScoRNN, StepCell
from steadygrad.layers.naming import Owned
from steadygrad.matrices import Matrix

every_layer = pytest.mark.parametrize("name", LAYERS)
every_free_layer = pytest.mark.parametrize(
    ("make", "twin"), [(RNN, nn.RNN), (LSTM, nn.LSTM), (GRU, nn.GRU)], ids=["rnn", "lstm", "gru"]
)
FORM = {"num_layers": 2, "bidirectional": True}


@every_free_layer
def test_free_parameters_have_names_and_shapes_of_torch(make, twin):
    """Of two bias vectors there is one."""
    ours = {name: tuple(p.shape) for name, p in make(3, 5, **FORM).named_parameters()}
    theirs = {name: tuple(p.shape) for name, p in twin(3, 5, **FORM).named_parameters() if "bias_hh" not in name}
    assert list(ours.items()) == list(theirs.items())
    assert list(make(3, 5, **FORM)._parameters) == list(theirs)
    assert "bias_ih_l0" not in dict(make(3, 5, bias=False).named_parameters())


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (ScoRNN(3, 4), {"weight_hh_l0.skew": (1, 6)}),
        (NCGRU(3, 4), {"weight_hh_l0.candidate.skew": (1, 6), "weight_hh_l0.reset": (4, 4), "bias_modrelu_l0": (4,)}),
        (RNN(3, 4, recurrent="svd"), {f"weight_hh_l0.{part}": (1, 10) for part in ("left", "right")}),
        (RNN(3, 4, activation="modrelu", added_bias="inputs"), {"bias_ih_l0": (4,), "bias_modrelu_l0": (4,)}),
        (
            RNN(3, 4, attention={"score": "learned", "combine": "concatenate"}),
            {
                "weight_query_l0": (4, 4),
                "weight_key_l0": (4, 4),
                "weight_score_l0": (1, 4),
                "weight_combine_l0": (4, 8),
                "weight_relevance_l0": (1, 4),
                "bias_relevance_l0": (),
            },
        ),
    ],
)
def test_other_parameters_are_named_for_what_they_are(layer, names):
    assert names.items() <= {name: tuple(p.shape) for name, p in layer.named_parameters()}.items()


@every_layer
def test_vectors_are_biases_and_weights_have_two_dimensions(name):
    layer = LAYERS[name](3, 5, trained_state=True, **FORM)
    for key, parameter in layer.named_parameters():
        assert key.startswith("initial_state.") or ("weight" if parameter.dim() > 1 else "bias") in key
        assert key.startswith("initial_state.") == ("weight" not in key and "bias" not in key)


def test_custom_cell_gives_its_declared_parameters_to_the_layer():
    class Cell(StepCell):
        weight_hh = Owned()

        def __init__(self, size):
            super().__init__()
            self.weight_hh, self.scale = nn.Parameter(torch.eye(size)), nn.Parameter(torch.ones(()))

        def initial_state(self):
            return (self.weight_hh.new_zeros(len(self.weight_hh)),)

        def step(self, input, state):
            return (self.scale * (input + state[0] @ self.weight_hh.mT),)

    alone = Cell(3)
    assert list(dict(alone.named_parameters())) == ["weight_hh", "scale"]
    assert alone.step(torch.ones(2, 3), alone.initial_states(2, torch.ones(()))).__len__() == 1
    layer = RecurrentLayer(Cell, 3, 3, 2)
    assert set(dict(layer.named_parameters())) == {
        "weight_hh_l0", "weight_hh_l1", "cells.0.scale", "cells.1.scale",
    }  # fmt: skip
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    assert torch.equal(layer.cells[0].weight_hh, 2 * torch.eye(3))


@every_free_layer
@pytest.mark.parametrize("weight", ["weight_hh_l0", "weight_ih_l1_reverse"])
def test_tools_that_replace_a_weight_by_name_change_the_computation(make, twin, weight):
    """Pruning, both forms of weight norm, weight dropout as in AWD-LSTM, and a parametrisation."""
    x = torch.randn(4, 2, 3)

    def fresh():
        layer = make(3, 5, **FORM)
        return layer, copy.deepcopy(layer)

    def with_weight(layer, W):
        return torch.func.functional_call(layer, {weight: W}, (x,))[0]

    layer, plain = fresh()
    prune.l1_unstructured(layer, weight, amount=7)
    assert (getattr(layer, weight) == 0).sum() == 7
    torch.testing.assert_close(layer(x)[0], with_weight(plain, getattr(layer, weight)))
    assert not torch.equal(layer(x)[0], plain(x)[0])
    layer, plain = fresh()
    parametrizations.weight_norm(layer, weight)
    torch.testing.assert_close(layer(x)[0], plain(x)[0])
    with torch.no_grad():
        getattr(layer.parametrizations, weight).original0.mul_(2)
    torch.testing.assert_close(layer(x)[0], with_weight(plain, 2 * getattr(plain, weight)))
    parametrize.remove_parametrizations(layer, weight)
    assert isinstance(getattr(layer, weight), nn.Parameter)
    layer, plain = fresh()
    with pytest.warns(FutureWarning, match="deprecated"):
        nn.utils.weight_norm(layer, weight)
    with torch.no_grad():
        layer.get_parameter(f"{weight}_g").mul_(2)
    torch.testing.assert_close(layer(x)[0], with_weight(plain, 2 * getattr(plain, weight)))
    layer, plain = fresh()
    raw = getattr(layer, weight)
    del layer._parameters[weight]
    layer.register_parameter(f"{weight}_raw", nn.Parameter(raw.data))
    setattr(layer, weight, nn.functional.dropout(layer.get_parameter(f"{weight}_raw"), 0.5))
    torch.testing.assert_close(layer(x)[0], with_weight(plain, getattr(layer, weight)))
    layer(x)[0].sum().backward()
    assert layer.get_parameter(f"{weight}_raw").grad.any()


def weight_drop(layer, name):
    del layer._parameters[name]


def fastai_weight_drop(layer, name):
    delattr(layer, name)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("make", [ScoRNN, NCGRU])
@pytest.mark.parametrize(
    "tool",
    [
        lambda layer, name: prune.l1_unstructured(layer, name, amount=0.5),
        nn.utils.weight_norm,
        parametrizations.weight_norm,
        weight_drop,
        fastai_weight_drop,
    ],
)
def test_tools_are_told_the_alternatives_of_a_constrained_matrix(make, tool):
    layer = make(3, 4)
    before = list(layer.state_dict())
    with pytest.raises(ValueError, match=r"expects weight_hh_l0 to stay as it is.*skew.*drop_weights\(\).*penalty"):
        tool(layer, "weight_hh_l0")
    assert list(layer.state_dict()) == before
    assert layer(torch.randn(4, 2, 3))[0].shape == (4, 2, 4)
    parametrizations.weight_norm(layer, "weight_ih_l0")  # a free one of the same layer
    assert parametrize.is_parametrized(layer, "weight_ih_l0")
    layer(torch.randn(4, 2, 3))[0].sum().backward()


def xavier(layer):
    for name, p in layer.named_parameters():
        nn.init.xavier_uniform_(p) if "weight" in name else nn.init.zeros_(p)


def orthogonal(layer):
    for name, p in layer.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(p)
        elif "weight_ih" in name:
            nn.init.xavier_uniform_(p)
        elif "bias" in name:
            nn.init.zeros_(p)


def by_dimension(layer):
    for p in layer.parameters():
        nn.init.xavier_uniform_(p) if p.dim() > 1 else p.data.uniform_(-0.1, 0.1)


def uniform_data(layer):
    for p in layer.parameters():
        p.data.uniform_(-0.3, 0.3)


def normal(layer):
    for name, p in layer.named_parameters():
        nn.init.normal_(p) if "weight" in name else nn.init.zeros_(p)


@every_layer
@pytest.mark.parametrize("loop", [xavier, orthogonal, by_dimension, uniform_data, normal])
def test_layer_trains_after_a_common_initialisation_loop(name, loop):
    """A constrained layer also warns, at its first call only."""
    layer = LAYERS[name](3, 6)
    readout = nn.Linear(layer.output_size, 1)
    loop(layer)
    x = torch.randn(4, 16, 3)
    y = x.sum((0, 2))[:, None] / 3
    if any(isinstance(part, Matrix) for part in layer.modules()):
        with pytest.warns(UserWarning, match=r"weight_hh_l0.* was overwritten.* Call reset_parameters\(\)"):
            layer(x)
    optimizer = torch.optim.Adam([*layer.parameters(), *readout.parameters()], lr=3e-2)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = (readout(layer(x)[0][-1]) - y).square().mean()
        loss.backward()
        if not losses:
            for kind in ("weight_ih", "weight_hh"):
                assert any(p.grad.any() for key, p in layer.named_parameters() if key.startswith(kind))
        optimizer.step()
        losses.append(loss.item())
    assert min(losses) < 0.98 * losses[0]


def step_of_optimizer(layer):
    layer(torch.randn(3, 2, 3))[0].sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


def moving_average(layer):
    average = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    other = ExpRNN(3, 4)
    average.update_parameters(other), average.update_parameters(ExpRNN(3, 4))
    return average.module


@pytest.mark.parametrize(
    "event",
    [
        lambda layer: layer.load_state_dict(ExpRNN(3, 4).state_dict()),
        lambda layer: layer.double().float(),
        lambda layer: layer.reset_parameters(),
        step_of_optimizer,
        copy.deepcopy,
        moving_average,
        lambda layer: pickle.loads(pickle.dumps(layer)),
        lambda layer: (layer.weight_hh_l0.skew.data.normal_(), layer.refresh())[1],
        lambda layer: layer.weight_ih_l0.data.normal_(),
    ],
    ids=["load", "dtype", "reset", "step", "copy", "average", "pickle", "refresh", "other parameter"],
)
def test_legitimate_changes_do_not_warn(event):
    """Warnings are errors in these tests."""
    layer = ExpRNN(3, 4)
    changed = event(layer)
    for one in (layer, changed):
        if isinstance(one, RecurrentLayer):
            one(torch.randn(3, 2, 3))


@every_layer
@pytest.mark.parametrize("options", [{}, FORM | {"trained_state": True, "dtype": torch.float64}])
def test_reset_parameters_draws_the_initial_values_again(name, options):
    torch.manual_seed(3)
    expected = LAYERS[name](3, 6, **options).state_dict()
    layer = LAYERS[name](3, 6, **options)
    for p in layer.parameters():
        p.data.normal_()
    torch.manual_seed(3)
    layer.reset_parameters()
    for key, value in layer.state_dict().items():
        assert torch.equal(value, expected[key]), key
    layer(torch.randn(3, 2, 3, dtype=options.get("dtype")))  # without a warning


def test_reset_parameters_after_pickling():
    layer = pickle.loads(pickle.dumps(ExpRNN(3, 4)))
    layer.reset_parameters()
    local = pickle.loads(pickle.dumps(RNN(3, 4, input_init=lambda tensor: nn.init.zeros_(tensor))))
    with pytest.raises(RuntimeError, match="RNN expects the arguments of its constructor"):
        local.reset_parameters()


@every_layer
def test_copies_and_functional_calls_use_their_own_parameters(name):
    layer, x = LAYERS[name](3, 5), torch.randn(4, 2, 3)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x)[0], layer(x)[0])
        with torch.no_grad():
            twin.weight_ih_l0.zero_()
        assert not torch.equal(twin(x)[0], layer(x)[0])
    zeros = {"weight_ih_l0": torch.zeros_like(layer.weight_ih_l0)}
    assert torch.equal(torch.func.functional_call(layer, zeros, (x,))[0], twin(x)[0])
