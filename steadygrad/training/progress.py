"""Shows a run as it goes: a live line on a terminal, now and then a plain one elsewhere."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from steadygrad.training.loop import Trainer, Watch

QUIET_SECONDS = 10.0  # at most so long without a line where there is no live one


class ShowProgress(Watch):
    """Loss, score, updates or frames a second, and time left. ``label`` tells one run of several from the others.

    ``note`` is said first, once the run has really begun.
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
        self.found = trainer.final or {}
        if self.note:
            self.say(self.note)
        if trainer.step:
            self.say(f"{self.prefix}going on from update {trainer.step}")
        self.start(*trainer.progress[:2])

    def update(self, trainer: Trainer, loss: float) -> None:
        self.loss = loss
        self.show(*trainer.progress[:2], lambda: self.words(trainer))

    def evaluating(self, trainer: Trainer, split: str, share: float) -> None:
        self.show(*trainer.progress[:2], lambda: f"{self.words(trainer)}  {split} {share:.0%}")

    def tested(self, what: str, done: int, total: int) -> None:
        if not done:
            self.start(done, total)
        self.show(done, total, lambda: f"time steps tested  {what}")

    def start(self, done: int, total: int) -> None:
        self.begun = self.spoken = time.perf_counter()
        self.first = done
        if self.console.is_terminal:
            words = [TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[words]")]
            columns = words[0], BarColumn(bar_width=24), words[1]
            self.live = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self.bar = self.live.add_task(self.label or "training", total=total, completed=done, words="")
            self.live.start()

    def show(self, done: int, total: int, words: Callable[[], str]) -> None:
        now = time.perf_counter()
        if self.live is not None and self.bar is not None:
            if now - self.spoken > 0.1:
                self.spoken = now
                self.live.update(self.bar, completed=done, words=words())
        elif now - self.spoken > QUIET_SECONDS:
            self.spoken = now
            left = max(0, total - done) / max(self.rate(done), 1e-9)  # a round may end behind the last frame
            self.say(f"{self.prefix}{done}/{total}  {words()}  {duration(left)} left")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def row(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if row["split"] == "valid":
            self.found = row

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()

    @property
    def prefix(self) -> str:
        return f"{self.label}: " if self.label else ""

    def rate(self, done: int) -> float:
        return (done - self.first) / max(time.perf_counter() - self.begun, 1e-9)

    def words(self, trainer: Trainer) -> str:
        score = trainer.task.score
        parts = [] if self.loss is None else [f"loss {self.loss:.3g}"]
        if score in self.found and score != "loss":
            parts.append(f"{score} {self.found[score]:.4g}")
        done, _, unit = trainer.progress
        return "  ".join([*parts, f"{rounded(self.rate(done))} {unit}/s"])


class TensorBoard(Watch):
    """Writes every row to ``tensorboard/`` in the run's directory. Needs the package tensorboard."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("tensorboard is not installed: pip install steadygrad[tensorboard]") from error
        self.make = SummaryWriter
        self.writer: Any = None

    def begin(self, trainer: Trainer) -> None:
        self.writer = self.make(str(trainer.directory.file("tensorboard")), purge_step=trainer.step)

    def row(self, trainer: Trainer, row: dict[str, Any]) -> None:
        for key, value in row.items():
            if key not in ("step", "split") and value is not None:
                self.writer.add_scalar(f"{row['split']}/{key}", value, row["step"])

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def rounded(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def duration(seconds: float) -> str:
    """1 h 5 min, 3 min 20 s, 12 s, 4.1 s"""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"
