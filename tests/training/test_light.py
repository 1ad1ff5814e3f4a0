"""Optimizers without the import of torch's compiler: the same numbers as torch.optim's, bit for bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import steadygrad
from steadygrad.training import light

OPTIONS = {
    "Adam": {"lr": 0.1, "betas": (0.5, 0.9), "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.1, "alpha": 0.8, "weight_decay": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
}


def trained(make, options, resumed_after=None):
    """Weights after five updates; with a new optimizer that loads the state of the first after some of them."""
    torch.manual_seed(0)
    model, other = nn.Linear(3, 2), nn.Parameter(torch.ones(2))
    x = torch.randn(5, 7, 3)

    def new():
        optimizer = make(model.parameters(), **options)
        optimizer.add_param_group({"params": [other], "lr": 0.01})
        return optimizer

    optimizer = new()
    for number, batch in enumerate(x):
        if number == resumed_after:
            state, optimizer = optimizer.state_dict(), new()
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
        ((model(batch) + other) ** 2).sum().backward()
        optimizer.step()
    return [model.weight, model.bias, other]


@pytest.mark.parametrize("resumed_after", [None, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_updates_equal_those_of_torch_bit_for_bit(name, resumed_after):
    found = trained(getattr(light, name), OPTIONS[name], resumed_after)
    expected = trained(getattr(torch.optim, name), OPTIONS[name])
    assert all(map(torch.equal, found, expected))
    assert issubclass(getattr(light, name), getattr(torch.optim, name))


@pytest.mark.parametrize("name", OPTIONS)
def test_closure_and_hooks_work_as_in_torch(name):
    weight, seen = nn.Parameter(torch.ones(2)), []
    optimizer = getattr(light, name)([weight], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert seen == ["after"]
    assert not torch.equal(weight, torch.ones(2))


def test_training_does_not_import_torch_compiler(tmp_path):
    """The import of torch._dynamo takes longer than that of torch."""
    code = """
import sys
from steadygrad.experiments import Observer, settings_for
from steadygrad.training import train
tiny = {"steps": 4, "batch": 2, "evaluate_every": 2, "evaluate_examples": 2, "log_every": 1, "clip": 1.0}
for layer in ("nnrnn", "lstm"):
    changes = {"layer": {"hidden_size": 6}, "task": {"delay": 3, "length": 2}, "train": tiny}
    settings, _ = settings_for(layer, "copy", changes)
    assert train(settings, layer, callbacks=[Observer()])["status"] == "done"
print("torch._dynamo" in sys.modules)
"""
    root = Path(steadygrad.__file__).parent.parent
    environment = {"PYTHONPATH": str(root), "PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == "False\n"
