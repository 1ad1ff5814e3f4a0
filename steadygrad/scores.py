"""Scores of a trained network in files of their own, tests on other settings and of sound: types and readers."""

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from steadygrad.files import RunError
from steadygrad.records import METRICS, Result, Rule, are_metrics, read_json

NO_METRICS = ("task", "why", "sentence")
"""keys of tests and sentences whose values are no numbers"""
NUMBERS = Rule(
    lambda found: are_metrics({key: value for key, value in found.items() if key not in NO_METRICS}), METRICS.expects
)


class StoredTest(TypedDict):
    """A test in ``transfer.json``: changed options of the task, number of sequences, loss and metrics by name.

    ``why`` is the reason if the test failed; then there are no numbers.
    """

    task: Annotated[dict[str, Any], Rule(bool, "at least one option")]
    examples: int
    why: NotRequired[str]


class StoredTests(TypedDict):
    """The content of ``transfer.json``: which weights were tested, the number of their update, and the tests."""

    weights: Literal["best", "last"]
    step: int
    tests: list[Annotated[StoredTest, NUMBERS]]


class Sentence(TypedDict):
    """A sentence in ``listen.json``: its name. Its scores follow, by name, as numbers or null."""

    sentence: str


class SoundScores(TypedDict):
    """The content of ``listen.json``, the output of ``steadygrad listen --json``: mean scores, and all sentences."""

    mse: float | None
    segsnr: NotRequired[float | None]
    stoi: NotRequired[float | None]
    pesq: NotRequired[float | None]
    padded_mse: NotRequired[float | None]
    sentences: list[Annotated[Sentence, NUMBERS]]


def read_transfer(path: Path) -> StoredTests:
    """Return the content of a run's ``transfer.json``. Raise RunError if it is invalid."""
    try:
        content: StoredTests = read_json(path, StoredTests, "what transfer writes")
    except RunError as error:
        raise RunError(f"{error}; remove it to test again") from None
    return content


def read_listen(path: Path) -> SoundScores:
    """Return the content of a run's ``listen.json``. Raise RunError if it is invalid."""
    content: SoundScores = read_json(path, SoundScores, "what listen --json prints")
    return content


def tested_update(result: Result, weights: str) -> int | None:
    """Return the number of the update that gave a run its best or last weights; None if it was never evaluated."""
    if result["best"] is None:
        return None
    return result["best"].get("step") if weights == "best" else result["steps"]
