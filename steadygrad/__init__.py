"""Recurrent networks in PyTorch whose gradients neither vanish nor explode."""

from importlib import import_module
from typing import Any

__version__: str


def __getattr__(name: str) -> Any:
    """Return the version, or import a module such as `steadygrad.layers` on first access.

    `import steadygrad` is fast, because it loads neither torch nor the package's metadata.
    """
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("steadygrad")
        except metadata.PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name == "diagnose":
        return import_module(f"{__name__}.diagnostics").diagnose
    if not name.startswith("_"):
        from importlib import util

        if util.find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
