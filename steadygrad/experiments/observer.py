"""Looks at a network while it is trained, and once more when it is done."""

import copy
import json
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from steadygrad.diagnostics import observe, portrait
from steadygrad.models import SequenceModel
from steadygrad.training import Trainer, Watch, finite, stream

OBSERVATIONS, PORTRAIT = "observations.jsonl", "portrait.json"
LOOKS = 40
"""at the most in a run, at evaluations"""


class Observer(Watch):
    """Writes ``observations.jsonl`` (a row each look) and, at the end, ``portrait.json`` of the best weights.

    It draws nothing from the run's random numbers, so a run is the same with and without it.
    """

    def begin(self, trainer: Trainer) -> None:
        self.input, self.target = (part[0] for part in trainer.task.sample(1, stream(trainer.settings.seed, "observe")))
        kept = [row for row in trainer.directory.rows(OBSERVATIONS) if row["step"] <= trainer.step]
        trainer.directory.write(OBSERVATIONS, "".join(json.dumps(row) + "\n" for row in kept))
        self.seen = kept[-1]["step"] if kept else -1
        if not kept:
            self.look(trainer)

    def row(self, trainer: Trainer, row: dict[str, Any]) -> None:
        share = math.ceil(trainer.options.steps / LOOKS)
        last = trainer.step == trainer.options.steps
        if row["split"] == "valid" and (last or trainer.step // share > self.seen // share):
            self.look(trainer)

    def look(self, trainer: Trainer) -> None:
        found = attempt(lambda: observe(trainer.model.layer, self.input.to(trainer.device)))
        trainer.directory.log({"step": trainer.step, **found}, OBSERVATIONS)
        self.seen = trainer.step

    def end(self, trainer: Trainer, result: dict[str, Any]) -> None:
        if result["status"] == "done" and self.seen != trainer.step:  # solved between two looks
            self.look(trainer)
        model = copy.deepcopy(trainer.model)
        model.load_state_dict(trainer.best_weights)
        found = attempt(lambda: trained_portrait(model, self.input, self.target, trainer.task.loss))
        best = result["best"]
        trainer.directory.write(PORTRAIT, json.dumps(finite({"step": best["step"] if best else 0, **found})) + "\n")


def trained_portrait(
    model: SequenceModel, x: Tensor, target: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Any]:
    """Of a model's layer on one sequence, with the gradients of its task's loss."""
    device = next(model.parameters()).device

    def task_loss(hidden: Tensor) -> Tensor:
        return loss(model.read(hidden[:, None]), target[None].to(device))

    return portrait(model.layer, x.to(device), task_loss)


def attempt(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Looking must never end a run: what cannot be seen says why."""
    try:
        return look()
    except (ValueError, RuntimeError) as error:
        return {"failed": next(iter(str(error).splitlines()), type(error).__name__)}
