"""Recurrent networks in PyTorch whose gradients neither vanish nor explode."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time `__getattr__` imports them on first access
    from steadygrad.diagnostics import diagnose
    from steadygrad.layers import (
        ENRNN,
        EURNN,
        GORU,
        GRU,
        IRNN,
        LAYERS,
        LEM,
        LSTM,
        NCGRU,
        NNRNN,
        ORNN,
        RNN,
        SAB,
        URNN,
        AntisymmetricRNN,
        CoRNN,
        ExpRNN,
        FullCapacityURNN,
        HDetachLSTM,
        HenaffRNN,
        MemLSTM,
        MemRNN,
        OrthogonalRNN,
        RelLSTM,
        RelRNN,
        ScoRNN,
        ScuRNN,
        SpectralRNN,
        Stack,
    )
    from steadygrad.layers.groups import parameter_groups
    from steadygrad.models.safe import safe_classes

__all__ = [
    "ENRNN",
    "EURNN",
    "GORU",
    "GRU",
    "IRNN",
    "LAYERS",
    "LEM",
    "LSTM",
    "NCGRU",
    "NNRNN",
    "ORNN",
    "RNN",
    "SAB",
    "URNN",
    "AntisymmetricRNN",
    "CoRNN",
    "ExpRNN",
    "FullCapacityURNN",
    "HDetachLSTM",
    "HenaffRNN",
    "MemLSTM",
    "MemRNN",
    "OrthogonalRNN",
    "RelLSTM",
    "RelRNN",
    "ScoRNN",
    "ScuRNN",
    "SpectralRNN",
    "Stack",
    "diagnose",
    "parameter_groups",
    "safe_classes",
]

__version__: str


FROM = {"diagnose": "diagnostics", "parameter_groups": "layers.groups", "safe_classes": "models.safe"}
"""modules of the names in `__all__` that are not layers"""


def __getattr__(name: str) -> Any:
    """Return the version, or import a layer or a module such as `steadygrad.layers` on first access.

    `import steadygrad` is fast, because it loads neither torch nor the package's metadata.
    """
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("steadygrad")
        except metadata.PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name in __all__:
        return getattr(import_module(f"{__name__}.{FROM.get(name, 'layers')}"), name)
    if not name.startswith("_"):
        from importlib import util

        if util.find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the package: its layers and modules, also those that are not imported yet."""
    from pkgutil import iter_modules

    modules = (module.name for module in iter_modules(__path__))
    return sorted({*globals(), *__all__, "__version__", *(name for name in modules if not name.startswith("_"))})
