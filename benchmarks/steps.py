"""Time training steps of all contenders and the limit at one size, in one interleaved run."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.claims import LIMIT, STEP_CLAIMS, judged
from benchmarks.contenders import CANDIDATES, SIZES, Size, training_step
from benchmarks.limit import LIMITS, Products, flops, probe, rate
from benchmarks.peers import MissingError
from benchmarks.timing import Contender, Timings, interleave

PROBE = "torch.mm 1024³"


@dataclass(frozen=True)
class Effort:
    """Arguments of `interleave` that set how long to measure."""

    seconds: float
    least: int
    warmup: int
    turn: float


def measure(index: int, effort: Effort, after_round: Callable[[int], object]) -> dict[str, Any]:
    size = SIZES[index]
    missing: dict[str, str] = {}
    contenders = list(assemble(size, missing))
    timings = interleave(contenders, **asdict(effort), after_round=after_round)
    winner = timings.fastest([name for name in LIMITS if name in timings])
    timings.seconds[LIMIT] = timings.seconds[winner]
    best = rate(timings.spread(PROBE).least)
    return {
        "index": index,
        "size": size._asdict(),
        "limit": winner.removeprefix("limit: "),
        "flops": flops(size),
        "probe_gflops": best / 1e9,
        "flop_bound_milliseconds": 1e3 * flops(size) / best,
        "steps_in_turn": timings.steps,
        "milliseconds": milliseconds(timings),
        "ratios": [
            judged(claim, timings.ratio(claim.above, claim.below), claim.bound(index))
            for claim in STEP_CLAIMS
            if claim.above in timings and claim.below in timings
        ],
        "missing": missing,
    }


def assemble(size: Size, missing: dict[str, str]) -> Iterator[Contender]:
    """Yield the contenders that can run on this machine. Put the others into ``missing`` with the reason."""
    products = Products(size)
    for name, candidate in CANDIDATES.items():
        try:
            step = training_step(name, size)
        except MissingError as reason:
            missing[name] = str(reason)
        else:
            yield Contender(name, step.run, step.prepare, candidate.every)
    for name, build in LIMITS.items():
        try:
            yield Contender(name, build(products))
        except MissingError as reason:
            missing[name] = str(reason)
    yield Contender(PROBE, probe())


def milliseconds(timings: Timings) -> dict[str, dict[str, float]]:
    spreads = {name: timings.spread(name).as_dict() for name in timings.seconds}
    return {
        name: {key: value if key == "rounds" else 1e3 * value for key, value in spread.items()}
        for name, spread in spreads.items()
    }
