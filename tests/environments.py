"""Run the tests in every environment that changes rounding or speed, and print a table: `make test-matrix`.

Each column is one environment. By default it runs the numeric tests only; ``--whole`` runs all tests.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "test-matrix"
NUMERIC = [f"tests/{folder}" for folder in ("matrices", "kernels", "layers", "models", "diagnostics")]
BUSY, WITHOUT_C = "busy", "without C"

# Name of the column → variables that it sets. Columns with an empty value differ in what `prepare` does.
COLUMNS: dict[str, dict[str, str]] = {
    "plain": {},
    "ATen default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATen avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATen avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "MKL SSE4_2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "MKL AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL AVX512": {"MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "MKL compatible": {"MKL_CBWR": "COMPATIBLE"},
    "ATen default, MKL SSE4_2": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "kernels baseline": {"STEADYGRAD_CPU_CAPABILITY": "baseline"},
    "kernels avx2": {"STEADYGRAD_CPU_CAPABILITY": "avx2"},
    "kernels avx512": {"STEADYGRAD_CPU_CAPABILITY": "avx512"},
    "kernels python": {"STEADYGRAD_KERNELS": "python"},
    "1 thread": {"OMP_NUM_THREADS": "1"},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "4 threads": {"OMP_NUM_THREADS": "4"},
    "without browser": {"CHROMIUM": ""},
    BUSY: {},
    WITHOUT_C: {},
}
# What a column needs of the processor, by the flags that Linux lists. Elsewhere such a column is left out.
NEEDS = {"avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"}}


def obstacle(column: str) -> str | None:
    """Return why a column cannot run on this machine, or None."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.exists() else set()
    for value in COLUMNS[column].values():
        if missing := NEEDS.get(value.lower(), set()) - flags:
            return f"the processor has no {', '.join(sorted(missing))}"
    return None


@contextlib.contextmanager
def prepare(column: str) -> Iterator[Path]:
    """Prepare what variables cannot express, and yield the folder to run in."""
    if column == BUSY:
        load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
        try:
            yield ROOT
        finally:
            for process in load:
                process.kill()
                process.wait()
    elif column == WITHOUT_C:
        with tempfile.TemporaryDirectory(prefix="steadygrad-without-c-") as folder:
            copy = Path(folder, "steadygrad")
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("_native*", ".venv", "build", "runs", ".git"))
            yield copy
    else:
        yield ROOT


def run(column: str, tests: list[str], workers: str) -> tuple[int, str, list[str]]:
    """Run pytest in one environment. Return its exit code, its closing counts, and what it says about failures."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{re.sub(r'[^A-Za-z0-9]+', '-', column)}.txt"
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--maxprocesses", "4", *tests]
    with prepare(column) as folder, log.open("w") as file:
        environment = os.environ | COLUMNS[column] | {"HYPOTHESIS_PROFILE": "ci"}
        code = subprocess.run(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
    text = log.read_text()
    closing = re.findall(r"^.*\b(?:passed|failed|errors?)\b.* in [\d.]+s.*$", text, re.MULTILINE)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error|skipped)", "".join(closing[-1:]))}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if code and not failed:
        return code, f"pytest ended with exit code {code}", text.splitlines()[-20:]
    explained = re.findall(r"^(?:E  |FAILED|ERROR).*$", text, re.MULTILINE)
    return code, f"{counts.get('passed', 0):>6} {failed:>6} {counts.get('skipped', 0):>7}", explained


def picked(count: int) -> list[str]:
    """Return ``count`` columns that follow from the current commit, so that each change is tested in others."""
    names = [name for name in COLUMNS if obstacle(name) is None and name not in ("plain", BUSY)]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    start = int(head or "0", 16) % len(names)
    return [names[(start + k * (len(names) // count)) % len(names)] for k in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-matrix", description=__doc__)
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, metavar="NAME", help=f"of: {', '.join(COLUMNS)}")
    parser.add_argument("--pick", type=int, metavar="N", help="run N columns that follow from the current commit")
    parser.add_argument("--whole", action="store_true", help="run all tests, not only the numeric ones")
    parser.add_argument("--workers", default="auto", help="processes of pytest (default: one a core)")
    options = parser.parse_args()
    names = options.columns or (picked(options.pick) if options.pick else list(COLUMNS))
    print(f"{'column':<26} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>8}", flush=True)
    worst = 0
    for name in names:
        print(f"{name:<26} ", end="", flush=True)
        if reason := obstacle(name):
            print(f"left out: {reason}")
            continue
        start = time.monotonic()
        code, counts, explained = run(name, ["tests"] if options.whole else NUMERIC, options.workers)
        print(f"{counts} {time.monotonic() - start:>8.0f}", flush=True)
        for line in explained:
            print(f"    {line}", flush=True)
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
