"""What the tests of tasks share."""

from collections.abc import Callable

import pytest
import torch

from steadygrad.tasks import Task

MARKS = {"·": 0, ">": 4}
"""the cue of three symbols"""


@pytest.fixture
def drawn() -> Callable[[type[Task], str], list[int]]:
    """The line of a docstring's drawing that begins with ``word``, as tokens."""

    def read(cls: type[Task], word: str) -> list[int]:
        line = next(line for line in (cls.__doc__ or "").splitlines() if line.split()[:1] == [word])
        marks = line.strip().removeprefix(word).strip().split("  ")[0]
        return [MARKS[mark] if mark in MARKS else int(mark) for mark in marks.split()]

    return read


@pytest.fixture(autouse=True)
def one_thread(same_start):
    """Sequences this short gain nothing from a second thread, and lose much to one that waits for a busy core."""
    torch.set_num_threads(1)
