"""Measure the speed of the layers against torch.nn, loops with autograd, other packages and bare matrix products.

    python benchmarks/speed.py                         everything, about a quarter of an hour on two cores
    python benchmarks/speed.py --sizes 0,1 --only steps
    python benchmarks/speed.py --json speed.json       also write the numbers as JSON
    python benchmarks/speed.py --load speed.json --readme

Times include the cost of the matrix: every parameter is changed slightly before each step, outside the timing. Medians
do not include rare events: the exact inverse of `neumann` and the new base of `dtriv`.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # to import `benchmarks` when run as a file

from benchmarks import matrices, memory, report, steps
from benchmarks.contenders import CANDIDATES, SIZES
from benchmarks.steps import Effort
from benchmarks.timing import LEAST, TURN, WARMUP
from steadygrad import files
from steadygrad.cli.common import Parser
from steadygrad.kernels import describe, native

PARTS = ("steps", "matrices", "memory")
QUICK_SIZES, QUICK_ORDERS, QUICK_MEMORY = [0], (128,), ("nn.RNN", "ExpRNN")
PACKAGES = ("steadygrad", "torch", "geotorch", "torchrecurrent")


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(arguments)
    result = load(parser, options.load) if options.load else measure(options)
    if options.readme:
        report.show_markdown(report.compact(result))
    elif options.markdown or not sys.stdout.isatty():
        report.show_markdown(report.full(result))
    else:
        report.show_rich(report.full(result))


def make_parser() -> argparse.ArgumentParser:
    description, _, epilog = (__doc__ or "").partition("\n\n")
    parser = Parser(description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--sizes", type=some_sizes, help="which sizes, by number: 0,1 (default: all)", metavar="LIST")
    add("--only", choices=PARTS, help="one part only")
    add("--seconds", type=positive(float), default=40.0, help="time for each size and order (default 40)")
    add(
        "--turn",
        type=at_least_zero,
        default=TURN,
        metavar="SECONDS",
        help=f"how long a fast contender's turn in a round lasts; 0: one step only (default {TURN})",
    )
    add("--threads", type=positive(int), default=torch.get_num_threads(), help="default: the number that torch uses")
    add("--quick", action="store_true", help="a few seconds in all: shows that everything runs, not how fast")
    add("--json", type=writable, metavar="FILE", help="write every number to FILE too, part by part")
    add("--load", type=Path, metavar="FILE", help="measure nothing, show the tables of a JSON file")
    add("--markdown", action="store_true", help="plain tables even on a terminal")
    add("--readme", action="store_true", help="only the short table of the README")
    return parser


def some_sizes(text: str) -> list[int]:
    try:
        chosen = [int(part) for part in text.split(",")]
    except ValueError:
        chosen = [-1]
    if not all(0 <= index < len(SIZES) for index in chosen):
        raise argparse.ArgumentTypeError(f"expects numbers 0 … {len(SIZES) - 1}, separated by commas; got {text!r}")
    return list(dict.fromkeys(chosen))


def positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"expects a number above 0; got {text!r}")
        return value

    convert.__name__ = kind.__name__  # argparse prints this name if the text is not a number
    return convert


def at_least_zero(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"expects a number of at least 0; got {text!r}")
    return value


def writable(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"expects a file in an existing folder; got {text!r}")
    return path


def load(parser: argparse.ArgumentParser, path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"argument --load: cannot read {path}: {error}")
    if not isinstance(result, dict) or not {"machine", "versions", "settings"} <= result.keys():
        parser.error(f"argument --load: {path} was not written by --json")
    return result


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the requested parts. The result is saved after each part, so that an interrupted run loses little."""
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "settings": {key: getattr(options, key) for key in ("quick", "seconds", "turn", "sizes", "only")},
    }
    for part, run in plan(options):
        result.setdefault(part, []).append(run())
        result["machine"]["load_after"] = load_average()
        if options.json:
            files.write(options.json, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return result


def plan(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the measurements in order: the part of the result, and a function that measures it."""
    quick, wanted = options.quick, (options.only,) if options.only else PARTS
    sizes = options.sizes or (QUICK_SIZES if quick else range(len(SIZES)))
    seconds, least, warmup = (0.5, 3, 1) if quick else (options.seconds, LEAST, WARMUP)
    effort = Effort(seconds, least, warmup, options.turn)
    if "steps" in wanted:
        for index in sizes:
            yield "steps", partial(steps.measure, index, effort, progress(f"training steps at {SIZES[index]}"))
    if "matrices" in wanted:
        for order in QUICK_ORDERS if quick else matrices.ORDERS:
            yield "matrices", partial(matrices.measure, order, effort, progress(f"matrices at N = {order}"))
    if "memory" in wanted:
        names = QUICK_MEMORY if quick else tuple(CANDIDATES)
        for index in sizes:
            tell = progress(f"peak memory at {SIZES[index]}, {len(names)} processes")
            yield "memory", partial(memory.measure, index, names, options.threads, tell)


def progress(title: str) -> Callable[[int], None]:
    """Print a title, and return a function that prints the progress about every five seconds."""
    begun = last = time.monotonic()
    print(f"{title} ...", file=sys.stderr, flush=True)

    def tick(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 5:
            last = now
            print(f"  {done} done after {now - begun:.0f} s", file=sys.stderr, flush=True)

    return tick


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": describe(),
        "instruction_set": native.instruction_set(),
        "load_before": load_average(),
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def load_average() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found | {"torch": torch.__version__}  # includes the build, such as +cpu, which the metadata may omit


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
