"""h_t = φ(U x_t + W h_{t−1} + b) for a whole sequence: the loop of RNN, scoRNN, expRNN, nnRNN, ENRNN and others."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.activations import C_ENUM, COMPLEX, COMPLEX_MODRELU, activate, bias_gradient, deactivate
from steadygrad.kernels.backend import choose_for
from steadygrad.kernels.plain import at_least_single, in_own_precision, wants_graph, with_graph
from steadygrad.kernels.products import matmul
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.unroll import unroll

Operator = Callable[[Tensor], Tensor]
"""function that maps rows h to rows h Wᵀ"""


def elman_unroll(
    x: Tensor, U: Tensor, W: Tensor, bias: Tensor | None, initial: Tensor, activation: str, steps: Steps
) -> Tensor:
    """Return all states (rows, hidden) from x (rows, inputs) and the initial states (batch, hidden).

    ``bias`` is added before the activation; for modReLU it is added to the modulus. For complex modReLU a row is
    (Re h, Im h), and the bias has half as many entries. An activation that is not in `C_ENUM` has no hand-written
    backward pass, so every backend uses the reference definition.
    """
    backend = choose_for(x, W)
    if backend == "reference" or activation not in C_ENUM:
        return elman_unroll_reference(x, U, W, bias, initial, activation, steps)
    bias = None if bias is None else bias.contiguous()
    return Elman.apply(
        x.contiguous(), U.contiguous(), W.contiguous(), bias, initial.contiguous(), activation, steps, backend
    )


def elman_unroll_reference(
    x: Tensor, U: Tensor, W: Tensor, bias: Tensor | None, initial: Tensor, activation: str, steps: Steps
) -> Tensor:
    """Compute `elman_unroll` by the definition. Values and gradients of every backend are tested against it."""

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
    """Compute `elman_unroll` with an operator in the place of W: operator(h) = h Wᵀ for rows h.

    It is used for matrices whose product costs less than n² operations. With complex modReLU the operator takes complex
    rows.
    """
    multiply = complex_rows(operator) if activation in COMPLEX else operator

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        (h,) = state
        return (activate(activation, z + multiply(at_least_single(h)).to(h.dtype), bias),)

    return unroll(step, (x @ U.mT).split(steps.sizes), (initial,), steps)[0]


def complex_rows(operator: Operator) -> Operator:
    """Return the operator on rows (Re h, Im h) from an operator on complex rows h."""

    def multiply(h: Tensor) -> Tensor:
        z = operator(torch.complex(*h.chunk(2, dim=1)))
        return torch.cat([z.real, z.imag], dim=1)

    return multiply


class Elman(torch.autograd.Function):
    """`elman_unroll` with a hand-written backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        U: Tensor,
        W: Tensor,
        bias: Tensor | None,
        initial: Tensor,
        activation: str,
        steps: Steps,
        backend: str,
    ) -> Tensor:
        walk = {"c": forward_c, "python": forward_python}[backend]
        states = walk(x, U, W, bias, initial, activation, steps)
        ctx.save_for_backward(x, U, W, bias, initial, states)
        ctx.activation, ctx.steps, ctx.backend = activation, steps, backend
        return states

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, U, W, bias, initial, states = ctx.saved_tensors
        if wants_graph():
            inputs = (x, U, W, bias, initial, ctx.activation, ctx.steps)
            return (*with_graph(elman_unroll_reference, inputs, [gradient]), None)
        need_x, _, _, need_bias, *_ = ctx.needs_input_grad
        walk = {"c": backward_c, "python": backward_python}[ctx.backend]
        d_x, d_U, d_W, d_bias, d_initial = walk(
            gradient, x, U, W, bias, initial, states, ctx.activation, ctx.steps, need_x, need_bias
        )
        return d_x, d_U, d_W, d_bias, d_initial, None, None, None


Gradients = tuple[Tensor | None, Tensor, Tensor, Tensor | None, Tensor]
"""gradients of x, U, W, the bias and the initial states"""


def forward_c(
    x: Tensor, U: Tensor, W: Tensor, bias: Tensor | None, initial: Tensor, activation: str, steps: Steps
) -> Tensor:
    N, I = U.shape
    half = activation == COMPLEX_MODRELU
    native.check_shapes(
        "elman_unroll",
        *(("x", x, (steps.rows, I)), ("W", W, (N, N)), ("the initial states", initial, (steps.batch, N))),
        ("the bias", bias, (N // 2 if half else N,)),
    )
    states = native.empty(x, steps.rows, N)
    parts = native.slices(steps, N * (N + I))
    native.call("elman_forward", steps, N, I, C_ENUM.index(activation), x, U, bias, W, initial, states, parts)
    return states


def backward_c(
    gradient: Tensor,
    x: Tensor,
    U: Tensor,
    W: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    states: Tensor,
    activation: str,
    steps: Steps,
    need_x: bool,
    need_bias: bool,
) -> Gradients:
    """Return the gradients. One loop computes all but that of x, while the deltas, the gradients of z, are in cache.

    The deltas are stored only if x needs a gradient.
    """
    N, I = U.shape
    parts = native.slices(steps, 2 * N * (N + I))
    deltas = native.empty(states, *states.shape) if need_x else None
    d_W, d_U, d_initial = torch.empty_like(W), torch.empty_like(U), torch.zeros_like(initial)
    d_bias = W.new_empty(N // 2 if activation == COMPLEX_MODRELU else N) if need_bias else None
    given = (gradient.contiguous(), x, states, bias, W, initial)
    results = (deltas, d_W, d_U, d_bias, d_initial)
    native.call("elman_backward", steps, N, I, C_ENUM.index(activation), *given, *results, parts)
    d_x = None if deltas is None else matmul(deltas, U)
    return d_x, d_U, d_W, d_bias, d_initial


def forward_python(
    x: Tensor, U: Tensor, W: Tensor, bias: Tensor | None, initial: Tensor, activation: str, steps: Steps
) -> Tensor:
    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (activate(activation, torch.addmm(z, state[0], W.mT), bias),)

    return unroll(step, (x @ U.mT).split(steps.sizes), (initial,), steps)[0]


def backward_python(
    gradient: Tensor,
    x: Tensor,
    U: Tensor,
    W: Tensor,
    bias: Tensor | None,
    initial: Tensor,
    states: Tensor,
    activation: str,
    steps: Steps,
    need_x: bool,
    need_bias: bool,
) -> Gradients:
    deltas = gradient.clone(memory_format=torch.contiguous_format)
    d_initial = torch.zeros_like(initial)  # carries the gradient of the state from step to step
    for t in reversed(steps.order()):
        here = slice(steps.offsets[t], steps.offsets[t + 1])
        carried = d_initial[: steps.sizes[t]]
        deltas[here] = deactivate(activation, states[here], deltas[here] + carried, bias)
        torch.mm(deltas[here], W, out=carried)
    d_bias = bias_gradient(activation, states, deltas) if need_bias else None
    return deltas @ U if need_x else None, deltas.mT @ x, deltas.mT @ steps.previous(states, initial), d_bias, d_initial
