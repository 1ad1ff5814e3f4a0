"""Measure the cost of attention over past states: an update of RelRNN, and time and memory against the length.

    python benchmarks/attention.py --json attention.json --figure memory.svg       about half an hour on two cores
    python benchmarks/attention.py --only update
    python benchmarks/attention.py --only growth --layers relrnn,memrnn --lengths 200,500,1000
    python benchmarks/attention.py --load attention.json --figure memory.svg

The update is timed in turns with the same network written as Python loops, and with nn.RNN. Growth is measured in a new
process for each layer and length, once per round. A length is left out if quadratic growth from the length before would
exceed the allowed time or memory. The output lists these lengths.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contenders import BY_LENGTH, SIZES, Size, TrainingStep, training_step
from benchmarks.memory import ROOT, growth
from benchmarks.report import Table, show_markdown
from benchmarks.speed import load, machine, positive, progress, versions, writable
from benchmarks.timing import Contender, Timings, interleave
from steadygrad import files
from steadygrad.cli.common import Parser
from steadygrad.layers import RelRNN
from steadygrad.report import comparison_figures

PARTS = ("update", "growth")
SETTING = SIZES[0]
"""The copy task with T = 200 as in Kerg et al. (2020): 220 steps of 10 sequences, 128 units; ν = ρ = 10."""
AUTHORS = 1.9
"""Seconds per update of the authors' released code, in this setting on two cores."""
LENGTHS = (200, 500, 1000, 2000, 4000, 5000)
LONG, SHORT = 4000, 1000
"""A ratio of 4 means linear growth with the length, a ratio of 16 quadratic growth."""
OURS, LOOPS, TORCH = "RelRNN", "RelRNN, loops in Python", "nn.RNN"
Scored = tuple[Tensor, Tensor]
"""A state and its score, for all sequences of the batch."""


class Loops(nn.Module):
    """The given RelRNN as typical research code: loops over time and over the remembered states, with autograd."""

    def __init__(self, layer: RelRNN) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        cell: Any = self.layer.cells[0]
        U, W, b = (getattr(self.layer, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih"))
        A, B, v = cell.alignment.weight_query, cell.alignment.weight_key, cell.alignment.weight_score[0]
        h = s = x.new_zeros(x.shape[1], len(W))
        recent: list[Scored] = []
        kept: list[Scored] = []
        outputs = []
        for x_t in x:
            states, query, s = [state for state, _ in recent + kept], s, h
            if states:
                logits = [(query @ A.mT + state @ B.mT).tanh() @ v for state in states]
                alpha = torch.stack(logits).softmax(dim=0)
                for weight, state in zip(alpha, states, strict=True):
                    s = s + weight[:, None] * state
                s = s / 2
                received = alpha.detach()
                recent = [(state, score + received[place]) for place, (state, score) in enumerate(recent)]
            h = (x_t @ U.mT + s @ W.mT + b).tanh()
            outputs.append(h)
            recent.append((h, x.new_zeros(x.shape[1])))
            if len(recent) > cell.memory.short:
                kept = self.screened(kept, *recent.pop(0))
        return torch.stack(outputs), None

    def screened(self, kept: list[Scored], leaving: Tensor, score: Tensor) -> list[Scored]:
        """Return R after a state leaves S. It enters R if R has room, or replaces the lowest score if that is lower."""
        cell: Any = self.layer.cells[0]
        if len(kept) < cell.memory.relevant:
            return [*kept, (leaving, score)]
        lowest = torch.stack([other for _, other in kept]).argmin(dim=0)
        result = []
        for place, (state, other) in enumerate(kept):
            enters = (lowest == place) & (score > other)
            result.append((torch.where(enters[:, None], leaving, state), torch.where(enters, score, other)))
        return result


@dataclass
class Growth:
    """Seconds and bytes of an update for each layer and length, and the reasons for missing lengths."""

    lengths: Sequence[int]
    seconds: Timings = field(default_factory=Timings)
    bytes: dict[str, list[int]] = field(default_factory=dict)
    left_out: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, name: str, length: int, round: int, found: dict[str, float]) -> None:
        self.seconds.add(key(name, length), round, found["seconds"])
        self.bytes.setdefault(key(name, length), []).append(int(found["bytes"]))

    def too_much(self, name: str, length: int, most_seconds: float, most_bytes: float) -> str | None:
        """Return the reason not to measure a length, extrapolated from the length before, or None."""
        before = dict(pairwise(sorted(self.lengths)))
        shorter = next((short for short, long in before.items() if long == length), None)
        if shorter is None:
            return None
        if (name, shorter) in self.left_out:
            return self.left_out[name, shorter]
        square = (length / shorter) ** 2
        foretold = square * self.seconds.spread(key(name, shorter)).median
        needed = square * max(self.bytes[key(name, shorter)])
        if foretold > most_seconds:
            return f"an update would take up to {foretold:.0f} s, and {most_seconds:.0f} s are allowed"
        if needed > most_bytes:
            return f"it would need up to {needed / 2**30:.1f} GB, and {most_bytes / 2**30:.1f} GB are allowed"
        return None

    def row(self, name: str) -> dict[str, Any]:
        there = [length for length in self.lengths if (name, length) not in self.left_out]
        megabytes = {n: statistics.median(self.bytes[key(name, n)]) / 2**20 for n in there}
        both = {LONG, SHORT} <= set(there)
        ratio = self.seconds.ratio(key(name, LONG), key(name, SHORT)).as_dict() if both else None
        return {
            "layer": name,
            "seconds": {n: self.seconds.spread(key(name, n)).as_dict() for n in there},
            "megabytes": megabytes,
            "ratio": {"seconds": ratio, "megabytes": megabytes[LONG] / megabytes[SHORT] if both else None},
            "left_out": {n: why for (layer, n), why in self.left_out.items() if layer == name},
        }


def key(name: str, length: int) -> str:
    return f"{name} {length}"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]), options.threads)))
        return
    result = load(parser, options.load) if options.load else measure(options)
    show_markdown(tables(result))
    if options.figure and "growth" in result:
        found = result["growth"]
        values = {row["layer"]: [row["megabytes"].get(str(n)) for n in found["lengths"]] for row in found["rows"]}
        comparison_figures.growth_with_length(found["lengths"], values, options.figure, "peak memory of an update, MB")


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", choices=PARTS, help="one part only")
    add("--layers", type=some_layers, default=list(BY_LENGTH), metavar="LIST", help="default: all that are known")
    add("--lengths", type=some_lengths, default=list(LENGTHS), metavar="LIST", help="default: 200 … 5000")
    add("--seconds", type=positive(float), default=60.0, help="for the update (default 60)")
    add("--rounds", type=positive(int), default=3, help="of all layers and lengths (default 3)")
    add("--most-seconds", type=positive(float), default=120.0, help="that an update may take (default 120)")
    add("--most-gigabytes", type=positive(float), default=8.0, help="that an update may need (default 8)")
    add("--threads", type=positive(int), default=torch.get_num_threads(), help="default: the number that torch uses")
    add("--json", type=writable, metavar="FILE", help="write every number to FILE too, part by part")
    add("--load", type=Path, metavar="FILE", help="measure nothing, show what was written to FILE")
    add("--figure", type=writable, metavar="FILE", help="draw peak memory against the length (.svg, .png, .pdf)")
    add("--one", nargs=2, help=argparse.SUPPRESS)  # a layer and a length: measure only these, in this process
    return parser


def some_layers(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in BY_LENGTH]:
        raise argparse.ArgumentTypeError(f"expects layers out of {', '.join(BY_LENGTH)}; got {', '.join(unknown)}")
    return chosen


def some_lengths(text: str) -> list[int]:
    return sorted({positive(int)(part) for part in text.split(",")})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    wanted = (options.only,) if options.only else PARTS
    kept = ("only", "seconds", "rounds", "most_seconds", "most_gigabytes")
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "settings": {name: getattr(options, name) for name in kept},
    }
    runs = {"update": measure_update, "growth": measure_growth}
    for part in wanted:
        result[part] = runs[part](options)
        if options.json:
            files.write(options.json, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return json.loads(json.dumps(result))  # as read from a file: JSON keys are strings


def measure_update(options: argparse.Namespace) -> dict[str, Any]:
    """Time the forward and backward pass of a batch, in turns."""
    timings = interleave(list(contenders()), options.seconds, after_round=progress(f"an update at {SETTING}"))
    ours = timings.spread(OURS)
    return {
        "size": SETTING._asdict(),
        "seconds": {name: timings.spread(name).as_dict() for name in (OURS, LOOPS, TORCH)},
        "ratios": {
            f"{LOOPS} / {OURS}": timings.ratio(LOOPS, OURS).as_dict(),
            f"{OURS} / {TORCH}": timings.ratio(OURS, TORCH).as_dict(),
            f"the authors' code ({AUTHORS} s) / {OURS}": {"median": AUTHORS / ours.median},
        },
    }


def contenders(size: Size = SETTING) -> Iterator[Contender]:
    builds = {
        OURS: (RelRNN, 1),
        LOOPS: (lambda inputs, hidden: Loops(RelRNN(inputs, hidden)), 4),
        TORCH: (nn.RNN, 1),
    }
    for name, (build, every) in builds.items():
        torch.manual_seed(0)
        step = TrainingStep(build(size.inputs, size.hidden), size)
        yield Contender(name, step.run, step.prepare, every)


def measure_growth(options: argparse.Namespace) -> dict[str, Any]:
    found = Growth(options.lengths)
    tell, done = progress(f"growth of {len(options.layers)} layers, each length in a process of its own"), 0
    for round in range(options.rounds):
        for length in options.lengths:
            for name in options.layers:
                why = found.left_out.get((name, length))
                why = why or found.too_much(name, length, options.most_seconds, options.most_gigabytes * 2**30)
                if why is None:
                    try:
                        found.add(name, length, round, in_fresh_process(name, length, options.threads))
                    except RuntimeError as error:
                        why = str(error)
                if why is not None:
                    found.left_out[name, length] = why
                done += 1
                tell(done)
    return {"lengths": options.lengths, "rows": [found.row(name) for name in options.layers]}


def in_fresh_process(name: str, length: int, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.attention", "--one", name, str(length), "--threads", str(threads)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        last = next(iter(run.stderr.splitlines()[-1:]), "the system ended it")
        raise RuntimeError(f"it failed ({run.returncode}): {last}")
    return json.loads(run.stdout)


def one(name: str, length: int, threads: int) -> dict[str, float]:
    """Return the peak memory growth of an update in bytes, and its median time over two seconds of updates."""
    torch.set_num_threads(threads)
    size = SETTING._replace(time=length)
    grown = growth(name, size)
    step = training_step(name, size)
    timings = interleave([Contender(name, step.run, step.prepare)], seconds=2, least=1, warmup=1)
    return {"bytes": grown, "seconds": timings.spread(name).median}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    if update := result.get("update"):
        rows = [[name, f"{1e3 * found['median']:.1f}"] for name, found in update["seconds"].items()]
        notes = tuple(f"{name}: {found['median']:.3g}" for name, found in update["ratios"].items())
        title = f"An update at {Size(**update['size'])} (batch, time, units, inputs)"
        yield Table(title, ["network", "ms"], rows, notes)
    if found := result.get("growth"):
        lengths = [str(n) for n in found["lengths"]]
        header = ["layer", *(f"T = {n}" for n in lengths), f"T = {LONG} / T = {SHORT}"]
        missing = [(row["layer"], n, why) for row in found["rows"] for n, why in row["left_out"].items()]
        notes = tuple(f"{layer}, T = {n}: left out; {why}" for layer, n, why in missing)
        times = [
            [row["layer"], *(ms(row["seconds"].get(n)) for n in lengths), ratio_of(row["ratio"]["seconds"])]
            for row in found["rows"]
        ]
        sizes = [
            [row["layer"], *(short(row["megabytes"].get(n)) for n in lengths), short(row["ratio"]["megabytes"])]
            for row in found["rows"]
        ]
        yield Table("An update as sequences get longer (ms)", header, times)
        yield Table("Its peak memory (MB)", header, sizes, notes)


def ms(spread: dict[str, float] | None) -> str:
    return "–" if spread is None else f"{1e3 * spread['median']:.0f}"


def ratio_of(spread: dict[str, float] | None) -> str:
    return short(None if spread is None else spread["median"])


def short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    main()
