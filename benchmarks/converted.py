"""Time training steps of layers of torch.nn and of the same layers after `steadygrad.layers.from_torch`.

    python benchmarks/converted.py                        nn.GRU, about four minutes
    python benchmarks/converted.py --layers GRU,LSTM,RNN --json converted.json

Both layers have the same weights and inputs. They are timed in turns within one run, and a ratio is that of one round.
Before the timing their outputs and the gradients of their inputs are compared.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contenders import SIZES, Size, TrainingStep
from benchmarks.speed import machine, versions
from benchmarks.timing import LEAST, TURN, Contender, interleave
from steadygrad.cli.common import Parser
from steadygrad.layers import from_torch
from steadygrad.report.tables import markdown

LAYERS: dict[str, Callable[[int, int], nn.RNNBase]] = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}
HEADER = ["size", "layer", "torch.nn, ms", "converted, ms", "torch.nn / converted"]
TOLERANCE = 1e-4
"""of the check in single precision, relative to the largest number"""


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="GRU", help=f"out of {','.join(LAYERS)} (default GRU)")
    parser.add_argument("--sizes", default=",".join(map(str, range(len(SIZES)))), help="by number (default all)")
    parser.add_argument("--seconds", type=float, default=40.0, help="for each size and layer (default 40)")
    parser.add_argument("--rounds", type=int, default=LEAST, help=f"at least so many rounds (default {LEAST})")
    parser.add_argument("--threads", type=int, help="default: the number that torch uses")
    parser.add_argument("--busy", action="store_true", help="count processor time: for one thread on a busy machine")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    clock = "processor" if options.busy else "wall"
    found: dict[str, Any] = {"machine": machine(), "versions": versions(), "clock": clock, "rows": []}
    for index in map(int, options.sizes.split(",")):
        for name in options.layers.split(","):
            found["rows"].append(measured(name, SIZES[index], options.seconds, options.rounds, options.busy))
            print(*line(found["rows"][-1]), sep="  ", file=sys.stderr, flush=True)
    found["machine"]["load_after"] = machine()["load_before"]
    print(markdown(HEADER, [line(row) for row in found["rows"]], right_from=2))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def measured(name: str, size: Size, seconds: float, rounds: int, busy: bool) -> dict[str, Any]:
    """Return the median times of both layers, and the spread of their ratio over the rounds."""
    torch.manual_seed(0)
    theirs = LAYERS[name](size.inputs, size.hidden)
    steps = {"torch.nn": TrainingStep(theirs, size), "converted": TrainingStep(from_torch(copy.deepcopy(theirs)), size)}
    difference = compared(*steps.values())
    clock = time.process_time if busy else time.perf_counter
    turns = [Contender(key, step.run, step.prepare) for key, step in steps.items()]
    timings = interleave(turns, seconds, least=rounds, turn=TURN, clock=clock)
    return {
        "size": size._asdict(),
        "layer": name,
        "difference": difference,
        "ms": {key: 1e3 * timings.spread(key).median for key in steps},
        "ratio": timings.ratio("torch.nn", "converted").as_dict(),
    }


def compared(theirs: TrainingStep, ours: TrainingStep) -> float:
    """Return the largest relative difference of outputs and input gradients. Raise RuntimeError if it is too large.

    The layers have the same weights: those of the first, converted.
    """
    module = from_torch(theirs.layer)
    ours.layer.load_state_dict(module.state_dict())
    found = []
    for step in (theirs, ours):
        x = step.x.clone().requires_grad_()
        output, _ = step.layer(x)
        output.backward(step.G)
        found.append((output.detach(), x.grad))
        step.layer.zero_grad()
    difference = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found, strict=True))
    if difference > TOLERANCE:
        raise RuntimeError(f"the converted layer expects outputs and gradients within {TOLERANCE}; got {difference}")
    return difference


def line(row: dict[str, Any]) -> list[str]:
    ratio = "{median:.2f} ({low:.2f} to {high:.2f})".format(**row["ratio"])
    times = (f"{row['ms'][part]:.1f}" for part in ("torch.nn", "converted"))
    return [str(Size(**row["size"])), row["layer"], *times, ratio]


if __name__ == "__main__":
    main()
