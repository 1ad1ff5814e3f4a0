"""Resets of the state inside a sequence, for cells that cannot reset it themselves.

The batch is cut into segments between resets, and every segment is a sequence of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from steadygrad.check import InputError
from steadygrad.kernels import Steps, needs_plain


class Segments(NamedTuple):
    """The segments between resets of a batch of sequences, longest first.

    They have the same rows as the batch, in another order. All tensors are integers.
    """

    steps: Steps
    """layout of the segments"""
    order: Tensor
    """for each row of the segments its row in the batch (rows,)"""
    place: Tensor
    """for each row of the batch its row in the segments (rows,)"""
    source: Tensor
    """for each segment the sequence whose initial state it starts from, or the batch size after a reset (segments,)"""
    last: Tensor
    """for each sequence its last segment (batch,)"""

    def rows(self, x: Tensor) -> Tensor:
        """Return the rows of the batch in the order of the segments."""
        return rearranged(x, self.order, self.place)

    def batch_rows(self, x: Tensor) -> Tensor:
        """Return the rows of the segments in the order of the batch."""
        return rearranged(x, self.place, self.order)

    def initial(self, given: Tensor, fresh: Tensor, dim: int) -> Tensor:
        """Return one tensor of the initial states of the segments, with the sequences along dimension ``dim``.

        ``given`` is that of the batch, ``fresh`` the state after a reset, of one sequence.
        """
        return torch.cat([given, with_places(fresh, given, dim)], dim=dim).index_select(dim, self.source)


def with_places(fresh: Tensor, given: Tensor, dim: int) -> Tensor:
    """Return ``fresh`` with as many places as ``given`` in a memory without limit. The new places are empty: zeros.

    Without such a memory both have the same shape except along ``dim``, and ``fresh`` is returned.
    """
    shape = (*given.shape[:dim], fresh.shape[dim], *given.shape[dim + 1 :])
    return fresh if fresh.shape == shape else given.new_zeros(shape)


def in_segments(
    run: Callable[[Tensor, Steps, tuple[Tensor, ...]], tuple[Any, tuple[Tensor, ...]]],
    x: Tensor,
    steps: Steps,
    state: tuple[Tensor, ...],
    fresh: tuple[Tensor, ...],
    dim: int,
) -> tuple[Any, tuple[Tensor, ...]]:
    """Return the outputs and final states of ``run(x, steps, state)`` with the resets of ``steps``.

    ``run`` gets the segments between resets as sequences of their own. The sequences of a state are along dimension
    ``dim``. ``fresh`` is the state after a reset, of one sequence.
    """
    assert steps.resets is not None
    segments = cut(steps.resets, steps)
    own = tuple(segments.initial(part, start, dim) for part, start in zip(state, fresh, strict=True))
    rows, final = run(segments.rows(x), segments.steps, own)
    output = None if rows is None else segments.batch_rows(rows)
    return output, tuple(part.index_select(dim, segments.last) for part in final)


def rows_of_reset(who: str, reset: Any, input: Tensor | PackedSequence, batch_first: bool) -> Tensor:
    """Return a mask of resets as one flag for each row of the input, in the order of `Steps`.

    The mask has the shape of the input without its features. For a PackedSequence it is one too, or the flags of its
    rows. Raise InputError if the mask is no Boolean tensor of this shape on the input's device.
    """
    packed = isinstance(input, PackedSequence)
    rows = input.data if isinstance(input, PackedSequence) else input
    mask = reset.data if packed and isinstance(reset, PackedSequence) else reset
    expected = tuple(rows.shape[:-1])
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise InputError(f"{who} expects reset to be a Boolean tensor of shape {expected}; got {got}")
    if mask.shape != expected:
        raise InputError(f"{who} expects reset of shape {expected}, as its input; got shape {tuple(mask.shape)}")
    if mask.device != rows.device:
        raise InputError(f"{who} expects reset on {rows.device}, as its input is; got {mask.device}")
    return mask.T.flatten() if batch_first and mask.dim() == 2 else mask.flatten()


def cut(reset: Tensor, steps: Steps) -> Segments:
    """Return the `Segments` of a batch, from its layout and a mask of rows before which the state is reset (rows,)."""
    device, reset = reset.device, reset.cpu()
    rows, time = steps.rows, len(steps.sizes)
    times = torch.repeat_interleave(torch.arange(time), torch.tensor(steps.sizes))
    sequences = torch.arange(rows) - steps.offsets_tensor[times]
    by_sequence = (sequences * time + times).argsort()  # the rows of sequence 0 in the order of time, then of 1, …
    first = (times == 0)[by_sequence]
    resets = reset[by_sequence]
    begins = first | resets
    segments = begins.cumsum(0) - 1  # for each row of `by_sequence`
    starts = begins.nonzero()[:, 0]
    lengths = segments.bincount()
    count = len(lengths)
    longest = lengths.argsort(descending=True, stable=True)
    rank = torch.empty_like(longest).scatter_(0, longest, torch.arange(count))
    within = torch.arange(rows) - starts[segments]
    order = by_sequence[(within * count + rank[segments]).argsort()]
    place = torch.empty_like(order).scatter_(0, order, torch.arange(rows))
    sizes = (count - lengths.bincount().cumsum(0))[:-1]  # how many segments are longer than 0, 1, … steps
    source = torch.where(resets[starts], steps.batch, sequences[by_sequence[starts]])[longest]
    last = rank[segments[first.roll(-1)]]  # the row before the first of another sequence is the last of its own
    return Segments(Steps(tuple(sizes.tolist())), *(part.to(device) for part in (order, place, source, last)))


class Rearranged(torch.autograd.Function):
    """Autograd function of the rows of a tensor in another order. Its gradient is a selection of rows, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, place: Tensor) -> Tensor:
        """Return the rows ``order`` of x. ``place`` is the inverse permutation."""
        ctx.save_for_backward(order, place)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of x from that of its rows in another order."""
        order, place = ctx.saved_tensors
        return Rearranged.apply(gradient, place, order), None, None


def rearranged(x: Tensor, order: Tensor, place: Tensor) -> Tensor:
    """Return the rows ``order`` of x, a permutation whose inverse is ``place``."""
    return x.index_select(0, order) if needs_plain(x) else Rearranged.apply(x, order, place)
