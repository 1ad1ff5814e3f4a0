"""Compare speed and memory with torch.nn and other packages. Needs a source checkout.

steadygrad bench
steadygrad bench --json speed.json --only steps --sizes 0,1
"""

import argparse
import subprocess
import sys
from pathlib import Path

import steadygrad


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad bench` to its parser."""
    parser.epilog = "All arguments go to benchmarks/speed.py, which has more options: benchmarks/speed.py --help"
    parser.add_argument("--json", metavar="FILE", help="also write every number to FILE")


def run(options: argparse.Namespace) -> int:
    """Run benchmarks/speed.py of the source checkout in a subprocess and return its exit code."""
    script = Path(steadygrad.__file__).parent.parent / "benchmarks" / "speed.py"
    if not script.exists():
        raise ValueError("bench expects a source checkout: the benchmarks are not part of the installed package")
    own = ["--json", options.json] if options.json else []
    return subprocess.run([sys.executable, str(script), *own, *options.rest]).returncode
