"""Calls of the compiled kernels (c/steadygrad.c), which are loaded as a shared library with ctypes."""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadygrad.kernels.steps import Steps

ABI = 8  # STEADYGRAD_ABI in c/steadygrad.c
TAGS = {torch.float32: "f32", torch.float64: "f64"}
INSTRUCTION_SETS = ("baseline", "AVX2", "AVX-512")
LIMIT_VARIABLE = "STEADYGRAD_CPU_CAPABILITY"
LIMITS = ("baseline", "avx2", "avx512")  # values of the variable, in the order of INSTRUCTION_SETS
C_TYPES = {int: ctypes.c_int64, float: ctypes.c_double, bytes: ctypes.c_char_p}
LAYOUTS: dict[str, struct.Struct] = {}  # of the argument structs, by function
LARGE = 1 << 21  # bytes of a large page
SMALL = 100_000  # with fewer multiplications a second thread makes a loop slower


@cache
def library() -> ctypes.CDLL | str:
    """Return the loaded library of C kernels, or a text that says why it cannot be used.

    Raise ValueError if STEADYGRAD_CPU_CAPABILITY has an unknown value.
    """
    limit = os.environ.get(LIMIT_VARIABLE, LIMITS[-1])
    if limit not in LIMITS:
        raise ValueError(f"{LIMIT_VARIABLE} expects one of {', '.join(LIMITS)}; got {limit!r}")
    folder = Path(__file__).parent
    found = [folder / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES if (folder / f"_native{suffix}").exists()]
    if not found:
        return "it was not built: no C compiler when steadygrad was installed?"
    try:
        loaded = ctypes.CDLL(str(found[0]))
        abi = loaded.steadygrad_abi()
    except (OSError, AttributeError) as error:
        return f"{found[0].name} does not load: {error}"
    if abi != ABI:
        return f"{found[0].name} is of another version ({abi}, expected {ABI}): install steadygrad again"
    loaded.steadygrad_limit_isa(LIMITS.index(limit))
    return loaded


def instruction_set() -> str:
    """Return the name of the instruction set that the C kernels use, or the reason why there is no library."""
    loaded = library()
    return loaded if isinstance(loaded, str) else INSTRUCTION_SETS[loaded.steadygrad_isa()]


@cache
def function(name: str, dtype: torch.dtype) -> Any:
    """Return the compiled C function ``steadygrad_<name>`` for the dtype. Raise RuntimeError without a library."""
    loaded = library()
    if isinstance(loaded, str):
        raise RuntimeError(f"steadygrad has no C kernel: {loaded}")
    return getattr(loaded, f"steadygrad_{name}_{TAGS[dtype]}")


def slices(steps: Steps, width: int) -> int:
    """Return into how many slices threads divide a batch: one per thread, at most one per sequence, 1 for little work.

    ``width`` is the number of multiplications per row.
    """
    if steps.rows * width < SMALL:
        return 1
    return max(1, min(torch.get_num_threads(), steps.batch))


def empty(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialised tensor of this shape for a kernel to fill, with dtype and device of ``like``.

    Large pages are requested if the tensor is large.
    """
    tensor = like.new_empty(shape)
    bytes = tensor.numel() * tensor.element_size()
    loaded = library()
    if bytes > LARGE and not isinstance(loaded, str):
        loaded.steadygrad_advise(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_int64(bytes))
    return tensor


def contiguous(arguments: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over the arguments of a kernel, with every tensor made contiguous."""
    return (a.contiguous() if isinstance(a, Tensor) else a for a in arguments)


def call(name: str, steps: Steps, *arguments: int | float | Tensor | None) -> int:
    """Run the C loop ``steadygrad_<name>`` over the steps and return its code. Its results are among the arguments.

    The tensors must be contiguous. None becomes a null pointer. Raise ValueError if a tensor is not on the CPU or has
    another floating-point dtype than the first one. Raise MemoryError if the kernel has too little memory (code 1).

    The arguments are passed as one struct, ``<name>_t`` in the C sources, whose fields all have 8 bytes.
    """
    dtype = next(a.dtype for a in arguments if isinstance(a, Tensor))
    values: list[int | float] = [len(steps.sizes), steps.batch, steps.offsets_tensor.data_ptr(), steps.reverse]
    for a in arguments:
        if not isinstance(a, Tensor):
            values.append(a or 0)
        elif a.is_cpu and (a.dtype == dtype or not a.is_floating_point()):
            values.append(a.data_ptr())
        else:
            raise ValueError(f"{name} expects all tensors on the CPU and of type {dtype}; got {a.dtype} on {a.device}")
    if name not in LAYOUTS:
        LAYOUTS[name] = struct.Struct("4q" + "".join("d" if isinstance(a, float) else "q" for a in arguments))
    return run(name, dtype, LAYOUTS[name].pack(*values))


def check_shapes(who: str, *expected: tuple[str, Tensor | None, tuple[int, ...]]) -> None:
    """Raise ValueError if a tensor has another shape than expected: C would read beyond its end.

    ``expected`` are triples (name, tensor, shape). A tensor that is None is skipped.
    """
    for name, tensor, shape in expected:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{who} expects {name} of shape {shape}; got {tuple(tensor.shape)}")


def run(name: str, dtype: torch.dtype, *arguments: int | float | bytes) -> int:
    """Call the compiled C function of this name and dtype and return its code. Raise MemoryError for code 1."""
    compiled = function(name, dtype)
    if compiled.argtypes is None:  # without argtypes ctypes would truncate integers, also pointers, to 32 bits
        compiled.argtypes = [C_TYPES[type(a)] for a in arguments]
    if (code := compiled(*arguments)) == 1:
        raise MemoryError(f"steadygrad's {name} kernel ran out of memory")
    return int(code)
