"""A callback that measures a network during training and at the end."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, cast

import torch
from torch import Tensor, nn

from steadygrad.diagnostics import batch_gradient_norms, observe, portrait
from steadygrad.diagnostics.portrait import numbers, relation_portrait
from steadygrad.experiments.transfer import step_of
from steadygrad.files import OBSERVATIONS, PORTRAIT, json_lines
from steadygrad.models import Inside, RelationalModel
from steadygrad.records import faults
from steadygrad.training import Callback, RunDirectory, RunError, Trainer, load_model, stream
from steadygrad.training.kinds import kind_of

LOOKS = 40
"""largest number of measurements at the evaluations of a run"""
SEQUENCES = 32
"""number of sequences over which a portrait averages gradients along time"""


class Observation(TypedDict):
    """A row of ``observations.jsonl``: the number of the update. The measurements follow, by name."""

    step: int


class Observer(Callback):
    """Callback that measures a network during training and writes ``observations.jsonl``, a row per measurement.

    At the end it writes ``portrait.json`` of the best weights.

    A network without a recurrent layer has no observations, and has a portrait only if it has a matrix of relations
    between objects. The observer does not use the random numbers of the run, so the run is the same without it.
    """

    def check(self, trainer: Trainer) -> None:
        """Store the update numbers of earlier observations that remain valid: those up to the checkpoint.

        Raise RunError if the rows of ``observations.jsonl`` are invalid.
        """
        if not is_recurrent(trainer.model):
            return
        seen = trainer.directory.rows(OBSERVATIONS) if trainer.step else []  # without a checkpoint the run starts anew
        for fault in faults(seen, list[Observation], "a row"):
            raise RunError(f"{trainer.directory.file(OBSERVATIONS)} has no observations of a run: {fault}")
        self.kept = leading([row["step"] for row in seen], trainer.step)

    def begin(self, trainer: Trainer) -> None:
        """Prepare a sequence to measure on and the observations file. Measure the network if there are none yet."""
        if not is_recurrent(trainer.model):
            return
        self.input, _ = self.shown(initial_model(trainer) if trainer.step else trainer.model, trainer)
        trainer.directory.keep_rows(len(self.kept), OBSERVATIONS)
        self.seen = self.kept[-1] if self.kept else -1
        if not self.kept:
            self.look(trainer)

    def row(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """Measure the network after an evaluation, if enough updates have passed since the last measurement."""
        if not is_recurrent(trainer.model):
            return
        share = math.ceil(trainer.options.steps / LOOKS)
        last = trainer.step == trainer.options.steps
        if row["split"] == "valid" and (last or trainer.step // share > self.seen // share):
            self.look(trainer)

    def look(self, trainer: Trainer) -> None:
        """Measure the network now and append a row to ``observations.jsonl``."""
        part = recurrent_part(trainer.model, self.input)
        found = attempt(lambda: observe(part.layer, part.inputs[0]))
        trainer.directory.log({"step": trainer.step, **found}, OBSERVATIONS)
        self.seen = trainer.step

    def end(self, trainer: Trainer, result: Mapping[str, Any]) -> None:
        """Write ``portrait.json`` of the best weights: all measurements of the network, see `portrait`.

        First measure the final network, as `look` does, if a run that is done ended between two measurements.
        """
        recurrent = is_recurrent(trainer.model)
        if recurrent and result["status"] == "done" and self.seen != trainer.step:  # it ended between two measurements
            self.look(trainer)
        model = copy.deepcopy(trainer.model)
        model.load_state_dict(trainer.best_weights)
        trainer.tell("portrait", 0.0)  # for a large network it takes a minute
        found = attempt(lambda: self.sequence_portrait(model, trainer) if recurrent else unseen_problem(model, trainer))
        if found:
            trainer.directory.write(PORTRAIT, json_lines([{"step": step_of(result), **found}]))

    def lacks(self, trainer: Trainer, result: Mapping[str, Any]) -> bool:
        """Return whether the run's ``portrait.json`` is missing, or shows weights that are no longer the best."""
        if not is_recurrent(trainer.model) and not relates_objects(trainer.model):
            return False
        drawn = trainer.directory.rows(PORTRAIT)
        return not drawn or drawn[0].get("step") != step_of(result)

    def sequence_portrait(self, model: nn.Module, trainer: Trainer) -> dict[str, Any]:
        """Return a dict of all measurements of a recurrent network on one sequence, and mean gradients of several."""
        x, target = self.shown(model, trainer)
        loss = trainer.batches.loss
        found = trained_portrait(recurrent_part(model, x), target, loss)
        if "loss_gradients" in found:
            several, targets = self.shown(model, trainer, SEQUENCES)
            found["batch_gradients"] = batch_gradients(recurrent_part(model, several), targets, loss)
        return found

    def shown(self, model: nn.Module, trainer: Trainer, batch: int = 1) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of ``batch`` sequences to measure on, drawn from a random stream of their own."""
        return trainer.batches.examples(trainer.task, model, batch, stream(trainer.settings.seed, "observe"))


def leading(steps: Sequence[int], last: int) -> list[int]:
    """Return a list of the numbers in ``steps`` before the first that is above ``last`` or not above its predecessor.

    They are numbers of updates.
    """
    kept: list[int] = []
    for step in steps:
        if step > last or (kept and step <= kept[-1]):
            break
        kept.append(step)
    return kept


def initial_model(trainer: Trainer) -> nn.Module:
    """Return the model with the weights that it had at the beginning of the run.

    It plays the episode that an agent is measured on, so that a resumed run measures on the same episode.
    """
    before = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(stream(trainer.settings.seed, "model").initial_seed())
        return trainer.settings.build_model(trainer.task).to(trainer.device)
    finally:
        torch.set_rng_state(before)


def is_recurrent(model: nn.Module) -> bool:
    """Return whether the model has a recurrent layer."""
    return hasattr(model, "inside")


def relates_objects(model: nn.Module) -> bool:
    """Return whether the model can give a matrix of relations between objects."""
    return hasattr(model, "relate")


@torch.no_grad()
def recurrent_part(model: nn.Module, x: Tensor) -> Inside:
    """Return the recurrent layer of a model, the inputs that it receives for x, and the readout, as an `Inside`.

    Raise ValueError if the model has no recurrent layer.
    """
    if not is_recurrent(model):
        raise ValueError(f"looking inside expects a network with a recurrent layer; got {type(model).__name__}")
    inside: Any = model.inside
    return inside(x.to(next(model.parameters()).device))


def trained_layer(directory: RunDirectory, sequences: int = 4) -> tuple[nn.Module, Tensor]:
    """Return the recurrent layer of a trained run, and its inputs (time, sequences, features) on random sequences.

    They are new sequences of the run's task, training sequences of a data set, or episodes that the model plays.
    """
    model, task, settings = load_model(directory)
    inputs, _ = kind_of(task).batches.examples(task, model, sequences, stream(settings.seed, "test", 0))
    part = recurrent_part(model, inputs)
    return part.layer, part.inputs.transpose(0, 1)


def unseen_problem(model: nn.Module, trainer: Trainer) -> dict[str, Any]:
    """Return the `relation_portrait` of a network for one problem that the task's `sample_unseen` draws.

    The dict is empty for a network without a matrix of relations between objects.
    """
    if not relates_objects(model):
        return {}
    images, answers = trainer.task.sample_unseen(1, stream(trainer.settings.seed, "observe"))
    return relation_portrait(cast(RelationalModel, model), images[0], int(answers))


Loss = Callable[[Tensor, Tensor], Tensor]


def trained_portrait(part: Inside, target: Tensor, loss: Loss) -> dict[str, Any]:
    """Return all measurements of a model's recurrent layer on one sequence, with the gradients of the task's loss.

    The result is the dict of `portrait`. ``target`` (1, …) is the target of the first sequence of ``part``.
    """
    return portrait(part.layer, part.inputs[0], of_hidden(part, target, loss))


def batch_gradients(part: Inside, targets: Tensor, loss: Loss) -> list[float]:
    """Return ‖∂L/∂s_t‖ along time, L the loss of one sequence, as the root mean square over all sequences of a batch.

    The result is a list with one number per time step; s_t is the state of the layer. ``loss`` is a function of outputs
    and targets. The gradients of one sequence depend on the positions of its symbols. Those of several sequences show
    how gradients depend on the distance in time.
    """
    targets = targets.to(part.inputs.device)

    def losses(hidden: Tensor, here: slice) -> Tensor:
        found = zip(part.read(hidden).split(1), targets[here].split(1), strict=True)
        return torch.stack([loss(outputs, target) for outputs, target in found]).sum()

    norms = batch_gradient_norms(part.layer, part.inputs.transpose(0, 1), losses)
    return numbers(norms.square().mean(dim=1).sqrt())


def of_hidden(part: Inside, target: Tensor, loss: Loss) -> Callable[[Tensor], Tensor]:
    """Return the task's loss as a function of the layer's outputs (time, features) on one sequence."""

    def task_loss(hidden: Tensor) -> Tensor:
        return loss(part.read(hidden[:, None]), target.to(hidden.device))

    return task_loss


def attempt(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement that ``look()`` returns, or {"failed": reason} if it raises ValueError or RuntimeError.

    A failure therefore does not end a run.
    """
    try:
        return look()
    except (ValueError, RuntimeError) as error:
        return {"failed": next(iter(str(error).splitlines()), type(error).__name__)}
