"""Random draws for whole batches."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor


def permutations(batch: int, length: int, generator: Generator) -> Tensor:
    """Return random permutations of 0 … length − 1, one per row: (batch, length)."""
    return torch.rand(batch, length, generator=generator).argsort(dim=1)


def draw_until(accept: Callable[[Tensor], Tensor], draw: Callable[[int], Tensor], batch: int) -> Tensor:
    """Return ``batch`` rows from ``draw(count)``. Rows that ``accept`` rejects are drawn again.

    ``draw(count)`` returns a tensor of ``count`` random rows, ``accept(rows)`` a tensor with a boolean for each row.
    """
    rows = draw(batch)
    while (rejected := ~accept(rows)).any():
        rows[rejected] = draw(int(rejected.sum()))
    return rows


def all_differ(rows: Tensor) -> Tensor:
    """Return for each of the rows (batch, count) whether all its entries are different: booleans (batch,)."""
    return (rows.sort(dim=1).values.diff(dim=1) != 0).all(1)
