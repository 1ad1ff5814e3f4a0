"""Optional packages, which an extra of steadygrad installs."""

from importlib import import_module
from types import ModuleType


def import_optional(who: str, package: str, extra: str) -> ModuleType:
    """Import an optional package and return it. If it is missing, raise a ValueError with ``who`` and the extra."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ValueError(f"{who} needs the package {package}: pip install steadygrad[{extra}]") from error
