"""Choice of the implementation: compiled C, Python with hand-written gradients, or the reference definition."""

import os
import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.plain import needs_plain, traced

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


def choose_for(x: Tensor, matrix: Tensor, resets: bool = False) -> str:
    """Return what `choose` returns for x, but "python" instead of "c" for few rows x and a large matrix.

    The C kernel packs the matrix anew in every call, which is too slow for a few rows. This applies only if
    STEADYGRAD_KERNELS is auto, and without ``resets`` inside the sequences, which only C has.
    """
    backend = choose(x)
    if backend != "c":  # torch's scan takes no matrix beside its transpose, so nothing is asked of it
        return backend
    few = not resets and len(x) <= FEW_ROWS and matrix.numel() >= LARGE
    return "python" if few and os.environ.get(VARIABLE, "auto") == "auto" else backend


def runs_in_c(x: Tensor) -> bool:
    """Return whether the C kernel runs on x, for loops whose only alternative is step by step with autograd."""
    return is_widened(x) or choose(x) == "c"


def is_widened(x: Tensor) -> bool:
    """Return whether x has 16 bits and the C kernel runs on it in single precision: see `in_single_precision`."""
    half = x.is_cpu and x.dtype.itemsize == 2 and x.is_floating_point() and not traced() and not needs_plain(x)
    return half and os.environ.get(VARIABLE, "auto") in ("auto", "c") and not isinstance(native.library(), str)


def in_single_precision(unroll: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of tensors so that tensors of 16 bits are converted to single precision for the C kernel.

    Its results are converted back, and gradients with them. The first tensor among the arguments decides.
    """

    @wraps(unroll)
    def run(*given: Any) -> Any:
        x = given[0] if isinstance(given[0], Tensor) else given[0][0]
        if not is_widened(x):
            return unroll(*given)
        return converted(unroll(*converted(given, x.dtype, torch.float32)), torch.float32, x.dtype)

    return run


def converted(value: Any, before: torch.dtype, after: torch.dtype) -> Any:
    """Return a tensor, or a tuple or named tuple of tensors, with those of dtype ``before`` converted to ``after``."""
    if isinstance(value, Tensor):
        return value.to(after) if value.dtype is before else value
    if isinstance(value, tuple):
        parts = [converted(part, before, after) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def has_c() -> bool:
    """Return whether there is a C kernel and STEADYGRAD_KERNELS allows it. While traced, the answer is a constant."""
    return os.environ.get(VARIABLE, "auto") in ("auto", "c") and not isinstance(native.library(), str)


# what torch._dynamo.assume_constant_result does; an import of torch._dynamo would double the import time
has_c._dynamo_marked_constant = True  # type: ignore[attr-defined]


def obstacle_to_c(x: Tensor) -> str | None:
    """Return the reason why the C kernel cannot run on ``x``, or None if it can."""
    if not x.is_cpu:
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
