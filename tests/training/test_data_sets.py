"""Training on data sets: epochs, carried states, a test at the end, and stops in the middle."""

import math

import pytest
import torch

from steadygrad.models import LanguageModel, SequenceModel
from steadygrad.tasks import CharPTB, WordPTB
from steadygrad.training import (
    Callback,
    EpochBatches,
    RunDirectory,
    Settings,
    Train,
    Trainer,
    evaluate,
    evaluate_run,
    load_model,
    stream,
    train,
)

TEXT = {"name": "char-ptb"}
TEXT_TRAINING = {"epochs": 2, "batch": 4, "window": 40, "evaluate_batch": 2, "log_every": 3, "lr": 1e-2}


@pytest.fixture
def text():
    """``text("gru", epochs=1)``: settings of a short run on a text."""

    def make(layer="gru", task="char-ptb", **train):
        table = {"name": layer} if isinstance(layer, str) else layer
        small = {"embedding_size": 6} | ({} if "sizes" in table else {"hidden_size": 8})
        return Settings.from_tables({"layer": small | table, "task": {"name": task}, "train": TEXT_TRAINING | train})

    return make


def updates_of(settings):
    task = settings.build_task()
    return len(task.epoch("train", settings.train.batch, settings.train.window))


def test_epochs_are_counted_in_updates(text, tmp_path):
    settings = text()
    result = train(settings, tmp_path)
    each = updates_of(settings)
    assert result["steps"] == 2 * each
    rows = RunDirectory(tmp_path).rows()
    assert [row["step"] for row in rows if row["split"] == "valid"] == [each, 2 * each]
    assert result["train"]["epochs"] == 2


def test_epochs_on_generated_task_raise_value_error(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"^epochs are for a task with a data set; Copy has none$"):
        train(tiny(epochs=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_best_weights_before_first_evaluation_are_last_weights(text, tmp_path):
    class Impatient(Callback):
        def update(self, trainer, loss):
            if trainer.step == 3:
                trainer.asked.set()

    result = train(text(), tmp_path, callbacks=[Impatient()])
    assert (result["status"], result["best"]) == ("interrupted", None)
    directory = RunDirectory(tmp_path)
    best, last = (load_model(directory, weights=weights)[0].state_dict() for weights in ("best", "last"))
    assert all(torch.equal(best[key], last[key]) for key in last)
    torch.manual_seed(stream(0, "model").initial_seed())
    start = text().build_model(CharPTB()).state_dict()
    assert not torch.equal(best["readout.weight"], start["readout.weight"])
    assert train(text(), tmp_path, resume=True)["best"]["step"] >= updates_of(text())


def test_the_best_weights_are_tested_at_the_end(text, tmp_path):
    settings = text(epochs=8)
    result = train(settings, tmp_path)
    task = settings.build_task()
    model = settings.build_model(task)
    model.load_state_dict(RunDirectory(tmp_path).load_weights("model.safetensors"))
    assert result["test"] == evaluate(model, task, 1, split="test", batch=2, window=40)
    assert result["test"] == evaluate_run(RunDirectory(tmp_path), settings)
    assert set(result["test"]) == {"loss", "accuracy", "bpc"}
    assert result["best"]["loss"] < CharPTB().guessing_loss  # a text of eight words is soon known


def test_state_is_carried_between_windows(text, tmp_path):
    settings = text(batch=2, window=15)
    trainer = Trainer(settings, RunDirectory(tmp_path), (), "cpu")
    epoch = trainer.task.epoch("train", 2, 15)
    trainer.model.eval()  # nothing is dropped anyhow
    with torch.no_grad():
        parts = [trainer.outputs(part.inputs, part.goes_on) for part in epoch]
        whole = trainer.model(torch.cat([part.inputs for part in epoch], dim=1))
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_an_evaluation_is_the_mean_over_all_tokens(text):
    settings = text(task="word-ptb")
    task = settings.build_task()
    model = settings.build_model(task).eval()
    found = evaluate(model, task, 1, split="valid", batch=3, window=7)
    epoch = task.epoch("valid", 3, 7)
    inputs, targets = (torch.cat([part[i] for part in epoch], dim=1) for i in (0, 1))
    with torch.no_grad():
        loss = task.loss(model(inputs), targets).item()
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)


def test_text_task_builds_language_model_and_pixels_sequence_model(text):
    model = text({"name": "ncgru", "sizes": [6, 9, 6], "tied": True}).build_model(CharPTB())
    assert isinstance(model, LanguageModel)
    assert [layer.hidden_size for layer in model.layers] == [6, 9, 6]
    pixels = Settings.from_tables({"layer": {"name": "gru", "hidden_size": 3}, "task": {"name": "pixel-mnist"}})
    assert isinstance(pixels.build_model(pixels.build_task()), SequenceModel)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"name": "gru", "sizes": [3], "hidden_size": 4}, "layer gru expects either hidden_size or sizes; got both"),
        ({"name": "gru", "sizes": 3}, "LanguageModel expects sizes to be a list of units, one a layer; got 3"),
        ({"name": "gru"}, "layer gru expects hidden_size; got nothing"),
        (
            {"name": "gru", "hidden_size": 3, "embeding": 3},
            "layer gru: unknown key 'embeding'; known: hidden_size, .*tied",
        ),
    ],
)
def test_invalid_language_model_options_raise_value_error(layer, words):
    settings = Settings.from_tables({"layer": layer, "task": TEXT})
    with pytest.raises(ValueError, match=words):
        settings.build_model(CharPTB())


@pytest.mark.parametrize("sizes", [{"sizes": [3, 4], "hidden_size": None}, {"sizes": None, "hidden_size": 3}])
def test_none_size_counts_as_not_given(sizes):
    model = Settings.from_tables({"layer": {"name": "gru", **sizes}, "task": TEXT}).build_model(CharPTB())
    assert [layer.hidden_size for layer in model.layers] == (sizes["sizes"] or [3])


def test_language_model_settings_round_trip(text):
    settings = text({"name": "gru", "sizes": [3, 4], "word_dropout": 0.1})
    assert Settings.from_tables(settings.resolved()).resolved() == settings.resolved()
    assert settings.resolved()["layer"]["tied"] is False


@pytest.mark.parametrize("task", ["char-ptb", "pixel-mnist"])
def test_run_killed_within_epoch_resumes_to_same_outcome(task, text, tmp_path, stop_at, stopped, outcome):
    if task == "char-ptb":
        settings = text({"name": "gru", "sizes": [5, 6], "input_dropout": 0.2})
    else:
        layer, train_ = {"name": "rnn", "hidden_size": 3}, {"steps": 4, "batch": 5, "evaluate_every": 4}
        task = {"name": task, "held_back": 10}
        settings = Settings.from_tables({"layer": layer, "task": task, "train": train_ | {"evaluate_batch": 5000}})
    train(settings, tmp_path / "whole")
    with pytest.raises(stopped):
        train(settings, tmp_path / "parts", callbacks=[stop_at(2, 3)])
    train(settings, tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_tied_weights_are_saved_and_resumed(text, tmp_path, stop_at, stopped, outcome):
    settings = text({"name": "gru", "sizes": [5, 6], "tied": True})
    train(settings, tmp_path / "whole")
    with pytest.raises(stopped):
        train(settings, tmp_path / "parts", callbacks=[stop_at(2, 3)])
    train(settings, tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    model, _, _ = load_model(RunDirectory(tmp_path / "parts"))
    assert model.readout.weight is model.embedding.weight


def test_more_than_ten_state_tensors_resume_in_order(text, tmp_path, stop_at, stopped, outcome):
    """Files list them as 0, 1, 10, 11, 2, …"""
    settings = text({"name": "lstm", "sizes": [4, 5, 6, 7, 6, 5]}, epochs=1)
    train(settings, tmp_path / "whole")
    with pytest.raises(stopped):
        train(settings, tmp_path / "parts", callbacks=[stop_at(2, 3)])
    train(settings, tmp_path / "parts", resume=True)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_resume_with_more_epochs_continues_run(text, tmp_path):
    train(text(epochs=1), tmp_path)
    more = text(epochs=2)
    assert train(more, tmp_path, resume=True)["steps"] == 2 * updates_of(more)
    assert train(more, tmp_path, resume=True)["train"]["epochs"] == 2


def test_each_epoch_is_shuffled_by_its_own_seed():
    from steadygrad.tasks import PixelMNIST

    task = PixelMNIST(held_back=59_900)
    batches = EpochBatches(task, Train(batch=50), seed=3)
    first, second = ([batches(step).targets for step in steps] for steps in ((0, 1), (2, 3)))
    assert not torch.equal(first[0], second[0])
    everything = task.epoch("train", 100)[0].targets.sort().values
    for epoch in (first, second):
        assert torch.equal(torch.cat(epoch).sort().values, everything)
    order = torch.randperm(100, generator=stream(3, "order", 1))
    assert torch.equal(torch.cat(second), task.take("train", order)[1])


@pytest.mark.parametrize(
    ("task", "train", "words"),
    [
        (CharPTB(), {}, "CharPTB expects a window, the number of steps of an update; got none"),
        (WordPTB(), {"window": 5, "examples": 100}, "WordPTB is a data set and expects no number of examples; got 100"),
    ],
)
def test_unsuitable_train_settings_raise_value_error(task, train, words):
    with pytest.raises(ValueError, match=words):
        EpochBatches(task, Train(**{"batch": 2, **train}), seed=0)
