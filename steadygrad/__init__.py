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
]

try:
    __version__ = metadata.version("steadygrad")
except metadata.PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """Import a layer or a module on first access, so that `import steadygrad` does not load torch."""
    if name in __all__:
        home = import_module(f"{__name__}.{'diagnostics' if name == 'diagnose' else 'layers'}")
        return getattr(home, name)
    if not name.startswith("_") and util.find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the package: its layers and modules, also those that are not imported yet."""
    modules = (module.name for module in iter_modules(__path__))
    return sorted({*globals(), *__all__, *(name for name in modules if not name.startswith("_"))})
