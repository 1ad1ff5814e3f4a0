"""Run the numeric tests with the lowest version of torch that pyproject.toml allows: `make test-lowest`.

The versions of all other packages are those of constraints.txt. The environment is build/lowest, and it is kept.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "lowest"
TESTS = [f"tests/{folder}" for folder in ("kernels", "layers", "matrices", "harness")]
OWN_VERSIONS = ("torch==", "setuptools==", "sympy==")  # of constraints.txt, left to the old torch


def lowest(requirement: str) -> str:
    """Return ``requirement`` with its lower bound as its only version."""
    found = re.match(r"([\w-]+)\s*>=\s*([\w.]+)", requirement)
    if not found:
        raise ValueError(f"pyproject.toml: a requirement with >= was expected; got {requirement!r}")
    return f"{found[1]}=={found[2]}"


def main() -> int:
    """Make the environment unless it exists, run the tests in it, and return the exit code of pytest."""
    parser = argparse.ArgumentParser(prog="make test-lowest", description=__doc__)
    parser.add_argument("--workers", default="auto", help="processes of pytest (default: one a core)")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    torch, *others = project["dependencies"]
    python = FOLDER / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines(keepends=True)
    constraints = FOLDER / "constraints.txt"
    constraints.write_text("".join(line for line in lines if not line.startswith(OWN_VERSIONS)), "utf-8")
    wanted = [lowest(torch), *others, *project["optional-dependencies"]["test"]]
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-c", constraints]
    subprocess.run([*install, *wanted], check=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HYPOTHESIS_PROFILE": "ci"}
    versions = "import sys, torch; print('Python', sys.version.split()[0], 'torch', torch.__version__)"
    subprocess.run([python, "-c", versions], check=True)
    command = [python, "-m", "pytest", "-q", "-n", options.workers, "--maxprocesses", "4", *TESTS]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
