"""Recurrent networks in PyTorch whose gradients neither vanish nor explode."""

from importlib import import_module, metadata, util
from pkgutil import iter_modules
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

try:
    __version__ = metadata.version("steadygrad")
except metadata.PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


FROM = {"diagnose": "diagnostics", "parameter_groups": "layers.groups", "safe_classes": "models.safe"}
"""modules of the names in `__all__` that are not layers"""


def __getattr__(name: str) -> Any:
    """Import a layer or a module on first access, so that `import steadygrad` does not load torch."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.{FROM.get(name, 'layers')}"), name)
    if not name.startswith("_") and util.find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the package: its layers and modules, also those that are not imported yet."""
    modules = (module.name for module in iter_modules(__path__))
    return sorted({*globals(), *__all__, *(name for name in modules if not name.startswith("_"))})
