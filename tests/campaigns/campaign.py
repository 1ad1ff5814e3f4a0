"""What all campaigns share: a seed, a budget, and counts of what was tried and what failed."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Campaign:
    """Counts the tries of one campaign and collects its failures.

    A try depends only on the name, the seed and its number, so a failure can be repeated alone:
    ``python -m tests.campaigns --only NAME --seed SEED --try NUMBER``. The campaign ends after ``seconds`` or after
    ``tries``, whichever comes first. ``record`` is a file that holds the state after each try. The parent process reads
    it if a try ends this process.
    """

    def __init__(
        self,
        name: str,
        seed: int = 0,
        *,
        seconds: float = float("inf"),
        tries: float = float("inf"),
        first: int = 0,
        record: Path | None = None,
    ) -> None:
        self.name, self.seed, self.first, self.record = name, seed, first, record
        self.end, self.last = time.monotonic() + seconds, first + tries
        self.number = first
        self.counts: Counter[str] = Counter()
        """how often each kind of thing was tried"""
        self.failures: list[str] = []
        self.figures: dict[str, float] = {}
        """measured values by name, such as the largest error"""

    def tries(self) -> Iterator[random.Random]:
        """Yield a random generator for each try, until the budget is spent."""
        while self.number < self.last and (self.number == self.first or time.monotonic() < self.end):
            self.save()
            yield random.Random(f"{self.name}/{self.seed}/{self.number}")
            self.number += 1
        self.save()

    def count(self, kind: str, times: int = 1) -> None:
        """Count a kind of thing as tried."""
        self.counts[kind] += times

    def fail(self, text: str) -> None:
        """Record a failure of the present try."""
        self.failures.append(f"try {self.number}: {text}")

    def largest(self, name: str, value: float) -> None:
        """Keep the largest of the values measured under this name."""
        if not value <= self.figures.get(name, float("-inf")):  # NaN is kept, too
            self.figures[name] = value

    @contextmanager
    def expecting(self, what: str, *errors: type[BaseException]) -> Iterator[None]:
        """Context manager: errors of these kinds are in order, all others are failures."""
        try:
            yield
        except errors:
            pass
        except Exception as error:
            self.fail(f"{what}: {type(error).__name__}: {error}")

    def report(self) -> dict[str, Any]:
        """Return counts, failures and measured values as a dict for JSON."""
        return {
            "next": self.number + 1,
            "counts": dict(self.counts),
            "failures": self.failures,
            "figures": self.figures,
        }

    def save(self) -> None:
        """Write the report to ``record``, if there is one."""
        if self.record is not None:
            temporary = self.record.with_suffix(".part")
            temporary.write_text(json.dumps(self.report()))
            temporary.replace(self.record)


Run = Callable[[Campaign], None]
"""a campaign's function: it loops over `Campaign.tries`"""
