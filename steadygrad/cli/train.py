"""Train a layer on a task.

    steadygrad train nnrnn copy                                   with the settings of the nearest paper
    steadygrad train lstm adding --task.length 400 --train.lr 1e-3
    steadygrad train ncgru denoise --layer.hidden_size 64 --seed 1 --out runs/mine
    steadygrad train nnrnn copy --out runs/mine --resume          resume after a stop
    steadygrad train nnrnn copy --out runs/mine --restart         begin anew; the old run becomes runs/mine.before-1

Settings are --layer.KEY, --task.KEY and --train.KEY; `steadygrad show LAYER`, `show TASK` and `show train` list them.
Ctrl-C stops the run between two updates and saves a checkpoint.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from steadygrad.check import is_number
from steadygrad.cli import known
from steadygrad.cli.common import add_threads, fail, say, set_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad train` to its parser."""
    parser.add_argument("layer", metavar="LAYER")
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="DIR", help="the run's directory (default: runs/LAYER-TASK-SEED)")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="resume the run in DIR")
    existing.add_argument(
        "--restart", action="store_true", help="begin anew, and rename the run in DIR to DIR.before-1"
    )
    parser.add_argument("--device", default="cpu", help="torch device (default cpu)")
    parser.add_argument("--tensorboard", action="store_true", help="also write tensorboard/ into the run's directory")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Train a layer on a task, with the settings of the nearest paper and the given changes, and print a summary.

    Return the exit code: 0, 1 if training diverged, 130 if it was interrupted.
    """
    given = known.settings(options, known.of_run(options.layer, options.task))
    from steadygrad.experiments import Observer, settings_for
    from steadygrad.training import ShowProgress, TensorBoard, train

    set_threads(options)
    settings, source = settings_for(options.layer, options.task, given, options.seed)
    out = options.out or f"runs/{options.layer}-{options.task}-{options.seed}"
    callbacks = [
        ShowProgress(f"{options.layer} {options.task}", note=f"settings: {source}"),
        Observer(),
        *([TensorBoard()] if options.tensorboard else []),
    ]
    choice = {"resume": options.resume, "restart": options.restart}
    result = train(settings, out, **choice, callbacks=callbacks, device=options.device)
    say(summary(result, out))
    if result["status"] == "done":
        name = quote(str(out))
        say(f"next: steadygrad evaluate {name}, or steadygrad report {name} -o report.html for a page with charts")
    if result["status"] == "diverged":
        return fail(f"diverged {result['why']}", 1)
    return 130 if result["status"] == "interrupted" else 0


def summary(result: Mapping[str, Any], out: str | Path) -> str:
    """Return the result of a training run as two lines of text: status and scores, then the run's directory."""
    score = result["score"]
    words = [f"{result['status']} after {result['steps']} updates, {result['wall_seconds']:.0f} s"]
    if best := result["best"]:
        value = f"{score} {number(best, score)}, " if score != "loss" else ""
        guessing = f"(guessing {result['guessing_loss']:.3g})"
        words.append(f"best on validation: {value}loss {number(best, 'loss', 3)} {guessing}")
    if test := result.get("test"):
        words.append(f"test: {score} {number(test, score)}")
    words.append(f"{result['parameters']:,} parameters")
    return "; ".join(words) + f"\nin {out}"


def number(evaluation: Mapping[str, Any], name: str, digits: int = 4) -> str:
    """Return a number of an evaluation as text; "unknown" if there is none, as for NaN, which JSON does not have."""
    value = evaluation.get(name)
    return f"{value:.{digits}g}" if is_number(value) else "unknown"
