"""Start or resume a training run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from steadygrad.training.callback import Callback
from steadygrad.training.checkpoint import catch_up
from steadygrad.training.directory import RunDirectory, length
from steadygrad.training.loop import Trainer
from steadygrad.training.settings import Settings


def train(
    settings: Settings,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    restart: bool = False,
    callbacks: Sequence[Callback] = (),
    device: str | torch.device = "cpu",
) -> Mapping[str, Any]:
    """Train in the directory ``out`` until the run is done, diverges or is interrupted. Return the result as a dict.

    The result is also written to ``result.json``.

    With ``resume`` a stopped run continues from its last checkpoint, exactly as if it had not been stopped. If the run
    has diverged, or is done and not to be extended, its stored result is returned. With ``restart`` the run begins
    anew. A run that is in ``out`` is kept: its directory gets the name of ``out`` with ``.before-1`` added, or the next
    free number.

    All files of the run are checked before one is changed. Raise RunError if a file is damaged, if ``out`` has a run
    and neither ``resume`` nor ``restart`` is given, if its settings differ, or if another process trains there
    (InUseError).
    """
    if resume and restart:
        raise ValueError("train expects either resume or restart; got both")
    directory = RunDirectory(out)
    trainer = Trainer(
        settings, directory, callbacks, usable_device(device)
    )  # first: an invalid setting then leaves no directory
    if restart:
        directory.set_aside()
    directory.refuse(settings, resume)
    directory.create()
    with directory.locked():
        directory.refuse(settings, resume)
        if resume:
            directory.verify()
        result = directory.result()
        if result is None or not is_over(result, settings):
            return trainer.run()
        catch_up(trainer, result)
        return result


def is_over(result: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether a run with this result needs no more training for these settings.

    A run that diverged would only diverge again.
    """
    if result["status"] == "done":
        return length(result["train"]) >= length(asdict(settings.train))
    return result["status"] == "diverged"


def usable_device(device: str | torch.device) -> torch.device:
    """Return the device, or raise ValueError if this machine does not have it or it is the meta device."""
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"training expects a device that is here; got {device}: {str(error).splitlines()[0]}"
        ) from None
    if found.type == "meta":
        raise ValueError(f"training expects a device that holds data; got {device}")
    return found
