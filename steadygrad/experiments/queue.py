"""Runs the rows of papers that have no result yet: cheapest first, each run in its own process.

`run_missing` is the whole queue. It keeps its state in ``queue.json`` in the output folder: timings of probes, and runs
that were started and have not ended successfully. The state and the files of runs are written atomically, so the queue
can be killed at any moment and started again.
"""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

import steadygrad
from steadygrad import files
from steadygrad.experiments.fingerprint import recipe_fingerprint, result_scale, why_not
from steadygrad.experiments.recipe import SCALES, Recipe
from steadygrad.experiments.reproduce import FAILED, run_directory, seeds_of
from steadygrad.training import RunDirectory
from steadygrad.training.stop import graceful_stop

STATE = "queue.json"
STORED = Path(steadygrad.__file__).parent.parent / "results"
"""results that come with the source tree"""
SHORT_HOURS, LONGEST_HOURS = 2.0, 6.0
"""core-hours of one run: up to the first limit it is ``queued``, up to the second ``long``; a longer run is not run"""
QUEUED, LONG, TOO_LONG, LEFT_OUT = "queued", "long", "too long", "left out"
RUNNING, INTERRUPTED = "running", "interrupted"
DONE, DIVERGED = "done", "diverged"
START_SECONDS = 3.0
"""CPU time that a process needs to load torch"""
PROBE_SECONDS = 180.0
"""longest time for the probe of a row, after its data are loaded"""
STOP_SECONDS = 60.0
"""time that a run has to stop when asked; then it is killed, and the next call resumes it from its last checkpoint"""
TICK_SECONDS = 0.2


@dataclass
class Run:
    """One row with one seed that has no result yet."""

    recipe: Recipe
    scale: str
    seed: int
    status: str = QUEUED
    why: str = ""
    """reason for the status: what failed, or what is missing"""
    timings: dict[str, float] = field(default_factory=dict)
    """what the probe measured"""
    share: float = 0.0
    words: str = ""
    """loss and score while it runs"""
    value: float | None = None
    """the number for the table"""
    began: float = 0.0
    wall_seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.recipe.name}/seed-{self.seed}"

    @property
    def seconds(self) -> float | None:
        """Return the estimated seconds of CPU time, or None without timings.

        A run that reaches its goal or diverges ends earlier.
        """
        return estimate(self.timings) if self.timings else None


class Listener:
    """Receives events from the queue. All methods are optional."""

    def estimating(self, done: int, total: int, name: str) -> None:
        """Called before each probe and about five times a second during probes."""

    def planned(self, runs: Sequence[Run], present: int, refused: Mapping[str, str]) -> None:
        """Called once with the runs in order, the number of results present, and why stored results do not count."""

    def started(self, run: Run) -> None: ...

    def progress(self, runs: Sequence[Run]) -> None:
        """Called about five times a second during runs."""

    def ended(self, run: Run) -> None: ...

    def finished(self, runs: Sequence[Run], why: str) -> None:
        """Called last. ``why`` is the reason if the queue stopped early."""


class State:
    """The content of ``queue.json``."""

    def __init__(self, out: Path) -> None:
        self.path = out / STATE
        files.remove_temporary(out, STATE)
        machine = f"{platform.node()} {platform.machine()} torch {torch.__version__}"
        try:
            found = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
            self.runs: dict[str, dict[str, str]] = dict(found.get("runs", {}))
            """runs that were started and have not ended successfully, by name: ``status`` and ``why``"""
            here = found.get("machine") == machine
            self.probes: dict[str, dict[str, float]] = dict(found.get("probes", {})) if here else {}
            """timings by fingerprint"""
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{self.path} is not the state of a queue ({error}): remove it to start again") from None
        self.machine = machine

    def save(self) -> None:
        content = {"machine": self.machine, "runs": self.runs, "probes": self.probes}
        files.write(self.path, files.json_text(content, indent=1) + "\n")

    def note(self, run: Run) -> None:
        """Record the status of a run."""
        self.runs.pop(run.name, None)
        if run.status in (RUNNING, FAILED, INTERRUPTED):
            self.runs[run.name] = {"status": run.status, **({"why": run.why} if run.why else {})}
        self.save()


def run_missing(
    recipes: Sequence[Recipe],
    *,
    scale: str = "desk",
    seeds: int = 1,
    out: str | os.PathLike[str] = "runs",
    results: str | os.PathLike[str] = STORED,
    hours: float | None = None,
    hours_per_run: float = LONGEST_HOURS,
    jobs: int = 1,
    nice: bool = False,
    dry_run: bool = False,
    listener: Listener | None = None,
) -> list[Run]:
    """Run every row and seed that has no result, cheapest first, and return these runs.

    A result is a run directory that has ended, in ``out`` or in ``results``, with the fingerprint of the row at
    ``scale`` or at a larger one. Each run is estimated by a short probe. Runs above ``hours_per_run`` are not run.
    After ``hours``, on Ctrl-C and on SIGTERM the current runs save a checkpoint, from which the next call resumes.
    """
    for name, value, least in (("seeds", seeds, 1), ("jobs", jobs, 1)):
        if value < least:
            raise ValueError(f"the queue expects {name} of at least {least}; got {value}")
    for name, limit in (("hours", hours), ("hours_per_run", hours_per_run)):
        if limit is not None and not limit > 0:
            raise ValueError(f"the queue expects {name} above 0; got {limit:g}")
    folder, told = Path(out).absolute(), listener or Listener()
    folder.mkdir(parents=True, exist_ok=True)
    with RunDirectory(folder).locked(), graceful_stop() as asked:
        queue = Queue(folder, Path(results), scale, jobs, nice, told, asked, hours)
        runs, present, refused = queue.select(recipes, seeds)
        queue.estimate(runs)
        runs = ordered(runs, hours_per_run)
        told.planned(runs, present, refused)
        if not dry_run:
            queue.work([run for run in runs if run.status in (QUEUED, LONG)])
        told.finished(runs, queue.stopped)
    if asked.is_set():
        raise KeyboardInterrupt
    return runs


def estimate(timings: Mapping[str, float]) -> float:
    """Return the seconds of CPU time of a run, from the timings of its probe."""
    rounds, updates = timings["rounds"], timings["updates"]
    training = rounds * timings["first"] + (updates - rounds) * timings["update"]
    return START_SECONDS + training + timings["evaluations"] * timings["evaluation"] + timings.get("tests", 0.0)


def ordered(runs: Sequence[Run], hours_per_run: float) -> list[Run]:
    """Return the runs with their status by estimate, cheapest first; those without an estimate come last."""
    for run in runs:
        if run.status == QUEUED and run.seconds is not None:
            hours = run.seconds / 3600
            run.status = TOO_LONG if hours > hours_per_run else LONG if hours > SHORT_HOURS else QUEUED
    return sorted(runs, key=lambda run: (run.seconds is None, run.seconds or 0.0))


class Worker:
    """A process of experiments/worker.py. It ends when this process ends, because its stdin is then closed."""

    def __init__(self, verb: str, events: "SimpleQueue[tuple[Worker, dict | None]]") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "steadygrad.experiments.worker", verb],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,  # Ctrl-C of a terminal reaches only the queue
        )
        self.last_line = ""
        """last line of output that is no message, such as an error"""
        self.outcome: dict[str, Any] | None = None
        self.limit: float | None = None
        self.thread = threading.Thread(target=self.read, args=(events,), daemon=True)
        self.thread.start()

    def read(self, events: "SimpleQueue[tuple[Worker, dict | None]]") -> None:
        """Put the messages of the process into ``events``, and None when it has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, dict):
                events.put((self, message))
            else:
                self.last_line = line.strip() or self.last_line
        self.process.wait()
        events.put((self, None))

    def send(self, job: Mapping[str, Any]) -> None:
        """Send a job to the process."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended; its last event reports that
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # a job that the process did not read
                stream.close()

    def reason(self) -> str:
        """Return why the process ended without an outcome."""
        code = self.process.returncode
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        return f"the process ended {how}" + (f": {self.last_line}" if self.last_line else "")


class Queue:
    """Selects, estimates and executes runs. `run_missing` describes the options."""

    def __init__(
        self,
        out: Path,
        results: Path,
        scale: str,
        jobs: int,
        nice: bool,
        listener: Listener,
        asked: threading.Event,
        hours: float | None,
    ) -> None:
        self.out, self.results, self.scale, self.jobs, self.nice = out, results, scale, jobs, nice
        self.listener, self.asked, self.hours = listener, asked, hours
        self.deadline = None if hours is None else time.monotonic() + 3600 * hours
        self.state = State(out)
        self.events: SimpleQueue[tuple[Worker, dict | None]] = SimpleQueue()

    @property
    def stopped(self) -> str:
        """Return why no further run may start, or an empty string."""
        if self.asked.is_set():
            return "it was asked to stop"
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return f"the limit of {self.hours:g} h is reached"
        return ""

    # selection

    def select(self, recipes: Sequence[Recipe], seeds: int) -> tuple[list[Run], int, dict[str, str]]:
        """Return the runs without a result, the number of results present, and why stored results do not count."""
        runs, present, refused = [], 0, {}
        for recipe in recipes:
            for seed in seeds_of(recipe, seeds):
                run = Run(recipe, self.scale, seed)
                if self.is_present(run):
                    present += 1
                    continue
                if (stored := RunDirectory(run_directory(recipe, seed, self.results))).exists():
                    refused[run.name] = why_not(recipe, seed, stored, self.scale)
                runs.append(run)
        return runs, present, refused

    def is_present(self, run: Run) -> bool:
        """Return whether the run has a result.

        A run in ``out`` that the state still lists runs again, because its portrait may be missing.
        """
        return self.has_result(run, self.results) or (
            run.name not in self.state.runs and self.has_result(run, self.out)
        )

    def has_result(self, run: Run, folder: Path) -> bool:
        """Return whether ``folder`` holds the result of the run, at the scale of the queue or at a larger one."""
        directory = RunDirectory(run_directory(run.recipe, run.seed, folder))
        larger = SCALES[SCALES.index(self.scale) :]
        return result_scale(run.recipe, run.seed, directory, larger) is not None

    # estimates

    def estimate(self, runs: Sequence[Run]) -> None:
        """Set the timings of every run, from the state or from a probe. All seeds of a row share one probe."""
        rows: dict[str, list[Run]] = {}
        for run in runs:
            if run.status == QUEUED:
                rows.setdefault(run.recipe.name, []).append(run)
        todo = []
        for same in rows.values():
            try:
                key = recipe_fingerprint(same[0].recipe, self.scale, same[0].recipe.seeds[0])
            except ValueError as error:  # the settings of the task need data that are missing
                self.mark(same, LEFT_OUT, str(error))
                continue
            if key in self.state.probes:
                self.give(same, self.state.probes[key])
            else:
                todo.append((key, same))
        self.probe(todo)

    def probe(self, todo: list[tuple[str, list[Run]]]) -> None:
        """Time the rows, up to ``jobs`` of them at once."""
        total = len(todo)
        pending = todo[::-1]
        busy: dict[Worker, tuple[str, list[Run]]] = {}
        idle: list[Worker] = []
        try:
            while (pending or busy) and not self.stopped:
                while pending and len(busy) < self.jobs:
                    worker = idle.pop() if idle else Worker("probe", self.events)
                    busy[worker] = pending.pop()
                    worker.limit = None
                    worker.send(self.job(busy[worker][1][0]))
                name = next(iter(busy.values()))[1][0].recipe.name
                self.listener.estimating(total - len(pending) - len(busy), total, name)
                for worker in [worker for worker in busy if worker.limit and time.monotonic() > worker.limit]:
                    self.mark(busy.pop(worker)[1], LEFT_OUT, f"its probe took more than {PROBE_SECONDS:g} s")
                    worker.close()
                source, message = self.next_event()
                if source in idle and message is None:
                    idle.remove(source)  # the process has ended since its last answer
                if source is None or source not in busy:
                    continue
                worker = source
                if message is None:
                    self.mark(busy.pop(worker)[1], FAILED, f"probe: {worker.reason()}")
                    worker.close()
                elif "updates" in message:
                    worker.limit = time.monotonic() + PROBE_SECONDS
                else:
                    key, same = busy.pop(worker)
                    idle.append(worker)
                    if "timings" in message:
                        self.state.probes[key] = message["timings"]
                        self.state.save()
                        self.give(same, message["timings"])
                    elif "left_out" in message:
                        self.mark(same, LEFT_OUT, message["left_out"])
                    else:
                        self.mark(same, FAILED, f"probe: {message['failed']}")
        finally:
            for worker in [*busy, *idle]:
                worker.close()

    def give(self, runs: Sequence[Run], timings: dict[str, float]) -> None:
        for run in runs:
            run.timings = timings

    def mark(self, runs: Sequence[Run], status: str, why: str) -> None:
        for run in runs:
            run.status, run.why = status, why
            if status == FAILED:
                self.state.note(run)

    # runs

    def work(self, runs: Sequence[Run]) -> None:
        """Execute the runs in this order, each once, up to ``jobs`` of them at once."""
        pending = [run for run in runs if run.timings][::-1]
        busy: dict[Worker, Run] = {}
        killed_at: float | None = None
        try:
            while busy or (pending and not self.stopped):
                if self.stopped and killed_at is None:
                    killed_at = time.monotonic() + STOP_SECONDS
                    for worker in busy:
                        worker.process.terminate()
                if killed_at is not None and time.monotonic() > killed_at:
                    for worker in busy:
                        worker.process.kill()
                while pending and len(busy) < self.jobs and not self.stopped:
                    self.start(pending.pop(), busy)
                self.listener.progress(list(busy.values()))
                source, message = self.next_event()
                if source is None or source not in busy:
                    continue
                worker = source
                if message is None:
                    self.end(worker, busy.pop(worker))
                elif "status" in message:
                    worker.outcome = message
                else:
                    busy[worker].share, busy[worker].words = message["share"], message["words"]
        finally:
            for worker in busy:
                worker.close()

    def start(self, run: Run, busy: dict[Worker, Run]) -> None:
        """Start a run in a new process."""
        run.status, run.began = RUNNING, time.monotonic()
        self.state.note(run)
        worker = Worker("run", self.events)
        busy[worker] = run
        worker.send(self.job(run))
        self.listener.started(run)

    def end(self, worker: Worker, run: Run) -> None:
        """Record how a run ended, from the outcome that its process sent or from the exit code."""
        worker.close()
        run.wall_seconds = time.monotonic() - run.began
        found = worker.outcome
        if found is not None:
            run.status, run.why, run.value = found["status"], found.get("why") or "", found.get("value")
        elif self.stopped:  # killed, or stopped outside of training
            run.status = INTERRUPTED
        else:
            run.status, run.why = FAILED, worker.reason()
        self.state.note(run)
        self.listener.ended(run)

    def job(self, run: Run) -> dict[str, Any]:
        """Return the message that gives a run, or the probe of its row, to a worker."""
        recipe = asdict(run.recipe)
        return {"recipe": recipe, "scale": self.scale, "seed": run.seed, "out": str(self.out), "nice": self.nice}

    def next_event(self) -> tuple[Worker | None, dict[str, Any] | None]:
        """Return the next message and its worker, or (None, None) after `TICK_SECONDS` without one."""
        try:
            return self.events.get(timeout=TICK_SECONDS)
        except Empty:
            return None, None
