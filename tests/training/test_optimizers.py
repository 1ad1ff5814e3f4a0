"""Optimizers against their formulas, and which parameter has which learning rate."""

import copy
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from steadygrad.layers import LAYERS
from steadygrad.models import SequenceModel
from steadygrad.training import JointOptimizer, TensorFlowRMSprop, Train, make_optimizer
from steadygrad.training.optimizers import Schedule, train_groups
from steadygrad.training.options import OPTIMIZERS, SMOOTHED

every_layer = pytest.mark.parametrize("layer", LAYERS)
RATES = {"lr": 0.5, "lr_constrained": 0.25, "decay_transients": 0.125, "weight_decay": 0.0625}


def model_and_optimizer(settings):
    model = settings.build_model(settings.build_task())
    return model, make_optimizer(model, settings.train)


def groups_by_name(model, optimizer):
    """name of a parameter → its learning rate and decay, once for each group it is in"""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.setdefault(names[parameter], []).append((group["lr"], group["weight_decay"]))
    return found


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("eps", [1e-10, 0.1])
@pytest.mark.parametrize("start", [1.0, 1e-3])
def test_tensorflow_rmsprop_matches_numpy_recurrence(eps, decay, start):
    generator = np.random.default_rng(0)
    gradients = generator.normal(size=(6, 3, 2))
    p = generator.normal(size=(3, 2))
    parameter = nn.Parameter(torch.from_numpy(p.copy()))
    optimizer = TensorFlowRMSprop([parameter], lr=0.1, alpha=0.8, eps=eps, weight_decay=decay, start=start)
    m = np.full_like(p, start)
    for g in gradients:
        parameter.grad = torch.from_numpy(g.copy())
        optimizer.step()
        coupled = g + decay * p
        m = 0.8 * m + 0.2 * coupled**2
        p = p - 0.1 * coupled / np.sqrt(m + eps)
        np.testing.assert_allclose(parameter.detach().numpy(), p, rtol=1e-12)
        assert torch.equal(parameter.grad, torch.from_numpy(g))  # the decay leaves no trace in it


def test_tensorflow_rmsprop_first_step_is_shorter_than_torch():
    steps = {}
    for make in (TensorFlowRMSprop, torch.optim.RMSprop):
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = make([parameter], lr=1e-3, alpha=0.9)
        parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()
        steps[make] = parameter.item()
    assert steps[TensorFlowRMSprop] == pytest.approx(-1e-6 / 0.9**0.5, rel=1e-4)
    assert steps[torch.optim.RMSprop] == pytest.approx(-1e-3 / 0.1**0.5, rel=1e-2)


def test_tensorflow_rmsprop_skips_missing_gradients_and_accepts_closure():
    moved, left = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = TensorFlowRMSprop([{"params": [moved]}, {"params": [left]}], lr=0.1)

    def closure():
        loss = moved.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert (moved < 1).all()
    assert (left == 1).all()


@pytest.mark.parametrize(
    ("name", "given", "kind", "expected"),
    [
        ("adam", {}, torch.optim.Adam, {"betas": (0.9, 0.999)}),
        ("adam", {"smoothing": 0.99}, torch.optim.Adam, {"betas": (0.9, 0.99)}),
        ("adam", {"beta1": 0.0}, torch.optim.Adam, {"betas": (0.0, 0.999)}),
        ("adam", {"beta1": 0.5, "smoothing": 0.9}, torch.optim.Adam, {"betas": (0.5, 0.9)}),
        ("adagrad", {}, torch.optim.Adagrad, {"lr_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10}),
        ("rmsprop", {}, torch.optim.RMSprop, {"alpha": 0.99}),
        ("rmsprop", {"smoothing": 0.9}, torch.optim.RMSprop, {"alpha": 0.9}),
        ("rmsprop-tf", {}, TensorFlowRMSprop, {"alpha": 0.9, "eps": 1e-10, "start": 1.0}),
        ("rmsprop-tf", {"smoothing": 0.5}, TensorFlowRMSprop, {"alpha": 0.5}),
        ("rmsprop-theano", {}, TensorFlowRMSprop, {"alpha": 0.9, "eps": 1e-30, "start": 1e-3}),
        ("sgd", {}, torch.optim.SGD, {"momentum": 0}),
    ],
)
def test_optimizer_name_selects_class_and_options(name, given, kind, expected, tiny):
    _, optimizer = model_and_optimizer(tiny(optimizer=name, lr=0.5, **given))
    assert isinstance(optimizer, kind)
    for group in optimizer.param_groups:
        assert group["lr"] == 0.5
        assert {key: group[key] for key in expected} == expected


@every_layer
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_parameter_is_in_exactly_one_group(layer, name, tiny):
    model, optimizer = model_and_optimizer(tiny({"name": layer, "num_layers": 2}, optimizer=name, **RATES))
    found = groups_by_name(model, optimizer)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(len(groups) == 1 for groups in found.values())


@every_layer
def test_readout_and_input_weights_do_not_use_constrained_lr(layer, tiny):
    found = groups_by_name(*model_and_optimizer(tiny(layer, **RATES)))
    plain = {name: groups for name, groups in found.items() if "weight_hh" not in name}
    assert {"readout.weight", "readout.bias"} < plain.keys()
    assert set(chain(*plain.values())) == {(0.5, 0.0625)}


W = "layer.weight_hh_l0"


@pytest.mark.parametrize(
    ("layer", "constrained", "transient"),
    [
        ("nnrnn", {f"{W}.skew": 28}, {f"{W}.transient": 24}),  # A of P; T without the blocks
        ("exprnn", {f"{W}.skew": 28}, {}),
        ("scornn", {f"{W}.skew": 28}, {}),
        ("ornn", {f"{W}.reflector": 36}, {}),
        ("svdrnn", {f"{W}.left": 36, f"{W}.right": 36}, {}),  # the bases, not p
        ("enrnn", {f"{W}.skew": 10}, {}),  # A of the 5 long-term units
        ("ncgru", {f"{W}.candidate.skew": 28}, {}),  # A of U_c
        *((layer, {}, {}) for layer in ("lstm", "gru", "rnn", "rnn-orth", "irnn")),
    ],
)
def test_parameter_groups_depend_on_parameter_kind(layer, constrained, transient, tiny):
    model, optimizer = model_and_optimizer(tiny(layer, **RATES))
    found = groups_by_name(model, optimizer)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert {name: sizes[name] for name, groups in found.items() if groups == [(0.25, 0.0)]} == constrained
    assert {name: sizes[name] for name, groups in found.items() if groups == [(0.5, 0.125)]} == transient
    rest = [groups for name, groups in found.items() if name not in constrained | transient]
    assert all(groups == [(0.5, 0.0625)] for groups in rest)
    assert len(optimizer.param_groups) == 1 + bool(constrained) + bool(transient)


def test_both_orthogonal_matrices_of_a_gru_are_constrained(tiny):
    found = groups_by_name(*model_and_optimizer(tiny({"name": "ncgru", "orthogonal": "rc"}, **RATES)))
    slow = {name for name, groups in found.items() if groups == [(0.25, 0.0)]}
    assert slow == {f"{W}.reset.skew", f"{W}.candidate.skew"}


def test_constrained_lr_defaults_to_lr(tiny):
    found = groups_by_name(*model_and_optimizer(tiny("nnrnn", lr=0.5)))
    assert set(chain(*found.values())) == {(0.5, 0.0)}


def test_transient_decay_is_added_to_gradient(tiny):
    """One step of plain descent: T ← T − lr (g + decay T), A at its own rate."""
    model, optimizer = model_and_optimizer(tiny("nnrnn", optimizer="sgd", **RATES))
    A, theta, gamma, T = model.layer.weight_hh_l0.free
    with torch.no_grad():
        T.normal_()
    before = [f.detach().clone() for f in (A, theta, gamma, T)]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    torch.testing.assert_close(A, before[0] - 0.25)
    torch.testing.assert_close(theta, before[1] - 0.5 * (1 + 0.0625 * before[1]))
    torch.testing.assert_close(gamma, before[2] - 0.5 * (1 + 0.0625 * before[2]))
    torch.testing.assert_close(T, before[3] - 0.5 * (1 + 0.125 * before[3]))


TORCH_OPTIMIZERS = {
    "adam": lambda groups, lr: torch.optim.Adam(groups, lr=lr, betas=(0.5, 0.9)),
    "adagrad": lambda groups, lr: torch.optim.Adagrad(groups, lr=lr),
    "rmsprop": lambda groups, lr: torch.optim.RMSprop(groups, lr=lr, alpha=0.9),
    "sgd": lambda groups, lr: torch.optim.SGD(groups, lr=lr),
}
OPTIMIZER_PAIRS = [(most, constrained) for most in TORCH_OPTIMIZERS for constrained in TORCH_OPTIMIZERS]


def set_gradients(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize(("most", "constrained"), OPTIMIZER_PAIRS)
def test_joint_optimizer_matches_separate_torch_optimizers(most, constrained, tiny):
    """Each group as torch's own optimizer trains it, bit for bit, also when a schedule cuts the rates."""
    options = {"lr": 0.01, "lr_constrained": 0.002, "schedule": "step", "lr_every": 2}
    options |= {"smoothing": 0.9} if {most, constrained} & set(SMOOTHED) else {}
    options |= {"beta1": 0.5} if "adam" in (most, constrained) else {}
    settings = tiny("ncgru", optimizer=most, optimizer_constrained=constrained, **options)
    model, optimizer = model_and_optimizer(settings)
    assert isinstance(optimizer, JointOptimizer) == (most != constrained)
    twin = copy.deepcopy(model)
    skew = [p for name, p in twin.named_parameters() if "candidate.skew" in name]
    rest = [p for name, p in twin.named_parameters() if "candidate.skew" not in name]
    theirs = [TORCH_OPTIMIZERS[constrained](skew, 0.002), TORCH_OPTIMIZERS[most](rest, 0.01)]
    plan = Schedule(optimizer, settings.train)
    for step in range(5):
        set_gradients(model.parameters(), step)
        set_gradients(twin.parameters(), step)
        optimizer.step()
        plan.after_update(step + 1)
        for own in theirs:
            own.step()
            own.param_groups[0]["lr"] *= 0.5 if step % 2 else 1
    for ours, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, other)


def test_joint_optimizer_is_not_used_without_constrained_parameters(tiny):
    _, optimizer = model_and_optimizer(tiny("gru", optimizer="rmsprop", optimizer_constrained="sgd"))
    assert isinstance(optimizer, torch.optim.RMSprop)


@pytest.mark.parametrize(("most", "constrained"), [("rmsprop", "sgd"), ("adam", "rmsprop-tf"), ("adagrad", "adam")])
def test_joint_optimizer_resumes_from_state_dict(most, constrained, tiny):
    settings = tiny("nnrnn", optimizer=most, optimizer_constrained=constrained, lr=0.01)
    model, optimizer = model_and_optimizer(settings)

    def update(model, optimizer, seed):
        set_gradients(model.parameters(), seed)
        optimizer.step()

    for seed in range(3):
        update(model, optimizer, seed)
    other = copy.deepcopy(model)
    resumed = make_optimizer(other, settings.train)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the tensors
    resumed.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] = 0.005  # groups are still shared with the parts
    for seed in range(3, 6):
        update(model, optimizer, seed)
        update(other, resumed, seed)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    resumed.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in other.parameters())


def test_joint_optimizer_takes_a_closure():
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = JointOptimizer([torch.optim.SGD([a], lr=0.1), torch.optim.Adagrad([b], lr=0.1)])

    def closure():
        loss = (a * b).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    torch.testing.assert_close(torch.stack([a, b]), torch.full((2, 2), 0.9))


def schedule(settings):
    _, optimizer = model_and_optimizer(settings)
    return Schedule(optimizer, settings.train), lambda: [group["lr"] for group in optimizer.param_groups]


def test_step_schedule_cuts_all_rates_every_lr_every_updates(tiny):
    plan, rates = schedule(tiny("exprnn", lr=0.8, lr_constrained=0.1, schedule="step", lr_factor=0.5, lr_every=3))
    seen = []
    for step in range(1, 8):
        plan.after_update(step)
        plan.after_evaluation(improved=False)
        seen.append(rates())
    once, twice, thrice = [0.1, 0.8], [0.05, 0.4], [0.025, 0.2]
    assert seen == [once, once, twice, twice, twice, thrice, thrice]
    assert plan.cuts == 2


def test_plateau_schedule_cuts_when_nothing_improved(tiny):
    plan, rates = schedule(tiny("exprnn", lr=0.8, lr_constrained=0.1, schedule="plateau", lr_factor=0.25))
    seen = []
    for step, improved in enumerate([True, False, True, False], 1):
        plan.after_update(step)
        plan.after_evaluation(improved)
        seen.append(rates())
    assert seen == [[0.1, 0.8], [0.025, 0.2], [0.025, 0.2], [0.00625, 0.05]]


def test_cosine_schedule_ends_at_zero(tiny):
    plan, rates = schedule(tiny("exprnn", lr=0.8, lr_constrained=0.1, schedule="cosine", steps=4))
    seen = []
    for step in range(1, 5):
        plan.after_update(step)
        plan.after_evaluation(improved=False)
        seen.append(rates())
    factors = [0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5, 0.0]
    for found, factor in zip(seen, factors, strict=True):
        assert found == pytest.approx([0.1 * factor, 0.8 * factor])


def test_constant_schedule_keeps_rate(tiny):
    plan, rates = schedule(tiny(lr=0.8, lr_every=1))
    for step in range(1, 4):
        plan.after_update(step)
        plan.after_evaluation(improved=False)
    assert rates() == [0.8]


def test_schedule_resumes_from_saved_position(tiny):
    plan, rates = schedule(tiny(lr=0.8, schedule="plateau"))
    plan.take_up(7, 3)
    assert rates() == [0.1]
    plan.after_evaluation(improved=False)
    assert rates() == [0.05]
    plan, rates = schedule(tiny(lr=0.8, schedule="cosine", steps=4))
    plan.take_up(2, 0)
    assert rates() == pytest.approx([0.4])


def test_decay_readout_and_decay_matrices_options():
    model = SequenceModel(LAYERS["gru"](3, 4, recurrent={"candidate": "cayley"}), 2)
    plain = train_groups(model, Train(weight_decay=0.5))
    assert [group["weight_decay"] for group in plain] == [0.0, 0.5]  # as many groups as ever
    groups = train_groups(model, Train(weight_decay=0.5, decay_readout=0.25, decay_matrices=0.125))
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    W = model.layer.weight_hh_l0
    assert decay[id(model.readout.weight)] == 0.75
    assert decay[id(W.reset)] == decay[id(W.update)] == 0.625
    assert decay[id(W.candidate.skew)] == 0.0
    assert decay[id(model.readout.bias)] == decay[id(model.layer.weight_ih_l0)] == 0.5
    with pytest.raises(ValueError, match="decay_readout expects a model with a linear readout; got GRU"):
        train_groups(model.layer, Train(decay_readout=0.1))
