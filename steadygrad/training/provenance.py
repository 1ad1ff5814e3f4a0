"""Where a result comes from: the commit of the source tree and the versions of the packages."""

import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

import steadygrad


def commit() -> str | None:
    """Return the git commit of the source tree, with + if it has changes, or None if it is not under git."""
    folder = Path(steadygrad.__file__).parent
    try:
        asked = [
            "git",
            "--no-optional-locks",
            "-C",
            str(folder),
            "describe",
            "--always",
            "--abbrev=40",
            "--dirty=+",
            "--exclude=*",
        ]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def versions() -> dict[str, str]:
    """Return the versions of steadygrad, torch, NumPy and Python as text, a dict by name."""
    return {
        "steadygrad": steadygrad.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
