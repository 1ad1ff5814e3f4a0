"""Writing an exported layer or model to a file."""

import io
import os
from pathlib import Path

import torch
from torch import nn

from steadygrad.check import check_choice
from steadygrad.export.c import c_source
from steadygrad.export.onnx import onnx_model
from steadygrad.export.program import exported_program
from steadygrad.files import write

ENDINGS = (".onnx", ".pt2", ".c")


def export(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    state: bool = True,
    prefix: str | None = None,
    double: bool = False,
    about: str = "",
) -> None:
    """Write a layer, a `Stack` or a model, baked, to a file: .onnx for ONNX, .pt2 for torch.export, .c for C99.

    ONNX models and programs of torch.export take x and the tensors of the initial state, and return y and those of the
    final state (`exported_program`, `onnx_model`). They are dynamic in time and batch, and need no steadygrad to run.
    Without ``state`` they take x alone and start from the module's own initial state.

    A C file computes one time step of one sequence, whose state is a struct of the caller (`c_source`). ``prefix`` of
    its names (default "model"), ``double`` precision and ``about``, a line for its comment, are options of C files.

    Raise ValueError for another ending, for options that do not go with it, for a module that cannot be exported, and
    if the package onnx is missing.
    """
    path = Path(path)
    check_choice("export", "the ending of the file", path.suffix, ENDINGS)
    if path.suffix == ".c":
        if not state:
            raise ValueError("export to C expects state=True: the file itself has the state; got state=False")
        write(path, c_source(module, "model" if prefix is None else prefix, double=double, about=about))
        return
    if prefix is not None or double:
        raise ValueError(f"prefix and double are options of C files, which end in .c; got {path.name}")
    if path.suffix == ".onnx":
        write(path, onnx_model(module, state=state).SerializeToString())
        return
    program = exported_program(module, state=state).program
    content = io.BytesIO()
    torch.export.save(program, content)
    write(path, content.getvalue())
