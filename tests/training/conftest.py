"""Runs that take a fraction of a second."""

import json

import pytest
import torch

from steadygrad.training import Settings, loop
from tests import cached
from tests.stopping import StopAt, StoppedError

TINY = {"steps": 30, "batch": 4, "evaluate_every": 10, "evaluate_examples": 10, "log_every": 5}
COPY = {"name": "copy", "delay": 5, "length": 3}


@pytest.fixture(autouse=True)
def one_thread(same_start, monkeypatch):
    """What is to be bit-exact has to run on one."""
    torch.set_num_threads(1)
    monkeypatch.setattr(loop, "commit", cached.commit)


@pytest.fixture
def tiny():
    """``tiny("gru", lr=0.1)``: settings of a short run; a layer is a name or a table."""

    def make(layer="gru", task=None, seed=0, **train):
        table = {"hidden_size": 8} | ({"name": layer} if isinstance(layer, str) else layer)
        return Settings.from_tables({"layer": table, "task": task or COPY, "train": TINY | train, "seed": seed})

    return make


@pytest.fixture
def stop_at():
    return StopAt


@pytest.fixture
def stopped():
    return StoppedError


@pytest.fixture
def outcome():
    """What a run has left: its rows without the time, and its weights byte by byte."""

    def read(folder):
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
        for row in rows:
            del row["seconds"]
        return rows, *((folder / f"{name}.safetensors").read_bytes() for name in ("model", "last"))

    return read
