"""The copy task: where symbols, blanks and cue stand, and what the papers print."""

import pytest
import torch
from torch import Generator

from steadygrad.tasks import Copy


def example(task, string):
    """Tokens and targets of a sequence that begins with ``string``."""
    inputs, targets = task.sample(500, Generator().manual_seed(0))
    tokens = inputs.argmax(-1)
    here = (tokens[:, : task.length] == torch.tensor(string)).all(1).nonzero()[0, 0]
    return tokens[here].tolist(), targets[here].tolist()


def test_sample_matches_docstring_example(drawn):
    tokens, targets = example(Copy(length=3, delay=5, symbols=3), [3, 1, 2])
    assert tokens == [3, 1, 2, 0, 0, 0, 0, 4, 0, 0, 0] == drawn(Copy, "input")
    assert targets == [0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2] == drawn(Copy, "target")


def test_recall_at_moves_cue_one_step_later():
    """The cue comes a step later, the targets stay where they are."""
    tokens, targets = example(Copy(length=3, delay=5, symbols=3, recall="at"), [3, 1, 2])
    assert tokens == [3, 1, 2, 0, 0, 0, 0, 0, 4, 0, 0]
    assert targets == [0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2]


@pytest.mark.parametrize("delay", [1, 2, 30])
@pytest.mark.parametrize(("recall", "before", "after"), [("after", -1, 10), ("at", 0, 9)])
def test_sequence_layout_matches_papers(delay, recall, before, after):
    """nnRNN: 10 symbols, T − 1 blanks, cue, 10 blanks. NC-GRU: 10 symbols, T blanks, cue, 9 blanks."""
    task = Copy(delay=delay, recall=recall)
    inputs, targets = task.sample(20, Generator().manual_seed(0))
    tokens = inputs.argmax(-1)
    string, rest = tokens[:, :10], tokens[:, 10:]
    assert torch.equal(inputs.sum(-1), torch.ones(20, delay + 20))
    assert ((string >= 1) & (string <= 8)).all()
    assert torch.equal(rest, torch.tensor([0] * (delay + before) + [9] + [0] * after).expand(20, -1))
    assert torch.equal(targets[:, -10:], string)
    assert not targets[:, :-10].any()


def test_default_sizes_match_papers():
    task = Copy()
    assert (task.input_size, task.output_size, task.steps) == (10, 9, 220)


@pytest.mark.parametrize(("delay", "loss"), [(200, 0.0945), (1000, 0.0204), (2000, 0.0103)])
def test_guessing_loss_matches_papers(delay, loss):
    """10 ln 8 / (T + 20)."""
    assert Copy(delay=delay).guessing_loss == pytest.approx(loss, abs=5e-5)


def test_symbols_are_equally_likely():
    _, targets = Copy(delay=1).sample(2000, Generator().manual_seed(0))
    counts = targets[:, -10:].flatten().bincount(minlength=9)
    n, p = 20_000, 1 / 8
    assert counts[0] == 0
    assert ((counts[1:] - n * p).abs() < 5 * (n * p * (1 - p)) ** 0.5).all()


def test_accuracy_counts_only_recalled_symbols():
    task = Copy(length=4, delay=50, symbols=3)
    targets = torch.zeros(1, 58, dtype=torch.int64)
    targets[0, -4:] = torch.tensor([1, 2, 3, 1])
    outputs = torch.zeros(1, 58, 4)
    outputs[..., 0] = 1.0
    assert task.metrics(outputs, targets) == {"accuracy": 0.0}
    outputs[0, -4:, 1] = 2.0  # always the first symbol
    assert task.metrics(outputs, targets) == {"accuracy": 0.5}
    outputs[0, :-4, 2] = 9.0  # nonsense while nobody asks
    assert task.metrics(outputs, targets) == {"accuracy": 0.5}
