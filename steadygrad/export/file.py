"""Writing an exported layer or model to a file."""

import io
import os
from pathlib import Path

import torch
from torch import nn

from steadygrad.check import check_choice
from steadygrad.export.onnx import onnx_model
from steadygrad.export.program import exported_program
from steadygrad.files import write

ENDINGS = (".onnx", ".pt2")


def export(module: nn.Module, path: str | os.PathLike[str], *, state: bool = True) -> None:
    """Write a layer, a `Stack` or a model, baked, to a file: ONNX for a name in .onnx, torch.export for one in .pt2.

    Both take x and the tensors of the initial state, and return y and those of the final state (`exported_program`,
    `onnx_model`). They are dynamic in time and batch, and need no steadygrad to run. Without ``state`` they take x
    alone and start from the module's own initial state. Raise ValueError for another ending, for a module that
    cannot be exported, and if the package onnx is missing.
    """
    path = Path(path)
    check_choice("export", "the ending of the file", path.suffix, ENDINGS)
    if path.suffix == ".onnx":
        write(path, onnx_model(module, state=state).SerializeToString())
        return
    program = exported_program(module, state=state).program
    content = io.BytesIO()
    torch.export.save(program, content)
    write(path, content.getvalue())
