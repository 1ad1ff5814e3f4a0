"""Callbacks that show a run: progress on a terminal or as plain lines, and TensorBoard."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from steadygrad.duration import duration
from steadygrad.training.callback import Callback
from steadygrad.training.loop import Trainer

QUIET_SECONDS = 10.0  # between two plain lines, where the output is not a terminal


class ShowProgress(Callback):
    """Callback that shows loss, score, updates or frames per second, and the time left.

    On a terminal it is a live line, elsewhere a plain line about every 10 s. ``label`` names the run if there are
    several. ``note`` is printed first, when the run begins.
    """

    def __init__(self, label: str = "", console: Console | None = None, note: str = "") -> None:
        self.label, self.note = label, note
        self.console = console or Console(stderr=True)
        self.live: Progress | None = None
        self.bar: TaskID | None = None
        self.found: dict[str, Any] = {}
        self.loss: float | None = None
        self.spoken = self.begun = time.perf_counter()
        self.first = 0

    def begin(self, trainer: Trainer) -> None:
        """Print the note, and start the display."""
        self.found = trainer.final or {}
        if self.note:
            self.say(self.note)
        if trainer.step:
            self.say(f"{self.prefix}going on from update {trainer.step}")
        self.start(*trainer.progress[:2])

    def update(self, trainer: Trainer, loss: float) -> None:
        """Show the progress after an update."""
        self.loss = loss
        self.show(*trainer.progress[:2], lambda: self.words(trainer))

    def evaluating(self, trainer: Trainer, split: str, share: float) -> None:
        """Show the progress of training and of an evaluation."""
        self.show(*trainer.progress[:2], lambda: f"{self.words(trainer)}  {split} {share:.0%}")

    def tested(self, what: str, done: int, total: int) -> None:
        """Show how many time steps of tests are done; with 0 done, start the display."""
        if not done:
            self.start(done, total)
        self.show(done, total, lambda: f"time steps tested  {what}")

    def start(self, done: int, total: int) -> None:
        """Start the clock, and the live line if the output is a terminal."""
        self.begun = self.spoken = time.perf_counter()
        self.first = done
        if self.console.is_terminal:
            words = [TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[words]")]
            columns = words[0], BarColumn(bar_width=24), words[1]
            self.live = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self.bar = self.live.add_task(self.label or "training", total=total, completed=done, words="")
            self.live.start()

    def show(self, done: int, total: int, words: Callable[[], str]) -> None:
        """Update the live line or print a plain line, with the text ``words()``, unless the previous one is recent.

        The live line is updated at most every 0.1 s, and plain lines are `QUIET_SECONDS` apart.
        """
        now = time.perf_counter()
        if self.live is not None and self.bar is not None:
            if now - self.spoken > 0.1:
                self.spoken = now
                self.live.update(self.bar, completed=done, words=words())
        elif now - self.spoken > QUIET_SECONDS:
            self.spoken = now
            left = max(0, total - done) / max(self.rate(done), 1e-9)  # the last round may play too many frames
            self.say(f"{self.prefix}{done}/{total}  {words()}  {duration(left)} left")

    def say(self, text: str) -> None:
        """Print a line of text to the console. A live line stays below it."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def row(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """Store the numbers of an evaluation, for display."""
        if row["split"] == "valid":
            self.found = row

    def close(self) -> None:
        """End the live display."""
        if self.live is not None:
            self.live.stop()

    @property
    def prefix(self) -> str:
        """Beginning of a printed line: the label of the run and a colon, or nothing."""
        return f"{self.label}: " if self.label else ""

    def rate(self, done: int) -> float:
        """Return the updates or frames per second since `start`. ``done`` counts all of the run so far."""
        return (done - self.first) / max(time.perf_counter() - self.begun, 1e-9)

    def words(self, trainer: Trainer) -> str:
        """Return a text with the training loss, the score of the last evaluation, and the speed."""
        score = trainer.task.score
        parts = [] if self.loss is None else [f"loss {self.loss:.3g}"]
        if score in self.found and score != "loss":
            parts.append(f"{score} {self.found[score]:.4g}")
        done, _, unit = trainer.progress
        return "  ".join([*parts, f"{rounded(self.rate(done))} {unit}/s"])


class TensorBoard(Callback):
    """Callback that writes every row of metrics to ``tensorboard/`` in the run directory. Needs tensorboard."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("tensorboard is not installed: pip install steadygrad[tensorboard]") from error
        self.make = SummaryWriter
        self.writer: Any = None

    def begin(self, trainer: Trainer) -> None:
        """Open the TensorBoard log in the run directory."""
        self.writer = self.make(str(trainer.directory.file("tensorboard")), purge_step=trainer.step)

    def row(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """Write the numbers of a row of metrics to TensorBoard."""
        for key, value in row.items():
            if key not in ("step", "split") and value is not None:
                self.writer.add_scalar(f"{row['split']}/{key}", value, row["step"])

    def close(self) -> None:
        """Close the TensorBoard log."""
        if self.writer is not None:
            self.writer.close()


def rounded(rate: float) -> str:
    """Return a rate as text: an integer from 10 on, else two digits."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
