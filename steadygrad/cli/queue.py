"""Shows the queue of `reproduce --missing`: a live table on a terminal, elsewhere plain lines."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from steadygrad.cli.common import console, printable, say, show_table
from steadygrad.duration import duration
from steadygrad.experiments.queued import DIVERGED, DONE, INTERRUPTED, LONG, QUEUED, TOO_LONG, Listener, Run
from steadygrad.experiments.reproduce import ELSEWHERE, FAILED

FIRST_SECONDS, MOST_SECONDS = 5.0, 60.0
"""first and longest wait between two lines of progress"""


class ShowQueue(Listener):
    """Prints the queue of `reproduce --missing`: its plan, then its runs.

    On a terminal this is a live table, elsewhere a line when a run starts and ends, and lines of progress between.
    """

    def __init__(self) -> None:
        self.console = console()
        self.live: Live | None = None
        self.begun: dict[str, float] = {}
        self.said: dict[str, float] = {}
        self.total = self.started_count = self.ended_count = 0

    # probes

    def estimating(self, done: int, total: int, name: str) -> None:
        """Show the name of the row that is being timed, and how many rows have been timed."""
        text = f"estimating {done + 1} of {total}: {name}"
        if self.console.is_terminal:
            self.show(Text(printable(text)))
        elif self.is_due("probes"):
            say(text)

    # the plan

    def planned(self, runs: Sequence[Run], present: int, refused: Mapping[str, str]) -> None:
        """Print the plan: stored results that do not count, a table of the runs to do, counts and the total time."""
        self.clear()
        for name, why in refused.items():
            say(f"stored result {name} does not count: {why}")
        rows: dict[str, list[Run]] = {}
        for run in runs:
            rows.setdefault(run.recipe.name, []).append(run)
        if rows:
            header = ("row", "seeds", "updates", "ms/update", "a run", "")
            show_table("Runs without a result", header, [plan_row(name, same) for name, same in rows.items()])
        ready = [run.seconds or 0.0 for run in runs if is_ready(run)]
        self.total = len(ready)
        words = [f"{present} results present", f"{self.total} to run (about {duration(sum(ready))} of one core)"]
        counts = Counter(run.status if run.status != QUEUED else "not estimated" for run in runs if not is_ready(run))
        say(", ".join([*words, *(f"{count} {status}" for status, count in counts.items())]))

    # runs

    def started(self, run: Run) -> None:
        """Count a run that starts and, off a terminal, print a line."""
        self.started_count += 1
        if not self.console.is_terminal:
            self.is_due(run.name)
            say(f"start  {run.name} ({self.started_count} of {self.total}, about {duration(run.seconds or 0.0)})")

    def progress(self, runs: Sequence[Run]) -> None:
        """Show the live table of the runs under way or, off a terminal, print a line for each run that is due."""
        if self.console.is_terminal:
            return self.show(self.table(runs))
        for run in runs:
            if self.is_due(run.name):
                say(f"       {run.name} {run.share:.0%}  {run.words}")

    def table(self, runs: Sequence[Run]) -> Group:
        """Return the live display: a table of the runs under way with share done and time, and how many have ended."""
        table = Table(header_style="bold", box=None, pad_edge=False)
        for name in ("running", "done", "time", "estimate", ""):
            table.add_column(name, justify="left" if name in ("running", "") else "right")
        for run in runs:
            passed = duration(time.monotonic() - run.began)
            cells = run.name, f"{run.share:.0%}", passed, duration(run.seconds or 0.0), run.words
            table.add_row(*(Text(printable(cell)) for cell in cells))
        return Group(table, Text(f"{self.ended_count} of {self.total} runs have ended"))

    def ended(self, run: Run) -> None:
        """Count a run that has ended, and print its status, result and time."""
        self.ended_count += 1
        result = "" if run.value is None else f" {run.recipe.metric} {run.value:.4g}"
        why = f": {run.why}" if run.why else ""
        text = f"{run.status:6} {run.name}{result} in {duration(run.wall_seconds)}{why}"
        if self.live is not None:
            self.live.console.print(Text(printable(text)), soft_wrap=True)
        else:
            say(text)

    def finished(self, runs: Sequence[Run], why: str) -> None:
        """Print how many runs are done, failed and left, and why the queue stopped."""
        self.clear()
        counts = Counter(run.status for run in runs)
        left = sum(counts[status] for status in (QUEUED, LONG, INTERRUPTED, ELSEWHERE))
        words = [f"{counts[DONE] + counts[DIVERGED]} done", f"{counts[FAILED]} failed", f"{left} left"]
        say(", ".join(words) + (f": {why}; the same command resumes" if left and why else ""))

    # output

    def is_due(self, what: str) -> bool:
        """Return whether to print a line of progress on ``what`` now. If so, store the time: the caller must print.

        The first line is due 5 s after the first call for ``what``. The waits between lines then grow from 5 s to 60 s.
        """
        now = time.monotonic()
        begun = self.begun.setdefault(what, now)
        wait = min(MOST_SECONDS, max(FIRST_SECONDS, self.said.setdefault(what, now) - begun))
        if now - self.said[what] < wait:
            return False
        self.said[what] = now
        return True

    def show(self, content: Text | Group) -> None:
        """Show ``content`` on the terminal in place of what was shown before."""
        if self.live is None:
            self.live = Live(console=self.console, transient=True)
            self.live.start()
        self.live.update(content)

    def clear(self) -> None:
        """Remove the live display from the terminal, if there is one."""
        if self.live is not None:
            self.live.stop()
            self.live = None


def is_ready(run: Run) -> bool:
    """Return whether a run of the queue is to be run and its duration has been estimated."""
    return run.status in (QUEUED, LONG) and bool(run.timings)


def plan_row(name: str, runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the cells of a paper's row in the plan, strings: name, seeds, updates, ms per update, run time, status.

    ``name`` is the name of the row as text, ``runs`` are its runs, one for each seed. Updates, times and status are
    those of the first run. The run time is an estimate for one run. Without it, updates and times are empty strings.
    """
    first, seeds = runs[0], ",".join(str(run.seed) for run in runs)
    words = {QUEUED: "", TOO_LONG: "too long, not run"}.get(first.status, first.status)
    state = f"{words}: {first.why}" if first.why else words
    if first.seconds is None:
        return name, seeds, "", "", "", state
    updates, milliseconds = f"{first.timings['updates']:.0f}", f"{1000 * first.timings['update']:.1f}"
    return name, seeds, updates, milliseconds, duration(first.seconds), state
