"""Somebody who looks at a run and must neither change it nor end it."""

import json
import math
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import save

from steadygrad.diagnostics import gradient_norms, portrait
from steadygrad.diagnostics.portrait import relation_portrait
from steadygrad.experiments import Observer, observer
from steadygrad.experiments.observer import LOOKS, SEQUENCES
from steadygrad.files import OBSERVATIONS, PORTRAIT, SETTINGS, finite
from steadygrad.layers import LAYERS
from steadygrad.manifest import MANIFEST
from steadygrad.tasks import TASKS, EnvironmentTask, ObjectTask, TextTask
from steadygrad.training import Callback, RunDirectory, RunError, Settings, load_model, loop, stream, train
from tests.stopping import StopAt, StoppedError

TINY = {"steps": 30, "batch": 4, "evaluate_every": 10, "evaluate_examples": 10, "log_every": 5}
COPY = {"name": "copy", "delay": 5, "length": 3}
TASK_OPTIONS = {
    "copy": COPY,
    "adding": {"length": 6},
    "denoise": {"delay": 6, "length": 2},
    "parenthesis": {"length": 8},
    "pixel-mnist": {"held_back": 10},
    "timit": {},
}


@pytest.fixture(autouse=True, scope="module")
def quick_runs():
    """Save no checkpoint in between, however slow the machine, do not ask git, and observe two sequences.

    A portrait takes most of a short run, and most of a portrait are the gradients of its 32 sequences. How many there
    are matters to `test_batch_gradients_are_root_mean_square_over_sequences` only, which takes as many as the package.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)
        patch.setattr(loop, "commit", lambda: None)
        patch.setattr(observer, "SEQUENCES", 2)
        yield


def tiny_settings(layer="nnrnn", task=None, **options):
    table = {"hidden_size": 6} | ({"name": layer} if isinstance(layer, str) else layer)
    return Settings.from_tables({"layer": table, "task": task or COPY, "train": TINY | options, "seed": 3})


def quick_settings(**options):
    """Many updates in no time."""
    task = {"name": "copy", "delay": 1, "length": 1, "symbols": 2}
    return tiny_settings({"name": "rnn", "hidden_size": 2}, task, **{"batch": 1, "evaluate_examples": 1, **options})


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


def observations(folder):
    lines = (folder / OBSERVATIONS).read_text("utf-8").splitlines()
    return [json.loads(line, parse_constant=refuse) for line in lines]


def read_portrait(folder):
    return json.loads((folder / PORTRAIT).read_text("utf-8"), parse_constant=refuse)


def steps(folder):
    return [row["step"] for row in observations(folder)]


def metrics_and_weights(folder):
    """What a run has left: its rows without the time, and its weights byte by byte."""
    rows = RunDirectory(folder).rows()
    assert all(row.pop("seconds") >= 0 for row in rows)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return text, *((folder / f"{name}.safetensors").read_bytes() for name in ("model", "last"))


# the run is the same


OBSERVED_LAYERS = {
    **{name: {"name": name} for name in LAYERS},
    "dropout": {"name": "lstm", "num_layers": 2, "dropout": 0.5},
    "dtriv": {"name": "rnn", "recurrent": {"name": "exponential", "rebase_every": 3}},
    "gru of neumann": {"name": "gru", "recurrent": {"name": "neumann", "reset_every": 4}},
    "bidirectional": {"name": "gru", "bidirectional": True},
}


@pytest.mark.parametrize("layer", OBSERVED_LAYERS.values(), ids=OBSERVED_LAYERS)
def test_observer_does_not_change_weights_or_metrics(tmp_path, layer):
    settings = tiny_settings(layer, steps=8, log_every=1, evaluate_every=3)
    results = [train(settings, tmp_path / "alone"), train(settings, tmp_path / "watched", callbacks=[Observer()])]
    assert metrics_and_weights(tmp_path / "watched") == metrics_and_weights(tmp_path / "alone")
    assert steps(tmp_path / "watched") == [0, 3, 6, 8]
    for result in results:
        assert result.pop("wall_seconds") > 0
    assert results[0] == results[1]
    extra = {path.name for path in (tmp_path / "watched").iterdir()} - {
        path.name for path in (tmp_path / "alone").iterdir()
    }
    assert extra == {OBSERVATIONS, PORTRAIT}


# when it looks


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 10, 20, 30]),
        ({"evaluate_every": 7}, [0, 7, 14, 21, 28, 30]),
        ({"evaluate_every": 1000}, [0, 30]),
        ({"steps": 1}, [0, 1]),
        ({"steps": 120, "evaluate_every": 2}, [0, *(3 * k + k % 2 for k in range(1, 41))]),
        ({"steps": 82, "evaluate_every": 15}, [*range(0, 76, 15), 82]),
    ],
)
def test_observer_observes_at_start_evaluations_and_end(tmp_path, options, expected):
    train(quick_settings(**options), tmp_path, callbacks=[Observer()])
    assert steps(tmp_path) == expected


@pytest.mark.parametrize("updates", [79, 85])
def test_observer_limits_number_of_observations(tmp_path, updates):
    train(quick_settings(steps=updates, evaluate_every=1, log_every=1000), tmp_path, callbacks=[Observer()])
    found = steps(tmp_path)
    assert (found[0], found[-1]) == (0, updates)
    assert found == sorted(set(found))
    assert LOOKS // 2 <= len(found) <= LOOKS + 2


def test_observation_has_eigenvalues_of_current_weights(tmp_path):
    settings = tiny_settings("ncgru")
    train(settings, tmp_path, callbacks=[Observer()])
    first, *_, last = observations(tmp_path)
    assert first.keys() == last.keys() == {"step", "matrices", "gates"}
    torch.manual_seed(stream(settings.seed, "model").initial_seed())
    model = settings.build_model(settings.build_task())
    for row, weights in ((first, model.state_dict()), (last, RunDirectory(tmp_path).load_weights("last.safetensors"))):
        model.load_state_dict(weights)
        for name, W in model.layer.eval().matrices().items():
            values = torch.linalg.eigvals(W.detach().double())
            seen = torch.complex(*(torch.tensor(v, dtype=torch.float64) for v in row["matrices"][name]["eigenvalues"]))
            distance = (values[:, None] - torch.cat([seen, seen.conj()])).abs().min(dim=1).values
            assert distance.max() < 1e-4
    assert first["matrices"] != last["matrices"]


# stopping and going on


class Interrupt(Callback):
    def __init__(self, step):
        self.step = step

    def update(self, trainer, loss):
        if trainer.step == self.step:
            signal.raise_signal(signal.SIGINT)


def files(folder):
    return [(folder / name).read_bytes() for name in (OBSERVATIONS, PORTRAIT)]


RESUMED_SETTINGS = {layer: tiny_settings(layer, evaluate_every=5) for layer in ("nnrnn", "ncgru")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same runs, left alone."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    for layer, settings in RESUMED_SETTINGS.items():
        train(settings, folder / layer, callbacks=[Observer()])
    return folder


@pytest.mark.parametrize(
    ("layer", "save", "die"),
    [("nnrnn", None, 17), ("nnrnn", 10, 11), ("nnrnn", 9, 25), ("ncgru", 15, 21)],
)
def test_killed_and_resumed_run_has_same_observations(tmp_path, alone, layer, save, die):
    with pytest.raises(StoppedError):
        train(RESUMED_SETTINGS[layer], tmp_path, callbacks=[StopAt(save, die), Observer()])
    assert train(RESUMED_SETTINGS[layer], tmp_path, resume=True, callbacks=[Observer()])["status"] == "done"
    assert files(tmp_path) == files(alone / layer)
    assert metrics_and_weights(tmp_path) == metrics_and_weights(alone / layer)


@pytest.mark.parametrize("step", [1, 12])
def test_interrupted_and_resumed_run_has_same_observations(tmp_path, alone, step):
    result = train(RESUMED_SETTINGS["nnrnn"], tmp_path, callbacks=[Interrupt(step), Observer()])
    assert (result["status"], result["steps"]) == ("interrupted", step)
    assert read_portrait(tmp_path)["step"] == (
        result["best"]["step"] if step >= 5 else step
    )  # no evaluation yet: the latest
    train(RESUMED_SETTINGS["nnrnn"], tmp_path, resume=True, callbacks=[Observer()])
    assert files(tmp_path) == files(alone / "nnrnn")


@pytest.mark.parametrize("damage", [lambda text: text[:-40], lambda text: text.replace('"step": 15', '"step": 16')])
def test_observations_after_checkpoint_are_rewritten_on_resume(tmp_path, alone, damage):
    """Whether the last one was cut off, or is of a past that will not come again."""
    with pytest.raises(StoppedError):
        train(RESUMED_SETTINGS["nnrnn"], tmp_path, callbacks=[StopAt(10, 17), Observer()])
    path = tmp_path / OBSERVATIONS
    assert steps(tmp_path) == [0, 5, 10, 15]
    path.write_text(damage(path.read_text()))
    train(RESUMED_SETTINGS["nnrnn"], tmp_path, resume=True, callbacks=[Observer()])
    assert files(tmp_path) == files(alone / "nnrnn")


@pytest.mark.parametrize("with_manifest", [False, True])
def test_damaged_observation_is_refused_before_a_file_changes(tmp_path, with_manifest):
    train(tiny_settings(steps=20), tmp_path, callbacks=[Observer()])
    path = tmp_path / OBSERVATIONS
    path.write_text(path.read_text().replace('"step": 10', '"rtep": 10'))
    if not with_manifest:
        (tmp_path / MANIFEST).unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    words = "was altered" if with_manifest else "has no observations of a run: .*has no step"
    with pytest.raises(RunError, match=f"{OBSERVATIONS} {words}"):
        train(tiny_settings(steps=40), tmp_path, resume=True, callbacks=[Observer()])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resumed_agent_is_observed_on_same_episode(tmp_path):
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    task = {"name": "minigrid", "environment": "Empty-5x5", "limit": 12, "episodes": 6, "round_frames": 1, "passes": 2}
    settings = tiny_settings("ncgru", task, steps=16, evaluate_every=4, evaluate_examples=3, lr=0.1)
    train(settings, tmp_path / "alone", callbacks=[Observer()])
    with pytest.raises(StoppedError):
        train(settings, tmp_path / "cut", callbacks=[StopAt(9, 10), Observer()])
    train(settings, tmp_path / "cut", resume=True, callbacks=[Observer()])
    assert files(tmp_path / "cut") == files(tmp_path / "alone")
    assert metrics_and_weights(tmp_path / "cut") == metrics_and_weights(tmp_path / "alone")


def test_longer_resumed_run_keeps_earlier_observations(tmp_path):
    train(tiny_settings(steps=20), tmp_path, callbacks=[Observer()])
    before = observations(tmp_path)
    train(tiny_settings(steps=40), tmp_path, resume=True, callbacks=[Observer()])
    assert steps(tmp_path) == [0, 10, 20, 30, 40]
    assert observations(tmp_path)[:3] == before


def test_observer_added_on_resume_observes_remaining_steps(tmp_path):
    train(tiny_settings(steps=20), tmp_path)
    train(tiny_settings(steps=40), tmp_path, resume=True, callbacks=[Observer()])
    assert steps(tmp_path) == [20, 30, 40]


class KilledBeforePortrait(Observer):
    """Dies in the minute in which the portrait is made."""

    def sequence_portrait(self, model, trainer):
        raise StoppedError


def left(folder):
    return {
        path.name: path.stat().st_mtime_ns
        for path in folder.iterdir()
        if path.name not in (".lock", SETTINGS, MANIFEST)
    }


@pytest.mark.parametrize("layer", RESUMED_SETTINGS)
def test_resume_writes_portrait_of_run_killed_before_it(tmp_path, alone, layer):
    with pytest.raises(StoppedError):
        train(RESUMED_SETTINGS[layer], tmp_path, callbacks=[KilledBeforePortrait()])
    before = left(tmp_path)
    assert "result.json" in before
    assert PORTRAIT not in before
    (tmp_path / f".{PORTRAIT}.1.tmp").write_text("{")  # the kill came while the portrait was written
    again = train(RESUMED_SETTINGS[layer], tmp_path, resume=True, callbacks=[Observer()])
    assert again == RunDirectory(tmp_path).result()
    assert files(tmp_path) == files(alone / layer)
    assert metrics_and_weights(tmp_path) == metrics_and_weights(alone / layer)
    assert left(tmp_path) == left(tmp_path) | {name: before[name] for name in before if name != OBSERVATIONS}
    assert not list(tmp_path.glob(".*.tmp"))


def test_resume_replaces_portrait_of_outdated_best_weights(tmp_path, alone):
    train(RESUMED_SETTINGS["nnrnn"], tmp_path, callbacks=[Interrupt(12), Observer()])
    with pytest.raises(StoppedError):
        train(RESUMED_SETTINGS["nnrnn"], tmp_path, resume=True, callbacks=[KilledBeforePortrait()])
    assert files(tmp_path)[1] != files(alone / "nnrnn")[1]
    train(RESUMED_SETTINGS["nnrnn"], tmp_path, resume=True, callbacks=[Observer()])
    assert files(tmp_path) == files(alone / "nnrnn")


def test_resume_writes_portrait_of_diverged_run(tmp_path):
    settings = tiny_settings("irnn", optimizer="sgd", max_loss=100.0, evaluate_every=1, lr=1e8)
    with pytest.raises(StoppedError):
        train(settings, tmp_path / "killed", callbacks=[KilledBeforePortrait()])
    train(settings, tmp_path / "killed", resume=True, callbacks=[Observer()])
    train(settings, tmp_path / "alone", callbacks=[Observer()])
    assert files(tmp_path / "killed") == files(tmp_path / "alone")


def test_resume_of_finished_run_with_portrait_changes_nothing(tmp_path, monkeypatch):
    result = train(tiny_settings(), tmp_path, callbacks=[Observer()])
    before = left(tmp_path)
    monkeypatch.setattr(Observer, "begin", refuse)
    monkeypatch.setattr(Observer, "end", refuse)
    assert train(tiny_settings(), tmp_path, resume=True, callbacks=[Observer()]) == finite(result)
    assert left(tmp_path) == before


@pytest.mark.parametrize("weights", [None, b"damaged", save({"old": torch.zeros(2)})], ids=["gone", "damaged", "old"])
def test_finished_run_without_weights_gets_no_portrait(tmp_path, weights):
    result = train(tiny_settings(), tmp_path)
    (tmp_path / MANIFEST).unlink()
    for path in tmp_path.glob("*.safetensors"):
        path.unlink() if weights is None else path.write_bytes(weights)
    assert train(tiny_settings(), tmp_path, resume=True, callbacks=[Observer()]) == finite(result)
    assert not (tmp_path / PORTRAIT).exists()


# the portrait

# the portrait


def best_model(folder):
    model, task, settings = load_model(RunDirectory(folder))
    x, target = task.sample(1, stream(settings.seed, "observe"))
    return model, task, x, target


def test_the_portrait_is_of_the_best_weights(tmp_path):
    settings = tiny_settings("rnn", optimizer="sgd", lr=10.0, steps=16, evaluate_every=2)
    result = train(settings, tmp_path, callbacks=[Observer()])
    assert 2 < result["best"]["step"] < 16  # up and down
    found = read_portrait(tmp_path)
    assert found["step"] == result["best"]["step"]
    model, task, x, target = best_model(tmp_path)
    expected = portrait(model.layer, x[0], lambda hidden: task.loss(model.read(hidden[:, None]), target))
    assert len(found.pop("batch_gradients")) == len(found["loss_gradients"])
    assert found == json.loads(json.dumps(finite({"step": found["step"], **expected})))
    model.load_state_dict(RunDirectory(tmp_path).load_weights("last.safetensors"))
    assert found["matrices"] != json.loads(json.dumps(finite(portrait(model.layer, x[0])["matrices"])))


@pytest.mark.parametrize("task", TASK_OPTIONS)
def test_portrait_gradients_are_of_task_loss(tmp_path, task):
    settings = tiny_settings(
        "gru", {"name": task, **TASK_OPTIONS[task]}, steps=4, evaluate_every=2, evaluate_examples=4
    )
    train(settings, tmp_path, callbacks=[Observer()])
    model, task, x, target = best_model(tmp_path)
    h_0 = torch.zeros(1, 1, 6, requires_grad=True)
    task.loss(model.walk(x, h_0)[0], target).backward()
    found = read_portrait(tmp_path)
    assert found["loss_gradients"][0] == pytest.approx(float(h_0.grad.norm()), rel=1e-4)
    assert found["of_steps"] == len(found["loss_gradients"]) == len(found["output_gradients"]) == x.shape[1]


@pytest.mark.parametrize("layer", ["gru", "relrnn"])
def test_batch_gradients_are_root_mean_square_over_sequences(tmp_path, monkeypatch, layer):
    monkeypatch.setattr(observer, "SEQUENCES", SEQUENCES)
    train(tiny_settings(layer), tmp_path, callbacks=[Observer()])
    model, task, settings = load_model(RunDirectory(tmp_path))
    x, targets = task.sample(SEQUENCES, stream(settings.seed, "observe"))

    def norms(i):
        return gradient_norms(model.layer, x[i], lambda hidden: task.loss(model.read(hidden[:, None]), targets[[i]]))

    expected = np.linalg.norm([norms(i).numpy() for i in range(SEQUENCES)], axis=0) / SEQUENCES**0.5
    assert read_portrait(tmp_path)["batch_gradients"] == pytest.approx(expected, rel=1e-4)


def test_observed_tasks_cover_all_sequence_tasks():
    assert set(TASK_OPTIONS) == {
        task for task, cls in TASKS.items() if not issubclass(cls, ObjectTask | TextTask | EnvironmentTask)
    }


# texts


def language_settings(layer, **options):
    table = {"layer": {"embedding_size": 4, **layer}, "task": {"name": "char-ptb"}, "seed": 3}
    return Settings.from_tables(table | {"train": {"steps": 4, "batch": 2, "window": 7, "evaluate_every": 2} | options})


def test_observer_works_on_language_model(tmp_path):
    settings = language_settings({"name": "nnrnn", "hidden_size": 6})
    train(settings, tmp_path / "alone")
    train(settings, tmp_path / "watched", callbacks=[Observer()])
    assert metrics_and_weights(tmp_path / "watched") == metrics_and_weights(tmp_path / "alone")
    assert steps(tmp_path / "watched") == [0, 2, 4]
    found = read_portrait(tmp_path / "watched")
    model, task, settings = load_model(RunDirectory(tmp_path / "watched"))
    tokens, targets = task.sample(1, stream(settings.seed, "observe"))
    h_0 = torch.zeros(1, 1, 6, requires_grad=True)
    task.loss(model.walk(tokens, h_0)[0], targets).backward()
    assert found["loss_gradients"][0] == pytest.approx(float(h_0.grad.norm()), rel=1e-4)
    assert found["of_steps"] == tokens.shape[1]
    assert list(found["schur"]) == ["weight_hh_l0"]


def test_portrait_of_language_model_covers_all_layers(tmp_path):
    train(language_settings({"name": "gru", "sizes": [5, 3]}), tmp_path, callbacks=[Observer()])
    found = read_portrait(tmp_path)
    assert list(found["input_maps"]) == ["layer 0", "layer 1"]
    assert len(found["exponents"]) == 8
    assert {name.split(".")[0] for name in found["matrices"]} == {"0", "1"}


# objects


def object_settings(layer):
    task = {"name": "same-different", "glyphs": "own"}
    return Settings.from_tables({"layer": layer, "task": task, "train": TINY | {"steps": 4}, "seed": 3})


def test_observer_writes_nothing_for_transformer(tmp_path):
    assert train(object_settings({"name": "transformer"}), tmp_path, callbacks=[Observer()])["status"] == "done"
    assert not (tmp_path / OBSERVATIONS).exists()
    assert not (tmp_path / PORTRAIT).exists()


@pytest.mark.parametrize("layer", ["corelnet", "corelnet-mix"])  # the second draws random numbers in training
def test_observer_writes_relation_portrait_of_unseen_problem(tmp_path, layer):
    settings = object_settings({"name": layer})
    train(settings, tmp_path / "alone")
    result = train(settings, tmp_path / "watched", callbacks=[Observer()])
    assert metrics_and_weights(tmp_path / "watched") == metrics_and_weights(tmp_path / "alone")
    assert not (tmp_path / "watched" / OBSERVATIONS).exists()
    model, task, _, _ = best_model(tmp_path / "watched")
    images, answers = task.sample_unseen(1, stream(settings.seed, "observe"))
    expected = relation_portrait(model, images[0], int(answers))
    assert read_portrait(tmp_path / "watched") == {"step": result["best"]["step"], **expected}


def test_failing_relation_portrait_does_not_stop_run(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("no images")

    monkeypatch.setattr(observer, "relation_portrait", fail)
    result = train(object_settings({"name": "corelnet"}), tmp_path, callbacks=[Observer()])
    assert result["status"] == "done"
    assert read_portrait(tmp_path) == {"step": result["best"]["step"], "failed": "no images"}


def test_observer_works_on_recurrent_layer_over_objects(tmp_path):
    settings = object_settings({"name": "gru", "hidden_size": 6})
    train(settings, tmp_path / "alone")
    train(settings, tmp_path / "watched", callbacks=[Observer()])
    assert metrics_and_weights(tmp_path / "watched") == metrics_and_weights(tmp_path / "alone")
    assert steps(tmp_path / "watched") == [0, 4]
    model, task, images, target = best_model(tmp_path / "watched")
    z = model.encode(images).detach()
    h_0 = torch.zeros(1, 1, 6, requires_grad=True)
    task.loss(model.sequence.walk(z, h_0)[0], target).backward()
    found = read_portrait(tmp_path / "watched")
    assert found["loss_gradients"][0] == pytest.approx(float(h_0.grad.norm()), rel=1e-4)
    assert found["of_steps"] == 2


# what cannot be looked at


def test_bidirectional_run_finishes_with_failed_portrait(tmp_path):
    layer = {"name": "gru", "bidirectional": True}
    assert train(tiny_settings(layer), tmp_path, callbacks=[Observer()])["status"] == "done"
    found = read_portrait(tmp_path)
    assert found.keys() == {"step", "failed"}
    assert "one direction" in found["failed"]
    assert all(row["matrices"] for row in observations(tmp_path))  # these do not need the flow


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("not today\nnor tomorrow"), "not today"),
        (RuntimeError("out of memory"), "out of memory"),
        (ValueError(), ""),  # has no first line
    ],
)
def test_failing_observer_does_not_stop_run(tmp_path, monkeypatch, error, words):
    def fail(*_):
        raise error

    monkeypatch.setattr(observer, "observe", fail)
    monkeypatch.setattr(observer, "portrait", fail)
    assert train(tiny_settings(), tmp_path, callbacks=[Observer()])["status"] == "done"
    assert [set(row) for row in observations(tmp_path)] == [{"step", "failed"}] * 4
    assert words in read_portrait(tmp_path)["failed"]
    assert "tomorrow" not in read_portrait(tmp_path)["failed"]


@pytest.mark.parametrize(("layer", "lr"), [("irnn", 1e8), ("nnrnn", 1e8), ("ncgru", 1e30)])
def test_observer_does_not_change_diverging_run(tmp_path, layer, lr):
    settings = tiny_settings(layer, optimizer="sgd", max_loss=100.0, evaluate_every=1, lr=lr)
    results = [train(settings, tmp_path / "alone"), train(settings, tmp_path / "watched", callbacks=[Observer()])]
    assert [result["status"] for result in results] == ["diverged", "diverged"]
    assert results[0]["why"] == results[1]["why"]
    assert metrics_and_weights(tmp_path / "watched") == metrics_and_weights(tmp_path / "alone")
    best = results[1]["best"]
    assert read_portrait(tmp_path / "watched")["step"] == (best["step"] if best else results[1]["steps"])
    assert steps(tmp_path / "watched")[0] == 0
    again = train(settings, tmp_path / "watched", resume=True, callbacks=[Observer()])
    assert again == finite(results[1])  # and is not tried again


def test_portrait_of_run_that_diverges_at_first_update_is_of_step_0(tmp_path):
    settings = tiny_settings(max_loss=1e-3)
    result = train(settings, tmp_path, callbacks=[Observer()])
    assert (result["status"], result["best"]) == ("diverged", None)
    (first,) = observations(tmp_path)
    found = read_portrait(tmp_path)
    assert found["step"] == 0
    for name, seen in first["matrices"].items():
        assert found["matrices"][name]["eigenvalues"] == seen["eigenvalues"]


class SetParameterToNaN(Callback):
    """A parameter overflows just before it is looked at."""

    def row(self, trainer, row):
        if row["split"] == "valid" and row["step"] == 20:
            next(p for name, p in trainer.model.named_parameters() if "weight_hh" in name).data.view(-1)[0] = math.nan


@pytest.mark.parametrize("layer", ["rnn", "lstm", "nnrnn", "ncgru"])
def test_non_finite_observation_is_recorded_as_failed(tmp_path, layer):
    result = train(tiny_settings(layer), tmp_path, callbacks=[SetParameterToNaN(), Observer()])
    assert result["status"] == "diverged"
    *_, last = observations(tmp_path)
    assert (last["step"], last.keys()) == (20, {"step", "failed"})
    assert "finite" in last["failed"]
    assert "matrices" in read_portrait(tmp_path)  # the best weights were still good
