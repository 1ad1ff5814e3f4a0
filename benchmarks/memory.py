"""Measure the peak memory of one training step, each layer in a new process.

`python -m benchmarks.memory NAME BATCH,TIME,HIDDEN,INPUTS THREADS` prints the peak growth of the process in bytes.
Layer, input and output gradient are allocated before.
"""

import ctypes
import gc
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.claims import MEMORY_CLAIMS, judged
from benchmarks.contenders import SIZES, Size, training_step
from benchmarks.peers import MissingError

ROOT = Path(__file__).resolve().parents[1]
SMALL = Size(8, 20, 64, 3)
"""Size of a first step that loads libraries and starts threads, so that these are not counted."""


def measure(index: int, names: Sequence[str], threads: int, after_each: Callable[[int], object]) -> dict[str, Any]:
    size = SIZES[index]
    grown = {}
    for done, name in enumerate(filter(available, names)):
        grown[name] = in_fresh_process(name, size, threads)
        after_each(done + 1)
    return {
        "index": index,
        "size": size._asdict(),
        "megabytes": {name: bytes / 2**20 for name, bytes in grown.items()},
        "ratios": [
            judged(claim, grown[claim.above] / grown[claim.below], claim.bound(index))
            for claim in MEMORY_CLAIMS
            if claim.above in grown and claim.below in grown
        ],
    }


def available(name: str) -> bool:
    try:
        training_step(name, SMALL)
    except MissingError:
        return False
    return True


def in_fresh_process(name: str, size: Size, threads: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", name, ",".join(map(str, size)), str(threads)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"the memory of {name} at {size} could not be measured:\n{run.stderr}")
    return int(run.stdout)


def growth(name: str, size: Size) -> int:
    """Return the bytes that a training step needs in addition to the layer, its input and the output gradient."""
    warm = training_step(name, SMALL)
    warm.prepare()
    warm.run()
    step = training_step(name, size)
    step.prepare()
    del warm
    before = settle()
    step.run()
    return max(1, peak() - before)


def settle() -> int:
    """Free unused memory, reset the peak if the system can, and return the peak."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak to the current resident size
    except (AttributeError, OSError):
        pass  # otherwise the peak may come from the construction and hide smaller growth
    return peak()


def peak() -> int:
    """Return the peak resident size in bytes."""
    try:  # preferred to getrusage, whose maximum Linux inherits from the parent process
        status = Path("/proc/self/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(name: str, size: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    print(growth(name, Size(*map(int, size.split(",")))))


if __name__ == "__main__":
    main(*sys.argv[1:])
