"""h_t = cell(x_t, s_t),  s_t = f · (h_{t−1} + Σ α_m m),  α = softmax over past states m of a(s_{t−1}, m), in C.

The cost of a step depends on the number of states in the memory, not on the length of the past. The kernel is tested
against the definition, `steadygrad.layers.attentive.AttentiveCell.step_by_step`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.activations import C_ENUM, bias_gradient
from steadygrad.kernels.arguments import LSTM
from steadygrad.kernels.attention_types import Attention, Carried, Counters, Inputs, Plan, Recurrence, Saved
from steadygrad.kernels.backend import in_single_precision
from steadygrad.kernels.elman import ElmanInputs, elman_unroll_reference
from steadygrad.kernels.lstm import LSTMInputs, lstm_unroll_reference
from steadygrad.kernels.plain import in_own_precision, wants_graph, with_graph
from steadygrad.kernels.products import matmul
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.unroll import unroll

MOST_STEPS = 2**62  # of a sequence, so that its age does not overflow


@in_single_precision
def attentive_unroll(
    x: Tensor, cell: Recurrence, attention: Attention, state: tuple[Tensor, ...], memory: Carried, steps: Steps
) -> tuple[Tensor, tuple[Tensor, ...], Carried]:
    """Run a cell with attention to its past states over x, in C. Return all h, the final state and the final memory.

    x is (rows, inputs). The result is a tuple of three. All h are one tensor (rows, hidden). ``state`` and the final
    state are tuples (h, s), or (h, c, s) for an LSTM, of tensors (batch, hidden); s replaces the previous h in the
    cell. ``memory`` is not changed; the final memory is a new `Carried`. Raise ValueError if an age in ``memory`` is
    negative or too large for it.
    """
    relevant, carried = attention.relevant, memory.states.shape[1] - attention.relevant
    short = carried + len(steps.sizes) if attention.short is None else attention.short
    counters = counters_of(memory[1:], steps, carried, relevant)
    _, _, members, _, ages = counters
    check_ages(ages, short, carried)
    h, *own, s = state
    plan = Plan(cell.activation, attention.factor, (short, relevant, carried), steps, ages.clone())
    inputs = Inputs(x, *cell[:3], *attention[:3], h, own[0] if own else None, s, memory.states)
    states, cells, macro = Attentive.apply(plan, counters, *inputs)
    final = tuple(steps.last(part) for part in (states[: steps.rows], cells, macro) if part is not None)
    recent, taken = recent_rows(steps, short, carried, relevant)
    rows = torch.cat([recent, members], dim=1)
    memory_states = states.index_select(0, rows.flatten()).unflatten(0, rows.shape)
    if steps.resets is not None:  # older states than those since the reset are not in memory, and R may be empty
        since = ages[:, None]
        taken &= torch.arange(short, 0, -1, device="cpu") <= since
        kept = torch.arange(relevant, device="cpu") < since - short
        memory_states = memory_states * torch.cat([taken, kept], dim=1)[:, :, None]
    elif not taken.all():
        memory_states = torch.cat([memory_states[:, :short] * taken[:, :, None], memory_states[:, short:]], dim=1)
    return states[: steps.rows], final, Carried(memory_states, counters.received, counters.scores, counters.times, ages)


def counters_of(given: Sequence[Tensor], steps: Steps, carried: int, relevant: int) -> Counters:
    """Return new `Counters` that start from ``given``, which are ``received``, ``scores``, ``times`` and ``ages``.

    ``carried`` and ``relevant`` are the numbers of places for recent and for relevant states before the first step.
    """
    tail = steps.rows + (carried + relevant) * torch.arange(steps.batch, device="cpu")[:, None]
    members = tail + torch.arange(carried, carried + relevant, device="cpu")
    received, scores, times, ages = (part.detach().clone(memory_format=torch.contiguous_format) for part in given)
    return Counters(received, scores, members, times, ages)


def check_ages(ages: Tensor, short: int, carried: int) -> None:
    """Raise ValueError if an age, the number of past states of a sequence, is negative or too large for its memory.

    The memory has ``carried`` places for recent states; with at least ``short`` of them older states are dropped, and
    the age is at most 2⁶².
    """
    most = MOST_STEPS if carried >= short else carried
    if ages.is_cpu and ages.numel() and not 0 <= int(ages.min()) <= int(ages.max()) <= most:
        raise ValueError(f"attention expects ages of 0 to {most} states in memory; got {ages.tolist()}")


def recent_rows(steps: Steps, short: int, carried: int, relevant: int) -> tuple[Tensor, Tensor]:
    """Return the row numbers of the last ``short`` states of each sequence, the latest last, and which of them exist.

    The result is a pair of tensors (batch, short), the second Boolean. A place exists unless ``short`` exceeds the
    steps of the sequence plus its carried places, some of which may be empty. ``carried`` and ``relevant`` are the
    numbers of places for recent and for relevant states in the memory before the first step, per sequence. Row numbers
    from ``steps.rows`` on belong to that memory.
    """
    lengths = torch.tensor(steps.lengths, dtype=torch.int64, device="cpu")[:, None]
    back = torch.arange(short, 0, -1, device="cpu")
    when = back.expand(len(lengths), -1) - 1 if steps.reverse else lengths - back
    batch = torch.arange(steps.batch, device="cpu")[:, None]
    walked = steps.offsets_tensor[when.clamp(0, len(steps.sizes) - 1)] + batch
    before = carried - (back - lengths)
    brought = steps.rows + batch * (carried + relevant) + before
    taken = before >= 0
    return walked.where(back <= lengths, brought.where(taken, 0)), taken


class Attentive(torch.autograd.Function):
    """Autograd function of a recurrent cell with attention, over all steps of all sequences, in C.

    It has three outputs: the states h, with the carried states as further rows; the cells of an LSTM, else None; and s,
    the states after attention.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, counters: Counters, *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the states h, the cells of an LSTM (else None) and s, the states after attention, of all steps.

        Cells and s are (rows, hidden). In h the carried states follow as further rows. ``inputs`` are the fields of
        `Inputs`, as separate arguments. The tensors in ``counters`` are updated in place.
        """
        saved = forward_c(plan, counters, *native.contiguous(inputs))
        *tensors, ctx.kept, ctx.exponentials = saved
        ctx.save_for_backward(*inputs, *tensors)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return saved.states, saved.cells, saved.macro

    @staticmethod
    @in_own_precision
    def backward(
        ctx: Any, gradient: Tensor | None, cell_gradient: Tensor | None, macro_gradient: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`, from the gradients of its outputs h, cells and s.

        ``plan`` and ``counters`` have no gradient, so the first two results are None. The others are the gradients of
        the fields of `Inputs`, in their order. The gradient of an output is None if the output was not used.
        """
        tensors = ctx.saved_tensors  # read once: torch.utils.checkpoint computes them when they are read
        results: list[Any] = [*tensors[11:], ctx.kept, ctx.exponentials]
        given, saved = tensors[:11], Saved(*results)
        gradients = gradient, cell_gradient, macro_gradient
        if wants_graph():
            return with_graph(replayed, (ctx.plan, ctx.kept, *given), gradients)
        _, _, need_x, _, _, need_bias, *_ = ctx.needs_input_grad
        return None, None, *backward_c(ctx.plan, saved, Inputs(*native.contiguous(given)), gradients, need_x, need_bias)


def forward_c(plan: Plan, counters: Counters, *inputs: Any) -> Saved:
    """Return the results of the forward pass as `Saved`, computed by the C kernel.

    ``inputs`` are the fields of `Inputs`, contiguous. The tensors in ``counters`` are updated in place.
    """
    x, U, W, bias, A, B, v, *initial, carried_states = inputs
    activation, factor, sizes, steps, _ = plan
    (short, relevant, _), rows, (N, I) = sizes, steps.rows, (W.shape[1], U.shape[1])
    tail = carried_states.numel() // N
    states, keys = native.empty(x, rows + tail, N), native.empty(x, rows + tail, N)
    states[rows:] = carried_states.reshape(tail, N)
    macro, queries = native.empty(x, rows, N), native.empty(x, rows, N)
    lstm = activation is None
    cells = native.empty(x, rows, N) if lstm else None
    gates = native.empty(x, rows, 4 * N) if lstm else None
    weights = native.empty(x, rows, short + relevant)
    kept = torch.empty(rows, relevant, dtype=torch.int64, device="cpu")
    begin = [counter.clone() for counter in counters]
    # exponentials of queries and keys are much faster; the kernel returns 2 if one of them could overflow
    for exponentials in [1, 0] if v is not None else [0]:
        if tail:
            matmul(states[rows:], B.mT, out=keys[rows:])
        for counter, value in zip(counters, begin, strict=True):
            counter.copy_(value)
        code = native.call(
            "attention_forward",
            steps,
            *(N, I, *sizes, LSTM if lstm else C_ENUM.index(activation), exponentials, factor),
            *(x, U, bias, W, A, B, v, *initial),
            *(states, cells, gates, macro, keys, queries, weights, kept),
            *(counters.received if relevant else None, *counters[1:]),
            parts(steps, W, sizes),
        )
        if code == 0:
            break
    return Saved(states, cells, gates, macro, keys, queries, weights, kept, exponentials)


def backward_c(
    plan: Plan, saved: Saved, given: Inputs, gradients: Sequence[Tensor | None], need_x: bool, need_bias: bool
) -> Inputs:
    """Return the gradients of the `Inputs`, computed by the C kernel, from those of the states, cells and s.

    ``given`` are the inputs of the forward pass, contiguous. The gradient of x or the bias is None if it is not needed.
    """
    activation, factor, sizes, steps, ages = plan
    states, cells, gates, macro, keys, queries, weights, kept, exponentials = saved
    x, U, W, _, A, B, v, _, initial_cells, initial_macro, carried_states = given
    rows, N, lstm = steps.rows, W.shape[1], activation is None
    d_states = torch.zeros_like(states)
    if gradients[0] is not None:
        d_states.copy_(gradients[0])
    cell_gradient, macro_gradient = (None if g is None else native.dense(g) for g in gradients[1:])
    slices = parts(steps, W, sizes)
    deltas = native.empty(x, rows, len(W)) if lstm else native.empty(x, rows, N)
    d_keys, d_queries = torch.zeros_like(keys), torch.empty_like(queries)
    d_initial, d_initial_macro = torch.zeros_like(initial_macro), torch.zeros_like(initial_macro)
    d_initial_cells = torch.zeros_like(initial_macro) if lstm else None
    d_v = None if v is None else x.new_zeros(slices, N)
    native.call(
        "attention_backward",
        steps,
        *(N, *sizes, LSTM if activation is None else C_ENUM.index(activation), exponentials, factor),
        *(W, A, B, v, initial_cells, states, cells, gates, keys, queries, weights, kept, ages),
        *(cell_gradient, macro_gradient, d_states, deltas, d_keys, d_queries),
        *(d_initial, d_initial_cells, d_initial_macro, d_v),
        slices,
    )
    d_bias = None
    if need_bias:
        d_bias = deltas.sum(0) if activation is None else bias_gradient(activation, states[:rows], deltas)
    d_carried = d_states[rows:]
    if len(d_carried):
        matmul(d_keys[rows:], B, add=d_carried)
    return Inputs(
        matmul(deltas, U) if need_x else None,  # type: ignore[arg-type]  # a gradient may be None
        matmul(deltas.mT, x),
        matmul(deltas.mT, macro),
        d_bias,
        matmul(d_queries.mT, steps.previous(macro, initial_macro)),
        matmul(d_keys.mT, states),
        None if d_v is None else d_v.sum(0),
        d_initial,
        d_initial_cells,
        d_initial_macro,
        d_carried.view(carried_states.shape),
    )


def replayed(plan: Plan, kept: Tensor, *tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Return the outputs of `Attentive` for `Inputs`, computed by plain torch operations, for second derivatives.

    The result is a tuple of h with the carried states as further rows, the cells and s. Without an LSTM the cells are
    an empty tensor. ``tensors`` are the fields of `Inputs`, as separate arguments. ``kept`` (rows, R) holds the row
    numbers of the R relevant states that each row attended to, −1 for none, so the selection is not repeated.
    """
    given: Any = Inputs(*tensors)  # type: ignore[arg-type]  # some may be None
    steps, (short, relevant, carried), inputs = plan.steps, plan.sizes, given.x.split(plan.steps.sizes)
    known = dict(enumerate(given.carried.flatten(0, 1).unbind(), steps.rows))  # states by row
    ends = [steps.rows + b * (carried + relevant) + carried for b in range(steps.batch)]
    past = [list(range(end - min(age, carried), end)) for end, age in zip(ends, plan.ages.tolist(), strict=True)]

    def step(t: int, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, *own, s = state
        begin, size = steps.offsets[t], len(h)
        if steps.resets is not None:
            past[:size] = [[] if steps.resets[begin + b] else past[b] for b in range(size)]
        distant = kept[begin : begin + size].tolist()
        items = [past[b][-short:] + [row for row in distant[b] if row >= 0] for b in range(size)]
        s = attended(s, h, [[known[row] for row in rows] for rows in items], given, plan.factor)
        weights = (given.U, given.W, given.bias)
        if plan.activation is None:
            h, cell = lstm_unroll_reference(LSTMInputs(inputs[t], *weights, s, own[0], Steps((size,))))
            own = [cell]
        else:
            h = elman_unroll_reference(ElmanInputs(inputs[t], *weights, s, plan.activation, Steps((size,))))
        for b, row in enumerate(h.unbind()):
            known[begin + b] = row
            past[b].append(begin + b)
        return h, *own, s

    starts = tuple(part for part in (given.h, given.cells, given.macro) if part is not None)
    h, *own, s = unroll(step, range(len(inputs)), starts, steps)
    return torch.cat([h, given.carried.flatten(0, 1)]), own[0] if own else h[:0], s


def attended(query: Tensor, h: Tensor, memories: list[list[Tensor]], given: Inputs, factor: float) -> Tensor:
    """Return s = f · (h + Σ α_m m), one row per sequence, over the states m of its memory; h if the memory is empty.

    ``query`` is the previous s, and α the softmax of its scores. ``query`` and h are (batch, hidden). ``memories`` has
    one list of states (hidden) for each sequence. ``given`` has the weights A, B and v. ``factor`` is f.
    """
    rows = []
    for b, memory in enumerate(memories):
        if not memory:
            rows.append(h[b])
            continue
        states = torch.stack(memory)
        asked, keys = given.A @ query[b], states @ given.B.mT
        logits = keys @ asked / len(h[b]) ** 0.5 if given.v is None else (asked + keys).tanh() @ given.v
        rows.append(factor * (h[b] + logits.softmax(dim=0) @ states))
    return torch.stack(rows) if rows else h


def parts(steps: Steps, W: Tensor, sizes: tuple[int, int, int]) -> int:
    """Return the number of slices of the batch that threads process. The backward pass has a row of d_v for each."""
    return native.slices(steps, W.numel() + (2 * W.shape[1] + sum(sizes)) * W.shape[1])
