"""Promises that every task keeps. A task added to TASKS needs one line here: how somebody guesses."""

import dataclasses
import math

import pytest
import torch
from torch import Generator
from torch.nn import functional as F

from steadygrad.tasks import (
    TASKS,
    TIMIT,
    Adding,
    Copy,
    DataTask,
    Denoise,
    EnvironmentTask,
    ObjectTask,
    Parenthesis,
    PixelMNIST,
    Task,
    TextTask,
    WordPTB,
)
from steadygrad.tasks.relational.games import GAMES
from tests import fakes

SMALL = {
    "copy": [{"delay": 5, "length": 3, "symbols": 4}, {"delay": 5, "length": 3, "symbols": 4, "recall": "at"}],
    "adding": [{"length": 11}],
    "denoise": [{"delay": 5, "length": 3, "symbols": 4}, {"delay": 5, "length": 3, "symbols": 4, "authors": True}],
    "parenthesis": [{"length": 12, "types": 2, "cap": 3}],
    "same-different": [{}, {"separated": True}, {"colour": True, "held_out": 0}],
    "distribution-of-n": [{}, {"n": 5, "held_out": 94, "restricted": True}],
    "identity-rules-4": [{}, {"missing": True}, {"flipped": True}, {"missing": True, "flipped": True}],
    "relational-game": [{"game": game} for game in GAMES] + [{"test_shapes": "stripes"}],
}
WITH_SEQUENCES = {name: cls for name, cls in TASKS.items() if not issubclass(cls, EnvironmentTask)}
"""what comes in an environment depends on an agent: tests/tasks/test_minigrid.py"""
SMALL_TASKS = [TASKS[name](**options) for name in WITH_SEQUENCES for options in SMALL.get(name, [{}])]
every_task = pytest.mark.parametrize("task", SMALL_TASKS, ids=repr)
every_class = pytest.mark.parametrize("cls", TASKS.values(), ids=TASKS)
every_class_with_sequences = pytest.mark.parametrize("cls", WITH_SEQUENCES.values(), ids=WITH_SEQUENCES)


def sample(task, batch, seed=0):
    return task.sample(batch, Generator().manual_seed(seed))


def steps(task):
    if isinstance(task, TIMIT):
        return fakes.STEPS
    return 100 if isinstance(task, TextTask) else task.steps  # of a text it is a window


def output_shape(task, batch):
    return (batch, task.output_size) if task.last_only else (batch, steps(task), task.output_size)


def numbers(task, outputs, targets):
    """Loss and metrics of one batch."""
    return task.conclude({"loss": task.loss(outputs, targets).item(), **task.metrics(outputs, targets)})


def perfect_outputs(task, targets):
    """Outputs that say what the targets are."""
    return 100 * F.one_hot(targets, task.output_size).float() if targets.dtype == torch.int64 else targets


@every_task
def test_shapes(task):
    inputs, targets = sample(task, 4)
    if isinstance(task, TextTask):
        assert inputs.shape == targets.shape == (4, steps(task))
        assert inputs.dtype == targets.dtype == torch.int64
    else:
        assert inputs.flatten(2).shape == (4, steps(task), task.input_size)
        assert inputs.dtype == torch.float32
    if isinstance(task, ObjectTask | PixelMNIST):
        assert targets.shape == (4,)
    elif not isinstance(task, TextTask):
        assert targets.shape[:-1] == (4,) if task.last_only else targets.shape[:2] == (4, steps(task))
        assert inputs.dim() == 3
    assert perfect_outputs(task, targets).shape == output_shape(task, 4)
    assert task.loss(torch.zeros(output_shape(task, 4)), targets).shape == ()


@every_class_with_sequences
def test_default_task_has_matching_sizes_and_finite_guessing_loss(cls):
    task = cls()
    inputs, _ = sample(task, 2)
    assert inputs.shape[:2] == (2, steps(task))
    assert isinstance(task, TextTask) or inputs.flatten(2).shape[2] == task.input_size
    assert isinstance(task, Task)
    assert 0 < task.guessing_loss < math.inf


@every_task
def test_sample_depends_only_on_generator_seed(task):
    """Of the generator's seed alone: the global random numbers are neither read nor moved."""
    first = sample(task, 8)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    again, other = sample(task, 8), sample(task, 8, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[1], other[1])


@every_task
def test_sample_unseen_depends_only_on_generator_seed(task):
    def unseen(seed):
        return task.sample_unseen(8, Generator().manual_seed(seed))

    torch.manual_seed(123)
    before = torch.get_rng_state()
    first, again = unseen(0), unseen(0)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], unseen(1)[0])
    assert [part.shape for part in first] == [part.shape for part in sample(task, 8)]
    assert [part.dtype for part in first] == [part.dtype for part in sample(task, 8)]


@every_task
def test_consecutive_batches_differ(task):
    generator = Generator().manual_seed(0)
    assert not torch.equal(task.sample(8, generator)[0], task.sample(8, generator)[0])


@every_task
def test_sequences_of_a_batch_differ(task):
    assert len(sample(task, 16)[0].flatten(1).unique(dim=0)) > 1


def blanks_then_any_symbol(task, targets):
    outputs = torch.full(output_shape(task, len(targets)), -math.inf)
    outputs[:, : -task.length, 0] = 0.0
    outputs[:, -task.length :, 1:] = 0.0
    return outputs


def one(task, targets):
    return torch.ones(output_shape(task, len(targets)))


def mean_target(task, targets):
    _, seen = sample(task, 20_000, seed=99)
    return seen.mean(dim=0).expand(targets.shape)  # step by step


def any_answer(task, targets):
    _, seen = sample(task, 4000, seed=99)
    return (seen.bincount(minlength=task.output_size) / len(seen)).log().expand(output_shape(task, len(targets)))


GUESSES = {
    Copy: blanks_then_any_symbol,
    Denoise: blanks_then_any_symbol,
    Adding: one,
    Parenthesis: mean_target,
    **{cls: any_answer for cls in TASKS.values() if issubclass(cls, ObjectTask)},
}


@pytest.mark.parametrize("task", [task for task in SMALL_TASKS if not isinstance(task, DataTask)], ids=repr)
def test_guessing_loss_matches_loss_of_best_constant_guess(task):
    """Over 400 batches of 200: exactly where it does not depend on chance, else within five standard errors.

    What is known of answers alone is known from 4000, hence the thousandth; of these there are fewer, as images cost.
    """
    guess, generator, losses = GUESSES[type(task)], Generator().manual_seed(0), []
    _, targets = sample(task, 200)
    outputs = guess(task, targets)  # knows no more than the shape
    for _ in range(20 if isinstance(task, ObjectTask) else 400):
        _, targets = task.sample(200, generator)
        losses.append(task.loss(outputs, targets))
    found = torch.stack(losses).double()
    error = 5 * found.std().item() / math.sqrt(len(found))
    assert error < 0.03 * task.guessing_loss  # sharp enough to notice a wrong formula
    slack = 1e-3 if isinstance(task, ObjectTask) else 1e-6
    assert found.mean().item() == pytest.approx(task.guessing_loss, abs=error + slack)


@every_task
def test_perfect_outputs_have_zero_loss_and_best_score(task):
    _, targets = sample(task, 6)
    outputs = perfect_outputs(task, targets)
    assert task.loss(outputs, targets).item() == pytest.approx(0, abs=1e-6)
    best = 1.0 if task.higher_is_better or isinstance(task, WordPTB) else 0.0
    found = numbers(task, outputs, targets)[task.score]
    assert found == (pytest.approx(best, abs=1e-6) if isinstance(task, TextTask) else best)


@every_task
def test_wrong_outputs_have_higher_loss_and_worse_score(task):
    batch = 5 if isinstance(task, TextTask) else 50  # a text has hundreds of answers in a sequence
    _, targets = sample(task, batch)
    _, others = sample(task, batch, seed=1)
    outputs = perfect_outputs(task, others)
    right, wrong = (numbers(task, perfect_outputs(task, t), targets)[task.score] for t in (targets, others))
    assert task.loss(outputs, targets) > task.guessing_loss
    assert wrong < right if task.higher_is_better else wrong > right


@every_task
def test_metrics_are_plain_numbers_with_the_score_among_them(task):
    _, targets = sample(task, 3)
    metrics = numbers(task, torch.randn(output_shape(task, 3)), targets)
    assert task.score in metrics
    assert all(type(value) is float for value in metrics.values())


@every_task
def test_loss_and_metrics_are_means_over_the_batch(task):
    """Which evaluation in parts of a batch relies on."""
    _, targets = sample(task, 6)
    outputs = torch.randn(output_shape(task, 6))
    parts = [(outputs[i : i + 2], targets[i : i + 2]) for i in (0, 2, 4)]
    whole, mean = task.loss(outputs, targets), sum(task.loss(*part) for part in parts) / 3
    torch.testing.assert_close(whole, mean)
    for key, value in task.metrics(outputs, targets).items():
        assert value == pytest.approx(sum(task.metrics(*part)[key] for part in parts) / 3, rel=1e-5)


@every_task
def test_loss_is_differentiable(task):
    _, targets = sample(task, 2)
    outputs = torch.randn(output_shape(task, 2), dtype=torch.float64, requires_grad=True)
    targets = targets if targets.dtype == torch.int64 else targets.double()
    many = outputs.numel() > 10_000  # along one direction then, as one by one they would take minutes
    assert torch.autograd.gradcheck(lambda outputs: task.loss(outputs, targets), outputs, fast_mode=many)
    task.loss(outputs, targets).backward()
    assert outputs.grad.any(dim=-1).all()  # every answer counts


INTEGER_FIELDS = [
    pytest.param(cls, field.name, id=f"{name}.{field.name}")
    for name, cls in TASKS.items()
    for field in dataclasses.fields(cls)
    if field.type is int
]


@pytest.mark.parametrize(("cls", "field"), INTEGER_FIELDS)
def test_invalid_integer_fields_raise_value_error(cls, field):
    seed = field.endswith("_seed")
    zero = [] if seed or field in ("noise", "held_out") else [0]  # brackets alone will do
    bounds = f"from 0 to {2**32 - 1}" if seed else "of at least [0-3]"
    for value in (*zero, *([2**32] if seed else []), -1, True, False, 1.5, "3", None):
        expected = f"{cls.__name__} expects {field} to be an integer {bounds}; got {value!r}"
        with pytest.raises(ValueError, match=expected):
            cls(**{field: value})


def test_parenthesis_without_noise_tokens_has_four_inputs():
    assert sample(Parenthesis(types=2, noise=0), 3)[0].shape == (3, 100, 4)


@pytest.mark.parametrize("recall", ["before", "", None, 1, True])
def test_unknown_recall_raises_value_error(recall):
    with pytest.raises(ValueError, match=f"Copy expects recall to be one of after, at; got {recall!r}"):
        Copy(recall=recall)


def test_adding_rejects_length_below_three():
    with pytest.raises(ValueError, match="Adding expects length to be an integer of at least 3; got 2"):
        Adding(length=2)
    assert sample(Adding(length=3), 2)[0].shape == (2, 3, 2)


@every_class
def test_tasks_are_frozen_hashable_and_comparable(cls):
    task, fields = cls(), [field.name for field in dataclasses.fields(cls)]
    assert task == cls()
    assert hash(task) == hash(cls())
    for field in fields[:1]:
        other = {"game": "between", "permuted": False, "corpus": "full"}.get(field, 8)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(task, field, other)
        assert dataclasses.replace(task, **{field: other}) != task


@every_class
def test_docstring_contains_input_and_target_example(cls):
    starts = [line.split()[0] for line in cls.__doc__.splitlines() if line.strip()]
    assert "input" in starts
    assert "target" in starts


def test_held_out_batches_are_counted_without_a_list():
    """A list of the sizes of 10¹⁰ batches would fill the memory."""
    batches = Copy(delay=3, length=2).held_out_batches("valid", 10**12 + 1, 100, None, lambda i: Generator())
    assert len(batches) == 10**10 + 1
    assert [len(batches[i].targets) for i in (0, -2, -1)] == [100, 100, 1]


def test_environment_limits_what_is_in_memory_at_once():
    with pytest.raises(ValueError, match="MiniGrid expects episodes to be at most 10,000; got 1000000000000"):
        TASKS["minigrid"](episodes=10**12)
    with pytest.raises(ValueError, match="MiniGrid expects round_frames to be at most 10,000,000; got 1000000000000"):
        TASKS["minigrid"](round_frames=10**12)
