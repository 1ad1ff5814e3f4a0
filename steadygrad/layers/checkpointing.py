"""Gradient checkpointing along time: the forward pass stores one state per chunk, the backward pass runs chunks again.

x      |-------|-------|-------|      chunks of `length` time steps
state  s0      s1      s2             stored; everything between is computed again, chunk by chunk, backwards
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from steadygrad.check import is_integer
from steadygrad.kernels import Steps, needs_plain, trim

Run = Callable[[Tensor, Steps, tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]]
"""(rows of x, their steps, initial states) → (outputs, final states)"""


def check_chunk(who: str, value: int | bool) -> int | bool:
    """Return the option ``checkpoint``: the steps of a chunk, True for about √time, or False.

    Raise ValueError for another value. ``who`` is the layer's name in the message.
    """
    if not isinstance(value, bool) and not is_integer(value, 1):
        raise ValueError(f"{who} expects checkpoint to be True, False or a number of time steps; got {value!r}")
    return value


def in_chunks(
    run: Run, x: Tensor, steps: Steps, state: tuple[Tensor, ...], length: int | bool, dim: int, output: bool = True
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """Return the outputs and final states of ``run(x, steps, state)``, but store less for the backward pass.

    ``run`` is called for each chunk of ``length`` time steps (True: about the square root of their number), and again
    in the backward pass, with the same random numbers. The sequences of a state are along dimension ``dim``. Without
    ``output`` the outputs are None. Under torch.func nothing is checkpointed.
    """
    pieces = steps.chunks(math.isqrt(len(steps.sizes) - 1) + 1 if length is True else length)
    rows = x.split([piece.rows for piece in pieces])
    stored = partial(compact, run, output=output)
    outputs: list[Any] = []  # None without ``output``
    for number in reversed(range(len(pieces))) if steps.reverse else range(len(pieces)):
        piece = pieces[number]
        here = tuple(part.narrow(dim, 0, piece.batch) for part in state)
        given = (rows[number], piece, *here)
        found, *after = stored(*given) if needs_plain(x) else checkpoint(stored, *given, use_reentrant=False)
        outputs.append(found)
        state = tuple(with_others(part, before, dim) for part, before in zip(after, state, strict=True))
    return torch.cat(outputs[::-1] if steps.reverse else outputs) if output else None, state


def compact(run: Run, x: Tensor, steps: Steps, *state: Tensor, output: bool) -> tuple[Tensor | None, ...]:
    """Return the outputs of ``run``, or None without ``output``, and then its final states.

    The states are copies, because a view of the outputs would keep all outputs in memory. Memory that the previous
    chunk freed is returned to the system first. Otherwise the gaps between the stored tensors grow to the size of all
    outputs.
    """
    trim()
    found, final = run(x, steps, state)
    return found if output else None, *(part.clone() for part in final)


def with_others(after: Tensor, before: Tensor, dim: int) -> Tensor:
    """Return a recurrent state of all sequences after a chunk of time steps that only the longer sequences have.

    ``before`` is the state of all sequences before the chunk, along dimension ``dim``. ``after`` is the state after the
    chunk of the sequences that are in it, which are the first ones. The other sequences keep their state.

    If the state is a memory without limit, the dimension after ``dim`` is its places. ``before`` and ``after`` may have
    different numbers of places: the one with fewer gets empty places, filled with zeros, in front.
    """
    present = after.shape[dim]
    if present == before.shape[dim]:
        return after
    others = before.narrow(dim, present, before.shape[dim] - present)
    places = dim + 1
    if others.dim() > places and (more := after.shape[places] - others.shape[places]):
        wider = after if more < 0 else others
        empty = wider.new_zeros(*wider.shape[:places], abs(more), *wider.shape[places + 1 :])
        after, others = (torch.cat([empty, one], dim=places) if one is wider else one for one in (after, others))
    return torch.cat([after, others], dim=dim)
