"""Random numbers for whole batches."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor


def permutations(batch: int, length: int, generator: Generator) -> Tensor:
    """Of 0 … length − 1, in rows."""
    return torch.rand(batch, length, generator=generator).argsort(dim=1)


def until(right: Callable[[Tensor], Tensor], draw: Callable[[int], Tensor], batch: int) -> Tensor:
    """Rows from ``draw``, each drawn again as long as it is not ``right``."""
    found = draw(batch)
    while (wrong := ~right(found)).any():
        found[wrong] = draw(int(wrong.sum()))
    return found


def all_differ(rows: Tensor) -> Tensor:
    return (rows.sort(dim=1).values.diff(dim=1) != 0).all(1)
