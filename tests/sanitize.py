"""Run the C kernels under the sanitizers of gcc: `make sanitize`.

AddressSanitizer and UndefinedBehaviorSanitizer watch the kernel tests and the campaigns of odd calls. They are in a
library of their own (`STEADYGRAD_LIBRARY`), and LD_PRELOAD loads their runtime into Python. ThreadSanitizer watches a C
program (sanitize_threads.c) that calls the kernels from several threads: under Python it would report torch's OpenMP.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "sanitize"
COMPILER = os.environ.get("CC", "gcc")
SOURCE = ROOT / "steadygrad" / "kernels" / "c" / "steadygrad.c"
THREADS = ROOT / "tests" / "sanitize_threads.c"
FLAGS = [
    "-O0",
    "-g1",
    "-std=gnu11",
    "-fno-sanitize-recover=all",
    "-fPIC",
]  # -O0: -O1 takes three times as long to build
LIBRARIES = ["-lm", "-lpthread", "-ldl"]
SECONDS = {"packed": 8, "layer-calls": 16}  # of each campaign
NAMES = ["arguments", "faults", "products", "steps", "attention", "unrolls", "complex", "stream"]
TESTS = [f"tests/kernels/test_{name}.py" for name in NAMES]
# tests of signals, processes and numbers, and those with many examples
SLOW = "long_walk or end_the_walk or fork or instruction_set or gradcheck or c_and_python_match or matmul_matches"
# A read behind the end of a tensor, which AddressSanitizer must report.
OVERRUN = """
import torch
from steadygrad.kernels import native
a, b, c = (torch.ones(4, 4) for _ in range(3))
native.run("gemm", torch.float32, 4, 4, 400, 1.0, a.data_ptr(), 4, 1, b.data_ptr(), 4, 1, c.data_ptr(), 4, 0, 1)
"""


def main() -> None:
    """Build, check that the sanitizers work, run everything, and exit with 1 if anything failed."""
    runtimes = [runtime(name) for name in ("libasan.so", "libubsan.so", "libtsan.so")]
    if None in runtimes:
        print(f"make sanitize: skipped, because {COMPILER} has no libasan, libubsan or libtsan")
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    library, program = BUILD / "kernels.so", BUILD / "threads"
    builds = [
        build(["-fsanitize=address,undefined", "-shared", str(SOURCE)], library),
        build(["-fsanitize=thread", str(THREADS)], program),
    ]
    if any(process.wait() for process in builds):
        sys.exit("make sanitize: the library does not compile with sanitizers, see above")
    environment = os.environ | {
        "STEADYGRAD_LIBRARY": str(library),
        "LD_PRELOAD": " ".join(str(file) for file in runtimes[:2]),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself never frees everything
        "HYPOTHESIS_PROFILE": "ci",
    }
    overrun = subprocess.run([sys.executable, "-c", OVERRUN], cwd=ROOT, env=environment, capture_output=True, text=True)
    if "AddressSanitizer" not in overrun.stderr:
        sys.exit(f"make sanitize: AddressSanitizer did not notice a read behind a tensor\n{overrun.stderr}")
    tests = [sys.executable, "-m", "pytest", "-q", "-x", *TESTS]
    commands = {"tests": [*tests, "-k", f"not ({SLOW})"]}
    for name, seconds in SECONDS.items():
        record = ["--seconds", str(seconds), "--record", str(BUILD / f"{name}.json")]
        commands[name] = [sys.executable, "-m", "tests.campaigns", "--only", name, *record]
    failed = [name for name, command in commands.items() if not passes(name, command, environment)]
    # without randomised addresses, for which the ThreadSanitizer of gcc 12 has no room on new kernels
    failed += [] if passes("threads", ["setarch", "-R", str(program)], dict(os.environ)) else ["threads"]
    if failed:
        sys.exit(f"make sanitize: failed in {', '.join(failed)}")
    print("make sanitize: nothing found")


def runtime(name: str) -> Path | None:
    """Return the file of a sanitizer's runtime, or None if the compiler has none."""
    try:
        answer = subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True)
    except OSError:
        return None
    file = Path(answer.stdout.strip())
    return file if file.is_absolute() and file.exists() else None


def build(arguments: list[str], target: Path) -> "subprocess.Popen[bytes]":
    """Start the compiler."""
    return subprocess.Popen([COMPILER, *FLAGS, *arguments, "-o", str(target), *LIBRARIES])


def passes(name: str, command: list[str], environment: dict[str, str]) -> bool:
    """Run a command, print how long it took, and return whether it succeeded."""
    begun = time.monotonic()
    ended = subprocess.run(command, cwd=ROOT, env=environment)
    print(f"make sanitize: {name}, {time.monotonic() - begun:.0f} s, exit code {ended.returncode}", flush=True)
    return ended.returncode == 0


if __name__ == "__main__":
    main()
