"""Parameter groups for optimizers: constrained free tensors apart from the rest, wherever they are in a model."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import steadygrad
from steadygrad.layers import LAYERS, LSTM, NCGRU, NNRNN, ExpRNN, Stack
from steadygrad.layers.groups import parameter_kinds
from steadygrad.matrices import COMPLEX, MATRICES, Matrix, build
from steadygrad.models import SequenceModel


def names_by_group(model, groups):
    names = {p: name for name, p in model.named_parameters()}
    return {group["name"]: [names[p] for p in group["params"]] for group in groups}


@pytest.mark.parametrize("layer", LAYERS)
def test_every_parameter_is_in_one_group(layer):
    model = SequenceModel(LAYERS[layer](3, 8, num_layers=2), 4)
    groups = steadygrad.parameter_groups(model, 1e-2, 1e-4, weight_decay=0.1)
    found = [p for group in groups for p in group["params"]]
    assert len(found) == len(set(found)) == len(list(model.parameters()))
    free = {
        f
        for m in model.modules()
        if isinstance(m, Matrix)
        for f, kind in zip(m.free, m.kinds, strict=True)
        if kind in ("skew", "reflector")
    }
    for group in groups:
        constrained = group["name"] == "constrained"
        assert (group["lr"], group["weight_decay"]) == ((1e-4, 0.0) if constrained else (1e-2, 0.1))
        assert all((p in free) == constrained for p in group["params"])
    assert len(groups) == 1 + bool(free)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam])
def test_groups_set_the_rates_of_torch_optimizers(optimizer):
    """With a huge rate for one group and none for the other, only that group moves; AdamW decays no skew part."""
    model = NNRNN(3, 8)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer(steadygrad.parameter_groups(model, 0.0, 0.5)).step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"weight_hh_l0.skew"}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    skew = model.weight_hh_l0.skew.detach().clone()
    torch.optim.AdamW(steadygrad.parameter_groups(model, 0.1, weight_decay=0.5)).step()
    assert torch.equal(model.weight_hh_l0.skew, skew)
    assert not torch.equal(model.weight_ih_l0, before["weight_ih_l0"])


def test_nested_layers_stacks_and_parametrized_weights_are_found():
    class Users(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleDict({"a": Stack([NCGRU(3, 8), LSTM(8, 4)]), "b": ExpRNN(3, 4)})
            self.head = nn.Linear(8, 8)
            self.tail = nn.Linear(6, 6)
            parametrize.register_parametrization(self.head, "weight", build("svd", 8).map)
            parametrize.register_parametrization(self.tail, "weight", build("evolution", 6).map)

    model = Users()
    found = names_by_group(model, steadygrad.parameter_groups(model, 1e-3))
    assert set(found["constrained"]) == {
        "branches.a.0.weight_hh_l0.candidate.skew",
        "branches.b.weight_hh_l0.skew",
        "head.parametrizations.weight.original0",
        "head.parametrizations.weight.original1",
        "tail.parametrizations.weight.original1",
    }
    assert found.keys() == {"constrained", "other"}


@pytest.mark.parametrize("name", [*MATRICES, *COMPLEX])
def test_kinds_of_a_parametrized_map_are_those_of_its_matrix(name):
    matrix = build(name, 8)
    module = parametrize.register_parametrization(nn.Linear(8, 8), "weight", build(name, 8).map)
    kinds = parameter_kinds(module)
    originals = [p for key, p in module.named_parameters() if "original" in key]
    assert tuple(kinds.get(p, "matrix") for p in originals) == matrix.kinds


def test_further_groups_by_kind_and_by_name():
    model = SequenceModel(NNRNN(3, 8), 4)
    groups = steadygrad.parameter_groups(
        model,
        1e-2,
        groups={"transient": {"weight_decay": 0.3}, "readout.bias": {"lr": 0.7}, "constrained": {"betas": (0, 0.9)}},
        weight_decay=0.1,
    )
    named = {group["name"]: group for group in groups}
    assert names_by_group(model, groups)["readout.bias"] == ["readout.bias"]
    assert (named["transient"]["lr"], named["transient"]["weight_decay"]) == (1e-2, 0.3)
    assert (named["readout.bias"]["lr"], named["readout.bias"]["weight_decay"]) == (0.7, 0.1)
    assert (named["constrained"]["betas"], named["constrained"]["weight_decay"]) == ((0, 0.9), 0.0)
    assert list(named) == ["constrained", "transient", "readout.bias", "other"]
    torch.optim.Adam(groups)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lr": -1.0}, "expects lr to be a number of at least 0; got -1.0"),
        ({"lr": 0.1, "lr_constrained": "x"}, "expects lr_constrained to be a number of at least 0; got 'x'"),
        ({"lr": 0.1, "groups": {"skewed": {}}}, "or the name of a parameter; got 'skewed'"),
    ],
)
def test_invalid_arguments_raise_value_error(arguments, words):
    with pytest.raises(ValueError, match=words):
        steadygrad.parameter_groups(NNRNN(3, 8), **arguments)


def test_non_finite_error_names_the_rate_to_lower():
    layer = NCGRU(3, 8)
    with torch.no_grad():
        layer.weight_hh_l0.candidate.skew[0, 0] = torch.nan
    layer.refresh()  # no warning that the initial values were overwritten
    with pytest.raises(ValueError, match=r"lower the learning rate \(lr_constrained for weight_hh_l0.candidate.skew\)"):
        layer(torch.zeros(2, 1, 3))
    layer = LSTM(3, 4)
    with torch.no_grad():
        layer.weight_hh_l0[0, 0] = torch.inf
    with pytest.raises(
        ValueError, match=r"in weight_hh_l0 of shape \(16, 4\). If training .* lower the learning rate$"
    ):
        layer(torch.zeros(2, 1, 3))
