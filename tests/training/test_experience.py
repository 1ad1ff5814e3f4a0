"""Agents in training: rounds of episodes, how long a run is, and going on after a stop."""

import json
import math
import signal

import pytest
import torch

from steadygrad.experiments import Observer
from steadygrad.files import PORTRAIT
from steadygrad.layers import LAYERS
from steadygrad.training import (
    Callback,
    RunDirectory,
    Settings,
    Trainer,
    evaluate,
    evaluate_run,
    experience,
    load_model,
    loop,
    stream,
    train,
)
from steadygrad.training.experience import Experience, updates_per_round
from steadygrad.training.options import Train
from steadygrad.training.ppo import play

pytest.importorskip("minigrid", reason="needs the extra minigrid")

TASK_TABLE = {
    "name": "minigrid",
    "environment": "Empty-5x5",
    "limit": 12,
    "episodes": 6,
    "round_frames": 1,
    "passes": 2,
}
UPDATES_PER_ROUND = 2 * 2
"""updates: two passes through six episodes, of which four at the most make an update"""


@pytest.fixture(autouse=True)
def no_automatic_checkpoints(monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)


@pytest.fixture
def agent(tiny):
    def make(layer="gru", task=None, **train):
        return tiny(
            layer, TASK_TABLE | (task or {}), **{"steps": 14, "evaluate_every": 5, "evaluate_examples": 3} | train
        )

    return make


def trainer(settings, folder):
    return Trainer(settings, RunDirectory(folder), (), "cpu")


def rows(folder, split):
    return [row for row in RunDirectory(folder).rows() if row["split"] == split]


def test_round_is_played_once_and_shuffled_each_pass(agent, tmp_path):
    batches = trainer(agent(), tmp_path).batches
    first = [batches(step) for step in range(UPDATES_PER_ROUND)]
    assert batches.counts() == {"frames": int((~batches.targets[..., 0].isnan()).sum())}
    assert [len(batch.inputs) for batch in first] == [3, 3, 3, 3]
    whole = batches.inputs.nan_to_num(-9)
    for through in (first[:2], first[2:]):
        found = [row for batch in through for row in pad_inputs(batch.inputs, whole.shape[1])]
        assert sorted(which(row, whole) for row in found) == list(range(6))
    assert not torch.equal(pad_inputs(first[0].inputs, 12)[0], pad_inputs(first[2].inputs, 12)[0])
    for inputs, targets, goes_on in first:
        assert inputs.shape[:2] == targets.shape[:2]
        assert not targets[..., 0].isnan().all(0).any()  # no longer than its longest episode
        assert not goes_on
    frames = batches.frames
    batches(UPDATES_PER_ROUND)
    assert batches.frames > frames


def test_episodes_are_played_until_round_frames_is_reached(agent, tmp_path):
    """So many updates learn from more episodes each."""
    batches = trainer(agent(task={"round_frames": 160}), tmp_path).batches
    first = [batches(step) for step in range(UPDATES_PER_ROUND)]
    count = len(batches.inputs)
    assert (count % 6, count > 6) == (0, True)
    assert batches.frames >= 160 > batches.frames - 6 * 12
    assert [len(batch.inputs) for batch in first] == [count // 2] * 4
    fewer = trainer(agent(), tmp_path).batches
    fewer(0)
    assert torch.equal(fewer.inputs.nan_to_num(-9), batches.inputs[:6, : fewer.inputs.shape[1]].nan_to_num(-9))
    assert len({tuple(row.flatten().tolist()) for row in batches.targets.nan_to_num(-9)}) > 6


def pad_inputs(inputs, time):
    behind = torch.full((len(inputs), time - inputs.shape[1], inputs.shape[2]), math.nan)
    return torch.cat([inputs, behind], dim=1).nan_to_num(-9)


def which(row, whole):
    return next(i for i, one in enumerate(whole) if torch.equal(one, row))


def test_new_round_is_played_only_after_last_update_of_round(agent, tmp_path):
    running = trainer(agent(), tmp_path)
    running.update()
    old = running.batches.inputs
    for _ in range(UPDATES_PER_ROUND - 1):
        running.update()
        assert running.batches.inputs is old
    task, seeds = running.task, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experience, "play", play_recording_seeds(seeds))
        running.batches(UPDATES_PER_ROUND)
    assert running.batches.inputs is not old
    assert len(set(seeds)) == len(seeds) == task.episodes


def play_recording_seeds(seeds):
    """Return `play` that also puts the seeds in a list."""
    return lambda task, model, given, **rest: seeds.extend(given) or play(task, model, given, **rest)


def test_rows_count_frames_and_have_rewards(agent, tmp_path):
    result = train(agent(log_every=1), tmp_path)
    assert (result["status"], result["steps"]) == ("done", 14)
    learned, valid = rows(tmp_path, "train"), rows(tmp_path, "valid")
    assert [row["step"] for row in valid] == [5, 10, 14]
    for row in (*learned, *valid):
        assert row["loss"] == pytest.approx(1 - row["reward"])
    counts = [row["frames"] for row in learned]
    assert counts == sorted(counts)
    assert len(set(counts)) == 4  # rounds
    assert result["frames"] == counts[-1] <= 4 * 6 * 12
    assert {"policy_loss", "value_loss", "entropy", "divergence", "gradient_norm"} <= learned[0].keys()
    assert result["best"]["reward"] == max(row["reward"] for row in valid)
    assert (result["score"], result["higher_is_better"], result["guessing_loss"]) == ("reward", True, 1.0)


def test_run_ends_after_given_frames_and_can_be_extended(agent, tmp_path):
    settings = agent(frames=150)
    result = train(settings, tmp_path)
    assert result["frames"] >= 150 > result["frames"] - 6 * 12
    assert result["steps"] % UPDATES_PER_ROUND == 0
    assert rows(tmp_path, "valid")[-1]["step"] == result["steps"]
    assert train(settings, tmp_path, resume=True) == result  # nothing left to do
    more = train(agent(frames=300), tmp_path, resume=True)
    assert more["frames"] >= 300
    whole = train(agent(frames=300), tmp_path.with_name("whole"))
    assert (more["steps"], more["frames"], more["final"]) == (whole["steps"], whole["frames"], whole["final"])


def test_frames_are_converted_to_upper_bound_of_updates(agent):
    settings = agent(frames=100)
    task = settings.build_task()
    assert updates_per_round(task, settings.train) == UPDATES_PER_ROUND
    assert settings.in_updates(task).steps == 17 * UPDATES_PER_ROUND  # episodes of one step, six a round
    longer = agent(task={"round_frames": 30}, frames=100)
    assert longer.in_updates(longer.build_task()).steps == 4 * UPDATES_PER_ROUND


def test_progress_unit_is_frames_if_length_is_in_frames(agent, tmp_path):
    assert trainer(agent(), tmp_path).progress == (0, 14, "updates")
    assert trainer(agent(frames=50), tmp_path).progress == (0, 50, "frames")


class RecordEvaluationProgress(Callback):
    def __init__(self):
        self.shares = []

    def evaluating(self, trainer, split, share):
        self.shares.append((split, share))


def test_playing_and_evaluation_report_progress(agent, tmp_path):
    heard = RecordEvaluationProgress()
    train(agent(steps=1, evaluate_examples=3, evaluate_batch=2), tmp_path, callbacks=[heard])
    shares = {split: [share for kind, share in heard.shares if kind == split] for split in ("train", "valid")}
    for found in shares.values():
        assert found == sorted(found)
        assert 0 < found[0] < 0.2
    assert shares["valid"][-1] == 1


@pytest.mark.parametrize("layer", ["gru", "rellstm"])
def test_observer_does_not_change_agent_training(agent, tmp_path, layer, outcome):
    settings = agent(layer, log_every=1)
    train(settings, tmp_path / "alone")
    train(settings, tmp_path / "watched", callbacks=[Observer()])
    assert outcome(tmp_path / "watched") == outcome(tmp_path / "alone")
    found = json.loads((tmp_path / "watched" / PORTRAIT).read_text("utf-8"))
    model, task, settings = load_model(RunDirectory(tmp_path / "watched"))
    inputs, targets = Experience.examples(task, model, 1, stream(settings.seed, "observe"))
    assert found["of_steps"] == inputs.shape[1] == targets.shape[1]
    assert not inputs.isnan().any()
    assert found["matrices"]
    assert ("attention" in found) == (layer == "rellstm")
    several, _ = Experience.examples(task, model, 4, stream(settings.seed, "observe"))
    assert len(several) == 4
    assert not several.isnan().any()


class Interrupt(Callback):
    """Ctrl-C while a round after the first is being played."""

    def __init__(self):
        self.heard = 0

    def evaluating(self, trainer, split, share):
        if split == "train" and trainer.step:
            self.heard += 1
            if self.heard == 2:
                signal.raise_signal(signal.SIGINT)


def test_interrupted_round_is_replayed_on_resume(agent, tmp_path, outcome):
    settings = agent("gru", log_every=1)
    train(settings, tmp_path / "alone")
    callback = Interrupt()
    assert train(settings, tmp_path / "cut", callbacks=[callback])["status"] == "interrupted"
    assert callback.heard == 2  # at once, not when the round is over
    torch.manual_seed(99)
    assert train(settings, tmp_path / "cut", resume=True)["status"] == "done"
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "alone")


@pytest.mark.parametrize("layer", ["gru", "ncgru", "nnrnn", "h-detach", "rellstm", "memlstm"])
def test_run_killed_within_round_resumes_to_same_outcome(agent, tmp_path, layer, stop_at, stopped, outcome):
    settings = agent(layer, log_every=1)
    train(settings, tmp_path / "alone")
    for save, die in ((2, 3), (4, 6), (9, 9), (11, 13)):
        with pytest.raises(stopped):
            train(settings, tmp_path / "cut", resume=True, callbacks=[stop_at(save, die)])
    torch.manual_seed(99)
    assert train(settings, tmp_path / "cut", resume=True)["status"] == "done"
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "alone")


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_trains_in_policy_model(agent, tmp_path, layer):
    running = trainer(agent(layer), tmp_path)
    running.update()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in running.model.parameters() if p.requires_grad)


def test_evaluation_is_deterministic_on_separate_episodes(agent, tmp_path):
    running = trainer(agent(), tmp_path)
    found = [evaluate(running.model, running.task, 5, batch=batch) for batch in (5, 5, 2)]
    assert found[0] == found[1] == pytest.approx(found[2])
    assert set(found[0]) == {"reward", "loss"}
    seeds = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experience, "play", play_recording_seeds(seeds))
        evaluate(running.model, running.task, 3, split="valid")
        evaluate(running.model, running.task, 3, split="test")
        running.batches(0)
    assert len(set(seeds)) == len(seeds) == 3 + 3 + 6


def test_run_is_evaluated_in_larger_environment(agent, tmp_path):
    settings = agent()
    train(settings, tmp_path)
    larger = Settings(settings.layer, settings.task | {"environment": "DoorKey-8x8"}, settings.train)
    found = evaluate_run(RunDirectory(tmp_path), larger, examples=3)
    assert 0 <= found["reward"] <= 1


def test_diverging_agent_has_status_diverged(agent, tmp_path):
    result = train(agent("lstm", lr=1e30, optimizer="sgd"), tmp_path)
    assert result["status"] == "diverged"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 5}, "MiniGrid is trained on whole episodes and expects no window; got 5"),
        ({"examples": 50}, "MiniGrid is trained on whole episodes and expects no examples; got 50"),
        ({"epochs": 2}, "epochs are for a task with a data set; MiniGrid has none"),
        ({"epochs": 2, "frames": 10}, "Train expects either epochs or frames; got 2 and 10"),
        ({"frames": 0}, "Train expects frames to be an integer of at least 1; got 0"),
    ],
)
def test_unsuitable_train_settings_raise_value_error(agent, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        train(agent(**options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_frames_on_non_environment_task_raise_value_error(tiny, tmp_path):
    with pytest.raises(ValueError, match="frames are for a task that is played; Copy is none"):
        train(tiny(frames=10), tmp_path / "run")


def test_batch_larger_than_round_uses_whole_round(agent, tmp_path):
    running = trainer(agent(batch=50), tmp_path)
    assert isinstance(running.batches, Experience)
    assert running.batches.updates == 2
    assert len(running.batches(1).inputs) == 6


def test_agent_learns_empty_room(tmp_path):
    """At random 2 of 10 get there at all; who knows the way has 0.95 in 6 steps."""
    task = {"name": "minigrid", "environment": "Empty-5x5", "limit": 30, "episodes": 16, "round_frames": 1}
    how = Train(steps=320, batch=4, lr=3e-3, clip=0.5, evaluate_every=80, evaluate_examples=30, stop_at=0.75)
    settings = Settings({"name": "gru", "hidden_size": 32}, task, how)
    before = trainer(settings, tmp_path)
    at_random = evaluate(before.model, before.task, 50)["reward"]
    assert at_random < 0.4
    assert train(settings, tmp_path / "run")["best"]["reward"] > 0.7
