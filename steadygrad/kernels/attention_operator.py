"""The attention kernel as operators of torch, which torch.compile and torch.export use."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from steadygrad.kernels.attention import backward_c, check_ages, counters_of, forward_c, recent_rows
from steadygrad.kernels.attention_types import Attention, Carried, Inputs, Plan, Recurrence, Saved
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.traced import TracedSteps, dense, or_empty, real_steps


def attentive_traced(
    x: Tensor, cell: Recurrence, attention: Attention, state: tuple[Tensor, ...], memory: Carried, steps: Steps
) -> tuple[Tensor, tuple[Tensor, ...], Carried]:
    """Return what `attentive_unroll` returns, by an operator of torch, while torch.compile or torch.export traces it.

    If S has no limit, the places of the final memory are those before the first step and one for every step.
    """
    carried = memory.states.shape[1] - attention.relevant
    short = carried + steps.time if attention.short is None else attention.short
    h, *own, s = state
    tensors = (x, *cell[:3], *attention[:3], h, own[0] if own else None, s, memory.states)
    counters = (part.detach() for part in memory[1:])
    settings = (cell.activation or "", attention.factor, short, attention.relevant, steps.reverse)
    results = attention_forward(*tensors, *counters, cast(TracedSteps, steps).sizes, *settings)
    states, cells, macro = results[:3]
    received, scores, times, ages, rows, taken = results[9:]
    walked = states[: steps.rows]
    final = tuple(steps.last(part) for part in (walked, *([cells] if own else []), macro))
    memory_states = states.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    memory_states = memory_states * taken[:, :, None]
    return walked, final, Carried(memory_states, received, scores, times, ages)


def given_to_operator(
    tensors: Sequence[Tensor | None], ages: Tensor, sizes: Tensor | None, settings: tuple[Any, ...]
) -> tuple[Plan, Inputs]:
    """Return the arguments of an operator in the form that the kernel takes."""
    activation, factor, short, relevant, reverse = settings
    given = Inputs(*dense(tensors))
    steps = real_steps(len(given.x), len(given.h), sizes, reverse)
    carried = given.carried.shape[1] - relevant
    return Plan(activation or None, factor, (short, relevant, carried), steps, ages.contiguous()), given


@torch.library.custom_op("steadygrad::attention_forward", mutates_args=())
def attention_forward(
    x: Tensor,
    U: Tensor,
    W: Tensor,
    bias: Tensor | None,
    A: Tensor,
    B: Tensor,
    v: Tensor | None,
    h: Tensor,
    cells: Tensor | None,
    macro: Tensor,
    carried: Tensor,
    received: Tensor,
    scores: Tensor,
    times: Tensor,
    ages: Tensor,
    sizes: Tensor | None,
    activation: str,
    factor: float,
    short: int,
    relevant: int,
    reverse: bool,
) -> tuple[
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
    Tensor,
]:
    """Return h with the carried states, cells, s, what the backward pass needs, the final counters and the memory.

    In this order: states, cells, macro, gates, keys, queries, weights and kept of `Saved`, exponentials as a tensor,
    then received, scores, times and ages of `Carried`, and of each place in the final memory the row of its state and
    whether it is taken. An empty ``activation`` means an LSTM. ``sizes`` are those of `TracedSteps`.
    """
    tensors = (x, U, W, bias, A, B, v, h, cells, macro, carried)
    plan, given = given_to_operator(tensors, ages, sizes, (activation, factor, short, relevant, reverse))
    places = plan.sizes[2]
    counters = counters_of((received, scores, times, ages), plan.steps, places, relevant)
    check_ages(ages, short, places)
    saved = forward_c(plan, counters, *given)
    rows, taken = recent_rows(plan.steps, short, places, relevant)
    rows = torch.cat([rows, counters.members], dim=1)
    taken = torch.cat([taken, torch.ones_like(counters.members, dtype=torch.bool)], dim=1)
    found, gates = or_empty(x, saved.cells, saved.gates)
    flag = torch.tensor(saved.exponentials)
    kept = (saved.macro, gates, saved.keys, saved.queries, saved.weights, saved.kept, flag)
    return saved.states, found, *kept, counters.received, counters.scores, counters.times, counters.ages, rows, taken


@torch.library.custom_op("steadygrad::attention_backward", mutates_args=())
def attention_backward(
    gradient: Tensor | None,
    cell_gradient: Tensor | None,
    macro_gradient: Tensor | None,
    states: Tensor,
    found: Tensor,
    walked: Tensor,
    gates: Tensor,
    keys: Tensor,
    queries: Tensor,
    weights: Tensor,
    kept: Tensor,
    exponentials: Tensor,
    x: Tensor,
    U: Tensor,
    W: Tensor,
    bias: Tensor | None,
    A: Tensor,
    B: Tensor,
    v: Tensor | None,
    h: Tensor,
    cells: Tensor | None,
    macro: Tensor,
    carried: Tensor,
    ages: Tensor,
    sizes: Tensor | None,
    activation: str,
    factor: float,
    short: int,
    relevant: int,
    reverse: bool,
    need_x: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the `Inputs` of `attention_forward`; an empty tensor for one that is not needed.

    ``found`` are the cells and ``walked`` the s that the forward pass returned.
    """
    tensors = (x, U, W, bias, A, B, v, h, cells, macro, carried)
    plan, given = given_to_operator(tensors, ages, sizes, (activation, factor, short, relevant, reverse))
    lstm = plan.activation is None
    own = (found if lstm else None, gates if lstm else None)
    results: list[Any] = [*dense((states, *own, walked, keys, queries, weights)), kept.contiguous(), int(exponentials)]
    gradients = list(dense((gradient, cell_gradient if lstm else None, macro_gradient)))
    found_all: Sequence[Tensor | None] = backward_c(plan, Saved(*results), given, gradients, need_x, need_bias)
    filled: Any = or_empty(x, *(part if part is None else part.clone() for part in found_all))
    return filled


@attention_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    x, _, W, *_, carried, received, scores, times, ages, _, activation, _, short, relevant, _ = arguments
    rows, batch, N, width = x.shape[0], carried.shape[0], W.shape[1], W.shape[0]
    every, places = rows + batch * carried.shape[1], short + relevant
    lstm = not activation
    found, gates = (x.new_empty(rows, N), x.new_empty(rows, width)) if lstm else (x.new_empty(0), x.new_empty(0))
    integers = x.new_empty(rows, relevant, dtype=torch.int64), x.new_empty((), dtype=torch.int64)
    counters = (
        torch.empty_like(part, memory_format=torch.contiguous_format) for part in (received, scores, times, ages)
    )
    memory = x.new_empty(batch, places, dtype=torch.int64), x.new_empty(batch, places, dtype=torch.bool)
    queries, macro = x.new_empty(rows, N), x.new_empty(rows, N)
    saved = (macro, gates, x.new_empty(every, N), queries, x.new_empty(rows, places))
    return x.new_empty(every, N), found, *saved, *integers, *counters, *memory


@attention_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    given, (need_x, need_bias) = Inputs(*arguments[12:23]), arguments[-2:]
    needed = given._asdict() | ({} if need_x else {"x": None}) | ({} if need_bias else {"bias": None})
    return tuple(given.x.new_empty((0,) if part is None else part.shape) for part in needed.values())


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save what the backward pass of `attention_forward` needs."""
    ctx.save_for_backward(*output[:9], *inputs[:11], *inputs[14:16])
    ctx.settings = inputs[16:]
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def gradients_of_operator(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `attention_forward`, None for those that have none."""
    asked = ctx.needs_input_grad
    results = attention_backward(*gradients[:3], *ctx.saved_tensors, *ctx.settings, asked[0], asked[3])
    return (*(part if ask else None for part, ask in zip(results, asked, strict=False)), *[None] * (len(asked) - 11))


attention_forward.register_autograd(gradients_of_operator, setup_context=keep)
