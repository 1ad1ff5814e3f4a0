"""The loop over time steps that all recurrences in Python use."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from steadygrad.kernels.steps import Steps

Input = TypeVar("Input")


def unroll(
    step: Callable[[Input, tuple[Tensor, ...]], tuple[Tensor, ...]],
    inputs: Sequence[Input],
    initial: tuple[Tensor, ...],
    steps: Steps,
) -> tuple[Tensor, ...]:
    """Apply the function ``step`` at every time step and return all states as a tuple of tensors (rows, size).

    ``step(inputs[t], state)`` returns the next state, a tuple like ``initial``. It may append outputs, which are
    returned after the states. State and outputs have one row for each sequence that is present at step t, so sequences
    may differ in length. A sequence leaves the batch at its end or, in reverse, enters the batch there with its row of
    ``initial``. Where ``steps.resets`` is True, the state before the step is zero.
    """
    state = tuple(start[:0] for start in initial)
    found: dict[int, tuple[Tensor, ...]] = {}
    for t in steps.order():
        size = steps.sizes[t]
        state = tuple(
            part if len(part) == size else torch.cat([part, start[len(part) : size]])[:size]
            for part, start in zip(state, initial, strict=True)
        )
        if steps.resets is not None:
            goes_on = ~steps.resets[steps.slices[t]]
            state = tuple(part.where(goes_on.view(-1, *[1] * (part.dim() - 1)), 0) for part in state)
        found[t] = step(inputs[t], state)
        state = found[t][: len(initial)]
    return tuple(map(torch.cat, zip(*(found[t] for t in range(len(steps.sizes))), strict=True)))
