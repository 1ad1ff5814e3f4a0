"""h_t = φ(U x_t + W h_{t−1} + b) for a whole sequence: the loop of RNN, scoRNN, expRNN, nnRNN, ENRNN and others."""

from collections.abc import Callable
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
from steadygrad.kernels.plain import at_least_single, in_own_precision, wants_graph, with_graph
from steadygrad.kernels.products import matmul
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.unroll import unroll

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
    backend = choose_for(given.x, given.W, given.steps)
    if backend == "reference" or given.activation not in C_ENUM:
        return elman_unroll_reference(given)
    return Elman.apply(*native.contiguous(given), backend)


def elman_unroll_reference(given: ElmanInputs) -> Tensor:
    """Return what `elman_unroll` returns, computed by the definition. All implementations are tested against it."""
    x, U, W, bias, initial, activation, steps = given

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (activate(activation, z + state[0] @ W.mT, bias),)

    return unroll(step, (x @ U.mT).split(steps.sizes), (initial,), steps)[0]


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

    return unroll(step, (x @ U.mT).split(steps.sizes), (initial,), steps)[0]


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
        *inputs, ctx.backend = arguments
        given = ElmanInputs(*inputs)
        states = {"c": forward_c, "python": forward_python}[ctx.backend](given)
        ctx.save_for_backward(*given[:5], states)
        ctx.settings = given[5:]
        return states

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`, None for non-tensors, from the gradient of the states."""
        *tensors, states = ctx.saved_tensors
        given = ElmanInputs(*tensors, *ctx.settings)
        if wants_graph():
            return (*with_graph(lambda *inputs: elman_unroll_reference(ElmanInputs(*inputs)), given, [gradient]), None)
        need_x, _, _, need_bias, *_ = ctx.needs_input_grad
        walk = {"c": backward_c, "python": backward_python}[ctx.backend]
        return (*walk(given, states, gradient, need_x, need_bias), None, None, None)


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
