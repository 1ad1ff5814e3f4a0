"""Choice of the implementation: compiled C, Python with hand-written gradients, or the reference definition."""

import os
import warnings
from functools import cache

from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.plain import needs_plain

VARIABLE = "STEADYGRAD_KERNELS"
CHOICES = ("auto", "c", "python", "reference")
FEW_ROWS, LARGE = 4, 60_000  # with at most 4 rows and a matrix of at least 60,000 entries torch's products are faster


def choose(x: Tensor) -> str:
    """Return the implementation for tensors like x, "c", "python" or "reference", following STEADYGRAD_KERNELS.

    Where only plain operations work (torch.func, export) the result is ``reference`` for any value of the variable.
    Raise ValueError if the variable has an unknown value, or if it is "c" and the C kernel cannot run on x. Warn once
    if the C kernel is missing.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in CHOICES:
        raise ValueError(f"{VARIABLE} expects one of {', '.join(CHOICES)}; got {wanted!r}")
    if needs_plain(x):
        return "reference"
    if wanted in ("python", "reference"):
        return wanted
    obstacle = obstacle_to_c(x)
    if obstacle is None:
        return "c"
    if wanted == "c":
        raise ValueError(f"{VARIABLE}=c, but the C kernel cannot run: {obstacle}")
    if isinstance(native.library(), str) and x.device.type == "cpu":
        say_once(obstacle)
    return "python"


def choose_for(x: Tensor, matrix: Tensor) -> str:
    """Return what `choose` returns for x, but "python" instead of "c" for few rows x and a large matrix.

    The C kernel packs the matrix anew in every call, which is too slow for a few rows. This applies only if
    STEADYGRAD_KERNELS is auto.
    """
    backend = choose(x)
    if backend != "c":  # torch's scan takes no matrix beside its transpose, so nothing is asked of it
        return backend
    few = len(x) <= FEW_ROWS and matrix.numel() >= LARGE
    return "python" if few and os.environ.get(VARIABLE, "auto") == "auto" else backend


def runs_in_c(x: Tensor) -> bool:
    """Return whether the C kernel runs on x, for loops whose only alternative is step by step with autograd."""
    return choose(x) == "c"


def has_c() -> bool:
    """Return whether there is a C kernel and STEADYGRAD_KERNELS allows it. While traced, the answer is a constant."""
    return os.environ.get(VARIABLE, "auto") in ("auto", "c") and not isinstance(native.library(), str)


# what torch._dynamo.assume_constant_result does; an import of torch._dynamo would double the import time
has_c._dynamo_marked_constant = True  # type: ignore[attr-defined]


def obstacle_to_c(x: Tensor) -> str | None:
    """Return the reason why the C kernel cannot run on ``x``, or None if it can."""
    if x.device.type != "cpu":
        return f"the tensors are on {x.device}"
    if x.dtype not in native.TAGS:
        return f"it takes float32 and float64; got {x.dtype}"
    loaded = native.library()
    return loaded if isinstance(loaded, str) else None


@cache
def say_once(reason: str) -> None:
    """Emit a RuntimeWarning that the C kernel is missing, once for each ``reason``."""
    warnings.warn(f"steadygrad runs without its C kernel, several times slower: {reason}", RuntimeWarning, stacklevel=2)


def describe() -> str:
    """Return one line that says which kernels run on the CPU, and why."""
    wanted = os.environ.get(VARIABLE, "auto")
    loaded = native.library()
    if wanted not in CHOICES:
        return f"none: {VARIABLE} expects one of {', '.join(CHOICES)}; got {wanted!r}"
    if wanted in ("python", "reference"):
        return f"{wanted} kernels ({VARIABLE}={wanted})"
    if isinstance(loaded, str) and wanted == "c":
        return f"none: {VARIABLE}=c, and there is no C kernel: {loaded}"
    if isinstance(loaded, str):
        return f"python kernels (no C kernel: {loaded})"
    return f"C kernels, {native.instruction_set()} ({VARIABLE}={wanted}); Python kernels for other devices and types"
