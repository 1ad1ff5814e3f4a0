"""The batch of an update is a function of its number."""

import pytest
import torch

from steadygrad.tasks import TASKS, Copy, EnvironmentTask, TextTask
from steadygrad.training import GeneratedBatches, Train, stream

COPY = Copy(delay=4, length=3)  # 10 steps


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one[:2], other[:2], strict=True))


def test_streams_differ_by_seed_purpose_and_number():
    names = [(0, "train", 0), (1, "train", 0), (0, "valid", 0), (0, "train", 1), (0, "train"), (0, "train", "0")]
    drawn = [torch.rand(4, generator=stream(*name)) for name in names]
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(names)
    for name, numbers in zip(names, drawn, strict=True):
        assert torch.equal(torch.rand(4, generator=stream(*name)), numbers)


@pytest.mark.parametrize("seed", [0, -3, 2**70])
def test_stream_accepts_any_integer_seed(seed):
    assert torch.rand(1, generator=stream(seed, "train")).isfinite()


@pytest.mark.parametrize("task", [name for name in TASKS if not issubclass(TASKS[name], TextTask | EnvironmentTask)])
def test_a_batch_depends_on_seed_and_step_alone(task):
    here, there, other = (GeneratedBatches(TASKS[task](), Train(batch=3), seed) for seed in (1, 1, 2))
    backwards = {step: there(step) for step in (5, 3, 0)}
    torch.rand(3)  # the global generator has no part in it
    for step in (0, 3, 5):
        batch = here(step)
        assert equal(batch, backwards[step])
        assert not batch.goes_on
        assert not equal(batch, other(step))
    assert not equal(here(0), here(1))
    assert len(here(0).inputs) == 3


def test_fixed_training_set_is_reshuffled_every_epoch():
    batches = GeneratedBatches(COPY, Train(batch=5, examples=40), seed=0)
    epochs = [[batches(8 * epoch + place).targets for place in range(8)] for epoch in range(3)]
    contents = [sorted(batch.flatten().tolist() for batch in epoch) for epoch in epochs]
    assert contents[0] == contents[1] == contents[2]
    assert len({tuple(batch) for batch in contents[0]}) == 8  # no batch twice within an epoch
    orders = [[contents[0].index(batch.flatten().tolist()) for batch in epoch] for epoch in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    again = GeneratedBatches(COPY, Train(batch=5, examples=40), seed=0)
    assert equal(again(19), batches(19))


def test_generated_batches_do_not_repeat():
    batches = GeneratedBatches(COPY, Train(batch=5), seed=0)
    assert len({tuple(batches(step).targets.flatten().tolist()) for step in range(50)}) == 50


def test_windows_split_sequence_and_continue():
    """4 + 4 + 2 of the 10 steps; then the next sequence from its start."""
    whole, cut = (GeneratedBatches(COPY, Train(batch=2, window=window), seed=0) for window in (None, 4))
    for number in range(3):
        parts = [cut(3 * number + window) for window in range(3)]
        assert [part.inputs.shape[1] for part in parts] == [4, 4, 2]
        assert [part.goes_on for part in parts] == [False, True, True]
        assert equal([torch.cat([part[i] for part in parts], dim=1) for i in range(2)], whole(number))


@pytest.mark.parametrize("window", [10, 11, 1000])
def test_window_as_long_as_sequence_has_no_effect(window):
    whole, cut = (GeneratedBatches(COPY, Train(batch=2, window=w), seed=0) for w in (None, window))
    for step in range(3):
        assert equal(whole(step), cut(step))
        assert not cut(step).goes_on


def test_windows_work_with_fixed_training_set():
    cut = GeneratedBatches(COPY, Train(batch=2, examples=6, window=5), seed=0)
    whole = GeneratedBatches(COPY, Train(batch=2, examples=6), seed=0)
    for number in range(6):
        parts = [cut(2 * number + window) for window in range(2)]
        assert equal([torch.cat([part[i] for part in parts], dim=1) for i in range(2)], whole(number))


def test_window_without_targets_at_every_step_raises_value_error():
    with pytest.raises(ValueError, match="truncated back-propagation expects targets at every step; Adding has one"):
        GeneratedBatches(TASKS["adding"](), Train(window=10), seed=0)
