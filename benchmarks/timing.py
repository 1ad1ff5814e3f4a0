"""Interleaved timing: every round runs each contender once, and what counts are ratios within a round.

A shared machine is faster in one second than in the next. Two contenders timed in the same round meet the same machine,
so the median of their ratios, round by round, says more than a ratio of two separate medians.

A contender's turn is as many steps as fit into a short time, one at least, and counts by their median: training runs
steps one after the other, and a single short step would mostly measure how cold the others have left the caches.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count

LEAST = 5
"""rounds that are run even when the time is up"""

WARMUP = 2

TURN = 0.1
"""seconds that the turn of a fast contender lasts; 0 means one step a turn for everybody"""

MOST_STEPS = 25


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Contender:
    """``run`` is timed; ``prepare`` comes before it, untimed. A slow contender takes part in every n-th round only."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing
    every: int = 1


@dataclass(frozen=True)
class Spread:
    """A median and where the values lie: 10–90 % (``low``, ``high``) and all of them (``least``, ``most``)."""

    median: float
    low: float
    high: float
    least: float
    most: float
    mean: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        if not values:
            raise ValueError("Spread expects at least one value; got none")
        ordered = sorted(values)
        return cls(
            statistics.median(ordered),
            quantile(ordered, 0.1),
            quantile(ordered, 0.9),
            ordered[0],
            ordered[-1],
            statistics.fmean(ordered),
            len(ordered),
        )

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the sorted values lie, interpolated."""
    place = share * (len(ordered) - 1)
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (place - lower) * (ordered[upper] - ordered[lower])


@dataclass
class Timings:
    """Seconds by contender and round."""

    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    """in each turn; 1 unless said otherwise"""

    def add(self, name: str, round: int, seconds: float) -> None:
        self.seconds.setdefault(name, {})[round] = seconds

    def spread(self, name: str) -> Spread:
        return Spread.of(list(self.seconds[name].values()))

    def ratio(self, above: str, below: str) -> Spread:
        """Of ``above`` to ``below``, over the rounds in which both ran."""
        over, under = self.seconds[above], self.seconds[below]
        return Spread.of([over[round] / under[round] for round in over if round in under])

    def fastest(self, names: Sequence[str]) -> str:
        return min(names, key=lambda name: self.spread(name).median)

    def __contains__(self, name: str) -> bool:
        return name in self.seconds


def interleave(
    contenders: Sequence[Contender],
    seconds: float,
    *,
    least: int = LEAST,
    warmup: int = WARMUP,
    turn: float = TURN,
    clock: Callable[[], float] = time.perf_counter,
    after_round: Callable[[int], object] = lambda done: None,
) -> Timings:
    """Rounds until ``seconds`` are over, but at least ``least``. The order rotates: nobody always follows the same."""
    names = [contender.name for contender in contenders]
    if len(set(names)) < len(names):
        raise ValueError(f"interleave expects different names; got {', '.join(names)}")
    rehearsal = Timings()
    for round in range(-warmup, 0):
        play(contenders, round, clock, rehearsal)
    timings = Timings(steps={name: steps_in_turn(turn, rehearsal.spread(name).least) for name in rehearsal.seconds})
    deadline = clock() + seconds
    for round in count():
        begun = clock()
        play(contenders, round, clock, timings)
        now = clock()
        after_round(round + 1)
        if round + 1 >= least and now + (now - begun) > deadline:  # another round like this one would be late
            return timings
    raise AssertionError("unreachable")


def play(contenders: Sequence[Contender], round: int, clock: Callable[[], float], timings: Timings) -> None:
    """One round, in an order of its own. Garbage is collected before it and never during it."""
    present = [contender for contender in contenders if round < 0 or round % contender.every == 0]  # all rehearse
    with no_collector():
        for contender in rotated(present, round):
            steps = timings.steps.get(contender.name, 1)
            timings.add(contender.name, round, statistics.median(step(contender, clock) for _ in range(steps)))


def step(contender: Contender, clock: Callable[[], float]) -> float:
    """Seconds of one run."""
    contender.prepare()
    begun = clock()
    contender.run()
    return clock() - begun


def steps_in_turn(turn: float, seconds: float) -> int:
    """How many steps of this length fit into a turn: one at least, and not too many."""
    return max(1, min(MOST_STEPS, int(turn / max(seconds, 1e-9))))


def rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    start = by % len(contenders) if contenders else 0
    return [*contenders[start:], *contenders[:start]]


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
