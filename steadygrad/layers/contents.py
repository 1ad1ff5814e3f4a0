"""Rows of the contents of a memory of past states: sequences that enter and leave a batch take theirs with them."""

import torch
from torch import Tensor, nn

from steadygrad.layers.memory import Contents


def rows_of(contents: Contents, begin: int, end: int) -> Contents:
    """Return a dict of the rows ``begin`` to ``end`` (sequences, ``end`` excluded) of every tensor of ``contents``."""
    return {name: values[begin:end] for name, values in contents.items()}


def joined(first: Contents, second: Contents) -> Contents:
    """Return a dict of the tensors of two contents, concatenated along the batch.

    If the numbers of places differ, zeros in front, which are empty places, pad the smaller one.
    """

    def widened(values: Tensor, places: int) -> Tensor:
        return nn.functional.pad(values, (0, 0) * (values.dim() - 2) + (places - values.shape[1], 0))

    both = {}
    for name, values in first.items():
        other = second[name]
        if values.dim() > 1 and values.shape[1] != other.shape[1]:
            places = max(values.shape[1], other.shape[1])
            values, other = widened(values, places), widened(other, places)
        both[name] = torch.cat([values, other])
    return both
