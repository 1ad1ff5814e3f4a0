"""The adding problem: two markers, one in each half, and the sum of what they mark."""

import pytest
import torch
from torch import Generator

from steadygrad.tasks import Adding


@pytest.mark.parametrize("length", [3, 4, 11, 200])
def test_target_is_sum_of_two_marked_numbers_one_per_half(length):
    inputs, targets = Adding(length=length).sample(300, Generator().manual_seed(0))
    values, markers = inputs.unbind(-1)
    half = (length - 1) // 2
    assert ((values >= 0) & (values < 1)).all()
    assert torch.equal(markers.unique(), torch.tensor([0.0, 1.0]))
    assert torch.equal(markers[:, :half].sum(1), torch.ones(300))
    assert torch.equal(markers[:, half:].sum(1), torch.ones(300))
    torch.testing.assert_close(targets, (values * markers).sum(1, keepdim=True))


@pytest.mark.parametrize("length", [3, 4, 11])
def test_every_position_can_be_marked(length):
    inputs, _ = Adding(length=length).sample(1000, Generator().manual_seed(0))
    assert inputs[..., 1].any(0).all()


def test_default_sizes_and_last_only():
    task = Adding()
    assert task.last_only
    assert (task.input_size, task.output_size, task.steps) == (2, 1, 200)


def test_loss_metrics_and_guessing_loss_known_values():
    task = Adding()
    outputs, targets = torch.tensor([[1.0], [0.5]]), torch.tensor([[1.5], [0.5]])
    assert task.loss(outputs, targets).item() == 0.125
    assert task.metrics(outputs, targets) == {"mse": 0.125}
    assert task.guessing_loss == pytest.approx(0.167, abs=5e-4)  # as ENRNN prints it
