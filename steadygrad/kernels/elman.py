"""h_t = φ(U x_t + W h_{t−1} + b) for a whole sequence: the loop of RNN, scoRNN, expRNN, nnRNN, ENRNN and others."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.activations import (
    C_ENUM,
    COMPLEX,
    COMPLEX_MODRELU,
    activate,
    activation_backward,
    bias_gradient,
)
from steadygrad.kernels.backend import choose_for, in_single_precision
from steadygrad.kernels.plain import at_least_single, has_operator, in_own_precision, wants_graph, with_graph
from steadygrad.kernels.products import matmul
from steadygrad.kernels.shared import is_shared, outer
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.traced import dense, or_empty, own_backend, real_steps
from steadygrad.kernels.unroll import unroll, unroll_rows

Operator = Callable[[Tensor], Tensor]
"""function that maps rows h to rows h Wᵀ"""


class ElmanInputs(NamedTuple):
    """The arguments of `elman_unroll`. Those that have a gradient come first.

    x is (rows, inputs), ordered as `Steps` says, U (hidden, inputs), W (hidden, hidden) and ``initial`` (batch,
    hidden). ``activation`` is a name. ``bias`` (hidden) is added before the activation; for modReLU it is added to the
    modulus. For complex modReLU a row is (Re h, Im h), and the bias has half as many entries.
    """

    x: Tensor  # (rows, inputs)
    U: Tensor  # (hidden, inputs)
    W: Tensor  # (hidden, hidden)
    bias: Tensor | None  # (hidden)
    initial: Tensor  # (batch, hidden)
    activation: str
    steps: Steps


@in_single_precision
def elman_unroll(given: ElmanInputs) -> Tensor:
    """Return all states (rows, hidden) of h_t = φ(U x_t + W h_{t−1} + b), with the fastest implementation available.

    An activation that is not in `C_ENUM` has no hand-written backward pass, so every backend uses the reference
    definition.
    """
    if given.activation in C_ENUM and has_operator(given.activation, given.steps.time):
        *tensors, activation, steps = given
        return elman_forward(*tensors, steps.sizes, activation, steps.reverse)
    backend = choose_for(given.x, given.W, given.steps.resets is not None)
    if backend == "reference" or given.activation not in C_ENUM:
        return elman_unroll_reference(given)
    arguments = native.contiguous(given)
    if not torch.is_grad_enabled():  # without the cost of an autograd function
        return FORWARD[backend](ElmanInputs(*arguments))
    return Elman.apply(*arguments, backend)


def elman_unroll_reference(given: ElmanInputs) -> Tensor:
    """Return what `elman_unroll` returns, computed by the definition. All implementations are tested against it."""
    x, U, W, bias, initial, activation, steps = given

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (activate(activation, z + state[0] @ W.mT, bias),)

    return unroll_rows(step, x @ U.mT, (initial,), steps)[0]


def operator_unroll(
    x: Tensor,
    U: Tensor,
    operator: Operator,
    bias: Tensor | None,
    initial: Tensor,
    activation: str,
    steps: Steps,
) -> Tensor:
    """Return what `elman_unroll` returns, with a function in place of the matrix W: operator(h) = h Wᵀ for rows h.

    The arguments are those of `ElmanInputs`, passed one by one. It is used for matrices whose product costs less
    than n² operations. With complex modReLU, also the smoothed one, the operator takes complex rows.
    """
    multiply = complex_rows(operator) if activation in COMPLEX else operator

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        (h,) = state
        return (activate(activation, z + multiply(at_least_single(h)).to(h.dtype), bias),)

    return unroll_rows(step, x @ U.mT, (initial,), steps)[0]


def complex_rows(operator: Operator) -> Operator:
    """Return the function on rows (Re h, Im h) that corresponds to a function ``operator`` on complex rows h."""

    def multiply(h: Tensor) -> Tensor:
        z = operator(torch.complex(*h.chunk(2, dim=1)))
        return torch.cat([z.real, z.imag], dim=1)

    return multiply


class Elman(torch.autograd.Function):
    """Autograd function of `elman_unroll` with a hand-written backward pass, in C or Python."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        """Return all states (rows, hidden). The arguments are those of `ElmanInputs`, then "c" or "python"."""
        given = ElmanInputs(*arguments[:7])
        states = FORWARD[arguments[7]](given)
        ctx.save_for_backward(*given[:5], states)
        ctx.settings = arguments[5:]
        return states

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`, None for non-tensors, from the gradient of the states."""
        *tensors, states = ctx.saved_tensors
        *settings, backend = ctx.settings
        given = ElmanInputs(*tensors, *settings)
        if wants_graph():
            return (*with_graph(lambda *inputs: elman_unroll_reference(ElmanInputs(*inputs)), given, [gradient]), None)
        need_x, _, _, need_bias, *_ = ctx.needs_input_grad
        _, of_U, of_W, *_ = ctx.next_functions
        if is_shared(of_W[0]) and given.steps.time == 1 and given.steps.resets is None:
            nodes = of_U[0], of_W[0]
            return (*backward_shared(given, states, gradient, nodes, ctx.needs_input_grad), None, None, None)
        return (*BACKWARD[backend](given, states, gradient, need_x, need_bias), None, None, None)


Gradients = tuple[Tensor | None, Tensor, Tensor, Tensor | None, Tensor]
"""gradients of x, U, W, the bias and the initial states"""


def forward_c(given: ElmanInputs) -> Tensor:
    """Return all states of `elman_unroll`, computed by the C kernel."""
    x, U, W, bias, initial, activation, steps = given
    N, I = U.shape
    states = native.empty(x, steps.rows, N)
    parts = native.slices(steps, N * (N + I))
    native.call("elman_forward", steps, N, I, C_ENUM.index(activation), x, U, bias, W, initial, states, parts)
    return states


def backward_c(given: ElmanInputs, states: Tensor, gradient: Tensor, need_x: bool, need_bias: bool) -> Gradients:
    """Return the gradients of x, U, W, the bias and the initial states, computed by the C kernel.

    One loop computes all but that of x, while the deltas, the gradients of the pre-activations, are in cache.

    The deltas are stored only if x needs a gradient. The gradient of x or the bias is None if it is not needed.
    """
    x, U, W, bias, initial, activation, steps = given
    N, I = U.shape
    parts = native.slices(steps, 2 * N * (N + I))
    deltas = native.empty(states, *states.shape) if need_x else None
    d_W, d_U, d_initial = torch.empty_like(W), torch.empty_like(U), torch.zeros_like(initial)
    d_bias = W.new_empty(N // 2 if activation == COMPLEX_MODRELU else N) if need_bias else None
    saved = (native.dense(gradient), x, states, bias, W, initial)
    results = (deltas, d_W, d_U, d_bias, d_initial)
    native.call("elman_backward", steps, N, I, C_ENUM.index(activation), *saved, *results, parts)
    d_x = None if deltas is None else matmul(deltas, U)
    return d_x, d_U, d_W, d_bias, d_initial


def forward_python(given: ElmanInputs) -> Tensor:
    """Return all states of `elman_unroll`, computed by a Python loop."""
    x, U, W, bias, initial, activation, steps = given

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (activate(activation, torch.addmm(z, state[0], W.mT), bias),)

    return unroll(step, (x @ U.mT).split(steps.sizes), (initial,), steps)[0]


def backward_python(given: ElmanInputs, states: Tensor, gradient: Tensor, need_x: bool, need_bias: bool) -> Gradients:
    """Return the gradients of x, U, W, the bias and the initial states, computed by a Python loop.

    The gradient of x or the bias is None if it is not needed.
    """
    x, U, W, bias, initial, activation, steps = given
    deltas = gradient.clone(memory_format=torch.contiguous_format)
    d_initial = torch.zeros_like(initial)  # carries the gradient of the state from step to step
    for t in reversed(steps.order()):
        here = steps.slices[t]
        carried = d_initial[: steps.sizes[t]]
        deltas[here] = activation_backward(activation, states[here], deltas[here] + carried, bias)
        torch.mm(deltas[here], W, out=carried)
    d_bias = bias_gradient(activation, states, deltas) if need_bias else None
    return deltas @ U if need_x else None, deltas.mT @ x, deltas.mT @ steps.previous(states, initial), d_bias, d_initial


def backward_shared(
    given: ElmanInputs, states: Tensor, gradient: Tensor, nodes: tuple[Any, Any], needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, U, W, the bias and the initial states of one time step, whose W is `Shared`.

    ``nodes`` are those of the graph from which U and W come. The gradient of a shared weight is None here, and computed
    for many steps at once. ``needs`` says which arguments need a gradient.
    """
    x, U, W, bias, initial, activation, _ = given
    need_x, _, _, need_bias, need_initial, *_ = needs
    delta = activation_backward(activation, states, gradient, bias)
    d_U, d_W = outer(nodes[0], delta, x), outer(nodes[1], delta, initial)
    d_bias = bias_gradient(activation, states, delta) if need_bias else None
    return matmul(delta, U) if need_x else None, d_U, d_W, d_bias, matmul(delta, W) if need_initial else None


FORWARD, BACKWARD = {"c": forward_c, "python": forward_python}, {"c": backward_c, "python": backward_python}


def given_to_operator(
    tensors: Sequence[Tensor | None], sizes: Tensor | None, activation: str, reverse: bool
) -> tuple[ElmanInputs, str]:
    """Return the arguments of an operator as `ElmanInputs`, and the implementation to run, "c" or "python"."""
    x, U, W, bias, initial = dense(tensors)
    steps = real_steps(len(x), len(initial), sizes, reverse)
    return ElmanInputs(x, U, W, bias, initial, activation, steps), own_backend(x, W)


@torch.library.custom_op("steadygrad::elman_forward", mutates_args=())
def elman_forward(
    x: Tensor,
    U: Tensor,
    W: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    sizes: Tensor | None,
    activation: str,
    reverse: bool,
) -> Tensor:
    """Return what `elman_unroll` returns, as an operator of torch. ``sizes`` are those of `TracedSteps`."""
    given, backend = given_to_operator((x, U, W, bias, initial), sizes, activation, reverse)
    return FORWARD[backend](given)


@torch.library.custom_op("steadygrad::elman_backward", mutates_args=())
def elman_backward(
    gradient: Tensor,
    states: Tensor,
    x: Tensor,
    U: Tensor,
    W: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    sizes: Tensor | None,
    activation: str,
    reverse: bool,
    need_x: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, U, W, the bias and the initial states; an empty tensor for one that is not needed."""
    given, backend = given_to_operator((x, U, W, bias, initial), sizes, activation, reverse)
    d_x, d_U, d_W, d_bias, d_initial = BACKWARD[backend](
        given, native.dense(states), native.dense(gradient), need_x, need_bias
    )
    d_x, d_bias = or_empty(x, d_x, d_bias)
    return d_x, d_U, d_W, d_bias, d_initial


@elman_forward.register_fake
def _(x: Tensor, U: Tensor, W: Tensor, bias: Tensor | None, initial: Tensor, *settings: Any) -> Tensor:
    return x.new_empty(x.shape[0], W.shape[0])


@elman_backward.register_fake
def _(gradient: Tensor, states: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    x, U, W, bias, initial, _, activation, _, need_x, need_bias = arguments
    biases = W.shape[0] // 2 if activation == COMPLEX_MODRELU else W.shape[0]
    shapes = x.shape if need_x else (0,), U.shape, W.shape, (biases if need_bias else 0,), initial.shape
    return tuple(x.new_empty(shape) for shape in shapes)


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save what the backward pass of `elman_forward` needs."""
    ctx.save_for_backward(output, *inputs[:6])
    ctx.settings = inputs[6:]


def gradients_of_operator(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `elman_forward`, None for those that have none."""
    states, *inputs = ctx.saved_tensors
    need_x, _, _, need_bias, *_ = ctx.needs_input_grad
    d_x, d_U, d_W, d_bias, d_initial = elman_backward(gradient, states, *inputs, *ctx.settings, need_x, need_bias)
    return d_x if need_x else None, d_U, d_W, d_bias if need_bias else None, d_initial, None, None, None


elman_forward.register_autograd(gradients_of_operator, setup_context=keep)
