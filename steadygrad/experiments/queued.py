"""Runs of the queue: status, estimated time, and the file that records them."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from steadygrad import files
from steadygrad.experiments.recipe import Recipe
from steadygrad.experiments.reproduce import FAILED

STATE = "queue.json"
SHORT_HOURS, LONGEST_HOURS = 2.0, 6.0
"""core-hours of one run: up to the first limit it is ``queued``, up to the second ``long``; a longer run is not run"""
QUEUED, LONG, TOO_LONG, LEFT_OUT = "queued", "long", "too long", "left out"
RUNNING, INTERRUPTED = "running", "interrupted"
DONE, DIVERGED = "done", "diverged"
START_SECONDS = 3.0
"""CPU time that a process needs to load torch"""


@dataclass
class Run:
    """One row of a paper with one seed in the queue, with its status, estimate and result."""

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
        """Name of the run: PAPER/TABLE/ROW/seed-N."""
        return f"{self.recipe.name}/seed-{self.seed}"

    @property
    def seconds(self) -> float | None:
        """Estimated CPU time in seconds; None without timings.

        A run that reaches its goal or diverges ends earlier.
        """
        return estimate(self.timings) if self.timings else None


class Listener:
    """Receives events from the queue. All methods are optional."""

    def estimating(self, done: int, total: int, name: str) -> None:
        """Called before each probe, which times a row, and about five times a second during probes.

        ``done`` of ``total`` probes have ended; ``name`` is a row under way.
        """

    def planned(self, runs: Sequence[Run], present: int, refused: Mapping[str, str]) -> None:
        """Called once with the runs in order, the number of results present, and why stored results do not count.

        ``refused`` has these reasons by the name of the run.
        """

    def started(self, run: Run) -> None:
        """Called when a run starts."""

    def progress(self, runs: Sequence[Run]) -> None:
        """Called about five times a second with the runs under way."""

    def ended(self, run: Run) -> None:
        """Called when a run has ended, successfully or not."""

    def finished(self, runs: Sequence[Run], why: str) -> None:
        """Called last, with all runs of the plan. ``why`` is the reason if the queue stopped early, else empty."""


class State:
    """The content of ``queue.json``: timings of probes, and runs that have not ended successfully."""

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
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.path} is not the state of a queue ({error}): remove it to start again") from None
        self.machine = machine

    def save(self) -> None:
        """Write ``queue.json``."""
        content = {"machine": self.machine, "runs": self.runs, "probes": self.probes}
        files.write(self.path, files.json_text(content, indent=1) + "\n")

    def note(self, run: Run) -> None:
        """Record a run in ``queue.json`` if it is running, failed or interrupted; otherwise remove its entry."""
        self.runs.pop(run.name, None)
        if run.status in (RUNNING, FAILED, INTERRUPTED):
            self.runs[run.name] = {"status": run.status, **({"why": run.why} if run.why else {})}
        self.save()


def estimate(timings: Mapping[str, float]) -> float:
    """Return the estimated seconds of CPU time of a run, from its probe's timings: the dict of `worker.measure`."""
    rounds, updates = timings["rounds"], timings["updates"]
    training = rounds * timings["first"] + (updates - rounds) * timings["update"]
    return START_SECONDS + training + timings["evaluations"] * timings["evaluation"] + timings.get("tests", 0.0)


def ordered(runs: Sequence[Run], hours_per_run: float) -> list[Run]:
    """Return the runs of the queue, cheapest first; those without an estimate come last.

    Also set the status of queued runs with an estimate, in place: queued, long or too long (above ``hours_per_run``).
    """
    for run in runs:
        if run.status == QUEUED and run.seconds is not None:
            hours = run.seconds / 3600
            run.status = TOO_LONG if hours > hours_per_run else LONG if hours > SHORT_HOURS else QUEUED
    return sorted(runs, key=lambda run: (run.seconds is None, run.seconds or 0.0))
