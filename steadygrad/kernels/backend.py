"""Which of three implementations runs: compiled C, Python with hand-written gradients, or the plain definition."""

import os
import warnings
from functools import cache

from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.plain import needs_plain

VARIABLE = "STEADYGRAD_KERNELS"
CHOICES = ("auto", "c", "python", "reference")
FEW_ROWS, LARGE = 4, 60_000  # up to so many rows and from so many entries on torch's products are faster


def choose(x: Tensor) -> str:
    """``c``, ``python`` or ``reference`` for a sequence like ``x``, as STEADYGRAD_KERNELS says (default auto).

    Where only plain operations will do (torch.func, export) it is ``reference``, whatever the variable says.
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
    """The same for a walk of the rows x: for a few of them C would lay a large ``matrix`` out anew in every call."""
    backend = choose(x)
    few = len(x) <= FEW_ROWS and matrix.numel() >= LARGE
    return "python" if backend == "c" and few and os.environ.get(VARIABLE, "auto") == "auto" else backend


def runs_in_c(x: Tensor) -> bool:
    """For loops that are written in C or else step by step with autograd."""
    return choose(x) == "c"


def obstacle_to_c(x: Tensor) -> str | None:
    """What keeps the C kernel from running on ``x``, if anything."""
    if x.device.type != "cpu":
        return f"the tensors are on {x.device}"
    if x.dtype not in native.TAGS:
        return f"it takes float32 and float64; got {x.dtype}"
    loaded = native.library()
    return loaded if isinstance(loaded, str) else None


@cache
def say_once(reason: str) -> None:
    warnings.warn(f"steadygrad runs without its C kernel, several times slower: {reason}", RuntimeWarning, stacklevel=2)


def describe() -> str:
    """One line on what runs on a CPU here, and why."""
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
