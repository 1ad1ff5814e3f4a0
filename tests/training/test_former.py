"""Runs that were saved before layers owned their parameters: cells.0.W was the name of weight_ih_l0."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from steadygrad.layers import GRU
from steadygrad.training import RunDirectory, load_model, train
from steadygrad.training.former import optimizer_state

FORMER = Path(__file__).parent / "former"
"""runs of six updates with two optimizers, and ``rows.json``: what the same program logged up to update 12"""
RUNS = sorted(path.name for path in FORMER.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", RUNS)
def test_weights_under_former_names_are_loaded(name):
    model, _, _ = load_model(RunDirectory(FORMER / name))
    saved = load_file(FORMER / name / "model.safetensors")
    assert any(".cells.0." in key for key in saved)
    assert not any("cells" in key for key in model.state_dict())
    total = sum(value.double().sum() for value in saved.values() if value.is_floating_point())
    ours = sum(value.double().sum() for value in model.state_dict().values() if value.is_floating_point())
    torch.testing.assert_close(ours, total)


@pytest.mark.parametrize("name", RUNS)
def test_checkpoint_under_former_names_is_resumed(name, tmp_path):
    """Every loss is that of the earlier program, so each parameter has the optimizer state that belongs to it."""
    run = tmp_path / name
    shutil.copytree(FORMER / name, run)
    settings = RunDirectory(run).settings()
    train(replace(settings, train=replace(settings.train, steps=12)), run, resume=True)
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    expected = json.loads((FORMER / "rows.json").read_text("utf-8"))[name]
    assert [(row["step"], row["split"]) for row in found] == [(step, split) for step, split, _ in expected]
    assert [row["loss"] for row in found] == pytest.approx([loss for *_, loss in expected], rel=1e-4)
    assert not any("cells" in key for key in load_file(run / "checkpoint.safetensors"))


def test_optimizer_state_from_before_b_hn_belongs_to_the_same_parameters():
    """The parameters after b_hn had lower numbers then, and b_hn has no state yet."""
    model = nn.ModuleList([GRU(2, 3, reset="after", num_layers=2), nn.Linear(3, 3)])
    optimizer = torch.optim.Adam(model.parameters())
    model[1](model[0](torch.randn(4, 2, 2))[0]).sum().backward()
    optimizer.step()
    names, state = [name for name, _ in model.named_parameters()], optimizer.state_dict()["state"]
    weights = {name: value for name, value in model.state_dict().items() if "bias_hn" not in name}
    former = dict(enumerate(state[i] for i, name in enumerate(names) if "bias_hn" not in name))
    assert len(former) == len(state) - 2
    found = optimizer_state(model, optimizer.param_groups, weights, former)
    assert {names[i] for i in state.keys() - found.keys()} == {"0.bias_hn_l0", "0.bias_hn_l1"}
    for index, own in found.items():
        assert torch.equal(own["exp_avg"], state[index]["exp_avg"]), names[index]
    assert optimizer_state(model, optimizer.param_groups, model.state_dict(), state) is state
