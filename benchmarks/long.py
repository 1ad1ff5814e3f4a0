"""Measure the peak memory and the time of a training step on a very long sequence, with checkpoints along time.

    python benchmarks/long.py                   a million steps, about a minute
    python benchmarks/long.py --json long.json

ExpRNN with 64 units, one input, batch 1; the loss is that of the last state. Peaks are those of fresh processes, in
addition to the layer and its input. Times are also measured beside a step without checkpoints, at a length that fits.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.memory import ROOT, peak, settle
from benchmarks.timing import Contender, interleave
from steadygrad.cli.common import Parser
from steadygrad.layers import ExpRNN
from steadygrad.report.tables import markdown

HIDDEN, LONG, SHORT = 64, 1_000_000, 100_000
WAYS = {
    "checkpoint=True, output=False": {"checkpoint": True, "output": False},
    "checkpoint=True": {"checkpoint": True},
    "neither": {},
}
BOUNDS = {"checkpoint=True, output=False": 100, "checkpoint=True": 300 + 2 * LONG * HIDDEN * 4 / 2**20}
"""megabytes at `LONG`; with outputs these and their gradient come on top of 300"""


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the times (default 30)")
    parser.add_argument("--threads", type=int, help="default: the number that torch uses")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # a way and a length: only its peak, in this process
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.one:
        print(growth(options.one[0], int(options.one[1])))
        return
    rows = [measured(way, time) for way, time in [*((way, LONG) for way in BOUNDS), *((way, SHORT) for way in WAYS)]]
    timings = interleave([Contender(way, training_step(way, SHORT)) for way in WAYS], options.seconds)
    times = {way: timings.ratio(way, "neither").as_dict() for way in WAYS}
    print(markdown(["steps", "call", "peak, MB"], [[r["time"], r["way"], f"{r['megabytes']:.0f}"] for r in rows], 2))
    lines = [
        [way, f"{timings.spread(way).median:.2f}", "{median:.2f} ({low:.2f} to {high:.2f})".format(**times[way])]
        for way in WAYS
    ]
    print(markdown([f"{SHORT} steps", "s", "/ neither"], lines, 1))
    if options.json:
        seconds = {way: timings.spread(way).as_dict() for way in WAYS}
        setting = {"hidden": HIDDEN, "threads": torch.get_num_threads(), "torch": torch.__version__}
        result = {**setting, "bounds": BOUNDS, "peaks": rows, "seconds": seconds, "to_neither": times}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


def training_step(way: str, time: int) -> Any:
    """Return a function that runs one forward and backward pass of the loss on the last state."""
    torch.manual_seed(0)
    layer, x = ExpRNN(1, HIDDEN), torch.randn(time, 1, 1)
    return lambda: layer(x, **WAYS[way])[1].square().sum().backward()


def measured(way: str, time: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.long", "--one", way, str(time)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {"way": way, "time": time, "megabytes": int(run.stdout) / 2**20}


def growth(way: str, time: int) -> int:
    """Return the bytes that a training step adds to the peak of a process that has the layer and its input."""
    training_step(way, 100)()  # loads libraries and starts threads
    step = training_step(way, time)
    before = settle()
    step()
    return max(1, peak() - before)


if __name__ == "__main__":
    main()
