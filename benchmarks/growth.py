"""Measure how a training step grows with the hidden size, for matrices whose product costs less than n².

    python benchmarks/growth.py                   about two minutes
    python benchmarks/growth.py --json growth.json

Path "operator" never forms the matrix. Path "as it runs" is the default, which uses the dense kernel where it is
faster. All sizes of all layers are timed in turns within one run.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contenders import Size, TrainingStep
from benchmarks.timing import Contender, interleave
from steadygrad import layers
from steadygrad.cli.common import Parser
from steadygrad.report.tables import markdown

SIZES = (256, 512, 1024)
BATCH, TIME, INPUTS = 20, 100, 10
LAYERS = {
    "urnn": layers.URNN,
    "eurnn (fft)": partial(layers.EURNN, style="fft"),
    "eurnn (2 layers)": layers.EURNN,
    "full-urnn": layers.FullCapacityURNN,
}
HEADER = ["layer", "path", *(f"N = {n}, ms" for n in SIZES), f"N = {SIZES[-1]} / N = {SIZES[0]}"]


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0, help="total time (default 90)")
    parser.add_argument("--threads", type=int, help="default: the number that torch uses")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    steps = {(name, path, n): step(name, path, n) for name in LAYERS for path in paths(name) for n in SIZES}
    timings = interleave(
        [Contender(str(key), one.run, one.prepare) for key, one in steps.items()], seconds=options.seconds
    )
    rows = []
    for name, path in dict.fromkeys((name, path) for name, path, _ in steps):
        keys = [str((name, path, n)) for n in SIZES]
        medians = [1e3 * timings.spread(key).median for key in keys]
        ratio = timings.ratio(keys[-1], keys[0])
        rows.append({"layer": name, "path": path, "ms": dict(zip(SIZES, medians, strict=True)), "ratio": ratio.median})
    print(markdown(HEADER, [line(row) for row in rows], right_from=2))
    if options.json:
        setting = {"batch": BATCH, "time": TIME, "inputs": INPUTS, "threads": torch.get_num_threads()}
        Path(options.json).write_text(
            json.dumps({**setting, "torch": torch.__version__, "rows": rows}, indent=1) + "\n"
        )


def paths(name: str) -> list[str]:
    map = LAYERS[name](1, 2).weight_hh_l0.map
    return ["operator", "as it runs"] if hasattr(map, "operator") else ["as it runs"]


def step(name: str, path: str, units: int) -> TrainingStep:
    torch.manual_seed(0)
    layer = LAYERS[name](INPUTS, units)
    if path == "operator":
        matrix = layer.weight_hh_l0
        matrix.operator = lambda: matrix.map.operator(*matrix.packed())
    return TrainingStep(layer, Size(BATCH, TIME, layer.output_size, INPUTS))


def line(row: dict) -> list[str]:
    return [row["layer"], row["path"], *(f"{ms:.1f}" for ms in row["ms"].values()), f"{row['ratio']:.2f}"]


if __name__ == "__main__":
    main()
