"""Transfer tests: the weights of a run on other settings of its task than in training."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from steadygrad.files import TRANSFER, json_text
from steadygrad.records import Result
from steadygrad.scores import read_transfer, tested_update
from steadygrad.training import Callback, RunDirectory, RunError, evaluate_run

Change = dict[str, Any]
"""options of the task that differ from training: {"delay": 200}"""


def words(change: Change) -> str:
    """Return changed task options as text: {"delay": 200} gives "delay 200"."""
    return ", ".join(f"{key} {value}" for key, value in change.items())


def reason(error: Exception) -> str:
    """Return the error as one line of text. Further lines of an error of torch are a C++ stack trace."""
    return str(error) if isinstance(error, RunError) else traceback.format_exception_only(error)[0].splitlines()[0]


def transfer(
    directory: RunDirectory, changes: Sequence[Change], callbacks: Sequence[Callback] = (), weights: str = "best"
) -> None:
    """Test the best or last weights of a run on its task with each change of options, and write ``transfer.json``.

    Do nothing if the run was never evaluated. Each test has as many sequences as an evaluation. Tests that are already
    in the file are not repeated. If a test fails, for example because memory runs out, the file has the reason instead,
    and the next call tries the test again.
    """
    with directory.locked():
        result = directory.result()
        if result is None or result["best"] is None:  # there are no evaluated weights
            return
        own, examples = directory.settings(), result["train"]["evaluate_examples"]
        found = [test for test in tests(directory, result, weights) if "why" not in test]
        missing = [change for change in changes if change not in [test["task"] for test in found]]
        others = [replace(own, task=own.task | change) for change in missing]
        lengths = [other.build_task().steps for other in others]
        try:
            for number, (change, other, length) in enumerate(zip(missing, others, lengths, strict=True)):
                before, total = examples * sum(lengths[:number]), examples * sum(lengths)
                progress = partial(tell, callbacks, words(change), before, examples * length, total)
                found.append({"task": change, "examples": examples})
                try:
                    progress(0)
                    found[-1] |= evaluate_run(directory, other, weights=weights, examples=examples, progress=progress)
                except Exception as error:  # the other tests still run
                    found[-1]["why"] = reason(error)
                content = {"weights": weights, "step": step_of(result, weights), "tests": found}
                directory.write(TRANSFER, json_text(content, indent=1) + "\n")
        finally:
            for callback in callbacks:
                callback.close()


def evaluate_changes(
    directory: RunDirectory,
    changes: Sequence[Change],
    *,
    weights: str = "best",
    split: str = "test",
    examples: int | None = None,
    progress: Callable[[float], object] = lambda share: None,
) -> list[dict[str, Any]]:
    """Evaluate a run on its task with each change of options. Return a list of dicts, one for each change.

    A dict has ``task``, the settings of the changed task, ``loss``, the metrics by name and ``guessing_loss``.
    ``progress`` is called with the share of all evaluations that is done.
    """
    own, found = directory.settings(), list[dict[str, Any]]()
    for other in [replace(own, task=own.task | change) for change in changes]:
        numbers = evaluate_run(
            directory,
            other,
            weights=weights,
            split=split,
            examples=examples,
            progress=lambda share: progress((len(found) + share) / len(changes)),
        )
        guess = other.build_task().guessing_loss
        found.append({"task": other.resolved()["task"], **numbers, "guessing_loss": guess})
    return found


def tell(callbacks: Sequence[Callback], what: str, before: int, steps: int, total: int, share: float) -> None:
    """Report to the callbacks how many time steps of all transfer tests are done: ``before`` + share · ``steps``."""
    for callback in callbacks:
        callback.tested(what, before + round(steps * share), total)


def step_of(result: Mapping[str, Any], weights: str = "best") -> int:
    """Return the number of the update that gave a run its best or last weights; the last if it was never evaluated."""
    best = result.get("best") if weights == "best" else None
    if best and not isinstance(best.get("step"), int):
        raise RunError(f"a result expects the number of its update as step in best; got {best.get('step')!r}")
    return best["step"] if best else result["steps"]


def tests(directory: RunDirectory, result: Mapping[str, Any], weights: str) -> list[dict[str, Any]]:
    """Return the transfer tests of a run's ``weights`` as stored: ``task``, ``examples``, loss and metrics, or ``why``.

    The result is a list of dicts, empty without ``transfer.json``. Tests of other weights or with another number of
    examples are ignored. Raise RunError if ``transfer.json`` is invalid.
    """
    if not directory.file(TRANSFER).exists():
        return []
    with directory.reading(TRANSFER) as path:
        written = read_transfer(path)
    these = weights, tested_update(cast(Result, result), weights)
    examples = result["train"]["evaluate_examples"]
    same = (written["weights"], written["step"]) == these
    return [cast(dict[str, Any], test) for test in written["tests"] if test["examples"] == examples and same]
