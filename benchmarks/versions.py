"""Compare the speed of layers in two source trees, such as the commits before and after a change.

    git worktree add ../before HEAD~1            and build its C kernels: python setup.py build_ext --inplace
    python benchmarks/versions.py ../before .
    python benchmarks/versions.py ../before . --layers lstm,ncgru --uses step,train --rounds 24

Each tree runs in a process of its own. The two take turns: in every round each runs the same layer for a short time,
and the ratio is that of the two medians of the round. A ratio above 1 means that the second tree is slower. "train" is
a training step at the sizes of benchmarks/speed.py, "infer" the same without gradients, "step" a call of one time step
under no_grad. Parameters are changed slightly before each training step, so that matrices are computed anew.

With --threads 1 the time is that of the processor, so that other work on the machine matters less.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import Spread

SIZES = {
    "train": [(10, 220, 128, 10), (50, 200, 80, 2), (20, 1000, 192, 10), (100, 784, 256, 1), (128, 150, 1024, 50)],
    "infer": [(10, 220, 128, 10), (32, 200, 256, 64)],
    "step": [(1, 1, 64, 10), (16, 1, 256, 10)],
}
"""sizes of each use, as (batch, time, hidden, inputs)"""
DEFAULT = "rnn,exprnn,nnrnn,scornn,enrnn,gru,ncgru,lstm,relrnn"
TURN = 0.15
"""seconds that a turn lasts, unless one step takes longer"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="root of the first source tree")
    parser.add_argument("after", type=Path, help="root of the second source tree")
    parser.add_argument("--layers", default=DEFAULT, help=f"names in LAYERS, separated by commas (default {DEFAULT})")
    parser.add_argument("--uses", default=",".join(SIZES), help="train, infer, step (default: all)")
    parser.add_argument("--sizes", help="numbers of the sizes of each use: 0,1 (default: all)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0, help="default: the number that torch uses")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios to FILE, too")
    given = parser.parse_args()
    trees = [Tree(path.resolve(), given.threads) for path in (given.before, given.after)]
    print(f"{processor()}; second / first, median and range of {given.rounds} rounds; above 1 the second is slower\n")
    print("| layer | use | size | first, ms | second, ms | ratio |\n| --- | --- | --- | ---: | ---: | ---: |")
    rows = []
    for row in measure(trees, given.layers.split(","), chosen(given.uses, given.sizes), given.rounds):
        rows.append(row)
        low, ratio, high = row["ratio"]
        print(
            f"| {row['layer']} | {row['use']} | {row['size']} | {row['first']:.4g} | {row['second']:.4g} "
            f"| {ratio:.3f} ({low:.2f} … {high:.2f}) |",
            flush=True,
        )
    for tree in trees:
        tree.close()
    print(f"\nMedian of the ratios: {statistics.median(row['ratio'][1] for row in rows):.3f}")
    if given.json:
        given.json.write_text(json.dumps({"processor": processor(), "rows": rows}, indent=1) + "\n", "utf-8")


def chosen(uses: str, numbers: str | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the uses and sizes to measure, as pairs, from the options of the command line."""
    for use in uses.split(","):
        for index, size in enumerate(SIZES[use]):
            if numbers is None or str(index) in numbers.split(","):
                yield use, size


def measure(
    trees: list["Tree"], layers: list[str], uses: Iterator[tuple[str, tuple[int, ...]]], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield one row for each use and layer: medians in milliseconds, and the low, median and high ratio."""
    for use, size in uses:
        for layer in layers:
            for tree in trees:
                tree.ask("build", layer, use, *size)
            seconds = [[tree.ask("turn") for tree in trees] for _ in range(rounds)]
            ratios = Spread.of([second / first for first, second in seconds])
            first, second = (statistics.median(column) for column in zip(*seconds, strict=True))
            yield {
                "layer": layer,
                "use": use,
                "size": ", ".join(map(str, size)),
                "first": 1e3 * first,
                "second": 1e3 * second,
                "ratio": [ratios.low, ratios.median, ratios.high],
            }


class Tree:
    """A process that runs layers of one source tree."""

    def __init__(self, root: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(root)},
            cwd=root,
        )
        found = Path(self.ask("where"))
        if root not in found.parents:
            self.close()
            raise ValueError(f"the process for {root} imports steadygrad from {found}")

    def ask(self, *words: object) -> Any:
        """Send a command to the process and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def work(threads: int) -> None:
    """Answer the commands of `Tree` until standard input ends."""
    sys.path[0] = os.getcwd()  # the tree's own package, not that of this file
    import torch

    import steadygrad

    if threads:
        torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    step: Callable[[], object] = print
    prepare: Callable[[], object] = print
    for line in sys.stdin:
        command, *rest = json.loads(line)
        answer: object = None
        if command == "where":
            answer = steadygrad.__file__
        elif command == "build":
            step, prepare = contender(*rest)
            turn(step, prepare, clock)
        else:
            answer = turn(step, prepare, clock)
        print(json.dumps(answer), flush=True)


def contender(
    name: str, use: str, batch: int, time: int, hidden: int, inputs: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return what is timed for a layer, and what is called before it without being timed, as two functions."""
    import torch

    from steadygrad.layers import LAYERS

    torch.manual_seed(0)
    layer: Any = LAYERS[name](inputs, hidden)
    x = torch.randn(time, batch, inputs)
    if use == "train":

        def train() -> None:
            layer.zero_grad(set_to_none=True)
            (layer(x)[0].square().mean() + layer.penalty()).backward()

        @torch.no_grad()
        def change() -> None:
            for parameter in layer.parameters():
                parameter.mul_(1 + 1e-7)

        return train, change
    layer.eval()
    state = layer(x)[1]

    @torch.no_grad()
    def infer() -> None:
        layer(x, state)

    return infer, lambda: None


def turn(step: Callable[[], object], prepare: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the median time of a step in seconds. Steps are run for `TURN` seconds, at least one."""
    seconds: list[float] = []
    end = time.perf_counter() + TURN
    while not seconds or time.perf_counter() < end:
        prepare()
        start = clock()
        step()
        seconds.append(clock() - start)
    return statistics.median(seconds)


def processor() -> str:
    """Return the name of the processor, as text."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(int(sys.argv[2]))
    else:
        main()
