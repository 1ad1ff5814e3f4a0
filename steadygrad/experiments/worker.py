"""One process of the queue: ``python -m steadygrad.experiments.worker probe|run``, started by experiments/queue.py.

The process reads jobs from stdin and writes messages to stdout, both as lines of JSON. ``run`` takes one job, ``probe``
takes jobs until stdin ends. The end of stdin also means that the queue has ended: the process then exits at once.
"""

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from rich.console import Console

from steadygrad.experiments.observer import Observer
from steadygrad.experiments.recipe import Recipe
from steadygrad.experiments.reproduce import outcome, run_row
from steadygrad.experiments.transfer import reason
from steadygrad.training import RunDirectory, Settings, ShowProgress, Trainer, evaluate
from steadygrad.training.kinds import kind_of
from steadygrad.training.loop import DivergedError

NICE = 19
TELL_SECONDS = 0.5
ENOUGH_SECONDS = 0.5
"""a timing ends after this many seconds …"""
ENOUGH_UPDATES = 20
"""… or this many updates"""


def main() -> None:
    """Run or time the jobs of the queue that arrive on stdin, with one thread. The first argument is run or probe."""
    torch.set_num_threads(1)
    jobs = listen()
    while (job := jobs.get()) is not None:
        recipe = Recipe(**job["recipe"])
        if job["nice"]:
            lower_priority()
        if sys.argv[1] == "run":
            return run(recipe, job["scale"], job["seed"], Path(job["out"]))
        probe(recipe, job["scale"], job["seed"])


def lower_priority() -> None:
    """Give this process the lowest CPU priority.

    Linux first shares the CPU among sessions, then among the processes of a session. This process has its own session,
    so the priority of the session is lowered too.
    """
    if hasattr(os, "nice"):
        os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))


def listen() -> "SimpleQueue[Any]":
    """Return a queue of jobs for this worker. A thread reads them from stdin, and ends the process when stdin ends."""
    jobs: SimpleQueue[Any] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(json.loads(line))
        os._exit(1)  # at once: run directories stay valid at any moment

    threading.Thread(target=read, daemon=True).start()
    return jobs


def send(**message: Any) -> None:
    """Print one message to the queue on stdout: the keyword arguments as a line of JSON.

    All other lines on stdout are warnings and errors of libraries.
    """
    print(json.dumps(message), flush=True)


# run


class SendProgress(ShowProgress):
    """Sends the progress of a training run to the queue, as messages on stdout."""

    def say(self, text: str) -> None:
        """Print nothing: the queue reads only messages."""

    def show(self, done: int, total: int, words: Callable[[], str]) -> None:
        """Send the share that is done and the text ``words()`` to the queue, at most every half second."""
        now = time.perf_counter()
        if now - self.spoken > TELL_SECONDS:
            self.spoken = now
            send(share=min(1.0, done / max(1, total)), words=words())


def run(recipe: Recipe, scale: str, seed: int, out: Path) -> None:
    """Train one row with one seed, run its transfer tests, and send the outcome (status, value) to the queue."""
    try:
        progress = SendProgress(console=Console(stderr=True, force_terminal=False))
        notes = run_row(recipe, scale, seed, out, lambda recipe, seed: [progress, Observer()])
    except KeyboardInterrupt:
        return send(status="interrupted")
    found = outcome(recipe, scale, seed, out, {key: value for key, value in notes.items() if key != "untested"})
    why = [notes["untested"]] if "untested" in notes else [test["why"] for test in found["transfer"] if "why" in test]
    if why:
        return send(status="failed", why=f"trained, but a transfer test failed: {why[0]}")
    send(status=found["status"], why=found.get("why"), value=found["value"])


# probe


class EnoughError(Exception):
    """Raised to end the timing of an evaluation after enough time."""


def probe(recipe: Recipe, scale: str, seed: int) -> None:
    """Time a few updates and a part of an evaluation of a row, and send the timings, or the failure, to the queue.

    The messages are ``updates``, the number of updates of a run, then ``timings``, the dict of `measure`, or
    ``failed``, a text. A row whose data are missing has the single message ``left_out``, a text.
    """
    try:
        settings = recipe.settings(scale, seed)
        task = settings.build_task()
        options = settings.in_updates(task)  # reads the data set if there are epochs
        kind_of(task).batches(task, options, seed).ready()
    except ValueError as error:
        return send(left_out=f"needs {recipe.task['name']}: {error}")
    send(updates=options.steps)
    try:
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(settings, RunDirectory(folder), (), "cpu")
            timings = measure(trainer)
        if changes := recipe.transfers(scale):
            timings["tests"] = timings["evaluation"] / task.steps * sum(steps_with(settings, one) for one in changes)
    except Exception as error:  # any error is reported for its row; the other rows are still probed
        return send(failed=reason(error))
    send(timings=timings)


def measure(trainer: Trainer) -> dict[str, float]:
    """Return how often a run updates and evaluates, and the CPU seconds of each, as a dict. Trains a few updates.

    ``updates``, ``rounds`` and ``evaluations`` are counts. ``first``, ``update`` and ``evaluation`` are seconds. A
    round is a number of updates on the same episodes of an agent; for other tasks, all of training is one round.
    ``first`` is the first update of a round, which also plays the episodes. ``update`` is a later update.
    """
    updates = trainer.options.steps
    per_round = trainer.batches.updates_per_round
    first = later = timed(trainer)
    total, count = 0.0, 0
    while first < 60 * ENOUGH_SECONDS and total < ENOUGH_SECONDS and count < min(ENOUGH_UPDATES, per_round - 1):
        total, count = total + timed(trainer), count + 1
        later = total / count
    regular = -(-updates // trainer.options.evaluate_every)
    return {
        "updates": updates,
        "rounds": -(-updates // per_round),
        "first": first,
        "update": later,
        "evaluations": regular + trainer.task.has_splits,  # a data set is tested at the end
        "evaluation": evaluation_seconds(trainer),
    }


def timed(trainer: Trainer) -> float:
    """Make one training update and return its CPU time in seconds."""
    begun = time.process_time()
    with contextlib.suppress(DivergedError):  # a run that diverges has a result too, after few updates
        trainer.forward_and_backward(False)
        trainer.gradient_norm(False)
        trainer.optimizer.step()
    trainer.step += 1
    return time.process_time() - begun


def evaluation_seconds(trainer: Trainer) -> float:
    """Return an estimate of the CPU time of one evaluation in seconds.

    The evaluation ends after about `ENOUGH_SECONDS` of CPU time. The estimate is the time so far divided by the share
    of the evaluation that is done.
    """
    begun, seconds, done = time.process_time(), 0.0, 0.0

    def enough(share: float) -> None:
        nonlocal seconds, done
        seconds, done = time.process_time() - begun, share
        if share and seconds > ENOUGH_SECONDS:
            raise EnoughError

    options = trainer.options
    with contextlib.suppress(EnoughError):
        evaluate(
            trainer.model,
            trainer.task,
            options.evaluate_examples,
            seed=trainer.settings.seed,
            batch=options.evaluate_batch,
            window=options.window,
            progress=enough,
        )
    return seconds / done


def steps_with(settings: Settings, change: dict[str, Any]) -> int:
    """Return the sequence length of the task of these settings after ``change``, a dict of task settings."""
    tables = settings.resolved()
    return Settings.from_tables({**tables, "task": tables["task"] | change}).build_task().steps


if __name__ == "__main__":
    main()
