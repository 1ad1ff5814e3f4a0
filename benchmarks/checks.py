"""Time the checks of arguments and the digests of files alone, against an update of the demo and a one-step call.

    python benchmarks/checks.py                   about half a minute
    python benchmarks/checks.py --seconds 30

The calls of the checks in one update, or one call of a layer, are recorded and then repeated alone. Checks and updates
take turns within one run. A digest is that of a row of metrics, or of a checkpoint divided by the updates between two.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import Contender, interleave
from steadygrad import files
from steadygrad.experiments import select
from steadygrad.kernels import native
from steadygrad.layers import LAYERS, recurrent
from steadygrad.manifest import digest_of
from steadygrad.report.tables import markdown
from steadygrad.training import RunDirectory, Trainer
from steadygrad.training.checkpoint import packed
from steadygrad.training.loop import CHECKPOINT_SECONDS
from steadygrad.training.tensors import apart

CHECKS = {
    native: ("expected", "kernel_dtype", "addresses"),
    recurrent: ("rows_of_input", "check_input", "check_state", "packed_steps"),
}
"""functions that check, by the module that calls them"""
LAYERS_CALLED = ("rnn", "lstm", "ncgru", "nnrnn", "relrnn")
UNITS, REPEATS = 64, 200


@contextmanager
def recorded() -> Iterator[list[Callable[[], object]]]:
    """Context manager: yield a list to which every call of a check is appended, as a function without arguments."""
    calls: list[Callable[[], object]] = []
    originals = {(module, name): getattr(module, name) for module, names in CHECKS.items() for name in names}

    def recorder(check: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any) -> Any:
            calls.append(lambda: check(*arguments))
            return check(*arguments)

        return record

    try:
        for (module, name), check in originals.items():
            setattr(module, name, recorder(check))
        yield calls
    finally:
        for (module, name), check in originals.items():
            setattr(module, name, check)


def repeated(calls: list[Callable[[], object]], times: int) -> Callable[[], None]:
    """Return a function that makes the calls so many times."""

    def run() -> None:
        for _ in range(times):
            for call in calls:
                call()

    return run


def update_row(seconds: float) -> list[str]:
    """Return the time of an update of the demo's nnRNN, of its checks and of its digests, and their share."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(select("demo/copy/nnrnn")[0].settings("paper"), RunDirectory(folder), (), "cpu")
        trainer.update()
        with recorded() as calls:
            trainer.update()
        row = files.json_lines([{"step": 1, "split": "train", "loss": 0.1, "gradient_norm": 0.1, "seconds": 1.0}])
        weights = b"".join(
            bytes(value.flatten().view(torch.uint8).numpy()) for value in apart(packed(trainer).tensors).values()
        )
        contenders = [
            Contender("update", trainer.update),
            Contender("checks", repeated(calls, REPEATS)),
            Contender("row", lambda: digest_of(row.encode())),
            Contender("checkpoint", lambda: digest_of(weights)),
        ]
        timings = interleave(contenders, seconds=seconds)
    update, checks, row_digest, checkpoint = (timings.spread(one.name).median for one in contenders)
    checks /= REPEATS
    digests = row_digest / trainer.options.log_every + 3 * checkpoint * update / CHECKPOINT_SECONDS  # three files
    times = [f"{1e6 * update:,.0f}", f"{1e6 * checks:.1f}", f"{1e6 * digests:.2f}"]
    return ["an update of the demo", *times, f"{(checks + digests) / update:.2%}"]


def call_row(name: str, seconds: float) -> list[str]:
    """Return the time of a one-step call of a layer under no_grad, and of its checks."""
    layer, x = LAYERS[name](UNITS, UNITS), torch.randn(1, 1, UNITS)
    with torch.no_grad():
        _, state = layer(x)
        with recorded() as calls:
            layer(x, state)
        both = [
            Contender("call", repeated([lambda: layer(x, state)], 20)),
            Contender("checks", repeated(calls, REPEATS)),
        ]
        timings = interleave(both, seconds=seconds)
    call, checks = timings.spread("call").median / 20, timings.spread("checks").median / REPEATS
    return [f"one step of {name}", f"{1e6 * call:.1f}", f"{1e6 * checks:.2f}", "", f"{checks / call:.2%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each row (default 5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.perf_counter()
    rows = [update_row(options.seconds), *(call_row(name, options.seconds) for name in LAYERS_CALLED)]
    print(markdown(["what", "whole, µs", "checks, µs", "digests, µs", "share"], rows))
    print(f"{time.perf_counter() - begun:.0f} s, one thread")


if __name__ == "__main__":
    main()
