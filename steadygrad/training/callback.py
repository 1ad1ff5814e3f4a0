"""Callbacks: objects that receive events from a training run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steadygrad.training.loop import Trainer


class Callback:
    """Base class of callbacks, which receive events from a training run. All methods are optional."""

    def check(self, trainer: "Trainer") -> None:
        """Called first, before any file is changed. If the run has a checkpoint, the trainer has been restored from it.

        A callback raises RunError here if its own files of the run cannot be resumed.
        """

    def begin(self, trainer: "Trainer") -> None:
        """Called before the first update, after a checkpoint has been restored."""

    def update(self, trainer: "Trainer", loss: float) -> None:
        """Called after every update, with the training loss of its batch."""

    def row(self, trainer: "Trainer", row: dict[str, Any]) -> None:
        """Called with every row of ``metrics.jsonl``, after it has been written."""

    def evaluating(self, trainer: "Trainer", split: str, share: float) -> None:
        """Called after each batch of an evaluation, or time step of played episodes, with the share that is done.

        ``split`` is "valid" or "test", "train" if the episodes are for training, or "portrait" before a portrait.
        """

    def end(self, trainer: "Trainer", result: Mapping[str, Any]) -> None:
        """Called after ``result.json`` has been written, also for a diverged or an interrupted run.

        If `lacks` is True for a finished run, it is called again, without any update.
        """

    def lacks(self, trainer: "Trainer", result: Mapping[str, Any]) -> bool:
        """Return whether a finished run was killed before `end` had completed. `end` is then called again.

        By default it is False.
        """
        return False

    def tested(self, what: str, done: int, total: int) -> None:
        """Called during transfer tests of a trained run: first with 0 done, then after every batch.

        ``what`` describes the current test. ``done`` and ``total`` are time steps of all tests.
        """

    def close(self) -> None:
        """Called last, however the run ended. It is not called if `check` raised an error."""
