"""Kills the queue of `steadygrad reproduce --missing` with SIGKILL at random moments and compares its results.

    python tests/kill_queue.py demo --scale desk --kills 5 --seed 0

runs the rows once with a queue that is left alone, and once with one that is killed and started again. Metrics, results
and weights must be equal bit for bit, but for times. Linux only: it looks for processes under /proc.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIMES = {"seconds", "wall_seconds"}
COMPARED = ("*.jsonl", "*.json", "settings.toml", "model.safetensors", "last.safetensors")


def start(rows: str, scale: str, out: Path, jobs: int, *options: str) -> subprocess.Popen:
    """Start a queue that takes no stored results."""
    command = [sys.executable, "-m", "steadygrad", "reproduce", rows, "--missing", "--scale", scale, "--out", str(out)]
    command += ["--jobs", str(jobs), "--results", str(out / "none"), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def kill(queue: int) -> float:
    """Kill a process, wait until the processes that it started are gone, and return how long that took."""
    children = Path(f"/proc/{queue}/task/{queue}/children").read_text().split()
    os.kill(queue, signal.SIGKILL)
    begun = time.monotonic()
    while any(is_alive(child) for child in children):
        if time.monotonic() - begun > 60:
            raise AssertionError(f"the processes {children} outlive their queue")
        time.sleep(0.01)
    return time.monotonic() - begun


def is_alive(process: str) -> bool:
    """Return whether a process runs; one that has ended may still wait for somebody to ask for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def results(out: Path) -> dict[str, object]:
    """Return what is compared, by file: everything but checkpoints and their digests, with times left out."""
    found: dict[str, object] = {}
    for path in sorted(path for pattern in COMPARED for path in out.glob(f"*/*/*/seed-*/{pattern}")):
        if path.name == "manifest.json":
            continue
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            found[str(path.relative_to(out))] = [timeless(json.loads(line)) for line in content.splitlines()]
        elif path.suffix == ".json":
            found[str(path.relative_to(out))] = timeless(json.loads(content))
        else:
            found[str(path.relative_to(out))] = content
    return found


def timeless(row: dict) -> dict:
    return {key: value for key, value in row.items() if key not in TIMES}


def finish(rows: str, scale: str, out: Path, jobs: int) -> str:
    """Let a queue come to its end and return what it printed."""
    queue = start(rows, scale, out, jobs)
    text, _ = queue.communicate()
    if queue.returncode:
        raise AssertionError(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows")
    parser.add_argument("--scale", default="smoke")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    given = options.rows, options.scale
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="kill-queue-") as folder:
        alone, killed = Path(folder, "alone"), Path(folder, "killed")
        begun = time.monotonic()
        finish(*given, alone, options.jobs)
        whole = time.monotonic() - begun
        print(f"left alone: {whole:.0f} s, {len(results(alone))} files", flush=True)
        for number in range(options.kills):
            queue = start(*given, killed, options.jobs)
            moment = moments.uniform(0, 2 * whole / (options.kills + 1))  # so that the last one comes near the end
            try:
                text, _ = queue.communicate(timeout=moment)
                print(f"queue {number + 1} came to its end before {moment:.1f} s:\n{text}", flush=True)
            except subprocess.TimeoutExpired:
                gone = kill(queue.pid)
                queue.communicate()
                ended = len(list(killed.glob("*/*/*/seed-*/result.json")))
                saved = len(list(killed.glob("*/*/*/seed-*/checkpoint.safetensors")))
                print(f"queue {number + 1} killed after {moment:.1f} s: {ended} results, {saved} checkpoints; "
                      f"its processes were gone after {gone:.2f} s", flush=True)  # fmt: skip
        print(finish(*given, killed, options.jobs))
        wanted, found = results(alone), results(killed)
        if different := [name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)]:
            sys.exit(f"different: {', '.join(sorted(different))}")
        print(f"all {len(wanted)} files are equal")


if __name__ == "__main__":
    main()
