"""Where a result comes from: the commit of the source tree and the versions of the packages."""

import os
import platform
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import torch

import steadygrad


def commit(package: Path = Path(steadygrad.__file__).parent) -> str | None:
    """Return the git commit of the source tree of ``package``, with + if it has changes, or None if it has none.

    The repository must be that of the package: it tracks ``__init__.py`` in a folder beside the project's
    pyproject.toml. A repository that merely contains an installed package does not count.
    """
    try:
        project = tomllib.loads((package.parent / "pyproject.toml").read_text("utf-8"))["project"]["name"]
        if (
            project != steadygrad.__name__
            or Path(git(package, "rev-parse", "--show-toplevel")) != package.parent.resolve()
        ):
            return None
        git(package, "ls-files", "--error-unmatch", "__init__.py")
        return git(package, "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*") or None
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return None


def git(folder: Path, *words: str) -> str:
    """Return the output of ``git *words`` in a folder, without surrounding white space.

    Raise OSError or subprocess.SubprocessError if it fails.
    """
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    others = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}  # as GIT_DIR in a git hook
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=others).stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of steadygrad, torch, NumPy and Python as text, a dict by name."""
    return {
        "steadygrad": steadygrad.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
