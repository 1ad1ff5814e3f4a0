"""The walk of a recurrent layer over its levels and directions, with resets and checkpoints if they are wanted."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from steadygrad.kernels import Steps, runs_in_c, traced
from steadygrad.layers.caching import shared_runs
from steadygrad.layers.cell import Cell
from steadygrad.layers.checkpointing import in_chunks
from steadygrad.layers.resets import in_segments

CellRun = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]
"""`Cell.forward`, or a function with the same arguments and results"""


class Levels(Protocol):
    """What `walk` needs of a layer: its cells, level by level, and the options that act on the whole walk."""

    cells: nn.ModuleList
    bidirectional: bool
    dropout: float
    training: bool
    initial_state: nn.ParameterList | None

    def default_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return the state from which the layer starts when the caller passes none."""


def walk(
    layer: Levels,
    x: Tensor,
    steps: Steps,
    state: tuple[Tensor, ...],
    table: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    checkpoint: int | bool = False,
    output: bool = True,
) -> tuple[Any, tuple[Tensor, ...]]:
    """Run all levels and return the outputs (rows, output_size) and the final states (cells, batch, …).

    ``reset`` is a mask of rows before which the state is reset (rows,). ``checkpoint`` is the number of steps of a
    chunk, True or False. Without ``output`` the outputs are None.
    """
    # a real view of a conjugate may have a flag in place of its sign, which C does not see
    if not traced():  # operators resolve it themselves
        x = x.resolve_neg() if x.is_neg() else x
        state = tuple([part.resolve_neg() if part.is_neg() else part for part in state])
    if reset is None:
        return all_levels(layer, x, steps, state, table=table, checkpoint=checkpoint, output=output)
    run = partial(all_levels, layer, table=table, checkpoint=checkpoint, output=output)
    steps = steps.with_resets(reset)
    if resets_inside(layer, x):
        return run(x, steps, state)
    return in_segments(run, x, steps, state, layer.default_states(1, x), dim=1)


def resets_inside(layer: Levels, x: Tensor) -> bool:
    """Return whether the layer's cells reset the state themselves: in C, to zeros, and in one direction.

    In two directions each segment between resets takes part in both, as a sequence of its own.
    """
    inside = all(cell.resets_inside for cell in layer.cells)
    return inside and not layer.bidirectional and layer.initial_state is None and runs_in_c(x)


def all_levels(
    layer: Levels,
    x: Tensor,
    steps: Steps,
    state: tuple[Tensor, ...],
    *,
    table: Tensor | None,
    checkpoint: int | bool,
    output: bool,
) -> tuple[Any, tuple[Tensor, ...]]:
    """Return what `walk` returns, without resets other than those that the cells do themselves.

    In one direction a chunk runs through all levels. In two, each cell has chunks of its own.
    """
    if not checkpoint:
        found, final = level_by_level(layer, cell_runs(layer, False), table, x, steps, state)
        return found if output else None, final
    cells = cell_runs(layer, True)
    if not layer.bidirectional:
        run = partial(level_by_level, layer, cells, table)
        return in_chunks(run, x, steps, state, checkpoint, 1, output)
    both = [partial(cell_in_chunks, cell, checkpoint) for cell in cells]
    found, final = level_by_level(layer, both, table, x, steps, state)
    return found if output else None, final


def level_by_level(
    layer: Levels,
    cells: Sequence[CellRun],
    table: Tensor | None,
    x: Tensor,
    steps: Steps,
    state: tuple[Tensor, ...],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run the cells, one for each level and direction, and return the outputs and final states (cells, batch, …)."""
    if len(cells) == 1:  # without the nodes that several cells add to the graph
        x, end = cells[0](x, steps, tuple([part.squeeze(0) for part in state]), table)
        return x, tuple([torch.stack((part,)) for part in end])
    directions = 2 if layer.bidirectional else 1
    finals: list[tuple[Tensor, ...]] = []
    initial = list(zip(*(part.unbind(0) for part in state), strict=True))
    for first in range(0, len(cells), directions):
        if first and layer.dropout:
            x = nn.functional.dropout(x, layer.dropout, layer.training)
        outputs = []
        for index in range(first, first + directions):
            own = steps if index == first else steps.reversed
            found, final = cells[index](x, own, initial[index], None if first else table)
            outputs.append(found)
            finals.append(final)
        x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
    return x, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))


def cell_runs(layer: Levels, evaluated: bool) -> list[CellRun]:
    """Return the cells as functions of x, steps, state and table.

    With ``evaluated`` their matrices are evaluated here, once for many runs. Inside `Cacheable.cached` they were
    evaluated before.
    """
    if (runs := shared_runs(layer)) is not None:
        return runs
    if not evaluated:
        return list(layer.cells)
    return [partial(cell.run, cell.weights()) for cell in cast(Iterable[Cell], layer.cells)]


def cell_in_chunks(
    cell: CellRun, length: int | bool, x: Tensor, steps: Steps, state: tuple[Tensor, ...], table: Tensor | None
) -> tuple[Any, tuple[Tensor, ...]]:
    """Return the outputs and final states of one cell, whose steps are run in chunks."""
    return in_chunks(lambda *given: cell(*given, table), x, steps, state, length, 0)
