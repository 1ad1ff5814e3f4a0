"""One time step of a layer or model as a traced graph of torch, with a batch of 1 and fixed shapes."""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from steadygrad.export.program import Names, layers_of, names_of, streamed, traced
from steadygrad.layers import RecurrentLayer
from steadygrad.layers.attentive import AttentiveCell
from steadygrad.layers.baked import baked
from steadygrad.layers.cell import Cell, Part
from steadygrad.layers.memory import Contents, Items, Keys, Memory


class KeyedMemory(Memory):
    """A memory whose keys are one of its tensors, so that a step computes the key of the new state only.

    In another memory the keys are computed from all states when a sequence begins, and each step of an exported file is
    such a beginning.
    """

    def __init__(self, memory: Memory, key_size: int) -> None:
        super().__init__()
        self.memory, self.relevant = memory, memory.relevant
        places, _ = memory.parts["states"].shape
        self.parts = {**memory.parts, "keys": Part((places, key_size))}

    def unpack(self, tensors: tuple[Tensor, ...], keys: Keys) -> Contents:
        """Return the dict of the memory's tensors by name, of which ``keys`` is one. The function is not called."""
        return dict(zip(self.parts, tensors, strict=True))

    def items(self, contents: Contents) -> Items:
        """Return the `Items` of the inner memory."""
        return self.memory.items(contents)

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        """Return the contents of the inner memory after a step."""
        return self.memory.add(contents, weights, state, key)


class TracedStep(NamedTuple):
    """A traced time step: the program (x, *state) → (y, *state), its names, and the state from which it starts."""

    program: ExportedProgram
    names: Names
    initial: tuple[Tensor, ...]


@torch.no_grad()
def traced_step(module: nn.Module, dtype: torch.dtype) -> TracedStep:
    """Return one time step of a baked copy of a layer, `Stack` or model, computed in ``dtype``, for one sequence.

    Raise ValueError for other modules, for a memory that grows with time, and for bidirectional layers.
    """
    for layer in layers_of(streamed(module).layer):
        if layer.bidirectional:
            raise ValueError(
                f"export to C expects layers that run forward in time; got {type(layer).__name__} with "
                "bidirectional=True, whose output needs the whole sequence. Use .onnx or .pt2"
            )
    module = baked(module).to(dtype).cpu()
    run = streamed(module)
    layers = layers_of(run.layer)
    for layer in layers:
        with_keys(layer)
    x = run.example[:1, :1]
    like = next(part for part in module.parameters() if part.is_floating_point())
    initial = tuple(part.contiguous() for layer in layers for part in layer.default_states(1, like))
    program = traced(run, module, (x, *initial))
    return TracedStep(program, names_of(run.layer, True), initial)


def with_keys(layer: RecurrentLayer) -> None:
    """Make the keys of a layer's memories part of its state, in place."""
    for cell in cast(list[Cell], list(layer.cells)):
        if isinstance(cell, AttentiveCell):
            places, units = cell.memory.parts["states"].shape
            example = next(layer.parameters()).new_zeros(1, cast(int, places), cast(int, units))
            cell.memory = KeyedMemory(cell.memory, cell.alignment.keys(example).shape[-1])
    layer.state_parts = cast(Cell, layer.cells[0]).state_parts
