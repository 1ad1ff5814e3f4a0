"""Time training steps whose sequences hold resets, and the same steps without: reinforcement learning's rollouts.

    python benchmarks/resets.py                        about four minutes
    python benchmarks/resets.py --json resets.json

A share of all steps (5 %) begins a new episode. Beside our layers run sb3-contrib's loop over steps and TorchRL's split
and pad, both around torch.nn.LSTM, if these packages are installed. All of a size are timed in turns within one run.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.contenders import Size, Update
from benchmarks.peers import MissingError, optional
from benchmarks.timing import Contender, interleave
from steadygrad.cli.common import Parser
from steadygrad.layers import LAYERS
from steadygrad.report.tables import markdown

SIZES = (Size(16, 128, 64, 64), Size(32, 200, 256, 256), Size(8, 512, 128, 128))
OURS = ("exprnn", "nnrnn", "ncgru", "lstm", "rellstm")
SHARE = 0.05
BOUND = 1.1
"""of the time with resets to the time without"""
HEADER = ["size", "layer", "without, ms", "with resets, ms", "ratio"]
Run = Callable[[Tensor, Tensor | None], Tensor]
"""inputs (time, batch, features) and a mask of resets, or None → outputs (time, batch, features)"""


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=80.0, help="for each size (default 80)")
    parser.add_argument("--share", type=float, default=SHARE, help="of steps that begin an episode (default 0.05)")
    parser.add_argument("--threads", type=int, help="default: the number that torch uses")
    parser.add_argument("--busy", action="store_true", help="count processor time: for one thread on a busy machine")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = [row for size in SIZES for row in measured(size, options.share, options.seconds, options.busy)]
    print(markdown(HEADER, [line(row) for row in rows], right_from=2))
    if options.json:
        setting = {
            "clock": "processor" if options.busy else "wall",
            "share": options.share,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        Path(options.json).write_text(json.dumps({**setting, "bound": BOUND, "rows": rows}, indent=1) + "\n")


def measured(size: Size, share: float, seconds: float, busy: bool = False) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size.time, size.batch, size.inputs, generator=generator)
    G = torch.randn(size.time, size.batch, size.hidden, generator=generator)
    reset = torch.rand(size.time, size.batch, generator=generator) < share
    present = dict(contenders(size))
    turns = []
    for name, (run, module) in present.items():
        update = Update(module.parameters(), generator)
        turns += [
            Contender(key(name, mask), lambda run=run, mask=mask: run(x, mask).backward(G), update)
            for mask in (None, reset)
        ]
    timings = interleave(turns, seconds, clock=time.process_time if busy else time.perf_counter)
    return [
        {
            "size": size._asdict(),
            "layer": name,
            "ms": {
                "without": 1e3 * timings.spread(key(name, None)).median,
                "with": 1e3 * timings.spread(key(name, reset)).median,
            },
            "ratio": timings.ratio(key(name, reset), key(name, None)).as_dict(),
        }
        for name in present
    ]


def key(name: str, mask: Tensor | None) -> str:
    return f"{name} {'without' if mask is None else 'with'}"


def contenders(size: Size) -> Iterator[tuple[str, tuple[Run, nn.Module]]]:
    """Yield the name of each, what runs, and the module whose parameters it trains."""
    for name in OURS:
        torch.manual_seed(0)
        layer = LAYERS[name](size.inputs, size.hidden)
        yield name, (lambda x, reset, layer=layer: layer(x, reset=reset)[0], layer)
    for name, build in {"sb3-contrib, nn.LSTM": sb3, "TorchRL, nn.LSTM": torchrl}.items():
        torch.manual_seed(0)
        try:
            yield name, build(size)
        except MissingError as reason:
            print(f"left out: {name}, {reason}", file=sys.stderr)


def sb3(size: Size) -> tuple[Run, nn.Module]:
    """Return sb3-contrib's own way: one call of nn.LSTM without episode starts, and one for each step otherwise."""
    policies = optional("sb3_contrib.common.recurrent.policies")
    layer = nn.LSTM(size.inputs, size.hidden)

    def run(x: Tensor, reset: Tensor | None) -> Tensor:
        state = (x.new_zeros(1, size.batch, size.hidden),) * 2
        starts = x.new_zeros(x.shape[:2]) if reset is None else reset.float()
        features = x.transpose(0, 1).flatten(0, 1)  # sb3-contrib stores sequence after sequence
        process = policies.RecurrentActorCriticPolicy._process_sequence
        output, _ = process(features, state, starts.T.flatten(), layer)
        return output.view(size.batch, size.time, -1).transpose(0, 1)

    return run, layer


def torchrl(size: Size) -> tuple[Run, nn.Module]:
    """Return TorchRL's LSTMModule, which splits the batch at resets and pads the pieces."""
    modules, tensordict = optional("torchrl.modules"), optional("tensordict")
    layer = nn.LSTM(size.inputs, size.hidden, batch_first=True)
    keys = {"in_keys": ["x", "h", "c"], "out_keys": ["y", ("next", "h"), ("next", "c")]}
    module = modules.LSTMModule(lstm=layer, default_recurrent_mode=True, **keys)

    def run(x: Tensor, reset: Tensor | None) -> Tensor:
        flags = torch.zeros(x.shape[:2], dtype=torch.bool) if reset is None else reset
        given = {"x": x.transpose(0, 1), "is_init": flags.T[:, :, None]}
        return module(tensordict.TensorDict(given, [size.batch, size.time]))["y"].transpose(0, 1)

    return run, layer


def line(row: dict[str, Any]) -> list[str]:
    ratio = "{median:.2f} ({low:.2f} to {high:.2f})".format(**row["ratio"])
    times = (f"{row['ms'][part]:.1f}" for part in ("without", "with"))
    return [str(Size(**row["size"])), row["layer"], *times, ratio]


if __name__ == "__main__":
    main()
