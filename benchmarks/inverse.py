"""Time the training of NC-GRU with an exact inverse and with a Neumann series: figure 6 of Mucllari et al. (2022).

    python benchmarks/inverse.py                                  three layers of 430, 1000 and 430 units: four minutes
    python benchmarks/inverse.py --json inverse.json --picture inverse.png

The model is that of ncgru-2022/char-ptb. An update includes the optimizer. "printed" is Algorithm 1 without the checks
of `NeumannCayley`. "GRU" has no orthogonal matrix. All are timed in turns within one run. An epoch of the Penn
Treebank has 1,594 updates.
"""

import argparse
import json
import math
import sys
from functools import partial
from pathlib import Path

import torch
from matplotlib import pyplot as plt

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.language import SYMBOLS, units, update
from benchmarks.timing import Contender, interleave
from steadygrad.cli.common import Parser
from steadygrad.layers import GRU, NCGRU
from steadygrad.models import LanguageModel
from steadygrad.report import figures
from steadygrad.report.tables import markdown

BATCH, WINDOW, UPDATES = 32, 100, 1594
EXACT = "exact"
LAYERS = {
    EXACT: partial(NCGRU, exact_above=0.0),
    **{f"Neumann {order}": partial(NCGRU, order=order, reset_every=100) for order in (1, 2, 3)},
    **{
        f"printed {order}": partial(NCGRU, order=order, reset_every=100, exact_above=math.inf, max_drift=math.inf)
        for order in (1, 2, 3)
    },
    "GRU": GRU,
}
HEADER = ["inverse", "update, ms", "epoch, min", "/ exact"]


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=units, default=[430, 1000, 430], metavar="LIST", help="size of each layer")
    parser.add_argument("--seconds", type=float, default=240.0, help="total time (default 240)")
    parser.add_argument("--threads", type=int, help="default: the number that torch uses")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--picture", metavar="FILE", help="draw the times as bars")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    result = measured(options.hidden, options.seconds)
    print(markdown(HEADER, lines(result)))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    if options.picture:
        draw(result, Path(options.picture))


def measured(hidden: list[int], seconds: float) -> dict:
    models = {name: partial(LanguageModel, layer, SYMBOLS, sizes=hidden) for name, layer in LAYERS.items()}
    timings = interleave(
        [Contender(name, update(make, BATCH, WINDOW)) for name, make in models.items()], seconds=seconds
    )
    rows = []
    for name in models:
        ratio = timings.ratio(name, EXACT).as_dict()
        rows.append({"inverse": name, "ms": 1e3 * timings.spread(name).median, "to_exact": ratio})
    setting = {"hidden": hidden, "batch": BATCH, "window": WINDOW, "updates": UPDATES}
    return {**setting, "threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}


def lines(result: dict) -> list[list[str]]:
    return [
        [
            row["inverse"],
            f"{row['ms']:.0f}",
            f"{row['ms'] * result['updates'] / 6e4:.1f}",
            "{median:.2f} ({low:.2f} to {high:.2f})".format(**row["to_exact"]),
        ]
        for row in result["rows"]
    ]


def draw(result: dict, path: Path) -> None:
    names = [row["inverse"] for row in result["rows"]]
    minutes = [row["ms"] * result["updates"] / 6e4 for row in result["rows"]]
    colours = [figures.COLOURS[0] if name != EXACT else figures.COLOURS[1] for name in names]
    with plt.rc_context(figures.STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
        axis.bar_label(axis.barh(names, minutes, color=colours), fmt="%.1f", padding=3)
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        axis.set_xlabel(f"minutes an epoch, {result['threads']} threads of a CPU")
        axis.set_title(f"Penn Treebank, NC-GRU of {', '.join(map(str, result['hidden']))} units", fontsize=10)
        figures.save(figure, path)


if __name__ == "__main__":
    main()
