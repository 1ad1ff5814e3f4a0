"""Calls of the compiled kernels (c/steadygrad.c), which are loaded as a shared library with ctypes."""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from steadygrad.kernels.arguments import SIZES, Field, addresses, expected
from steadygrad.kernels.steps import Steps

ABI = 12  # STEADYGRAD_ABI in c/steadygrad.c
TAGS = {torch.float32: "f32", torch.float64: "f64"}
INSTRUCTION_SETS = ("baseline", "AVX2", "AVX-512")
LIBRARY = Path(__file__).with_name("_native.dll" if sys.platform == "win32" else "_native.so")
LIBRARY_VARIABLE = "STEADYGRAD_LIBRARY"
"""environment variable: a file to load in place of the installed library, such as a build with AddressSanitizer"""
LIMIT_VARIABLE = "STEADYGRAD_CPU_CAPABILITY"
LIMITS = ("baseline", "avx2", "avx512")  # values of the variable, in the order of INSTRUCTION_SETS
C_TYPES = {int: ctypes.c_int64, float: ctypes.c_double, bytes: ctypes.c_char_p}
LAYOUTS: dict[str, struct.Struct] = {}  # of the argument structs, by function
LARGE = 1 << 21  # bytes of a large page
SMALL = 100_000  # with fewer multiplications a second thread makes a loop slower
MOST_THREADS = 256
NO_MEMORY, INTERRUPTED = 1, 4  # codes of c/steadygrad.c
PYTHON_FUNCTIONS = (
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyErr_CheckSignals",
    "PyErr_Fetch",
    "PyErr_Restore",
)  # in the order of python_t in c/interrupts.h


@cache
def library() -> ctypes.CDLL | str:
    """Return the loaded library of C kernels, or a text that says why it cannot be used.

    Raise ValueError if STEADYGRAD_CPU_CAPABILITY has an unknown value.
    """
    limit = os.environ.get(LIMIT_VARIABLE, LIMITS[-1])
    if limit not in LIMITS:
        raise ValueError(f"{LIMIT_VARIABLE} expects one of {', '.join(LIMITS)}; got {limit!r}")
    own = os.environ.get(LIBRARY_VARIABLE)
    file = Path(own) if own else LIBRARY
    if not own and not file.exists():
        return "it was not built: no C compiler when steadygrad was installed?"
    try:
        loaded = ctypes.CDLL(str(file))
        abi = loaded.steadygrad_abi()
    except (OSError, AttributeError) as error:
        return f"{file.name} does not load: {error}"
    if abi != ABI:
        return f"{file.name} is of another version ({abi}, expected {ABI}): install steadygrad again"
    loaded.steadygrad_limit_isa(LIMITS.index(limit))
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in PYTHON_FUNCTIONS]
    loaded.steadygrad_use_python((ctypes.c_void_p * len(functions))(*functions))
    return loaded


def use_one_thread() -> None:
    """Make torch use one thread, in a forked child. Its OpenMP pool lost its threads in the fork and would hang."""
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    # The library notices forks itself, once it is loaded. Then its kernels use threads of their own in the child.
    os.register_at_fork(before=library, after_in_child=use_one_thread)


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
    return max(1, min(threads(), steps.batch))


def threads() -> int:
    """Return the number of threads that a kernel may use: torch's, at most `MOST_THREADS`."""
    return min(torch.get_num_threads(), MOST_THREADS)


def empty(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialised tensor of this shape for a kernel to fill, with dtype and device of ``like``.

    Each size is an argument: empty(x, 3, 4). Large pages are requested if the tensor is large.
    """
    tensor = like.new_empty(shape)
    if (bytes := tensor.nbytes) > LARGE and not isinstance(loaded := library(), str):
        loaded.steadygrad_advise(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_int64(bytes))
    return tensor


def trim() -> None:
    """Return unused memory between the blocks of the heap to the system, if there is a C library that can.

    Large tensors that are freed leave gaps which small ones then divide, so that the next large tensor does not fit.
    """
    loaded = library()
    if not isinstance(loaded, str):
        loaded.steadygrad_trim()


def contiguous(arguments: Iterable[Any]) -> list[Any]:
    """Return a list of the arguments of a kernel, with every tensor made contiguous."""
    return [a.contiguous() if isinstance(a, Tensor) else a for a in arguments]


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor as C reads it: contiguous, and without torch's flag for a negation that is yet to be done."""
    return tensor.contiguous().resolve_neg()


def call(name: str, steps: Steps, *arguments: Any) -> int:
    """Run the C loop ``steadygrad_<name>`` over the steps and return its code, an integer, 0 if all went well.

    The arguments are sizes, then the tensors of `steadygrad.kernels.arguments`, then the number of slices. The results
    are written to some of the tensors. Each tensor is checked. The arguments are passed as one struct, ``<name>_t`` in
    the C sources, whose fields all have 8 bytes.
    """
    sizes, tensors, slices = arguments[: SIZES[name]], arguments[SIZES[name] : -1], arguments[-1]
    time = len(steps.sizes)
    fields = expected(name, time, steps.rows, steps.batch, slices, *sizes)
    dtype = kernel_dtype(name, tensors)
    found = addresses(name, fields, tensors, dtype)
    if name not in LAYOUTS:
        kinds = "".join("d" if isinstance(size, float) else "q" for size in sizes)
        LAYOUTS[name] = struct.Struct(f"5q{kinds}{len(tensors) + 1}q")
    walk = (time, steps.batch, steps.offsets_tensor.data_ptr(), steps.reverse, flags(name, steps))
    return run(name, dtype, LAYOUTS[name].pack(*walk, *sizes, *found, slices))


def flags(name: str, steps: Steps) -> int:
    """Return the address of the flags of rows that begin anew, 0 without resets. Raise ValueError if C cannot use them.

    They must be a contiguous Boolean tensor (rows,) on the CPU, and the steps not in reverse.
    """
    resets = steps.resets
    if resets is None:
        return 0
    if steps.reverse:
        raise ValueError(f"{name} expects no resets in reverse; got {int(resets.sum())} of them")
    return addresses(name, (Field("resets", (steps.rows,), torch.bool, False),), (resets,), torch.bool)[0]


def call_matrices(name: str, n: int, slices: int, *tensors: Tensor) -> None:
    """Run the C function ``steadygrad_<name>`` on n × n matrices, and write its results to some of the tensors.

    All tensors are checked. ``slices`` is the number of threads.
    """
    dtype = kernel_dtype(name, tensors)
    fields = expected(name, 0, 0, slices, slices, n)
    run(name, dtype, n, *addresses(name, fields, tensors, dtype), slices)


def kernel_dtype(name: str, tensors: Sequence[Any]) -> torch.dtype:
    """Return the dtype of the first tensor, which no kernel does without. Raise ValueError unless it is in `TAGS`."""
    dtype = getattr(tensors[0], "dtype", None)
    if dtype not in TAGS:
        raise ValueError(f"{name} expects tensors of float32 or float64; got {dtype}")
    return dtype


def run(name: str, dtype: torch.dtype, *arguments: int | float | bytes) -> int:
    """Call the compiled C function of this name and dtype and return its code, an integer, 0 if all went well.

    Raise MemoryError if memory ran out. If a signal handler raised an exception during the call, raise that exception.
    """
    compiled = function(name, dtype)
    if compiled.argtypes is None:  # without argtypes ctypes would truncate integers, also pointers, to 32 bits
        compiled.argtypes = [C_TYPES[type(a)] for a in arguments]
    code = int(compiled(*arguments))
    if code & INTERRUPTED:
        ctypes.PyDLL(None, handle=library()._handle).steadygrad_raise()  # type: ignore[union-attr]
    if code & NO_MEMORY:
        raise MemoryError(f"steadygrad's {name} kernel ran out of memory")
    return code
