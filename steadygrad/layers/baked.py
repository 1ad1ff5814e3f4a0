"""Layers for inference: a copy whose recurrent matrices are evaluated and frozen as plain weights."""

from copy import deepcopy
from typing import Self, TypeVar, cast

import torch
from torch import nn

from steadygrad.layers.cell import Cell
from steadygrad.matrices import Matrix, frozen

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def baked(module: Module) -> Module:
    """Return a copy of a layer or model for inference, in which each recurrent matrix is a plain, frozen weight.

    The copy is in evaluation mode and computes what the module computes there, up to rounding. Its parameters require
    no gradient and have no constraint. The copy has no penalty and no weight dropout, and can be pickled, traced by
    torch.jit, and exported.
    """
    copy = deepcopy(module).eval().requires_grad_(False)
    cells = [cell for cell in copy.modules() if isinstance(cell, Cell)]
    for cell in cells:
        cell.weights()  # a cell may update what its matrices store
    made: dict[Matrix, Matrix] = {}  # a matrix may be part of several cells
    for parent in list(copy.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, Matrix):
                made[child] = made.get(child) or frozen(child.value())
                setattr(parent, name, made[child])
    return copy


class Bakeable:
    """Base class of layers and models, beside nn.Module, with the method `baked`."""

    def baked(self) -> Self:
        """Return a copy for inference, export and torch.jit: its matrices are evaluated and frozen as plain weights.

        The copy is in evaluation mode and computes what the module computes there. Its parameters require no gradient.
        """
        return cast(Self, baked(cast(nn.Module, self)))
