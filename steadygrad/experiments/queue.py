"""Runs the rows of papers that have no result yet: cheapest first, each run in its own process.

`run_missing` is the whole queue. It keeps its state in ``queue.json`` in the output folder: timings of probes, and runs
that were started and have not ended successfully. The state and the files of runs are written atomically, so the queue
can be killed at any moment and started again.
"""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import steadygrad
from steadygrad.experiments.fingerprint import recipe_fingerprint, result_scale, why_not
from steadygrad.experiments.process import Worker
from steadygrad.experiments.queued import (
    INTERRUPTED,
    LEFT_OUT,
    LONG,
    LONGEST_HOURS,
    QUEUED,
    RUNNING,
    Listener,
    Run,
    State,
    ordered,
)
from steadygrad.experiments.recipe import SCALES, Recipe
from steadygrad.experiments.reproduce import FAILED, run_directory, seeds_of
from steadygrad.training import RunDirectory
from steadygrad.training.stop import graceful_stop

STORED = Path(steadygrad.__file__).parent.parent / "results"
"""results that come with the source tree"""
PROBE_SECONDS = 180.0
"""longest time for the probe of a row, after its data are loaded"""
STOP_SECONDS = 60.0
"""time that a run has to stop when asked; then it is killed, and the next call resumes it from its last checkpoint"""
TICK_SECONDS = 0.2


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
    """Train papers' rows with those of their first ``seeds`` seeds that have no result, cheapest run first.

    Return a list of these runs, trained or not, as `Run`. Their ``status`` says what happened.

    A result is a run directory that has ended, in ``out`` or in ``results``, with the fingerprint of the row at
    ``scale`` or at a larger one. The time of a row is estimated by a short probe. A run above ``hours_per_run``,
    without its data or with a failed probe is not run. After ``hours``, on Ctrl-C and on SIGTERM the current runs save
    a checkpoint, from which the next call resumes. After a signal, KeyboardInterrupt is raised. ``jobs`` is the number
    of runs at once. With ``dry_run`` nothing is trained. Raise InUseError if another process uses ``out``.
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


class Queue:
    """Selects the runs of `run_missing` that have no result, estimates their time by probes, and executes them.

    `run_missing` describes the options. The event ``asked`` is set when the queue is asked to stop.
    """

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
        """Reason why no further run may start, as text; an empty string if runs may start."""
        if self.asked.is_set():
            return "it was asked to stop"
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return f"the limit of {self.hours:g} h is reached"
        return ""

    # selection

    def select(self, recipes: Sequence[Recipe], seeds: int) -> tuple[list[Run], int, dict[str, str]]:
        """Return the runs without a result, the number of results present, and why stored results do not count.

        The reasons are a dict by the name of the run.
        """
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
        """Return whether the run has a result, among the stored results or in the output folder.

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
        """Set the ``timings`` of runs: the dict that a probe of their row measures, or has measured (``queue.json``).

        A probe times a few updates in a worker process. All seeds of a row share it. If data are missing or the probe
        fails or takes too long, the runs of the row get a status and a reason instead. After a stop the rest get none.
        """
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
        """Time rows in worker processes, up to ``jobs`` at once. Set timings or a failure for the runs of each row.

        ``todo`` has a pair (fingerprint, runs) for each row.
        """
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
        """Set the timings of all these runs to those that a probe measured."""
        for run in runs:
            run.timings = timings

    def mark(self, runs: Sequence[Run], status: str, why: str) -> None:
        """Set the status of all these runs and its reason. Failures are also recorded in ``queue.json``."""
        for run in runs:
            run.status, run.why = status, why
            if status == FAILED:
                self.state.note(run)

    # runs

    def work(self, runs: Sequence[Run]) -> None:
        """Execute the runs in this order, each once in its own process, up to ``jobs`` of them at once.

        Runs without timings are skipped. When the queue is stopped, the runs under way are stopped too.
        """
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
        """Start a run in a new worker process and add it to the argument ``busy``, a dict of runs by worker.

        Record the start in ``queue.json`` and report it to the listener.
        """
        run.status, run.began = RUNNING, time.monotonic()
        self.state.note(run)
        worker = Worker("run", self.events)
        busy[worker] = run
        worker.send(self.job(run))
        self.listener.started(run)

    def end(self, worker: Worker, run: Run) -> None:
        """Record and report how a run ended, from the outcome that its process sent or from the exit code."""
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
        """Return the message, a dict for JSON, that gives a run, or the probe of its row, to a worker."""
        recipe = asdict(run.recipe)
        return {"recipe": recipe, "scale": self.scale, "seed": run.seed, "out": str(self.out), "nice": self.nice}

    def next_event(self) -> tuple[Worker | None, dict[str, Any] | None]:
        """Return the next pair (worker, message); the message is None if the worker's process has ended.

        Return (None, None) after `TICK_SECONDS` without a message.
        """
        try:
            return self.events.get(timeout=TICK_SECONDS)
        except Empty:
            return None, None
