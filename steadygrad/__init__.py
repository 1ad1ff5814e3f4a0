"""Recurrent networks in PyTorch whose gradients neither vanish nor explode."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` imports them on first access
    from steadygrad.diagnostics import diagnose as diagnose
    from steadygrad.layers import *  # noqa: F403
    from steadygrad.layers.groups import parameter_groups as parameter_groups
    from steadygrad.models.safe import safe_classes as safe_classes

__version__: str

FROM = {
    "LAYERS": "layers",
    "Stack": "layers",
    "diagnose": "diagnostics",
    "parameter_groups": "layers.groups",
    "safe_classes": "models.safe",
}
"""names of the package that are neither modules nor classes of layers, and their modules"""


def __getattr__(name: str) -> Any:
    """Return the version, or import a layer, a function or a module such as `steadygrad.layers` on first access.

    `import steadygrad` is fast, because it loads neither torch nor the package's metadata.
    """
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("steadygrad")
        except metadata.PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name == "__all__":
        return public()
    if name in FROM:
        return getattr(import_module(f"{__name__}.{FROM[name]}"), name)
    if not name.startswith("_"):
        from importlib import util

        if util.find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        if name in public():
            return getattr(import_module(f"{__name__}.layers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def public() -> list[str]:
    """Return the names in `FROM` and those of the classes in `LAYERS`, sorted. They are read from the source."""
    from steadygrad.catalog.networks import layers

    return sorted({*FROM, *(cls.name for cls in layers().values())})


def __dir__() -> list[str]:
    """Return the names of the package: its layers, functions and modules, also those that are not imported yet."""
    from pkgutil import iter_modules

    modules = (module.name for module in iter_modules(__path__))  # noqa: F405
    return sorted({*globals(), *public(), "__version__", *(name for name in modules if not name.startswith("_"))})
