"""Rows of a paper, run with seeds: each once, each to its end, whatever becomes of the others."""

import json
import signal
import sys
from dataclasses import replace

import pytest

from steadygrad.experiments import reproduce, seeds_of, summary
from steadygrad.experiments.recipe import read
from steadygrad.experiments.reproduce import run_directory, whole_table
from steadygrad.experiments.transfer import transfer
from steadygrad.manifest import MANIFEST
from steadygrad.training import Callback, RunDirectory, RunError, evaluate_run
from tests.stored import RESULT

PAPER = """
[table]
caption = "three rows"
task = { name = "copy", delay = 50, length = 2, symbols = 2 }
train = { steps = 400, batch = 2, evaluate_every = 3, evaluate_examples = 4, log_every = 2 }
metric = "accuracy"
attained = "max"
smoke = { task = { delay = 2 }, train = { steps = 6 } }
[table.rnn]
layer = { name = "rnn", hidden_size = 3 }
published = { accuracy = 0.75, loss = 0.1 }
parameters = "39"
[table.gru]
layer = { name = "gru", hidden_size = 2 }
"""
RNN, GRU = read("paper", PAPER).recipes
ALL_ROWS = [RNN, GRU]


def smoke(recipes, out, seeds=1, callbacks=lambda recipe, seed: ()):
    return reproduce(recipes, scale="smoke", seeds=seeds, out=out, callbacks=callbacks)


def recipes_with_replaced_text(old, new):
    """The recipes of the paper with other words in it."""
    assert old in PAPER
    return read("paper", PAPER.replace(old, new)).recipes


class RecordStarts:
    """Who has begun to train, as row and seed."""

    def __init__(self):
        self.begun = []

    def __call__(self, recipe, seed):
        note = Callback()
        note.begin = lambda trainer: self.begun.append((recipe.row, seed))
        return [note]


class Stop(Callback):
    """Ctrl-C after an update."""

    def __init__(self, step):
        self.step = step

    def update(self, trainer, loss):
        if trainer.step == self.step:
            signal.raise_signal(signal.SIGINT)


def file_contents(out):
    """Metrics, results and weights, and when they were written."""
    files = [path for kind in ("jsonl", "json", "safetensors") for path in out.rglob(f"*.{kind}")]
    assert files
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def metrics_without_time(recipe, seed, out):
    """Without the time it took."""
    rows = RunDirectory(run_directory(recipe, seed, out)).rows()
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


# running


def test_every_row_runs_with_every_seed(tmp_path):
    beginnings = RecordStarts()
    rnn, gru = smoke(ALL_ROWS, tmp_path, seeds=2, callbacks=beginnings)
    assert beginnings.begun == [("rnn", 0), ("gru", 0), ("rnn", 1), ("gru", 1)]  # all rows before a second seed
    for row, recipe in ((rnn, RNN), (gru, GRU)):
        assert (row["paper"], row["table"], row["row"]) == ("paper", "table", recipe.row)
        assert [(run["seed"], run["status"], run["steps"]) for run in row["runs"]] == [(0, "done", 6), (1, "done", 6)]
        for run in row["runs"]:
            valid = [
                r["accuracy"] for r in metrics_without_time(recipe, run["seed"], tmp_path) if r["split"] == "valid"
            ]
            assert len(valid) == 2
            best = RunDirectory(run_directory(recipe, run["seed"], tmp_path)).result()["best"]
            assert best["accuracy"] in valid
            assert run["value"] == run["score"]["value"] == best["accuracy"]
        assert row["ours"] == sum(run["value"] for run in row["runs"]) / 2
        assert row["seconds"] == pytest.approx(sum(run["seconds"] for run in row["runs"]))
    assert metrics_without_time(RNN, 0, tmp_path) != metrics_without_time(RNN, 1, tmp_path)
    assert json.loads(json.dumps([rnn, gru])) == [rnn, gru]


def test_row_has_published_and_measured_values(tmp_path):
    (row,) = smoke([RNN], tmp_path)
    assert (row["metric"], row["attained"], row["published"]) == ("accuracy", "max", 0.75)
    assert (row["printed_parameters"], row["parameters"]) == ("39", 3 * (4 + 3 + 1) + 3 * (3 + 1))
    assert (row["scale"], row["reduced"]) == ("smoke", "delay 2, steps 6")
    assert row["guessing_loss"] == RNN.settings("smoke").build_task().guessing_loss
    assert (row["caption"], row["layer"]) == ("three rows", "rnn")


def test_finished_runs_are_not_repeated(tmp_path):
    first = smoke(ALL_ROWS, tmp_path, seeds=2)
    before, beginnings = file_contents(tmp_path), RecordStarts()
    assert smoke(ALL_ROWS, tmp_path, seeds=2, callbacks=beginnings) == first
    assert beginnings.begun == []
    assert file_contents(tmp_path) == before


def test_additional_seed_does_not_rerun_first_seed(tmp_path):
    smoke(ALL_ROWS, tmp_path)
    beginnings = RecordStarts()
    smoke(ALL_ROWS, tmp_path, seeds=2, callbacks=beginnings)
    assert beginnings.begun == [("rnn", 1), ("gru", 1)]


def test_interrupted_run_resumes_to_same_numbers(tmp_path):
    """To the same numbers as if nobody had stopped it; the rows after it wait."""
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    with pytest.raises(KeyboardInterrupt):
        smoke(ALL_ROWS, stopped, callbacks=lambda recipe, seed: [Stop(4)])
    assert RunDirectory(run_directory(RNN, 0, stopped)).result()["status"] == "interrupted"
    assert not run_directory(GRU, 0, stopped).exists()
    assert [row["ours"] for row in smoke(ALL_ROWS, stopped)] == [row["ours"] for row in smoke(ALL_ROWS, whole)]
    for recipe in (RNN, GRU):
        assert metrics_without_time(recipe, 0, stopped) == metrics_without_time(recipe, 0, whole)


# beside others


def locked_directory(recipe, out, seed=0):
    """Locked, as by another process that trains there."""
    directory = RunDirectory(run_directory(recipe, seed, out))
    directory.path.mkdir(parents=True, exist_ok=True)
    return directory.locked()


def test_locked_run_is_reported_as_running_elsewhere(tmp_path):
    with locked_directory(RNN, tmp_path):
        rnn, gru = smoke(ALL_ROWS, tmp_path)
    (run,) = rnn["runs"]
    assert (run["status"], run["value"], run.get("why")) == ("running elsewhere", None, None)
    assert gru["runs"][0]["status"] == "done"


def test_finished_result_of_locked_run_is_used(tmp_path):
    """It may still hold its lock, as while it tests."""
    before = smoke(ALL_ROWS, tmp_path)
    with locked_directory(RNN, tmp_path):
        assert smoke(ALL_ROWS, tmp_path) == before


def test_run_unlocked_meanwhile_is_run_at_the_end(tmp_path):
    lock = locked_directory(RNN, tmp_path)
    lock.__enter__()
    beginnings = RecordStarts()

    def callbacks(recipe, seed):
        if recipe is GRU:
            lock.__exit__(None, None, None)
        return beginnings(recipe, seed)

    rnn, *_ = smoke(ALL_ROWS, tmp_path, callbacks=callbacks)
    assert rnn["runs"][0]["status"] == "done"
    assert beginnings.begun == [("gru", 0), ("rnn", 0)]


def seeds_and_statuses(table):
    return {row["row"]: [(run["seed"], run["status"]) for run in row["runs"]] for row in table}


def test_whole_table_includes_earlier_runs(tmp_path):
    """Also where fewer seeds, or other rows, are asked for now."""
    everything = smoke([RNN, GRU], tmp_path, seeds=3)
    for asked in ([GRU], [RNN], [RNN, GRU]):
        assert whole_table(smoke(asked, tmp_path), ALL_ROWS, "smoke", tmp_path) == everything


def test_whole_table_ignores_foreign_and_unfinished_runs(tmp_path):
    """Runs of other settings, half runs, files of others."""
    smoke([RNN], tmp_path, seeds=5)
    place = run_directory(RNN, 0, tmp_path).parent
    with pytest.raises(KeyboardInterrupt):
        smoke([RNN], tmp_path, seeds=6, callbacks=lambda recipe, seed: [Stop(4)])
    (place / "seed-1" / "settings.toml").unlink()
    (place / "seed-2" / "result.json").write_text("{")
    settings = place / "seed-3" / "settings.toml"
    settings.write_text(settings.read_text("utf-8").replace("delay = 2", "delay = 3"), "utf-8")
    (place / "seed-4").rename(place / "seed-mine")
    rows = smoke([GRU], tmp_path)
    assert seeds_and_statuses(whole_table(rows, ALL_ROWS, "smoke", tmp_path)) == {
        "rnn": [(0, "done")],
        "gru": [(0, "done")],
    }
    assert seeds_and_statuses(
        whole_table(rows, recipes_with_replaced_text("steps = 6", "steps = 7"), "smoke", tmp_path)
    ) == {"gru": [(0, "done")]}


def test_whole_table_keeps_failures_and_rereads_unlocked_runs(tmp_path):
    (run_directory(GRU, 0, tmp_path) / "thesis").mkdir(parents=True)
    with locked_directory(RNN, tmp_path):
        rows = smoke(ALL_ROWS, tmp_path)
        assert whole_table(rows, ALL_ROWS, "smoke", tmp_path) == rows
    smoke([RNN], tmp_path)
    found = whole_table(rows, ALL_ROWS, "smoke", tmp_path)
    assert seeds_and_statuses(found) == {"rnn": [(0, "done")], "gru": [(0, "failed")]}
    assert "it has files but no settings.toml" in found[-1]["runs"][0]["why"]


# testing on other settings

TRAINED = "smoke = { task = { delay = 2 }"


def recipe_with_transfer(delays):
    """The recipe of the first row, tested on these delays, with a number printed for the first."""
    text = PAPER.replace(TRAINED, f"transfer = {{ delay = {delays} }}\n{TRAINED}")
    return read("paper", text.replace("accuracy = 0.75", f'accuracy = 0.75, "accuracy@{delays[0]}" = 0.25')).recipes[0]


def written(recipe, out, seed=0):
    return json.loads((run_directory(recipe, seed, out) / "transfer.json").read_text("utf-8"))


def test_transfer_evaluates_best_weights_on_other_settings(tmp_path):
    recipe = recipe_with_transfer([4, 9])
    (row,) = smoke([recipe], tmp_path, seeds=2)
    assert row["trained_on"] == "delay 2"
    assert row["transfer"] == [{"name": "delay 4", "published": 0.25}, {"name": "delay 9", "published": None}]
    for run in row["runs"]:
        directory = RunDirectory(run_directory(recipe, run["seed"], tmp_path))
        own = directory.settings()
        for delay, found in zip((4, 9), run["transfer"], strict=True):
            numbers = evaluate_run(directory, replace(own, task=own.task | {"delay": delay}), examples=4)
            assert found == {"name": f"delay {delay}", "value": numbers["accuracy"], "examples": 4}
        content = written(recipe, tmp_path, run["seed"])
        assert (content["weights"], content["step"]) == ("best", directory.result()["best"]["step"])
        assert [test["task"] for test in content["tests"]] == [{"delay": 4}, {"delay": 9}]
    assert row["ours"] == sum(run["value"] for run in row["runs"]) / 2  # as without the tests


def test_transfer_evaluates_last_weights_if_recipe_counts_last(tmp_path):
    best = recipe_with_transfer([4])
    smoke([best], tmp_path)
    recipe = replace(best, counts="last")  # tests of the best ones are void
    (row,) = smoke([recipe], tmp_path)
    directory, content = RunDirectory(run_directory(recipe, 0, tmp_path)), written(recipe, tmp_path)
    assert (content["weights"], content["step"]) == ("last", directory.result()["steps"])
    own = directory.settings()
    numbers = evaluate_run(directory, replace(own, task=own.task | {"delay": 4}), weights="last", examples=4)
    assert row["runs"][0]["transfer"][0]["value"] == numbers["accuracy"]


def test_row_without_transfer_writes_no_transfer_file(tmp_path):
    (row,) = smoke([RNN], tmp_path)
    assert (row["transfer"], row["trained_on"], row["runs"][0]["transfer"]) == ([], "", [])
    assert not list(tmp_path.rglob("transfer.json"))


class RecordTransferProgress:
    """What was tested, as (what, time steps done, of all)."""

    def __init__(self):
        self.seen, self.closed = [], 0

    def __call__(self, recipe, seed):
        callback = Callback()
        callback.tested = lambda *words: self.seen.append(words)
        callback.close = self.close
        return [callback]

    def close(self):
        self.closed += 1


def test_finished_transfer_evaluations_are_not_repeated(tmp_path):
    first = smoke([recipe_with_transfer([4, 9])], tmp_path)
    before, tests = file_contents(tmp_path), RecordTransferProgress()
    assert smoke([recipe_with_transfer([4, 9])], tmp_path, callbacks=tests) == first
    (fewer,) = smoke([recipe_with_transfer([9])], tmp_path, callbacks=tests)
    assert fewer["runs"][0]["transfer"] == first[0]["runs"][0]["transfer"][1:]
    assert tests.seen == []
    assert file_contents(tmp_path) == before


def test_only_new_transfer_settings_are_evaluated(tmp_path):
    (first,) = smoke([recipe_with_transfer([4, 9])], tmp_path)
    tests = RecordTransferProgress()
    (row,) = smoke([recipe_with_transfer([9, 6])], tmp_path, callbacks=tests)
    assert {what for what, *_ in tests.seen} == {"delay 6"}
    assert [test["task"]["delay"] for test in written(RNN, tmp_path)["tests"]] == [4, 9, 6]
    assert row["runs"][0]["transfer"][0] == first["runs"][0]["transfer"][1]
    assert [test["name"] for test in row["transfer"]] == ["delay 9", "delay 6"]


def test_callback_receives_transfer_progress_in_time_steps(tmp_path):
    """In time steps, as long sequences take longer; copy has delay + 4 of them here."""
    tests = RecordTransferProgress()
    smoke([recipe_with_transfer([4, 9])], tmp_path, callbacks=tests)
    total = 4 * 8 + 4 * 13
    assert tests.seen == [
        ("delay 4", 0, total),
        ("delay 4", 4 * 8, total),
        ("delay 9", 4 * 8, total),
        ("delay 9", total, total),
    ]
    assert tests.closed == 2  # after training and after the tests


def test_transfer_is_repeated_for_new_best_weights(tmp_path):
    recipe = recipe_with_transfer([4])
    smoke([recipe], tmp_path)
    path = run_directory(recipe, 0, tmp_path) / "transfer.json"
    fresh = written(recipe, tmp_path)
    path.with_name(MANIFEST).unlink()
    path.write_text(json.dumps(fresh | {"step": 0, "tests": [fresh["tests"][0] | {"accuracy": 9.0}]}))
    assert summary(recipe, "smoke", [0], tmp_path)["runs"][0]["transfer"] == []
    smoke([recipe], tmp_path)
    assert written(recipe, tmp_path) == fresh


def test_interrupted_transfer_evaluations_resume(tmp_path):
    class Impatient(Callback):
        def tested(self, what, done, total):
            if what == "delay 9":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smoke([recipe_with_transfer([4, 9])], tmp_path, callbacks=lambda recipe, seed: [Impatient()])
    assert [test["task"]["delay"] for test in written(RNN, tmp_path)["tests"]] == [4]
    tests = RecordTransferProgress()
    smoke([recipe_with_transfer([4, 9])], tmp_path, callbacks=tests)
    assert {what for what, *_ in tests.seen} == {"delay 9"}


def test_run_diverged_before_evaluation_has_no_transfer(tmp_path):
    recipe = replace(recipe_with_transfer([4]), train=RNN.train | {"max_loss": 1e-6})
    (row,) = smoke([recipe], tmp_path)
    assert (row["runs"][0]["status"], row["runs"][0]["transfer"]) == ("diverged", [])


@pytest.mark.parametrize(
    "content", ["{", "3", "{}", '{"tests": [3], "step": 3}', '{"tests": [{"task": {"delay": 4}}]}']
)
def test_invalid_transfer_file_is_reported_and_run_keeps_score(content, tmp_path):
    smoke([recipe_with_transfer([4])], tmp_path)
    folder = run_directory(RNN, 0, tmp_path)
    (folder / "transfer.json").write_text(content)
    (row,) = smoke([recipe_with_transfer([4])], tmp_path)
    assert row["runs"][0]["status"] == "failed"
    assert "transfer.json was altered: its SHA-256 differs" in row["runs"][0]["why"]
    (folder / MANIFEST).unlink()
    (row,) = smoke([recipe_with_transfer([4])], tmp_path)
    (run,) = row["runs"]
    assert (run["status"], row["ours"]) == ("done", run["score"]["value"])
    assert "transfer.json is not what transfer writes" in run["transfer"][0]["why"]


def fail_transfer_on_delay(monkeypatch, delay):
    """Tests on this delay fail."""

    def evaluate(directory, settings, **options):
        if settings.task["delay"] == delay:
            raise RuntimeError("no memory\nframe #0: c10")
        return evaluate_run(directory, settings, **options)

    monkeypatch.setattr(sys.modules[transfer.__module__], "evaluate_run", evaluate)


def test_failed_transfer_evaluation_is_recorded_and_retried(tmp_path, monkeypatch):
    """The run keeps its number, and the other tests theirs."""
    recipe = recipe_with_transfer([4, 9, 6])
    with monkeypatch.context() as patched:
        fail_transfer_on_delay(patched, 9)
        (row,) = smoke([recipe], tmp_path)
    (run,) = row["runs"]
    assert (run["status"], row["ours"]) == ("done", run["score"]["value"])
    assert [test["name"] for test in run["transfer"]] == ["delay 4", "delay 9", "delay 6"]
    assert run["transfer"][1] == {"name": "delay 9", "value": None, "examples": 4, "why": "RuntimeError: no memory"}
    assert not any("why" in run["transfer"][place] or run["transfer"][place]["value"] is None for place in (0, 2))
    assert summary(recipe, "smoke", [0], tmp_path) == row  # who reads the files knows it too
    tests = RecordTransferProgress()
    (again,) = smoke([recipe], tmp_path, callbacks=tests)
    assert {what for what, *_ in tests.seen} == {"delay 9"}
    assert not any("why" in test for test in again["runs"][0]["transfer"])
    assert again["runs"][0]["transfer"][::2] == run["transfer"][::2]
    assert again["runs"][0]["transfer"][1]["value"] is not None


def test_unwritable_transfer_file_keeps_run_score(tmp_path, monkeypatch):
    smoke([RNN], tmp_path)
    write = RunDirectory.write

    def full(self, name, content):
        if name == "transfer.json":
            raise RunError("no space left")
        write(self, name, content)

    monkeypatch.setattr(RunDirectory, "write", full)
    (row,) = smoke([recipe_with_transfer([4, 9])], tmp_path)
    assert (row["runs"][0]["status"], row["ours"]) == ("done", row["runs"][0]["score"]["value"])
    assert [test["why"] for test in row["runs"][0]["transfer"]] == ["no space left"] * 2


def test_nan_transfer_loss_is_written_as_null(tmp_path):
    """A network may explode on sequences longer than its own."""
    smoke([RNN], tmp_path)
    directory = RunDirectory(run_directory(RNN, 0, tmp_path))
    weights = directory.load_weights("model.safetensors")
    weights["readout.bias"].fill_(float("nan"))
    directory.save_weights({"model.safetensors": weights})
    (row,) = smoke([replace(recipe_with_transfer([4]), metric="loss")], tmp_path)
    assert [test["loss"] for test in written(RNN, tmp_path)["tests"]] == [None]
    assert row["runs"][0]["transfer"] == [{"name": "delay 4", "value": None, "examples": 4}]


# what fails


def test_foreign_directory_fails_only_its_row(tmp_path):
    foreign = run_directory(RNN, 0, tmp_path) / "thesis.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    rnn, gru = smoke(ALL_ROWS, tmp_path, seeds=2)
    failed, done = rnn["runs"]
    assert (failed["seed"], failed["status"], failed["value"]) == (0, "failed", None)
    assert "it has files but no settings.toml" in failed["why"]
    assert (done["seed"], done["status"]) == (1, "done")
    assert rnn["ours"] == done["value"]
    assert [run["status"] for run in gru["runs"]] == ["done", "done"]
    assert foreign.read_text() == "mine"


def test_run_with_other_settings_fails_only_its_row(tmp_path):
    smoke([RNN], tmp_path)
    before = file_contents(tmp_path)
    other, gru = smoke(recipes_with_replaced_text("hidden_size = 3", "hidden_size = 4"), tmp_path)
    assert other["runs"][0]["status"] == "failed"
    assert "belongs to other settings: layer.hidden_size 3, asked 4" in other["runs"][0]["why"]
    assert gru["runs"][0]["status"] == "done"
    assert before.items() <= file_contents(tmp_path).items()


def test_exception_in_run_fails_only_its_row(tmp_path):
    class Clumsy(Callback):
        def update(self, trainer, loss):
            raise RuntimeError("dropped it")

    rnn, gru = smoke(ALL_ROWS, tmp_path, callbacks=lambda recipe, seed: [Clumsy()] if recipe is RNN else [])
    assert (rnn["runs"][0]["status"], rnn["runs"][0]["why"]) == ("failed", "RuntimeError: dropped it")
    assert rnn["ours"] is None
    assert gru["runs"][0]["status"] == "done"


def test_diverged_run_has_reason_and_no_score(tmp_path):
    rnn, gru = smoke(recipes_with_replaced_text("steps = 6 }", "steps = 6, max_loss = 1e-6 }"), tmp_path)
    assert [row["runs"][0]["status"] for row in (rnn, gru)] == ["diverged", "diverged"]
    assert "at update 1 the loss is" in rnn["runs"][0]["why"]
    assert rnn["ours"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [({"seeds": 0}, "reproduce expects at least one seed; got 0"), ({"scale": "huge"}, "scale out of smoke, desk")],
)
def test_invalid_arguments_raise_value_error(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        reproduce(ALL_ROWS, out=tmp_path, **options)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", ["train = { stesp = 6 }", "task = { dealy = 6 }"])
def test_unknown_task_or_train_key_raises_before_any_run(wrong, tmp_path):
    recipes = recipes_with_replaced_text('"gru", hidden_size = 2 }', f'"gru", hidden_size = 2 }}\n{wrong}')
    with pytest.raises(ValueError, match=r"unknown key '(stesp|dealy)'"):
        smoke(recipes, tmp_path)
    assert not any(tmp_path.iterdir())


# counting


@pytest.mark.parametrize(
    ("own", "count", "seeds"),
    [
        ("[0]", 1, [0]),
        ("[0]", 3, [0, 1, 2]),
        ("[5400, 7]", 1, [5400]),
        ("[5400, 7]", 2, [5400, 7]),
        ("[5400, 7]", 4, [5400, 7, 5401, 5402]),
    ],
)
def test_seeds_of_starts_with_recipe_seeds_without_duplicates(own, count, seeds):
    recipe = recipes_with_replaced_text('parameters = "39"', f'parameters = "39"\nseeds = {own}')[0]
    assert seeds_of(recipe, count) == seeds


def write_finished_run(recipe, seed, out, losses):
    """A run that was evaluated to ``losses``, with accuracies 1 − loss and a training that looked far better."""
    directory = RunDirectory(run_directory(recipe, seed, out))
    directory.path.mkdir(parents=True)
    directory.log({"step": 0, "split": "train", "loss": 0.0, "accuracy": 1.0})
    rows = [{"step": step, "loss": loss, "accuracy": 1 - loss} for step, loss in enumerate(losses)]
    for row in rows:
        directory.log({"split": "valid", "radius": 1 + row["loss"], **row})
    best = min((row for row in rows if row["loss"] == row["loss"]), key=lambda row: row["loss"], default=None)
    directory.write_result(RESULT | {"final": rows[-1], "best": best})


@pytest.mark.parametrize(
    ("metric", "attained", "counts", "values", "ours"),
    [
        ("accuracy", "max", "best", [0.5, 0.75, 0.125], 0.5),
        ("loss", "min", "best", [0.5, 0.25, 0.875], 0.5),
        ("accuracy", "max", "last", [0.5, 0.625, 0.125], 0.5),
        ("radius", "max", "extreme", [2.0, 1.5, 1.875], 1.875),  # what no evaluation of the task has
        ("radius", "min", "extreme", [1.5, 1.25, 1.875], 1.5),
    ],
)
def test_row_value_is_median_over_seeds(metric, attained, counts, values, ours, tmp_path):
    new = f'metric = "{metric}"\nattained = "{attained}"\ncounts = "{counts}"'
    recipe, *_ = recipes_with_replaced_text('metric = "accuracy"\nattained = "max"', new)
    for seed, losses in enumerate([[1.0, 0.5], [0.5, 0.25, 0.375], [0.875]]):
        write_finished_run(recipe, seed, tmp_path, losses)
    row = summary(recipe, "desk", [0, 1, 2], tmp_path)
    assert [run["value"] for run in row["runs"]] == values
    assert row["ours"] == ours
    assert row["published"] == {"accuracy": 0.75, "loss": 0.1}.get(metric)
    if metric == "accuracy":
        assert [run["score"] for run in row["runs"]] == [{"name": "accuracy", "value": value} for value in values]
    assert row["seconds"] == 4.5


DATA = """
[table]
task = { name = "char-ptb" }
train = { epochs = 1, batch = 8, window = 20, evaluate_batch = 4 }
metric = "bpc"
counts = "test"
smoke = { train = { steps = 4, evaluate_every = 2 } }
[table.gru]
layer = { name = "gru", hidden_size = 3, embedding_size = 3 }
published = { bpc = 1.5 }
"""


def test_row_value_is_test_score_if_recipe_counts_test(tmp_path):
    (recipe,) = read("paper", DATA).recipes
    (row,) = smoke([recipe], tmp_path)
    result = RunDirectory(run_directory(recipe, 0, tmp_path)).result()
    assert row["counts"] == "test"
    assert row["ours"] == row["runs"][0]["value"] == result["test"]["bpc"]
    assert row["ours"] not in (result["best"]["bpc"], result["final"]["bpc"])
    assert (row["published"], row["runs"][0]["steps"]) == (1.5, 4)


def test_diverged_run_without_test_score_has_no_value(tmp_path):
    (recipe,) = read("paper", DATA).recipes
    (row,) = smoke([replace(recipe, train=recipe.train | {"max_loss": 1e-6})], tmp_path)
    assert (row["runs"][0]["status"], row["runs"][0]["value"], row["ours"]) == ("diverged", None, None)


def test_median_of_even_number_of_seeds_is_mean_of_middle_two(tmp_path):
    for seed, loss in enumerate([0.0, 0.5]):
        write_finished_run(RNN, seed, tmp_path, [loss])
    assert summary(RNN, "desk", [0, 1], tmp_path)["ours"] == 0.75


def test_nan_evaluations_are_ignored(tmp_path):
    write_finished_run(RNN, 0, tmp_path, [float("nan"), 0.5])
    write_finished_run(RNN, 1, tmp_path, [float("nan")])
    row = summary(RNN, "desk", [0, 1], tmp_path)
    assert [run["value"] for run in row["runs"]] == [0.5, None]
    assert row["ours"] == 0.5


def test_missing_seed_has_status_not_run(tmp_path):
    write_finished_run(RNN, 0, tmp_path, [0.5])
    row = summary(RNN, "desk", [0, 1], tmp_path)
    assert [run["status"] for run in row["runs"]] == ["done", "not run"]
    assert row["ours"] == 0.5
    assert summary(GRU, "desk", [0], tmp_path)["ours"] is None


def test_unknown_layer_option_raises_before_any_run(tmp_path):
    wrong = replace(RNN, layer=RNN.layer | {"hiden_size": 3})
    with pytest.raises(ValueError, match="layer rnn: unknown key 'hiden_size'"):
        reproduce([RNN, wrong], scale="smoke", out=tmp_path)
    assert not list(tmp_path.iterdir())


# objects

GAMES = """
[games]
task = { name = "relational-game", game = "between", test_shapes = "hexominoes" }
train = { steps = 4, batch = 4, evaluate_every = 2, evaluate_examples = 6, log_every = 2 }
transfer = { test_shapes = ["stripes"] }
metric = "accuracy"
attained = "max"
[games.corelnet]
layer = { name = "corelnet", hidden_size = 4 }
published = { accuracy = 0.966, "accuracy@stripes" = 0.931 }
[games.gru]
layer = { name = "gru", hidden_size = 4, normalisation = "none" }
"""


def test_relational_rows_run_and_transfer_to_other_shapes(tmp_path):
    corelnet, gru = smoke(read("paper", GAMES).recipes, tmp_path)
    for row in (corelnet, gru):
        (run,) = row["runs"]
        assert (run["status"], run["steps"]) == ("done", 4)
        (test,) = run["transfer"]
        assert (test["name"], test["examples"]) == ("test_shapes stripes", 6)
        assert 0 <= test["value"] <= 1
    assert corelnet["transfer"] == [{"name": "test_shapes stripes", "published": 0.931}]


def test_unknown_relational_option_raises_before_any_run(tmp_path):
    recipes = read("paper", GAMES.replace("hidden_size = 4 }\npublished", "hiden_size = 4 }\npublished")).recipes
    with pytest.raises(ValueError, match="layer corelnet: unknown key 'hiden_size'; known: hidden_size, full"):
        smoke(recipes, tmp_path)
    assert not list(tmp_path.iterdir())
