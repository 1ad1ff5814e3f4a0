"""Checkpoints: the whole state of a trainer as tensors and JSON values, and how a run resumes from one."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from steadygrad.files import RunError, remove_temporary
from steadygrad.layers import RecurrentLayer
from steadygrad.layers.recurrent import as_tuple
from steadygrad.training.directory import BEST, CHECKPOINT, LAST, Checkpoint
from steadygrad.training.evaluate import check_data
from steadygrad.training.former import optimizer_state, renamed

if TYPE_CHECKING:
    from steadygrad.training.loop import Trainer


def packed(trainer: "Trainer") -> Checkpoint:
    """Return the content of a checkpoint of the trainer, a `Checkpoint`, from which the run resumes bit for bit.

    It holds the current and the best weights, the optimizer, the random state, the recurrent state that is carried on,
    the state of the batches and the counters of the run.
    """
    tensors = {f"model.{key}": value for key, value in trainer.model.state_dict().items()}
    tensors |= {f"best.{key}": value for key, value in trainer.kept.items()}
    numbers: dict[str, Any] = {}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                numbers[f"{index}.{key}"] = value
    tensors["random"] = torch.get_rng_state()
    if trainer.device.type == "cuda":
        tensors["random_cuda"] = torch.cuda.get_rng_state(trainer.device)
    for index, value in enumerate(as_tuple(trainer.state)):
        tensors[f"state.{index}"] = value
    tensors |= {f"batches.{key}": value for key, value in trainer.batches.state().items()}
    return Checkpoint(
        tensors,
        {
            "step": trainer.step,
            "rows": trainer.rows,
            "best": trainer.best,
            "final": trainer.final,
            "seconds": trainer.seconds,
            "cuts": trainer.schedule.cuts,
            "last_loss": trainer.last_loss,
            "optimizer": numbers,
            **trainer.data(),
        },
    )


def unpack(checkpoint: Checkpoint, trainer: "Trainer") -> None:
    """Restore the trainer in place from what `packed` returned.

    Raise KeyError, ValueError or RuntimeError if the checkpoint does not fit the trainer.
    """
    tensors, state = checkpoint
    states = part(tensors, "state.")
    needed = sum(len(m.state_parts) for m in trainer.model.modules() if isinstance(m, RecurrentLayer))
    if len(states) not in (0, needed):
        raise ValueError(
            f"the recurrent state has {len(states)} tensors, and {needed} are expected, so an older version wrote it; "
            "train in a new directory"
        )
    weights = part(tensors, "model.")
    trainer.model.load_state_dict(weights)
    trainer.kept = renamed(trainer.model, part(tensors, "best.")) if state["best"] else {}
    saved: dict[int, dict[str, Any]] = {}
    for key, value in [*part(tensors, "optimizer.").items(), *state["optimizer"].items()]:
        index, name = key.split(".", 1)
        saved.setdefault(int(index), {})[name] = value
    saved = optimizer_state(trainer.model, trainer.optimizer.param_groups, weights, saved)
    trainer.optimizer.load_state_dict(trainer.optimizer.state_dict() | {"state": saved})
    trainer.schedule.take_up(state["step"], state["cuts"])
    torch.set_rng_state(tensors["random"])
    if trainer.device.type == "cuda" and "random_cuda" in tensors:  # the run may have begun on another device
        torch.cuda.set_rng_state(tensors["random_cuda"], trainer.device)
    carried = tuple(states[str(index)].to(trainer.device) for index in range(len(states)))  # in numerical order
    trainer.state = (carried[0] if len(carried) == 1 else carried) if carried else None
    trainer.batches.restore(part(tensors, "batches."))
    trainer.step, trainer.rows, trainer.seconds_before = state["step"], state["rows"], state["seconds"]
    trainer.best, trainer.final, trainer.last_loss = state["best"], state["final"], state["last_loss"]


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, a dict by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def take_up(trainer: "Trainer") -> None:
    """Resume from the checkpoint of the run, if there is one, and remove the metrics that were logged after it.

    Also call `check` of the callbacks and write the settings. Everything is checked before any file is changed. Raise
    RunError if a file of the run is not valid, ValueError if the run was trained on other data.
    """
    directory = trainer.directory
    if checkpoint := directory.resumable():
        check_data(str(directory), checkpoint.state, trainer.task)
        try:
            unpack(checkpoint, trainer)
        except (KeyError, ValueError, RuntimeError) as error:
            path = directory.file(CHECKPOINT)
            raise RunError(f"{path} does not fit these settings: {str(error).splitlines()[0]}") from error
        directory.metrics()  # raises RunError if the rows are not those of a run
        directory.check_rows(trainer.rows)
    for callback in trainer.callbacks:
        callback.check(trainer)
    directory.begin(trainer.settings)
    directory.keep_rows(trainer.rows)


def catch_up(trainer: "Trainer", result: Mapping[str, Any]) -> None:
    """Call `check`, `begin`, `end` and `close` of the callbacks whose `lacks` is True for a finished run.

    Load the last weights into the trainer first. Do nothing if the weights of the run cannot be loaded.
    """
    late = [callback for callback in trainer.callbacks if callback.lacks(trainer, result)]
    if not late:
        return
    remove_temporary(trainer.directory.path)  # a kill while `end` wrote its file may have left one
    try:
        trainer.kept = trainer.directory.load_weights(BEST)
        for weights in (trainer.kept, trainer.directory.load_weights(LAST)):
            trainer.model.load_state_dict(weights)
    except (RunError, RuntimeError):  # missing, or of an older version: the result is still valid
        return
    trainer.step = result["steps"]
    for callback in late:
        callback.check(trainer)
    try:
        for callback in late:
            callback.begin(trainer)
            callback.end(trainer, result)
    finally:
        for callback in late:
            callback.close()
