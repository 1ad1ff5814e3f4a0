"""The queue: which rows run, in which order, how it stops, and what it remembers."""

import json
import signal
import sys
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import ANY

import pytest

from steadygrad.cli.main import main
from steadygrad.experiments import queue as module
from steadygrad.experiments import reproduce, run_missing, select, worker
from steadygrad.experiments.fingerprint import recipe_fingerprint
from steadygrad.experiments.observer import Observer
from steadygrad.experiments.queued import Listener, State, estimate
from steadygrad.experiments.recipe import read
from steadygrad.experiments.reproduce import run_directory
from steadygrad.training import InUseError, RunDirectory
from tests import kill_queue

HOUR = 3600
PAPER = """
[table]
task = { name = "copy", delay = 2, length = 2, symbols = 2 }
train = { steps = 6, batch = 2, evaluate_every = 3, evaluate_examples = 4 }
metric = "accuracy"
attained = "max"
[table.slow]
layer = { name = "rnn", hidden_size = 4 }
[table.quick]
layer = { name = "rnn", hidden_size = 2 }
[table.middle]
layer = { name = "gru", hidden_size = 2 }
"""
SLOW, QUICK, MIDDLE = ROWS = read("paper", PAPER).recipes
SECONDS_BY_ROW = {"slow": 3 * HOUR, "quick": 10, "middle": 20}


CRASH = object()


def timings(seconds):
    """Of a run that takes so long."""
    return {"updates": 0, "rounds": 0, "first": 0, "update": 0, "evaluations": 1, "evaluation": seconds - 3}


class FakeWorker:
    """Answers at once, as ``answers`` say by verb and row: None is no answer, and CRASH an end without a message."""

    answers: ClassVar[dict] = {}
    jobs: ClassVar[list] = []

    def __init__(self, verb, events):
        self.verb, self.events = verb, events
        self.outcome = self.limit = None
        self.process = SimpleNamespace(terminate=self.terminate, kill=self.kill)

    def send(self, job):
        self.row = job["recipe"]["row"]
        self.jobs.append((self.verb, self.row, job["seed"]))
        usual = (
            {"timings": timings(SECONDS_BY_ROW[self.row])} if self.verb == "probe" else {"status": "done", "value": 0.5}
        )
        answer = self.answers.get((self.verb, self.row), usual)
        if answer is not None:
            self.answer(answer)

    def answer(self, answer):
        if answer is not CRASH:
            self.events.put((self, answer))
        if self.verb == "run":
            self.events.put((self, None))

    def terminate(self):
        self.answer({"status": "interrupted"})

    def kill(self): ...

    def close(self): ...

    def reason(self):
        return "the process ended by signal 9 (Killed)"


class RecordingListener(Listener):
    """What came of a call, as the listener heard it."""

    def __init__(self):
        self.order, self.ends, self.present, self.refused, self.why = [], {}, None, None, None

    def planned(self, runs, present, refused):
        self.order, self.present, self.refused = [run.name for run in runs], present, refused

    def ended(self, run):
        self.ends[run.recipe.row] = run.status

    def finished(self, runs, why):
        self.why = why


@pytest.fixture
def fake_workers(monkeypatch):
    """Workers that answer at once; returns them, to say what they answer and to see what they were given."""
    monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(module, "TICK_SECONDS", 0.001)
    monkeypatch.setattr(FakeWorker, "answers", {})
    monkeypatch.setattr(FakeWorker, "jobs", [])
    return FakeWorker


def call(out, rows=ROWS, listener=None, **options):
    options = {"scale": "paper", "results": out / "stored", "listener": listener} | options
    return {(run.recipe.row, run.seed): run for run in run_missing(rows, out=out / "runs", **options)}


def state(out):
    return json.loads((out / "runs" / "queue.json").read_text("utf-8"))


def started_runs(fake_workers):
    return [(row, seed) for verb, row, seed in fake_workers.jobs if verb == "run"]


# selection and order


def test_queue_runs_cheapest_rows_first(fake_workers, tmp_path):
    runs = call(tmp_path, seeds=2)
    assert started_runs(fake_workers) == [
        ("quick", 0),
        ("quick", 1),
        ("middle", 0),
        ("middle", 1),
        ("slow", 0),
        ("slow", 1),
    ]
    assert {run.status for run in runs.values()} == {"done"}
    assert [job for job in fake_workers.jobs if job[0] == "probe"] == [
        ("probe", row.row, 0) for row in (SLOW, QUICK, MIDDLE)
    ]


@pytest.mark.parametrize(("hours", "status"), [(2.9, "too long"), (6.0, "long")])
def test_run_over_hours_per_run_is_listed_but_not_run(fake_workers, tmp_path, hours, status):
    runs = call(tmp_path, hours_per_run=hours, dry_run=True)
    assert [runs[row, 0].status for row in SECONDS_BY_ROW] == [status, "queued", "queued"]
    assert runs["slow", 0].seconds == 3 * HOUR
    assert not started_runs(fake_workers)
    call(tmp_path, hours_per_run=hours)
    assert (("slow", 0) in started_runs(fake_workers)) == (status == "long")


def test_estimates_are_cached_per_machine(fake_workers, tmp_path):
    call(tmp_path, dry_run=True)
    fake_workers.jobs.clear()
    assert call(tmp_path, dry_run=True)["quick", 0].seconds == 10
    assert not fake_workers.jobs
    path = tmp_path / "runs" / "queue.json"
    path.write_text(path.read_text("utf-8").replace('"machine": "', '"machine": "another '), "utf-8")
    call(tmp_path, dry_run=True)
    assert len(fake_workers.jobs) == 3


def test_an_estimate_counts_updates_rounds_evaluations_and_tests():
    found = {"updates": 10, "rounds": 2, "first": 5, "update": 1, "evaluations": 3, "evaluation": 100, "tests": 1000}
    assert estimate(found) == 3 + 2 * 5 + 8 * 1 + 3 * 100 + 1000


def test_row_with_missing_data_is_left_out(fake_workers, tmp_path):
    fake_workers.answers["probe", "quick"] = {"left_out": "needs copy: no such folder"}
    runs = call(tmp_path)
    assert (runs["quick", 0].status, runs["quick", 0].why) == ("left out", "needs copy: no such folder")
    assert started_runs(fake_workers) == [("middle", 0), ("slow", 0)]
    assert state(tmp_path)["runs"] == {}


@pytest.mark.parametrize("folder", ["runs", "stored"])
def test_rows_with_results_are_not_run(fake_workers, tmp_path, folder):
    reproduce([QUICK, MIDDLE], scale="paper", out=tmp_path / folder)
    listener = RecordingListener()
    call(tmp_path, listener=listener, seeds=2)
    assert started_runs(fake_workers) == [("quick", 1), ("middle", 1), ("slow", 0), ("slow", 1)]
    assert (listener.present, listener.refused) == (2, {})


def test_stored_result_of_other_settings_is_rejected(fake_workers, tmp_path):
    other = read("paper", PAPER.replace("steps = 6", "steps = 7")).recipes
    reproduce(other[:1], scale="paper", out=tmp_path / "stored")
    listener = RecordingListener()
    call(tmp_path, listener=listener)
    assert ("slow", 0) in started_runs(fake_workers)
    assert listener.refused == {"paper/table/slow/seed-0": "the run has train.steps=7; the recipe has train.steps=6"}


def test_stored_result_of_larger_scale_is_accepted(fake_workers, tmp_path):
    (row,) = read("paper", PAPER.replace("[table.slow]", "desk = { train = { steps = 3 } }\n[table.slow]")).recipes[:1]
    reproduce([row], scale="paper", out=tmp_path / "stored")
    assert call(tmp_path, [row], scale="desk") == {}
    assert call(tmp_path, [row], scale="paper") == {}
    reproduce([row], scale="desk", out=tmp_path / "desk")
    assert call(tmp_path, [row], scale="paper", results=tmp_path / "desk")


# stopping


class Clock:
    """A second a look."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 1.0
        return self.now


def test_queue_stops_at_time_limit_and_resumes(fake_workers, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", Clock())
    fake_workers.answers["run", "middle"] = None  # goes on and on
    listener = RecordingListener()
    runs = call(tmp_path, listener=listener, hours=100 / HOUR)
    assert [runs[row, 0].status for row in SECONDS_BY_ROW] == ["long", "done", "interrupted"]
    assert listener.why.startswith("the limit of 0.02")
    assert state(tmp_path)["runs"] == {"paper/table/middle/seed-0": {"status": "interrupted"}}
    fake_workers.answers.clear()
    assert call(tmp_path, [MIDDLE])["middle", 0].status == "done"
    assert state(tmp_path)["runs"] == {}


def test_run_that_ignores_terminate_is_killed(fake_workers, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", Clock())
    monkeypatch.setattr(fake_workers, "terminate", lambda self: None)
    monkeypatch.setattr(fake_workers, "kill", lambda self: self.events.put((self, None)))
    fake_workers.answers["run", "quick"] = None
    runs = call(tmp_path, hours=100 / HOUR)
    assert runs["quick", 0].status == "interrupted"


def test_ctrl_c_stops_the_runs(fake_workers, tmp_path):
    class Stop(RecordingListener):
        def started(self, run):
            signal.raise_signal(signal.SIGINT)

    fake_workers.answers["run", "quick"] = None
    listener = Stop()
    with pytest.raises(KeyboardInterrupt):
        call(tmp_path, listener=listener)
    assert listener.ends == {"quick": "interrupted"}
    assert listener.why == "it was asked to stop"
    assert started_runs(fake_workers) == [("quick", 0)]


def test_second_queue_in_same_folder_raises_in_use_error(fake_workers, tmp_path):
    (tmp_path / "runs").mkdir()
    with RunDirectory(tmp_path / "runs").locked(), pytest.raises(InUseError, match="runs is in use"):
        call(tmp_path)


# failures


@pytest.mark.parametrize(
    ("answer", "why"),
    [({"status": "failed", "why": "no memory"}, "no memory"), (CRASH, "the process ended by signal 9 (Killed)")],
)
def test_failed_run_is_recorded_and_retried_by_next_call(fake_workers, tmp_path, answer, why):
    fake_workers.answers["run", "quick"] = answer
    runs = call(tmp_path)
    assert (runs["quick", 0].status, runs["quick", 0].why) == ("failed", why)
    assert state(tmp_path)["runs"] == {"paper/table/quick/seed-0": {"status": "failed", "why": why}}
    assert started_runs(fake_workers) == [("quick", 0), ("middle", 0), ("slow", 0)]  # once, and the others too
    fake_workers.answers.clear()
    fake_workers.jobs.clear()
    assert call(tmp_path, [QUICK])["quick", 0].status == "done"
    assert state(tmp_path)["runs"] == {}


def test_failing_probe_marks_run_as_failed(fake_workers, tmp_path):
    fake_workers.answers["probe", "quick"] = {"failed": "ValueError: no"}
    runs = call(tmp_path)
    assert (runs["quick", 0].status, runs["quick", 0].why) == ("failed", "probe: ValueError: no")
    assert "paper/table/quick/seed-0" in state(tmp_path)["runs"]
    assert started_runs(fake_workers) == [("middle", 0), ("slow", 0)]


def test_probe_timeout_leaves_row_out(fake_workers, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "time", Clock())
    fake_workers.answers["probe", "quick"] = {"updates": 6}
    runs = call(tmp_path)
    assert (runs["quick", 0].status, runs["quick", 0].why) == ("left out", "its probe took more than 180 s")
    assert started_runs(fake_workers) == [("middle", 0), ("slow", 0)]


def test_run_recorded_as_running_is_run_again(fake_workers, tmp_path):
    """It may have been killed between its result and its portrait."""
    call(tmp_path, [QUICK], dry_run=True)
    reproduce([QUICK], scale="paper", out=tmp_path / "runs")
    path = tmp_path / "runs" / "queue.json"
    path.write_text(json.dumps(state(tmp_path) | {"runs": {"paper/table/quick/seed-0": {"status": "running"}}}))
    call(tmp_path, [QUICK])
    assert started_runs(fake_workers) == [("quick", 0)]
    assert call(tmp_path, [QUICK]) == {}


def test_invalid_queue_state_file_raises_value_error(fake_workers, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "queue.json").write_text("[")
    with pytest.raises(ValueError, match=r"queue.json is not the state of a queue .*: remove it to start again"):
        call(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jobs": 0}, "the queue expects jobs of at least 1; got 0"),
        ({"seeds": 0}, "the queue expects seeds of at least 1; got 0"),
        ({"hours": 0}, "the queue expects hours above 0; got 0"),
        ({"hours_per_run": -1.5}, "the queue expects hours_per_run above 0; got -1.5"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        call(tmp_path, **options)
    assert not list(tmp_path.iterdir())


# what a worker does, in this process


def worker_messages(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_probe_reports_timings_for_estimate(capsys):
    for pattern in ("demo/copy/rnn", "relrnn-2020/transfer-copy/lstm", "nnrnn-2019/psmnist/lstm-86"):
        (recipe,) = select(pattern)
        worker.probe(recipe, "smoke", 0)
        begun, found = worker_messages(capsys)
        assert begun["updates"] == found["timings"]["updates"] == recipe.settings("smoke").train.steps
        assert 0 < estimate(found["timings"]) < 60
        assert ("tests" in found["timings"]) == bool(recipe.transfers("smoke"))


def test_probe_of_diverging_row_reports_timings(capsys):
    worker.probe(replace(QUICK, train=QUICK.train | {"max_loss": 1e-9}), "paper", 0)
    assert "timings" in worker_messages(capsys)[-1]


def test_probe_reports_missing_data(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("STEADYGRAD_DATA", str(tmp_path))
    (recipe,) = select("enrnn-2020/timit/lstm-468")
    worker.probe(recipe, "smoke", 0)
    (said,) = worker_messages(capsys)
    assert said["left_out"].startswith("needs timit: ")


def test_worker_reports_status_of_run(capsys, tmp_path):
    worker.run(QUICK, "paper", 0, tmp_path)
    *_, said = worker_messages(capsys)
    assert (said["status"], said["why"]) == ("done", None)
    assert 0 <= said["value"] <= 1
    (run_directory(MIDDLE, 0, tmp_path) / "thesis").mkdir(parents=True)
    worker.run(MIDDLE, "paper", 0, tmp_path)
    *_, said = worker_messages(capsys)
    assert said["status"] == "failed"
    assert "it has files but no settings.toml" in said["why"]


# the command


def test_missing_command_prints_plan_starts_and_ends(fake_workers, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(SECONDS_BY_ROW, "lstm", 30)
    monkeypatch.setitem(SECONDS_BY_ROW, "nnrnn", 30 * HOUR)
    monkeypatch.setitem(SECONDS_BY_ROW, "rnn", 5)
    fake_workers.answers["run", "lstm"] = {"status": "failed", "why": "no memory"}
    code = main(["reproduce", "demo", "--missing", "--out", str(tmp_path), "--jobs", "2"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert (code, err) == (1, "steadygrad: some runs failed, see above\n")
    assert [line.split()[0] for line in lines[2:5]] == ["demo/copy/rnn", "demo/copy/lstm", "demo/copy/nnrnn"]
    assert lines[4].endswith("too long, not run")
    assert lines[5] == "0 results present, 2 to run (about 35 s of one core), 1 too long"
    assert lines[6] == "start  demo/copy/rnn/seed-0 (1 of 2, about 5 s)"
    ends = [line.partition(" in ")[0] for line in lines[-3:-1]]
    assert ends == ["done   demo/copy/rnn/seed-0 accuracy 0.5", "failed demo/copy/lstm/seed-0"]
    assert lines[-2].endswith(": no memory")
    assert lines[-1] == "1 done, 1 failed, 0 left"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--jobs 2", "--jobs expects --missing; add --missing to use the queue"),
        ("--dry-run", "--dry-run expects --missing"),
        ("--missing --threads 2", "--missing gives each run one thread; got --threads"),
        ("--missing --jobs 0", "the queue expects jobs of at least 1; got 0"),
        ("--missing --hours -1", "the queue expects hours above 0; got -1"),
    ],
)
def test_invalid_input_exits_2_with_one_line(tmp_path, capsys, words, error):
    assert main(["reproduce", "demo", "--out", str(tmp_path / "out"), *words.split()]) == 2
    _, err = capsys.readouterr()
    assert err.startswith(f"steadygrad: {error}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


# processes


def start_queue_process(recipes, out):
    """Start a queue at smoke scale in a process of its own; a copy of this one has loaded torch already."""
    options = {"scale": "smoke", "out": out, "results": out / "none"}
    process = get_context("fork").Process(target=run_missing, args=(recipes,), kwargs=options)
    process.start()
    return process


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes under /proc")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_queue_resumes_to_same_results(tmp_path):
    """Killed while it trains, and when its run is over. tests/kill_queue.py does it at random moments."""
    recipes, out = select("demo/copy/rnn"), tmp_path / "killed"
    reproduce(recipes, scale="smoke", out=tmp_path / "alone", callbacks=lambda recipe, seed: [Observer()])
    directory = run_directory(recipes[0], 0, out)
    out.mkdir()
    known = State(out)  # one process less
    known.probes[recipe_fingerprint(recipes[0], "smoke", 0)] = timings(5)
    known.save()
    for moment in ("settings.toml", "result.json"):
        queue = start_queue_process(recipes, out)
        while not (directory / moment).exists():
            queue.join(0.01)
            assert queue.is_alive()
        kill_queue.kill(queue.pid)
        queue.join()
    assert run_missing(recipes, scale="smoke", out=out, results=out / "none") in ([], [ANY])
    assert kill_queue.results(out) == kill_queue.results(tmp_path / "alone")
    assert json.loads((out / "queue.json").read_text("utf-8"))["runs"] == {}
    assert (directory / "model.safetensors").exists()
