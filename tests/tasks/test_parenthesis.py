"""The parenthesis task: counts of open brackets, and the walk that finds them without a loop over time."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Generator

from steadygrad.tasks import Parenthesis
from steadygrad.tasks.parenthesis import clipped_walk


def walk(moves, cap):
    """The definition, step by step."""
    count, counts = 0, []
    for move in moves:
        count = min(max(count + move, 0), cap)
        counts.append(count)
    return counts


shapes = st.tuples(st.integers(1, 40), st.integers(1, 3))


@given(moves=arrays(np.int16, shapes, elements=st.integers(-1, 1)), cap=st.integers(1, 6))
def test_clipped_walk_is_the_loop(moves, cap):
    before = moves.copy()
    counts = clipped_walk(moves, cap)
    assert counts.T.tolist() == [walk(column, cap) for column in moves.T.tolist()]
    assert np.array_equal(moves, before)


@pytest.mark.parametrize("stretch", [40_000, 70_000])
def test_long_walks_do_not_overflow(stretch):
    """Sums beyond 16 bits belong to stretches whose end does not depend on their start."""
    moves = [1] * stretch + [-1] * stretch + [1, 1, -1]
    assert clipped_walk(np.array(moves), 5).tolist() == walk(moves, 5)


def docstring_example():
    """The docstring's drawing: tokens, and a row of counts for each type."""
    lines = [line.split() for line in Parenthesis.__doc__.splitlines() if line.strip()]
    tokens = next(words[1:9] for words in lines if words[0] == "input")
    first = next(words[2:10] for words in lines if words[0] == "target")
    second = next(words[1:9] for words in lines if words[0] == "[")
    return tokens, [[int(count) for count in counts] for counts in (first, second)]


def test_docstring_example_matches_clipped_walk():
    tokens, counts = docstring_example()
    assert "".join(tokens) == "([x()]])"
    moves = [[(token == opening) - (token == closing) for token in tokens] for opening, closing in ("()", "[]")]
    assert clipped_walk(np.array(moves).T, 5).T.tolist() == counts


@pytest.mark.parametrize(
    "task",
    [Parenthesis(length=40), Parenthesis(length=40, types=2, noise=0, cap=1), Parenthesis(length=9, types=1, noise=4)],
    ids=repr,
)
def test_targets_count_open_brackets_of_input(task):
    """Tokens are the opening brackets, then the closing ones, then noise."""
    inputs, targets = task.sample(5, Generator().manual_seed(0))
    counts = targets.unflatten(-1, (task.types, task.cap + 1))
    assert torch.equal(inputs.sum(-1), torch.ones(5, task.length))
    assert torch.equal(counts.sum(-1), torch.ones(5, task.length, task.types))
    for tokens, found in zip(inputs.argmax(-1).tolist(), counts.argmax(-1), strict=True):
        for kind in range(task.types):
            moves = [(token == kind) - (token == kind + task.types) for token in tokens]
            assert found[:, kind].tolist() == walk(moves, task.cap)


def test_tokens_are_equally_likely():
    inputs, _ = Parenthesis().sample(200, Generator().manual_seed(0))
    counts, n, p = inputs.sum((0, 1)), 20_000, 1 / 7
    assert ((counts - n * p).abs() < 5 * (n * p * (1 - p)) ** 0.5).all()


def test_default_sizes_match_authors_program():
    task = Parenthesis()
    assert (task.input_size, task.output_size, task.steps) == (7, 18, 100)


def test_guessing_loss_of_one_token():
    """Of the six counts of a type 0 has p = 6/7, 1 has p = 1/7, and the others never occur."""
    assert Parenthesis(length=1).guessing_loss == pytest.approx(2 * (6 / 7 * 1 / 7) / 6)


@pytest.mark.parametrize(("length", "noise", "cap"), [(1, 0, 1), (3, 1, 2), (5, 2, 1), (6, 0, 3)])
def test_guessing_loss_matches_enumeration_of_all_sequences(length, noise, cap):
    task = Parenthesis(length=length, types=1, noise=noise, cap=cap)
    moves = product([1, -1] + [0] * noise, repeat=length)
    walks = np.array([walk(sequence, cap) for sequence in moves])
    p = np.array([np.bincount(step, minlength=cap + 1) for step in walks.T]) / len(walks)
    assert task.guessing_loss == pytest.approx((p * (1 - p)).mean())


def test_accuracy_counts_every_type_at_every_step():
    task = Parenthesis(length=2, types=2, noise=0, cap=1)
    targets = torch.tensor([[[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]])
    outputs = torch.tensor([[[0.6, 0.4, 0.1, 0.2], [0.1, 0.0, 0.0, 0.3]]])
    assert task.metrics(outputs, targets) == {"accuracy": 0.75}


def test_clipped_walk_supports_cap_above_int16():
    assert clipped_walk(np.ones((3, 1), np.int16), 40_000).ravel().tolist() == [1, 2, 3]
