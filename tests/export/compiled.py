"""Exported C files, compiled and called from Python."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
HARNESS = """
#include "{prefix}.c"
#include <stddef.h>
size_t size_of_state(void) {{ return sizeof({prefix}_state); }}
void run({prefix}_state *state, const {input} *x, {type} *y, int steps)
{{
    for (int t = 0; t < steps; t++)
        {prefix}_step(state, x + t * {macro}_INPUTS, y + t * {macro}_OUTPUTS);
}}
int inputs(void) {{ return {macro}_INPUTS; }}
int outputs(void) {{ return {macro}_OUTPUTS; }}
"""


def compile_c(folder: Path, *arguments: str) -> None:
    """Run the C compiler in a folder. Fail the test, with its messages, if it warns."""
    done = subprocess.run(
        [str(COMPILER), *WARNINGS, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class Compiled:
    """An exported C file as a shared library. ``state`` is a new, initialised instance for each call of `new`."""

    def __init__(self, folder: Path, source: str, prefix: str = "model", *, double: bool = False, tokens: bool = False):
        folder.mkdir(exist_ok=True)
        self.dtype = torch.float64 if double else torch.float32
        type = "double" if double else "float"
        (folder / f"{prefix}.c").write_text(source, "utf-8")
        harness = HARNESS.format(prefix=prefix, macro=prefix.upper(), type=type, input="int" if tokens else type)
        (folder / "harness.c").write_text(harness, "utf-8")
        compile_c(folder, "-O2", "-fPIC", "-shared", "harness.c", "-o", "model.so", "-lm")
        self.library = ctypes.CDLL(str(folder / "model.so"))
        self.prefix, self.input = prefix, torch.int32 if tokens else self.dtype
        self.size, self.outputs = int(self.library.size_of_state()), int(self.library.outputs())

    def new(self) -> ctypes.Array:
        """Return an initialised state, in memory that held other values."""
        state = (ctypes.c_double * (self.size // 8 + 1))(*[float("nan")] * (self.size // 8 + 1))
        getattr(self.library, f"{self.prefix}_init")(state)
        return state

    def reset(self, state: ctypes.Array) -> None:
        """Reset a state."""
        getattr(self.library, f"{self.prefix}_reset")(state)

    def __call__(self, state: ctypes.Array, x: Tensor) -> Tensor:
        """Return the outputs (time, outputs) for inputs (time, inputs), from a state that is changed."""
        x = x.to(self.input).contiguous()
        y = torch.full((len(x), self.outputs), float("nan"), dtype=self.dtype)
        self.library.run(state, ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), len(x))
        return y
