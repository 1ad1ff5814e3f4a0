"""Runs on tasks of objects: relational networks, layers that look at objects, and tests on what was not trained."""

import pytest
import torch

from steadygrad.models import MODELS
from steadygrad.tasks import RMTS
from steadygrad.training import RunDirectory, Settings, evaluate, evaluate_run, loop, stream, train

TINY = {"steps": 8, "batch": 4, "evaluate_every": 4, "evaluate_examples": 10, "log_every": 2, "lr": 5e-4}


@pytest.fixture(autouse=True)
def no_automatic_checkpoints(monkeypatch):
    """No checkpoint in between, however slow the machine, and no question to git at every start."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)
    monkeypatch.setattr(loop, "commit", lambda: None)


def settings(layer="corelnet", task="rmts", options=None, **train):
    table = layer if isinstance(layer, dict) else {"name": layer}
    task = {"name": task, "glyphs": "own", **(options or {})}
    return Settings.from_tables({"layer": table, "task": task, "train": TINY | train, "seed": 3})


@pytest.mark.parametrize("layer", [*MODELS, {"name": "nnrnn", "hidden_size": 6}], ids=str)
def test_killed_run_resumes_to_bitwise_equal_outcome(tmp_path, layer, outcome, stop_at, stopped):
    given = settings(layer, steps=5, batch=2, evaluate_every=3, evaluate_examples=4)
    result = train(given, tmp_path / "alone")
    assert (result["status"], result["steps"]) == ("done", 5)
    with pytest.raises(stopped):
        train(given, tmp_path / "cut", callbacks=[stop_at(save=2, die=4)])
    assert train(given, tmp_path / "cut", resume=True)["status"] == "done"
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "alone")


def test_corelnet_generalises_to_held_out_shapes(tmp_path):
    result = train(settings(options={"held_out": 95}, steps=60, evaluate_every=60, lr=2e-3), tmp_path / "run")
    assert result["final"]["accuracy"] > 0.9
    assert result["score"] == "accuracy"


def test_evaluation_uses_sample_unseen_and_training_uses_sample(tmp_path, monkeypatch):
    """The batches of updates come from `sample`, those of evaluations from `sample_unseen`."""
    asked = []
    for side in (False, True):
        name = "sample_unseen" if side else "sample"
        monkeypatch.setattr(RMTS, name, recorder(asked, side, getattr(RMTS, name)))
    train(settings(), tmp_path / "run")
    assert asked == [(False, 4)] * 4 + [(True, 10)] + [(False, 4)] * 4 + [(True, 10)]


def recorder(asked, side, method):
    def call(self, batch, generator):
        asked.append((side, batch))
        return method(self, batch, generator)

    return call


def test_evaluation_loss_is_mean_over_unseen_problems():
    given = settings()
    task = given.build_task()
    model = given.build_model(task)
    images, targets = task.sample_unseen(10, stream(0, "valid", 0))
    with torch.no_grad():
        expected = task.loss(model(images), targets).item()
    assert evaluate(model, task, 10)["loss"] == pytest.approx(expected)


def test_evaluate_run_accepts_other_shapes_and_rejects_other_sizes(tmp_path):
    given = settings({"name": "gru", "hidden_size": 4}, "same-different")
    train(given, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    other = Settings(given.layer, given.task | {"shapes_seed": 1}, given.train, given.seed)
    assert evaluate_run(directory, given, examples=20) != evaluate_run(directory, other, examples=20)
    more = Settings(given.layer, given.task | {"separated": True}, given.train, given.seed)
    with pytest.raises(ValueError, match=r"run was trained for .*, 2 objects; this task has .*, 4 objects$"):
        evaluate_run(directory, more)
    sequences = Settings(given.layer, {"name": "copy"}, given.train)
    with pytest.raises(
        ValueError, match=r"run was trained for 3072 inputs, 2 outputs, 2 objects; this task has 10 inputs, 9 outputs"
    ):
        evaluate_run(directory, sequences)


def test_truncated_back_propagation_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="truncated back-propagation expects targets at every step; RMTS has one at th"
    ):
        train(settings(window=2), tmp_path / "run")
