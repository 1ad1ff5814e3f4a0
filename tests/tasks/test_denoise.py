"""The denoise task: symbols in order among the noise, and the authors' program that may lose some."""

import math

import pytest
import torch
from torch import Generator

from steadygrad.tasks import Denoise

SMALL = {"delay": 5, "length": 3, "symbols": 3}
CUE = 7
"""delay + length − 1"""


def in_order(part, whole):
    rest = iter(whole)
    return all(symbol in rest for symbol in part)


def test_sample_matches_docstring_example(drawn):
    """One of 945 equally likely sequences."""
    inputs, targets = Denoise(**SMALL).sample(10_000, Generator().manual_seed(0))
    example = [0, 3, 0, 0, 1, 0, 2, 4, 0, 0, 0]
    here = (inputs.argmax(-1) == torch.tensor(example)).all(1)
    assert example == drawn(Denoise, "input")
    assert targets[here].unique(dim=0).tolist() == [[0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2]] == [drawn(Denoise, "target")]


@pytest.mark.parametrize("delay", [1, 5, 60])
def test_targets_are_symbols_before_cue_in_order(delay):
    task = Denoise(delay=delay)
    inputs, targets = task.sample(50, Generator().manual_seed(0))
    tokens, cue = inputs.argmax(-1), delay + 9
    assert torch.equal(inputs.sum(-1), torch.ones(50, task.steps))
    assert (tokens[:, cue] == 10).all()
    assert not tokens[:, cue + 1 :].any()
    assert not targets[:, :-10].any()
    for before, string in zip(tokens[:, :cue].tolist(), targets[:, -10:].tolist(), strict=True):
        assert [token for token in before if token] == string
        assert set(string) <= set(range(1, 10))


def test_symbol_positions_are_uniform():
    inputs, _ = Denoise(**SMALL).sample(7000, Generator().manual_seed(0))
    taken = (inputs.argmax(-1)[:, :CUE] > 0).long() @ (2 ** torch.arange(CUE))
    counts = taken.bincount()
    counts = counts[counts > 0]
    n, p = 7000, 1 / math.comb(7, 3)
    assert len(counts) == math.comb(7, 3)
    assert ((counts - n * p).abs() < 5 * (n * p * (1 - p)) ** 0.5).all()


def test_input_and_output_sizes_with_and_without_authors_option():
    """The authors' cue has no input of its own."""
    assert (Denoise().input_size, Denoise().output_size, Denoise().steps) == (11, 10, 220)
    theirs = Denoise(authors=True)
    assert (theirs.input_size, theirs.output_size, theirs.steps) == (10, 10, 220)


def test_authors_option_uses_zero_vector_as_cue():
    inputs, targets = Denoise(**SMALL, authors=True).sample(50, Generator().manual_seed(0))
    assert not inputs[:, CUE].any()
    assert torch.equal(inputs[:, :CUE].sum(-1), torch.ones(50, CUE))
    assert inputs[:, CUE + 1 :, 0].all()
    assert targets[:, -3:].all()
    assert not targets[:, :-3].any()


def test_authors_option_positions_may_collide():
    """As often as three people share a birthday in a week of seven days; what is left keeps its order."""
    n = 2000
    inputs, targets = Denoise(**SMALL, authors=True).sample(n, Generator().manual_seed(0))
    found = inputs[:, :CUE].argmax(-1)
    whole = ((found > 0).sum(1) == 3).sum().item()
    p = 6 / 7 * 5 / 7
    assert whole == pytest.approx(n * p, abs=5 * (n * p * (1 - p)) ** 0.5)
    for tokens, string in zip(found.tolist(), targets[:, -3:].tolist(), strict=True):
        assert in_order([token for token in tokens if token], string)


def test_guessing_loss_matches_formula():
    """10 ln 9 / (T + 20)."""
    assert Denoise().guessing_loss == pytest.approx(0.09987, abs=5e-6)
    assert Denoise(authors=True).guessing_loss == Denoise().guessing_loss


@pytest.mark.parametrize("authors", ["no", 1, None])
def test_non_bool_authors_raises_value_error(authors):
    with pytest.raises(ValueError, match="Denoise expects authors to be true or false"):
        Denoise(authors=authors)
