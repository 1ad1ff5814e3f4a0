"""Write docs/scales.md: the size of every layer's outputs at the start, and which sizes `calibrate` reaches.

python docs/scales.py    takes about two minutes
"""

import re
import sys
from pathlib import Path
from statistics import median

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from steadygrad.layers import LAYERS, calibrate
from steadygrad.layers.calibration import default_input, root_mean_square

PAGE = Path(__file__).parent / "scales.md"
FEATURES, UNITS, SEEDS = 10, 128, 5
LENGTHS = (100, 1000)
"""numbers of time steps of the inputs"""
TARGETS = (1e-9, 1e9)
"""scales that no layer with a bounded activation, or with a bias that acts without input, reaches"""
HEAD = """# Sizes of outputs

`python docs/scales.py` writes this page. The first columns show the root mean square of the outputs of a new layer with
{features} features and {units} units, for standard normal inputs of {lengths} steps: median (range) of {seeds} seeds.
The sizes differ by a factor of {ratio} at {first} steps, because every layer starts as its authors' program does. So a
readout, a learning rate and a clipping threshold that fit one layer need not fit another.

`steadygrad.layers.calibrate(layer, x, scale)` multiplies the input weights so that the outputs have a chosen size. The
last column shows the sizes that it reaches on {first} steps, for one seed. Activations such as tanh saturate, and
biases alone give an output. "any" means from 1e-9 to 1e9.

| layer | {heads} | reachable |
|---|{rule}---|
{rows}
"""


def new_layer(name: str, seed: int) -> torch.nn.Module:
    """Return a new layer of the registry, drawn with this seed."""
    torch.manual_seed(seed)
    return LAYERS[name](FEATURES, UNITS)


@torch.no_grad()
def size(name: str, seed: int, length: int) -> float:
    """Return the root mean square of a new layer's outputs for normal inputs of this length."""
    layer = new_layer(name, seed).eval()
    return root_mean_square(layer(torch.randn(length, 16, FEATURES))[0])


def reachable(name: str) -> str:
    """Return the sizes that `calibrate` reaches, as text, from its errors about sizes that are out of reach."""
    limits = []
    for target in TARGETS:
        layer = new_layer(name, 0)
        try:
            calibrate(layer, default_input(layer), target)
            limits.append(target)
        except ValueError as error:
            limits.append(float(re.search(r"one is (\S+)$", str(error))[1]))
    (low, high), (least, most) = limits, TARGETS
    words = [f"from {low:.2g}"] * (low != least) + [f"up to {high:.2g}"] * (high != most)
    return " ".join(words) or "any"


def main() -> None:
    """Measure all layers and write the page."""
    rows, typical = [], []
    for name in LAYERS:
        cells = []
        for length in LENGTHS:
            sizes = [size(name, seed, length) for seed in range(SEEDS)]
            cells.append(f"{median(sizes):.2g} ({min(sizes):.2g} … {max(sizes):.2g})")
            if length == LENGTHS[0]:
                typical.append(median(sizes))
        rows.append(f"| `{name}` | {' | '.join(cells)} | {reachable(name)} |")
        print(rows[-1], flush=True)
    values = {
        "features": FEATURES,
        "units": UNITS,
        "seeds": SEEDS,
        "lengths": " and ".join(map(str, LENGTHS)),
        "first": LENGTHS[0],
        "ratio": f"{max(typical) / min(typical):.0f}",
        "heads": " | ".join(f"{length} steps" for length in LENGTHS),
        "rule": "---:|" * len(LENGTHS),
        "rows": "\n".join(rows),
    }
    PAGE.write_text(HEAD.format(**values), "utf-8")


if __name__ == "__main__":
    main()
