"""MiniGrid: what an agent observes, compared with the minigrid package."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch

from steadygrad.tasks import MiniGrid
from steadygrad.tasks.minigrid import ENVIRONMENTS, WORDS, bag
from steadygrad.tasks.packages import import_optional

gymnasium = pytest.importorskip("gymnasium", reason="needs the extra minigrid")
minigrid = pytest.importorskip("minigrid", reason="needs the extra minigrid")

SHORT = MiniGrid(environment="Empty-5x5", limit=12)
NAN = math.nan


# the worlds


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environment_limits_and_actions_match_package(name):
    theirs = gymnasium.make(f"MiniGrid-{name}-v0", disable_env_checker=True).unwrapped
    task = MiniGrid(environment=name)
    assert task.steps == theirs.max_steps
    assert (task.view, task.actions) == (theirs.agent_view_size, theirs.action_space.n)
    assert dataclasses.replace(task, limit=7).world().environment.max_steps == 7


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_observations_and_rewards_match_package(name):
    """Episodes of random actions beside the package's own."""
    theirs = gymnasium.make(f"MiniGrid-{name}-v0", disable_env_checker=True).unwrapped
    ours, random = MiniGrid(environment=name).world(), np.random.default_rng(0)
    for seed in range(3):
        row, (sight, _) = ours.begin(seed), theirs.reset(seed=seed)
        for _ in range(60):
            assert np.array_equal(row[:147].numpy().reshape(7, 7, 3), sight["image"])
            assert row[147:151].argmax() == sight["direction"]
            assert row[147:151].sum() == 1
            assert [word for word, there in zip(WORDS, row[151:], strict=True) if there] == sorted(
                set(sight["mission"].split())
            )
            action = int(random.integers(7))
            row, reward, over = ours.act(action)
            sight, their_reward, terminated, truncated, _ = theirs.step(action)
            assert (reward, over) == (their_reward, terminated or truncated)
            if over:
                break


def test_told_false_hides_direction_and_mission():
    told, silent = (MiniGrid(environment="Fetch-5x5-N2", told=told).world() for told in (True, False))
    for seed in range(3):
        known, row = told.begin(seed), silent.begin(seed)
        assert torch.equal(known[:147], row[:147])
        assert known[147:].any()
        assert not row[147:].any()
        assert not silent.act(0)[0][147:].any()


def test_kinds_match_package_constants():
    from minigrid.core import constants

    tables = (constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX)
    assert tuple(max(table.values()) + 1 for table in tables) == MiniGrid.kinds


def test_unknown_mission_words_raise_value_error():
    with pytest.raises(ValueError, match=r"MiniGrid expects missions in the words a, and, .*; got eat, cake"):
        bag("eat the cake")


def test_missing_package_raises_value_error_with_install_hint():
    with pytest.raises(ValueError, match=r"minigrid needs the package no_such: pip install steadygrad\[minigrid\]"):
        import_optional("minigrid", "no_such", "minigrid")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"environment": "DoorKey-7x7"}, "MiniGrid expects environment to be one of Empty-5x5, .*; got 'DoorKey-7x7'"),
        ({"limit": 0}, "MiniGrid expects limit to be an integer of at least 1; got 0"),
        ({"discount": 1.1}, "MiniGrid expects discount to be a number from 0 to 1; got 1.1"),
        ({"trace": "much"}, "MiniGrid expects trace to be a number from 0 to 1; got 'much'"),
        ({"clip_ratio": -0.1}, "MiniGrid expects clip_ratio to be a number from 0 to 1; got -0.1"),
        ({"entropy": math.nan}, "MiniGrid expects entropy to be a number from 0 to 1e+06; got nan"),
        ({"value_weight": True}, "MiniGrid expects value_weight to be a number from 0 to 1e+06; got True"),
        ({"told": None}, "MiniGrid expects told to be true or false; got None"),
        ({"greedy": 1}, "MiniGrid expects greedy to be true or false; got 1"),
    ],
)
def test_invalid_options_raise_value_error(options, words):
    with pytest.raises(ValueError, match=words.replace("1e+06", re.escape("1e+06"))):
        MiniGrid(**options)


def test_sample_raises_value_error():
    with pytest.raises(ValueError, match="MiniGrid has no sequences of its own"):
        SHORT.sample(3, torch.Generator())
