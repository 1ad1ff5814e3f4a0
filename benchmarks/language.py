"""Measure the training speed of language models in characters a second, against torch.nn.RNN and torch.nn.LSTM.

    python benchmarks/language.py                         nnRNN, expRNN, NC-GRU at 1024 units: about five minutes
    python benchmarks/language.py --layers nnrnn,lstm --hidden 512 --batch 32 --window 100
    python benchmarks/language.py --layers ncgru,gru --hidden 430,1000,430 --batch 32 --window 100     three layers
    python benchmarks/language.py --json language.json

An update includes the embedding (200), the layer with a carried state, the readout (50 symbols), loss, gradients and
RMSprop. The recurrent matrix is computed again in every update, as in training. All are timed in turns within one run.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import Contender, interleave
from steadygrad.cli.common import Parser
from steadygrad.layers import LAYERS
from steadygrad.layers.recurrent import State, as_tuple
from steadygrad.models import LanguageModel
from steadygrad.report.tables import markdown

SYMBOLS, EMBEDDING = 50, 200
TORCH = {"torch.nn.RNN": nn.RNN, "torch.nn.LSTM": nn.LSTM}
BOUNDS = {"torch.nn.RNN": 1.1, "torch.nn.LSTM": 2.5}
"""Minimum speed of nnRNN relative to each peer."""
AT = ([1024], 128, 150)
"""Hidden sizes, batch and window for which `BOUNDS` are checked."""
HEADER = ["layer", "characters/s", "update, ms", "/ nn.RNN", "/ nn.LSTM"]


class TorchLanguageModel(nn.Module):
    """A LanguageModel with torch's layers."""

    def __init__(self, make: type[nn.Module], sizes: Sequence[int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, EMBEDDING)
        self.layers = nn.ModuleList(make(features, units) for features, units in pairwise([EMBEDDING, *sizes]))
        self.readout = nn.Linear(sizes[-1], SYMBOLS)

    def walk(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        hidden, ends = self.embedding(tokens.t()), []
        given = as_tuple(state) if state is not None else ()
        parts, each = iter(given), len(given) // len(self.layers)
        for layer in self.layers:
            own = tuple(islice(parts, each))
            hidden, end = layer(hidden, (own if each > 1 else own[0]) if own else None)
            ends += as_tuple(end)
        return self.readout(hidden).transpose(0, 1), tuple(ends)

    def penalty(self) -> float:
        return 0.0


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="nnrnn,exprnn,ncgru", help="steadygrad layers (default nnrnn,exprnn,ncgru)")
    parser.add_argument("--hidden", type=units, default=[1024], metavar="LIST", help="size of each layer, default 1024")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--window", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=240.0, help="total time (default 240)")
    parser.add_argument("--threads", type=int, help="default: the number that torch uses")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    names = options.layers.split(",")
    if unknown := [name for name in names if name not in LAYERS]:
        parser.error(f"no layer {', '.join(unknown)}; known: {', '.join(LAYERS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    result = measured(names, options.hidden, options.batch, options.window, options.seconds)
    print(markdown(HEADER, lines(result)))
    for peer, holds in result["holds"].items():
        print(f"nnRNN at least {BOUNDS[peer]} times as fast as {peer}; holds: {holds}")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


def units(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"expects integers as in 430,1000,430; got {text!r}")
    return [int(part) for part in text.split(",")]


def measured(names: list[str], hidden: list[int], batch: int, window: int, seconds: float) -> dict:
    models: dict[str, Callable[[], nn.Module]] = {
        **{name: lambda name=name: LanguageModel(LAYERS[name], SYMBOLS, sizes=hidden) for name in names},
        **{name: lambda make=make: TorchLanguageModel(make, hidden) for name, make in TORCH.items()},
    }
    contenders = [Contender(name, update(make, batch, window)) for name, make in models.items()]
    timings = interleave(contenders, seconds=seconds)
    rows = []
    for name in models:
        took = timings.spread(name).median
        faster = {peer: timings.ratio(peer, name).as_dict() for peer in TORCH}
        rows.append({"layer": name, "ms": 1e3 * took, "characters_per_second": batch * window / took, "faster": faster})
    judged = (row["faster"] for row in rows if row["layer"] == "nnrnn" and (hidden, batch, window) == AT)
    own = next(judged, {})
    return {
        "hidden": hidden,
        "batch": batch,
        "window": window,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "bounds": BOUNDS,
        "holds": {peer: ratio["median"] >= BOUNDS[peer] for peer, ratio in own.items()},
        "rows": rows,
    }


def lines(result: dict) -> list[list[str]]:
    return [
        [
            row["layer"],
            f"{row['characters_per_second']:,.0f}",
            f"{row['ms']:.0f}",
            *(f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" for ratio in row["faster"].values()),
        ]
        for row in result["rows"]
    ]


def update(make: Callable[[], nn.Module], batch: int, window: int) -> Callable[[], None]:
    """Return a function that makes one update, always on the same window, and carries the state on."""
    torch.manual_seed(0)
    model = make()
    tokens = torch.randint(SYMBOLS, (batch, window + 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    state = None

    def run() -> None:
        nonlocal state
        optimizer.zero_grad()
        logits, end = model.walk(tokens[:, :-1], state)
        (F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) + model.penalty()).backward()
        optimizer.step()
        parts = tuple(part.detach() for part in as_tuple(end))
        state = parts if len(parts) > 1 else parts[0]

    return run


if __name__ == "__main__":
    main()
