"""Interleaved timing: every round runs each contender once, and results are ratios within a round.

The speed of a shared machine changes from second to second. Two contenders in the same round run at the same speed, so
the median of their ratios within rounds is more reliable than the ratio of two separate medians.

A contender's turn is as many steps as fit into a short time, at least one, and its time is their median. Training runs
steps one after the other. A single short step would mostly measure the cold caches that other contenders leave.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count

LEAST = 5
"""Minimum number of rounds."""

WARMUP = 2

TURN = 0.1
"""Seconds that the turn of a fast contender lasts. 0 means one step per turn for all contenders."""

MOST_STEPS = 25


def nothing() -> None:
    pass


@dataclass(frozen=True)
class Contender:
    """``run`` is timed; ``prepare`` is called before it, untimed. A slow contender runs in every n-th round only."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing
    every: int = 1


@dataclass(frozen=True)
class Spread:
    """Median, 10–90 % range (``low``, ``high``) and full range (``least``, ``most``) of values."""

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
    """Return the interpolated quantile ``share`` of sorted values."""
    place = share * (len(ordered) - 1)
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (place - lower) * (ordered[upper] - ordered[lower])


@dataclass
class Timings:
    """Seconds of each contender in each round."""

    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    """Number of steps in each turn; 1 if absent."""

    def add(self, name: str, round: int, seconds: float) -> None:
        self.seconds.setdefault(name, {})[round] = seconds

    def spread(self, name: str) -> Spread:
        return Spread.of(list(self.seconds[name].values()))

    def ratio(self, above: str, below: str) -> Spread:
        """Return the spread of ``above`` / ``below`` over the rounds in which both ran."""
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
    """Run rounds for ``seconds``, but at least ``least`` rounds. The order of the contenders rotates."""
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
        if round + 1 >= least and now + (now - begun) > deadline:  # another round would exceed the time
            return timings
    raise AssertionError("unreachable")


def play(contenders: Sequence[Contender], round: int, clock: Callable[[], float], timings: Timings) -> None:
    """Run one round. Garbage is collected before the round and not during it."""
    present = [contender for contender in contenders if round < 0 or round % contender.every == 0]  # warm-up: all
    with no_collector():
        for contender in rotated(present, round):
            steps = timings.steps.get(contender.name, 1)
            timings.add(contender.name, round, statistics.median(step(contender, clock) for _ in range(steps)))


def step(contender: Contender, clock: Callable[[], float]) -> float:
    """Return the seconds of one run."""
    contender.prepare()
    begun = clock()
    contender.run()
    return clock() - begun


def steps_in_turn(turn: float, seconds: float) -> int:
    """Return how many steps of this length fit into a turn, from 1 to `MOST_STEPS`."""
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
