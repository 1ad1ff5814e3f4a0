"""Recurrent networks in PyTorch whose gradients neither vanish nor explode."""

from importlib import import_module, metadata, util
from typing import Any

try:
    __version__ = metadata.version("steadygrad")
except metadata.PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


FROM = {"diagnose": "diagnostics", "parameter_groups": "layers.groups", "safe_classes": "models.safe"}
"""functions of the package that are imported on first access, and their modules"""


def __getattr__(name: str) -> Any:
    """Import a module such as `steadygrad.layers` on first access, so that `import steadygrad` does not load torch."""
    if name in FROM:
        return getattr(import_module(f"{__name__}.{FROM[name]}"), name)
    if not name.startswith("_") and util.find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
