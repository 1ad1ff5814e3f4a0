"""Long short-term memory (Hochreiter & Schmidhuber, 1997; Gers et al., 2000), for a whole sequence.

i, f, o = σ(W x + U h + b),  g = tanh(W x + U h + b),  c ← f∘c + i∘g,  h ← o∘tanh(c)
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.backend import choose_for, in_single_precision
from steadygrad.kernels.plain import has_operator, in_own_precision, wants_graph, with_graph
from steadygrad.kernels.products import matmul
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.traced import dense, or_empty, own_backend, real_steps
from steadygrad.kernels.unroll import unroll, unroll_rows


class LSTMInputs(NamedTuple):
    """The arguments of `lstm_unroll`. Those that have a gradient come first.

    W (4 · hidden, inputs) multiplies the input x (rows, inputs), and U (4 · hidden, hidden) the state. ``steps`` says
    which rows of x belong to which time step. The rows of W, U and the bias are in torch's order i, f, g, o.
    ``initial`` and ``initial_cells`` are (batch, hidden). ``detached`` (time) is True at steps whose gates use
    ``h.detach()`` of the previous state h.
    """

    x: Tensor  # (rows, inputs)
    W: Tensor  # (4·hidden, inputs)
    U: Tensor  # (4·hidden, hidden)
    bias: Tensor | None  # (4·hidden)
    initial: Tensor  # (batch, hidden)
    initial_cells: Tensor  # (batch, hidden)
    steps: Steps
    detached: Tensor | None = None  # (time)


class Saved(NamedTuple):
    """Results of the forward pass of an LSTM that its backward pass uses. ``gates`` are i, f, g, o after activation."""

    states: Tensor  # (rows, hidden)
    cells: Tensor  # (rows, hidden)
    gates: Tensor  # (rows, 4·hidden)


@in_single_precision
def lstm_unroll(given: LSTMInputs, projection: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the pair of all states h and all cells c of an LSTM, each (rows, hidden), by the fastest implementation.

    With ``projection`` R (size, hidden) the state is h = R (o∘tanh(c)), with ``size`` features, and U and ``initial``
    have as many columns. This is computed by the reference implementation. Raise ValueError if ``detached`` does not
    have one entry per time step.
    """
    if (detached := given.detached) is not None:
        if detached.shape != (time := given.steps.time,):
            raise ValueError(f"lstm_unroll expects detached of shape ({time},); got {tuple(detached.shape)}")
        given = given._replace(detached=detached.to("cpu", torch.bool))
    if projection is not None:
        return lstm_unroll_reference(given, projection)
    if has_operator("tanh", given.steps.time):
        *tensors, steps, detached = given
        return lstm_forward(*tensors, detached, steps.sizes, steps.reverse)[:2]
    backend = choose_for(given.x, given.U, given.steps.resets is not None)
    if backend == "reference":
        return lstm_unroll_reference(given)
    arguments = native.contiguous(given)
    if not torch.is_grad_enabled():  # without the cost of an autograd function
        return FORWARD[backend](LSTMInputs(*arguments))[:2]
    return LSTM.apply(*arguments, backend)


def lstm_unroll_reference(given: LSTMInputs, projection: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what `lstm_unroll` returns, computed by the definition. All implementations are tested against it."""
    x, W, U, bias, initial, initial_cells, steps, detached = given
    rows, start = torch.nn.functional.linear(x, W, bias), (initial, initial_cells)

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        h, cell = state
        i, f, g, o = (z + h @ U.mT).chunk(4, dim=1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        h = o.sigmoid() * cell.tanh()
        return h if projection is None else h @ projection.mT, cell

    if detached is None:
        states, cells = unroll_rows(step, rows, start, steps)
        return states, cells
    stops, projected = detached, rows.split(steps.sizes)

    def step_of(t: int, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        h, cell = state
        if stops[t]:
            h = torch.cat([h.detach(), h[:0]])  # the empty rows make the gradient of h zero, not None
        return step(projected[t], (h, cell))

    states, cells = unroll(step_of, range(len(projected)), start, steps)
    return states, cells


class LSTM(torch.autograd.Function):
    """Autograd function of `lstm_unroll` with a hand-written backward pass, in C or Python."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        """Return the pair of all states and cells. The arguments are those of `LSTMInputs`, then "c" or "python"."""
        *inputs, ctx.backend = arguments
        given = LSTMInputs(*inputs)
        saved = FORWARD[ctx.backend](given)
        ctx.save_for_backward(*given[:6], *saved)
        ctx.settings = given[6:]
        ctx.set_materialize_grads(False)
        return saved.states, saved.cells

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, gradient: Tensor | None, cell_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`, None for those that are no tensors.

        ``gradient`` is that of the states, ``cell_gradient`` that of the cells; either may be None.
        """
        *tensors, states, cells, gates = ctx.saved_tensors
        given, saved = LSTMInputs(*tensors, *ctx.settings), Saved(states, cells, gates)
        if wants_graph():
            gradients = [gradient, cell_gradient]
            return (*with_graph(lambda *inputs: lstm_unroll_reference(LSTMInputs(*inputs)), given, gradients), None)
        need_x, _, _, need_bias, *_ = ctx.needs_input_grad
        gradient = torch.zeros_like(saved.states) if gradient is None else native.dense(gradient)
        cell_gradient = None if cell_gradient is None else native.dense(cell_gradient)
        walk = BACKWARD[ctx.backend]
        d_x, d_W, d_U, d_bias, *d_initial = walk(given, saved, gradient, cell_gradient, need_x)
        return d_x, d_W, d_U, d_bias if need_bias else None, *d_initial, None, None, None


Gradients = tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor]
"""gradients of x, W, U, the bias, the initial states and the initial cells"""


def forward_c(given: LSTMInputs) -> Saved:
    """Return a `Saved` of the states, cells and gates of `lstm_unroll`, computed by the C kernel."""
    x, W, U, bias, initial, initial_cells, steps, _ = given
    N, I = U.shape[1], W.shape[1]
    saved = Saved(*(native.empty(x, steps.rows, width) for width in (N, N, 4 * N)))
    parts = native.slices(steps, 4 * N * (N + I))
    native.call("lstm_forward", steps, N, I, x, W, bias, U, initial, initial_cells, *saved, parts)
    return saved


def backward_c(
    given: LSTMInputs, saved: Saved, gradient: Tensor, cell_gradient: Tensor | None, need_x: bool
) -> Gradients:
    """Return the gradients of x, W, U, the bias and the initial states and cells, computed by the C kernel.

    One loop computes all but that of x, while the gradients of the gates are in cache.

    Without ``need_x`` the gradient of x is None, and the gradients of the gates, ``deltas``, are not stored. That of
    the bias is returned even if there is none.
    """
    x, W, U, _, initial, initial_cells, steps, detached = given
    N, I = U.shape[1], W.shape[1]
    parts = native.slices(steps, 8 * N * (N + I))
    deltas = native.empty(saved.gates, *saved.gates.shape) if need_x else None
    d_U, d_W, d_bias = torch.empty_like(U), torch.empty_like(W), U.new_empty(4 * N)
    d_initial, d_initial_cells = torch.zeros_like(initial), torch.zeros_like(initial_cells)
    sources = (gradient, cell_gradient, x, *saved, U, initial, initial_cells, detached)
    results = (deltas, d_U, d_W, d_bias, d_initial, d_initial_cells)
    native.call("lstm_backward", steps, N, I, *sources, *results, parts)
    d_x = None if deltas is None else matmul(deltas, W)
    return d_x, d_W, d_U, d_bias, d_initial, d_initial_cells


def forward_python(given: LSTMInputs) -> Saved:
    """Return a `Saved` of states and cells (rows, hidden) and gates (rows, 4 · hidden) of an LSTM, by a Python loop.

    The argument is that of `lstm_unroll`. W x + b is computed here.
    """
    x, W, U, bias, initial, initial_cells, steps, _ = given
    N = U.shape[1]
    gates = torch.nn.functional.linear(x, W, bias)

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the next state and cell, and overwrite W x + b of this step with the values of the gates."""
        h, cell = state
        z.copy_(torch.addmm(z, h, U.mT))
        i, f, g, o = z.chunk(4, dim=1)
        z[:, : 2 * N].sigmoid_(), g.tanh_(), o.sigmoid_()
        cell = torch.addcmul(i * g, f, cell)
        return o * cell.tanh(), cell

    states, cells = unroll(step, [gates[rows] for rows in steps.slices], (initial, initial_cells), steps)
    return Saved(states, cells, gates)


def backward_python(
    given: LSTMInputs, saved: Saved, gradient: Tensor, cell_gradient: Tensor | None, need_x: bool
) -> Gradients:
    """Return the gradients of x, W, U, the bias and the initial states and cells, computed by a Python loop.

    Without ``need_x`` the gradient of x is None. That of the bias is returned even if there is none.
    """
    x, W, U, _, initial, initial_cells, steps, detached = given
    states, cells, gates = saved
    deltas = torch.empty_like(gates)
    d_initial, d_initial_cells = torch.zeros_like(initial_cells), torch.zeros_like(initial_cells)
    previous = steps.previous(cells, initial_cells)
    for t in reversed(steps.order()):
        here, size = steps.slices[t], steps.sizes[t]
        i, f, g, o = gates[here].chunk(4, dim=1)
        tanh = cells[here].tanh()
        dh = gradient[here] + d_initial[:size]
        dc = d_initial_cells[:size] + dh * o * (1 - tanh * tanh)
        if cell_gradient is not None:
            dc = dc + cell_gradient[here]
        d_i, d_f, d_g, d_o = deltas[here].chunk(4, dim=1)
        d_i.copy_(dc * g * i * (1 - i))
        d_f.copy_(dc * previous[here] * f * (1 - f))
        d_g.copy_(dc * i * (1 - g * g))
        d_o.copy_(dh * tanh * o * (1 - o))
        d_initial_cells[:size] = dc * f
        if detached is not None and detached[t]:
            d_initial[:size] = 0
        else:
            torch.mm(deltas[here], U, out=d_initial[:size])
    d_U = deltas.mT @ steps.previous(states, initial)
    return deltas @ W if need_x else None, deltas.mT @ x, d_U, deltas.sum(0), d_initial, d_initial_cells


FORWARD, BACKWARD = {"c": forward_c, "python": forward_python}, {"c": backward_c, "python": backward_python}


def given_to_operator(tensors: Sequence[Tensor | None], sizes: Tensor | None, reverse: bool) -> tuple[LSTMInputs, str]:
    """Return the arguments of an operator as `LSTMInputs`, and the implementation to run, "c" or "python"."""
    x, W, U, bias, initial, initial_cells, detached = dense(tensors)
    steps = real_steps(len(x), len(initial), sizes, reverse)
    return LSTMInputs(x, W, U, bias, initial, initial_cells, steps, detached), own_backend(x, U)


@torch.library.custom_op("steadygrad::lstm_forward", mutates_args=())
def lstm_forward(
    x: Tensor,
    W: Tensor,
    U: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    initial_cells: Tensor,
    detached: Tensor | None,
    sizes: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors of `Saved`, the states and cells of `lstm_unroll` first, as an operator of torch.

    ``sizes`` are those of `TracedSteps`.
    """
    given, backend = given_to_operator((x, W, U, bias, initial, initial_cells, detached), sizes, reverse)
    states, cells, gates = FORWARD[backend](given)
    return states, cells, gates


@torch.library.custom_op("steadygrad::lstm_backward", mutates_args=())
def lstm_backward(
    gradient: Tensor | None,
    cell_gradient: Tensor | None,
    states: Tensor,
    cells: Tensor,
    gates: Tensor,
    x: Tensor,
    W: Tensor,
    U: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    initial_cells: Tensor,
    detached: Tensor | None,
    sizes: Tensor | None,
    reverse: bool,
    need_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x (empty without ``need_x``), W, U, the bias and the initial states and cells."""
    given, backend = given_to_operator((x, W, U, bias, initial, initial_cells, detached), sizes, reverse)
    states, cells, gates, gradient, cell_gradient = dense((states, cells, gates, gradient, cell_gradient))
    gradient = torch.zeros_like(states) if gradient is None else gradient
    results = BACKWARD[backend](given, Saved(states, cells, gates), gradient, cell_gradient, need_x)
    d_x, d_W, d_U, d_bias, d_initial, d_initial_cells = or_empty(x, *results)
    return d_x, d_W, d_U, d_bias, d_initial, d_initial_cells


@lstm_forward.register_fake
def _(x: Tensor, W: Tensor, U: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, N = x.shape[0], U.shape[1]
    return x.new_empty(rows, N), x.new_empty(rows, N), x.new_empty(rows, 4 * N)


@lstm_backward.register_fake
def _(gradient: Tensor | None, cell_gradient: Tensor | None, *arguments: Any) -> tuple[Tensor, ...]:
    _, _, _, x, W, U, _, initial, initial_cells, *_, need_x = arguments
    shapes = x.shape if need_x else (0,), W.shape, U.shape, W.shape[:1], initial.shape, initial_cells.shape
    return tuple(x.new_empty(shape) for shape in shapes)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save what the backward pass of `lstm_forward` needs."""
    ctx.save_for_backward(*output, *inputs[:8])
    ctx.settings = inputs[8:]
    ctx.set_materialize_grads(False)


def gradients_of_operator(
    ctx: Any, gradient: Tensor | None, cell_gradient: Tensor | None, unused: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `lstm_forward`, None for those that have none."""
    need_x, _, _, need_bias, *_ = ctx.needs_input_grad
    results = lstm_backward(gradient, cell_gradient, *ctx.saved_tensors, *ctx.settings, need_x)
    d_x, d_W, d_U, d_bias, d_initial, d_initial_cells = results
    d_x, d_bias = d_x if need_x else None, d_bias if need_bias else None
    return d_x, d_W, d_U, d_bias, d_initial, d_initial_cells, None, None, None


lstm_forward.register_autograd(gradients_of_operator, setup_context=keep)
