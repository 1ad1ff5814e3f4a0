"""Each file operation of a short run fails in turn with EIO, ENOSPC and EACCES."""

from pathlib import Path
from unittest.mock import patch

import torch

from steadygrad.experiments import Observer, observer
from steadygrad.training import RunDirectory, RunError, Settings, loop, train
from tests.campaigns.campaign import Campaign
from tests.campaigns.runs import different, outcome, scratch
from tests.faults import ERRORS, Operations, fail

TABLES = {
    "layer": {"name": "rnn", "hidden_size": 2},
    "task": {"name": "copy", "delay": 1, "length": 1, "symbols": 2},
    "train": {"batch": 1, "evaluate_every": 1, "evaluate_examples": 1, "log_every": 1},
}
UPDATES = (1, 2)
"""updates of the run, and of the run that extends it"""
STRIDE = 101
"""a prime: the first tries fail at operations that lie far apart"""


def run(campaign: Campaign) -> None:
    """Let an operation fail, resume the run, and compare it with an undisturbed one."""
    torch.set_num_threads(1)
    quick = patch.object(loop, "CHECKPOINT_SECONDS", -1.0), patch.object(observer, "SEQUENCES", 2)
    with quick[0], quick[1], patch.object(loop, "commit", lambda: None), scratch() as folder:
        whole = Path(folder, "whole")
        with Operations(whole).watched() as operations:
            for step in range(2):
                part(step, whole, resume=step > 0)
        campaign.largest("file operations", operations.count)
        for _ in campaign.tries():
            turn, kind = divmod(campaign.number, len(ERRORS))
            if turn >= operations.count:
                break
            attempt(campaign, Path(folder, str(campaign.number)), turn * STRIDE % operations.count, ERRORS[kind], whole)


def part(step: int, folder: Path, resume: bool) -> None:
    """Train the run, or extend it."""
    settings = Settings.from_tables(TABLES | {"train": TABLES["train"] | {"steps": UPDATES[step]}})
    train(settings, folder, resume=resume, callbacks=[Observer()])


def attempt(campaign: Campaign, folder: Path, number: int, error: int, whole: Path) -> None:
    """Let operation ``number`` fail, then resume, and check messages and files."""
    done, said = 0, None
    with Operations(folder, number, fail(error)).watched() as faulty:
        try:
            for step in range(2):
                part(step, folder, resume=step > 0)
                done = step + 1
        except RunError as found:
            said = str(found)
    what = f"operation {number}, {faulty.place}"
    of_lock = ".lock" in faulty.place or "mkdir" in faulty.place  # the lock tries another way
    if (said is None and not of_lock) or (said is not None and str(folder) not in said):
        campaign.fail(f"{what}: no clear error: {said}")
    RunDirectory(folder).checkpoint()  # raises an error if it is not whole
    for step in range(done, 2):
        part(step, folder, resume=True)
    if names := different(outcome(folder), outcome(whole)):
        campaign.fail(f"{what}: {names} differ")
    campaign.count("failed operations")
