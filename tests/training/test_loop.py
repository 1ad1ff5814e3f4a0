"""A run from its first update to its result, and however it is stopped in between."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import steadygrad
from steadygrad.layers import LAYERS
from steadygrad.matrices import Matrix
from steadygrad.models import SequenceModel
from steadygrad.training import (
    Callback,
    RunDirectory,
    RunError,
    Settings,
    evaluate,
    evaluate_run,
    loop,
    parameter_count,
    stream,
    train,
)
from steadygrad.training.options import OPTIMIZERS

every_layer = pytest.mark.parametrize("layer", LAYERS)


@pytest.fixture(autouse=True)
def no_automatic_checkpoints(monkeypatch):
    """No checkpoint in between, however slow the machine."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)


def rows(folder, split=None):
    found = RunDirectory(folder).rows()
    return [row for row in found if split in (None, row["split"])]


class RecordCallbacks(Callback):
    def __init__(self):
        self.calls = []

    def begin(self, trainer):
        self.calls.append(("begin", trainer.step))

    def update(self, trainer, loss):
        self.calls.append(("update", trainer.step))

    def row(self, trainer, row):
        self.calls.append((row["split"], trainer.step))

    def end(self, trainer, result):
        self.calls.append(("end", result["status"]))


# what a run leaves


def test_run_writes_settings_result_and_weights(tmp_path, tiny):
    settings = tiny(seed=3)
    result = train(settings, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    assert tomllib.loads((tmp_path / "run" / "settings.toml").read_text("utf-8")) == settings.resolved()
    assert directory.result() == result
    expected = {"layer", "task", "parameters", "seed", "steps", "best", "final", "guessing_loss", "wall_seconds"}
    assert result.keys() >= expected | {"versions", "commit", "status"}
    assert (result["status"], result["steps"], result["seed"]) == ("done", 30, 3)
    assert "why" not in result
    assert (result["layer"]["name"], result["task"]["name"]) == ("gru", "copy")
    assert result["guessing_loss"] == settings.build_task().guessing_loss
    assert result["versions"]["torch"] == torch.__version__
    assert result["wall_seconds"] > 0
    model = settings.build_model(settings.build_task())
    assert result["parameters"] == parameter_count(model) == sum(p.numel() for p in model.parameters())
    for name in ("model", "last"):
        model.load_state_dict(load_file(tmp_path / "run" / f"{name}.safetensors"))


def test_rows_have_step_split_loss_metrics_and_time(tmp_path, tiny):
    result = train(tiny(), tmp_path / "run")
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [5, 10, 15, 20, 25, 30]
    assert [row["step"] for row in rows(tmp_path / "run", "valid")] == [10, 20, 30]
    for row in rows(tmp_path / "run"):
        assert row.keys() >= {"step", "split", "loss", "accuracy", "seconds"}
        assert math.isfinite(row["loss"])
        assert 0 <= row["accuracy"] <= 1
    seconds = [row["seconds"] for row in rows(tmp_path / "run")]
    assert seconds == sorted(seconds)
    found = [{key: row[key] for key in ("step", "loss", "accuracy")} for row in rows(tmp_path / "run", "valid")]
    assert result["final"] == found[-1]
    assert result["best"] == min(found, key=lambda row: row["loss"])


def test_saved_weights_reproduce_best_and_final_evaluation(tmp_path, tiny):
    settings = tiny(optimizer="sgd", lr=30.0, steps=40, evaluate_every=1)  # up and down
    result = train(settings, tmp_path / "run")
    assert result["status"] == "done"
    assert 1 < result["best"]["step"] < 40
    directory, task = RunDirectory(tmp_path / "run"), settings.build_task()
    model = settings.build_model(task)
    for name, key in (("model.safetensors", "best"), ("last.safetensors", "final")):
        model.load_state_dict(directory.load_weights(name))
        again = evaluate(model, task, 10, seed=settings.seed)
        assert {"step": result[key]["step"], **again} == result[key]


def test_lstm_learns_short_copy_task(tmp_path, tiny):
    task = {"name": "copy", "delay": 1, "length": 1, "symbols": 2}
    result = train(tiny("lstm", task, steps=150, lr=0.05, batch=16), tmp_path / "run")
    assert result["best"]["accuracy"] == 1.0
    assert result["best"]["loss"] < 0.1 * result["guessing_loss"]


def test_callbacks_receive_events_in_order(tmp_path, tiny):
    callback = RecordCallbacks()
    train(tiny(steps=4, log_every=2, evaluate_every=3), tmp_path / "run", callbacks=[Callback(), callback])
    updates = [("update", 1), ("update", 2), ("train", 2), ("update", 3), ("valid", 3), ("update", 4)]
    assert callback.calls == [("begin", 0), *updates, ("train", 4), ("valid", 4), ("end", "done")]


@every_layer
def test_repeated_run_is_bitwise_equal(tmp_path, tiny, layer, outcome):
    for name in ("one", "two"):
        torch.manual_seed(len(name))  # the run seeds itself
        torch.rand(5)
        train(tiny(layer, steps=12, evaluate_every=4), tmp_path / name)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")


def test_different_seeds_give_different_runs(tmp_path, tiny, outcome):
    for seed in (0, 1):
        train(tiny(seed=seed), tmp_path / str(seed))
    assert all(a != b for a, b in zip(outcome(tmp_path / "0"), outcome(tmp_path / "1"), strict=True))


@every_layer
def test_evaluation_and_logging_do_not_change_training(tmp_path, tiny, layer):
    """Neither evaluations, nor rows, nor checkpoints; maps that keep a state included."""
    often, seldom = {"evaluate_every": 3, "log_every": 1}, {"evaluate_every": 12, "log_every": 12}
    for name, options in (("often", often), ("seldom", seldom)):
        train(tiny({"name": layer, "num_layers": 2, "dropout": 0.1}, steps=12, **options), tmp_path / name)
    one, other = (load_file(tmp_path / name / "last.safetensors") for name in ("often", "seldom"))
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


def test_penalty_adds_gradient_but_is_not_in_logged_loss(tmp_path, tiny, monkeypatch):
    train(tiny(log_every=1, steps=1), tmp_path / "without")
    monkeypatch.setattr(SequenceModel, "penalty", lambda self: 1e3 * (self.readout.weight - 1).square().sum())
    train(tiny(log_every=1, steps=1), tmp_path / "with")
    one, other = (rows(tmp_path / name, "train")[0] for name in ("without", "with"))
    assert one["loss"] == other["loss"]
    assert other["gradient_norm"] > 100 * one["gradient_norm"]
    assert not torch.equal(
        *(load_file(tmp_path / n / "last.safetensors")["readout.weight"] for n in ("without", "with"))
    )


def test_clipping_bounds_the_step(tmp_path, tiny):
    """Plain descent at rate 1 moves by the clipped norm at most."""
    settings = tiny(optimizer="sgd", lr=1.0, clip=1e-3, steps=1, log_every=1)
    torch.manual_seed(stream(settings.seed, "model").initial_seed())
    start = settings.build_model(settings.build_task()).state_dict()
    train(settings, tmp_path / "run")
    end = load_file(tmp_path / "run" / "last.safetensors")
    moved = sum((end[key] - start[key]).square().sum() for key in start).sqrt()
    assert 0.9e-3 < moved < 1.1e-3
    assert rows(tmp_path / "run", "train")[0]["gradient_norm"] > 1e-2  # as it was before


def test_training_works_outside_main_thread(tmp_path, tiny):
    found = []
    thread = threading.Thread(target=lambda: found.append(train(tiny(steps=2), tmp_path / "run")["status"]))
    thread.start()
    thread.join()
    assert found == ["done"]


@pytest.mark.parametrize(
    "change",
    [{"layer": {"name": "gru", "hiden_size": 8}}, {"layer": {"name": "gru", "hidden_size": 0}}, {"window": 4}],
)
def test_invalid_setting_creates_no_directory(tmp_path, tiny, change):
    with pytest.raises(ValueError, match=r"unknown key|expects hidden_size|truncated back-propagation expects"):
        train(tiny(task={"name": "adding", "length": 5}, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# going on


def train_until_killed(settings, folder, callback, stopped):
    with pytest.raises(stopped):
        train(settings, folder, callbacks=[callback])


@every_layer
def test_killed_run_resumes_to_same_outcome(tmp_path, tiny, layer, stop_at, stopped, outcome):
    settings = tiny(layer, log_every=1, steps=12, evaluate_every=4)
    train(settings, tmp_path / "alone")
    train_until_killed(settings, tmp_path / "cut", stop_at(5, 9), stopped)
    assert RunDirectory(tmp_path / "cut").checkpoint().state["step"] == 5
    assert len(rows(tmp_path / "cut")) > RunDirectory(tmp_path / "cut").checkpoint().state["rows"]
    torch.manual_seed(99)
    callback = RecordCallbacks()
    assert train(settings, tmp_path / "cut", resume=True, callbacks=[callback])["status"] == "done"
    assert callback.calls[:2] == [("begin", 5), ("update", 6)]
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "alone")


@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name, "lr_constrained": 1e-4} for name in OPTIMIZERS),
        {"optimizer": "rmsprop", "optimizer_constrained": "sgd", "schedule": "step", "lr_every": 4},
        {"optimizer": "adagrad", "optimizer_constrained": "adam", "beta1": 0.5, "layer": "nnrnn"},
        {"window": 4},
        {"window": 4, "layer": "lstm"},  # a state of two tensors
        {"window": 4, "layer": "relrnn"},  # a memory with counters
        {"window": 4, "layer": "memlstm"},  # a memory that grows
        {"window": 4, "examples": 12},
        {"examples": 20},
        {"schedule": "step", "lr_every": 4},
        {"schedule": "plateau", "lr": 3.0, "evaluate_every": 2},
        {"schedule": "cosine"},
        {"layer": {"name": "lstm", "num_layers": 2, "dropout": 0.3}},  # global random numbers
        {"layer": {"name": "ncgru", "bidirectional": True, "reset_every": 7}},
        {"layer": {"name": "ncgru", "exact_above": math.inf, "max_drift": math.inf}},
        {"layer": {"name": "ncgru", "orthogonal": "rc", "released_lr": 1e-3, "reset_every": 7}},
        {"layer": {"name": "full-urnn", "full_diagonal": True, "trained_state": True}, "optimizer_constrained": "sgd"},
        {"layer": {"name": "exprnn", "hidden_size": 1}},  # empty tensors
        {"layer": {"name": "lstm", "trained_state": True}, "window": 4},
        {"layer": {"name": "rnn", "recurrent": {"name": "dtriv", "rebase_every": 5}}},
        {"clip": 0.1, "weight_decay": 0.1},
    ],
    ids=str,
)
def test_killed_run_resumes_to_same_outcome_for_all_options(tmp_path, tiny, options, stop_at, stopped, outcome):
    settings = tiny(**{"layer": "ncgru", "log_every": 1} | options)
    train(settings, tmp_path / "alone")
    for save, die in ((6, 9), (20, 20), (23, 29)):
        with pytest.raises(stopped):
            train(settings, tmp_path / "cut", resume=True, callbacks=[stop_at(save, die)])
    assert train(settings, tmp_path / "cut", resume=True)["status"] == "done"
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "alone")


def test_window_with_bidirectional_layer_raises_value_error(tmp_path, tiny):
    with pytest.raises(ValueError, match="expects a layer of one direction, to carry its state on"):
        train(tiny({"name": "gru", "bidirectional": True}, window=6), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_window_carries_state_to_next_update(tmp_path, tiny):
    """The loss of a second window is that of a model that has walked the first."""
    settings = tiny("lstm", window=6, log_every=1, steps=2, optimizer="sgd", lr=1e-30)
    train(settings, tmp_path / "run")
    task = settings.build_task()
    model = settings.build_model(task)
    model.load_state_dict(load_file(tmp_path / "run" / "last.safetensors"))
    inputs, targets = task.sample(4, stream(0, "train", 0))
    with torch.no_grad():
        whole = model(inputs)
        fresh = model(inputs[:, 6:])
    loss = rows(tmp_path / "run", "train")[1]["loss"]
    assert loss == pytest.approx(task.loss(whole[:, 6:], targets[:, 6:]).item(), rel=1e-5)
    assert loss != pytest.approx(task.loss(fresh, targets[:, 6:]).item(), rel=1e-4)


def test_resume_without_checkpoint_starts_again(tmp_path, tiny, stop_at, stopped, outcome):
    train(tiny(), tmp_path / "alone")
    train_until_killed(tiny(), tmp_path / "cut", stop_at(None, 17), stopped)
    assert rows(tmp_path / "cut")
    train(tiny(), tmp_path / "cut", resume=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "alone")


def test_wall_seconds_include_time_before_resume(tmp_path, tiny, stop_at, stopped):
    train_until_killed(tiny(), tmp_path / "run", stop_at(15, 16), stopped)
    directory = RunDirectory(tmp_path / "run")
    tensors, state = directory.checkpoint()
    directory.save_checkpoint(tensors, state | {"seconds": 1000.0})
    assert train(tiny(), tmp_path / "run", resume=True)["wall_seconds"] >= 1000
    assert rows(tmp_path / "run")[-1]["seconds"] >= 1000


def test_resume_of_finished_run_changes_nothing(tmp_path, tiny):
    first, callback = train(tiny(), tmp_path / "run"), RecordCallbacks()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir() if path.suffix != ".toml"}
    assert train(tiny(), tmp_path / "run", resume=True, callbacks=[callback]) == first
    assert callback.calls == []
    assert {path: path.stat().st_mtime_ns for path in before if path.name != ".lock"} == {
        path: time for path, time in before.items() if path.name != ".lock"
    }


def test_resume_with_more_updates_continues_from_last_update(tmp_path, tiny, outcome):
    train(tiny(steps=40), tmp_path / "alone")
    train(tiny(steps=20), tmp_path / "grown")
    callback = RecordCallbacks()
    result = train(tiny(steps=40), tmp_path / "grown", resume=True, callbacks=[callback])
    assert callback.calls[0] == ("begin", 20)
    assert result["steps"] == result["train"]["steps"] == 40
    assert outcome(tmp_path / "grown") == outcome(tmp_path / "alone")
    with pytest.raises(ValueError, match=r"train\.steps 40, asked 20"):
        train(tiny(steps=20), tmp_path / "grown", resume=True)


class Interrupt(Callback):
    def __init__(self, number, *steps):
        self.number, self.steps = number, steps

    def update(self, trainer, loss):
        if trainer.step in self.steps:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_saves_checkpoint_and_resumes_to_same_outcome(tmp_path, tiny, number, outcome):
    settings = tiny("ncgru", log_every=1)
    train(settings, tmp_path / "alone")
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    callback = RecordCallbacks()
    result = train(settings, tmp_path / "cut", callbacks=[Interrupt(number, 12), callback])
    assert (result["status"], result["steps"]) == ("interrupted", 12)
    assert callback.calls[-1] == ("end", "interrupted")
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    directory = RunDirectory(tmp_path / "cut")
    assert directory.result() == result
    assert directory.checkpoint().state["step"] == 12
    assert directory.load_weights("last.safetensors")
    result = train(settings, tmp_path / "cut", resume=True)
    assert (result["status"], result["steps"]) == ("done", 30)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "alone")


def test_second_interrupt_raises_keyboard_interrupt(tmp_path, tiny):
    class Impatient(Callback):
        def update(self, trainer, loss):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "run", callbacks=[Impatient()])
    assert signal.getsignal(signal.SIGINT) is before
    assert train(tiny(), tmp_path / "run", resume=True)["status"] == "done"


# the end of a run that leads nowhere


@every_layer
@pytest.mark.parametrize("lr", [1e8, 1e30])
def test_diverged_run_reports_update_and_advice(tmp_path, tiny, layer, lr):
    settings = tiny(layer, lr=lr, optimizer="sgd", max_loss=100.0)
    result = train(settings, tmp_path / "run")
    assert result["status"] == "diverged"
    assert result["why"].startswith(f"at update {result['steps'] + 1} the loss is ")
    assert "; the loss before was " in result["why"]
    of_constrained = r" or a smaller train\.lr_constrained \(for layer\.[a-z_0-9.]+\)"
    assert re.search(rf"; try a smaller train\.lr({of_constrained})? or train\.clip 1\.0$", result["why"])
    matrices = [module for module in LAYERS[layer](2, 4).modules() if isinstance(module, Matrix)]
    constrained = any({"skew", "reflector"} & set(matrix.kinds) for matrix in matrices)
    assert ("lr_constrained" in result["why"]) == constrained
    json.loads((tmp_path / "run" / "result.json").read_text("utf-8"), parse_constant=pytest.fail)
    assert RunDirectory(tmp_path / "run").load_weights("model.safetensors")


def test_resume_of_diverged_run_changes_nothing(tmp_path, tiny):
    settings = tiny(lr=1e8, optimizer="sgd", max_loss=100.0)
    first, callback = train(settings, tmp_path / "run"), RecordCallbacks()
    assert train(settings, tmp_path / "run", resume=True, callbacks=[callback]) == first
    assert callback.calls == []


def test_divergence_advice_omits_clip_if_already_set(tmp_path, tiny):
    result = train(tiny(lr=1e8, optimizer="sgd", clip=1.0, max_loss=100.0), tmp_path / "run")
    assert result["status"] == "diverged"
    assert result["why"].endswith("; try a smaller train.lr")


def test_a_loss_above_the_bound_counts_as_diverged(tmp_path, tiny):
    result = train(tiny(max_loss=1e-3), tmp_path / "run")
    assert (result["status"], result["steps"], result["best"]) == ("diverged", 0, None)
    assert result["why"].startswith("at update 1 the loss is 2.")
    assert "above 0.001; try" in result["why"]


class SetParameterToNaN(Callback):
    """Puts a NaN into a free tensor, as a gradient that overflows does."""

    def update(self, trainer, loss):
        if trainer.step == 7:
            found = [module.free[0] for module in trainer.model.modules() if hasattr(module, "free")]
            (found or list(trainer.model.parameters()))[0].data.view(-1)[0] = math.nan


@every_layer
def test_nan_parameter_is_divergence(tmp_path, tiny, layer):
    result = train(tiny(layer), tmp_path / "run", callbacks=[SetParameterToNaN()])
    assert (result["status"], result["steps"]) == ("diverged", 7)
    assert "; the loss before was " in result["why"]
    if any(isinstance(module, Matrix) for module in LAYERS[layer](2, 3).modules()):  # which says what is wrong with it
        assert result["why"].startswith("at update 8 a parameter is no longer finite (")
        assert "1 NaN or infinite values in " in result["why"]
    else:
        assert result["why"].startswith("at update 8 the loss is NaN")


def test_nan_parameter_at_evaluation_is_divergence(tmp_path, tiny):
    result = train(tiny("nnrnn", evaluate_every=7), tmp_path / "run", callbacks=[SetParameterToNaN()])
    assert result["status"] == "diverged"


def test_divergence_at_last_update_has_status_diverged(tmp_path, tiny):
    result = train(tiny("nnrnn", steps=7), tmp_path / "run", callbacks=[SetParameterToNaN()])
    assert (result["status"], result["steps"]) == ("diverged", 7)


@pytest.mark.parametrize(("loss", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
def test_evaluation_that_is_not_finite_is_divergence_and_not_best(tmp_path, tiny, monkeypatch, loss, word):
    losses = iter([2.0, loss, 3.0])
    monkeypatch.setattr(loop, "evaluate", lambda *_, **__: {"loss": next(losses), "accuracy": 0.5})
    result = train(tiny(), tmp_path / "run")
    assert (result["status"], result["steps"], result["best"]["step"]) == ("diverged", 20, 10)
    assert f"at update 20 the validation loss is {word}" in result["why"]


def test_task_with_single_symbol_trains(tmp_path, tiny):
    task = {"name": "copy", "delay": 5, "length": 3, "symbols": 1}
    assert train(tiny(task=task, steps=5), tmp_path / "run")["status"] == "done"


@pytest.mark.parametrize(
    ("task", "goal", "steps"),
    [("copy", 0.0, 10), ("copy", 2.0, 30), ("adding", 1e9, 10), ("adding", 0.0, 30)],
)
def test_stop_at_ends_run_when_score_is_reached(tmp_path, tiny, task, goal, steps):
    """Accuracy has to reach it from below, the error from above."""
    table = {"name": task} | {"copy": {"delay": 5}, "adding": {"length": 6}}[task]
    settings = tiny(task=table, stop_at=goal)
    result = train(settings, tmp_path / "run")
    assert (result["status"], result["steps"]) == ("done", steps)
    assert train(settings, tmp_path / "run", resume=True)["steps"] == steps


# evaluation


def model_and_task(settings):
    task = settings.build_task()
    return settings.build_model(task), task


def test_evaluation_is_deterministic_and_restores_mode(tiny):
    model, task = model_and_task(tiny({"name": "lstm", "num_layers": 2, "dropout": 0.5}))
    model.train()
    first = evaluate(model, task, 20)
    assert model.training
    assert first.keys() == {"loss", "accuracy"}
    torch.rand(3)
    assert evaluate(model, task, 20) == first
    assert evaluate(model, task, 20, seed=1) != first
    assert evaluate(model, task, 20, split="test") != first
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()
    evaluate(model, task, 20)
    assert not model.training


def test_evaluation_weights_smaller_last_batch_by_size(tiny):
    model, task = model_and_task(tiny())
    expected = {"loss": 0.0, "accuracy": 0.0}
    with torch.no_grad():
        for number, size in enumerate([10, 10, 1]):
            inputs, targets = task.sample(size, stream(5, "valid", number))
            outputs = model(inputs)
            expected["loss"] += size * task.loss(outputs, targets).item() / 21
            expected["accuracy"] += size * task.metrics(outputs, targets)["accuracy"] / 21
    assert evaluate(model, task, 21, seed=5, batch=10) == pytest.approx(expected)


@pytest.fixture
def trained(tmp_path, tiny):
    settings = tiny("nnrnn")
    train(settings, tmp_path / "run")
    return RunDirectory(tmp_path / "run"), settings


def other_task(settings, **changes):
    return Settings(settings.layer, settings.task | changes, settings.train, settings.seed)


def test_evaluate_run_supports_other_task_settings(trained):
    directory, settings = trained
    own = evaluate_run(directory, settings, examples=20)
    model, task = model_and_task(settings)
    model.load_state_dict(directory.load_weights("model.safetensors"))
    assert own == evaluate(model, task, 20, split="test")
    longer = evaluate_run(directory, other_task(settings, delay=9), examples=20)
    assert longer == evaluate(model, other_task(settings, delay=9).build_task(), 20, split="test")
    assert longer["loss"] != own["loss"]


@pytest.mark.parametrize(("steps", "done"), [(500, [1]), (10_000, [0.5, 1]), (60_000, [0.25, 0.5, 0.75, 1])])
def test_evaluate_run_limits_time_steps_per_batch(steps, done, trained):
    """A batch has 25,000 time steps at the most, which is what memory grows with, or one sequence."""
    directory, settings = trained
    heard = []
    evaluate_run(directory, other_task(settings, delay=steps - 6), examples=4, progress=heard.append)
    assert heard == done


def test_evaluate_run_distinguishes_best_and_last_weights(tmp_path, tiny):
    settings = tiny(optimizer="sgd", lr=30.0, steps=40, evaluate_every=1)
    train(settings, tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    assert evaluate_run(directory, settings, weights="last") != evaluate_run(directory, settings, weights="best")
    with pytest.raises(ValueError, match="expects weights to be one of best, last; got 'first'"):
        evaluate_run(directory, settings, weights="first")


def test_evaluate_run_rejects_task_of_other_sizes(trained):
    directory, settings = trained
    words = r"run was trained for 10 inputs, 9 outputs; this task has 6 inputs, 5 outputs$"
    with pytest.raises(ValueError, match=words):
        evaluate_run(directory, other_task(settings, symbols=4))


def test_evaluate_run_rejects_unfitting_or_missing_weights(trained):
    directory, settings = trained
    other = Settings(settings.layer | {"hidden_size": 6}, settings.task, settings.train)
    with pytest.raises(RunError, match=r"model.safetensors does not fit the run's settings: "):
        evaluate_run(directory, other)
    directory.file("model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model.safetensors does not exist"):
        evaluate_run(directory, settings)


# SIGKILL

KILL_SCRIPT = r"""
import json, os, random, signal, sys, time
from pathlib import Path

import torch

torch.set_num_threads(1)
from steadygrad.training import RunDirectory, Settings, loop, train

folder, settings = Path(sys.argv[1]), Settings.from_tables(json.loads(sys.argv[2]))
killed = RunDirectory(folder / "killed")
steps = settings.train.steps


def start(name, checkpoint_seconds):
    if pid := os.fork():
        return pid
    code = 1
    try:
        loop.CHECKPOINT_SECONDS = checkpoint_seconds
        code = 0 if train(settings, folder / name, resume=True)["status"] == "done" else 2
    finally:
        os._exit(code)


def wait_for(pid, rows):
    "Until so many rows are there after a checkpoint."
    while True:
        if os.waitpid(pid, os.WNOHANG)[0]:
            sys.exit("finished before it could be killed")
        if killed.file("checkpoint.safetensors").exists() and killed.file("metrics.jsonl").exists():
            if killed.file("metrics.jsonl").read_bytes().count(b"\n") >= rows:
                return
        time.sleep(0.002)


for third in range(3):
    pid = start("killed", 0.02)
    wait_for(pid, int(steps * (third + random.uniform(0.3, 0.9)) / 4))
    time.sleep(random.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    print(
        json.dumps(
            {
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                "result": killed.result(),
                "step": killed.checkpoint().state["step"],
            }
        )
    )
for name in ("killed", "alone"):
    assert os.waitstatus_to_exitcode(os.waitpid(start(name, 0.02 if name == "killed" else 1e9), 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_run_killed_three_times_resumes_to_same_outcome(tmp_path, tiny, outcome):
    """One process that has torch loaded forks the ones to be killed, so that none of them takes seconds to start."""
    settings = tiny("ncgru", steps=400, log_every=1, evaluate_every=25, lr_constrained=1e-2)
    command = [sys.executable, "-c", KILL_SCRIPT, str(tmp_path), json.dumps(settings.resolved())]
    root = Path(steadygrad.__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(kill["signal"], kill["result"]) for kill in kills] == [(signal.SIGKILL, None)] * 3
    steps = [kill["step"] for kill in kills]
    assert 0 < steps[0] < steps[1] < steps[2] < 400
    results = [RunDirectory(tmp_path / name).result() for name in ("killed", "alone")]
    assert [(result["status"], result["steps"]) for result in results] == [("done", 400)] * 2
    assert results[0]["best"] == results[1]["best"]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "alone")
    solves = [v for k, v in load_file(tmp_path / "killed" / "last.safetensors").items() if k.endswith("exact_solves")]
    assert 1 < int(solves[0]) < 400  # the inverse was followed by series in between: there was a state to lose
