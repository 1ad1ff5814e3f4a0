"""Runs that were saved before layers owned their parameters: cells.0.W was the name of weight_ih_l0."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from steadygrad.training import RunDirectory, load_model, train

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
