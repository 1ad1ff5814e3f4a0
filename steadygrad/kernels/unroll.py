"""The loop over time steps that all recurrences in Python use."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from steadygrad.kernels.plain import is_single_step
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.traced import TracedSteps

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


def unroll_rows(
    step: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]],
    x: Tensor,
    initial: tuple[Tensor, ...],
    steps: Steps | TracedSteps,
) -> tuple[Tensor, ...]:
    """Return what `unroll` returns for the inputs of each step in the rows of x (rows, …), also while traced."""
    if isinstance(steps, TracedSteps):
        return tuple(map(steps.packed, scanned(step, x, initial, steps)[1]))
    return unroll(step, x.split(steps.sizes), initial, steps)


def allow_counters() -> None:
    """Let Inductor read, inside the graph that is traced, the step counter of the loop that it makes of a `scan`.

    The counter is a tensor. Without ``fullgraph=True`` torch.compile forbids to read values of tensors, and Inductor of
    torch 2.13 then fails with DataDependentOutputException.
    """
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fake_mode is not None and (shapes := context.fake_mode.shape_env) is not None:
        shapes.settings = dataclasses.replace(shapes.settings, allow_scalar_outputs=True)


allow_counters._dynamo_marked_constant = True  # type: ignore[attr-defined]
# torch.compile runs it while it traces. torch.compiler.assume_constant_result would import torch._dynamo now.


def scanned(
    step: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]],
    x: Tensor,
    initial: tuple[Tensor, ...],
    steps: TracedSteps,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Apply ``step`` at every time step by torch's operator `scan`, which traces one step, whatever the length.

    Return the pair of the final state and the results of all steps, each (time, batch, …) in the order of processing.
    """
    count, dtypes = len(initial), [part.dtype for part in initial]
    if steps.sizes is None and is_single_step(steps.time):  # such as a loop in each step of another loop
        only = step(x, initial)
        return only[:count], tuple(part[None] for part in only)
    allow_counters()
    inputs, there = steps.padded(x)

    def masked(state: list[Tensor], now: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        row, present = now
        found = list(step(row, tuple(part.to(dtype) for part, dtype in zip(state, dtypes, strict=True))))
        for i in range(count):
            found[i] = found[i].to(state[i].dtype)
            if steps.sizes is not None:  # a sequence that has ended, or in reverse not begun, keeps its state
                found[i] = found[i].where(present.view(-1, *(1,) * (state[i].dim() - 1)), state[i])
        # Two copies that differ for the compiler: scan allows no output that is another output or saved for backward.
        results = [part.clone(memory_format=torch.contiguous_format) for part in found]
        return [part.clone() for part in found[:count]], results

    # scan differentiates no integers, such as the ages of a memory
    start = [part if part.is_floating_point() else part.double() for part in initial]
    final, results = scan(
        masked, [part.clone(memory_format=torch.contiguous_format) for part in start], (inputs, there)
    )
    return tuple(part.to(dtype) for part, dtype in zip(final, dtypes, strict=True)), tuple(results)
