"""A gated recurrent unit for a whole sequence, with the reset before (Cho et al., 2014; NC-GRU Eq. 19) or after U_c.

r = σ(W_r x + U_r h + b_r),  u = σ(W_u x + U_u h + b_u),  c = φ(W_c x + U_c (r∘h) + b_c),  h ← (1 − u)∘h + u∘c
or, with the reset after the product (torch.nn.GRU; GORU),  c = φ(W_c x + r∘(U_c h + b_hn) + b_c)
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.activations import ACTIVATIONS, activate, activation_backward, bias_gradient
from steadygrad.kernels.backend import choose_for, in_single_precision
from steadygrad.kernels.plain import has_operator, in_own_precision, wants_graph, with_graph
from steadygrad.kernels.products import matmul
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.traced import dense, or_empty, own_backend, real_steps
from steadygrad.kernels.unroll import unroll, unroll_rows


class GRUInputs(NamedTuple):
    """The arguments of `gru_unroll`. Those that have a gradient come first.

    W (3 · hidden, inputs) multiplies the input x (rows, inputs), and U (3 · hidden, hidden) the state. The rows of W, U
    and the bias are in the order reset, update, candidate. ``modulus`` (hidden) is the bias that a modReLU candidate
    adds to the modulus. ``bias_hn`` (hidden) is torch's b_hn, which the reset gate multiplies, and must be None with
    the reset "before". ``initial`` is (batch, hidden). ``activation`` is the name of the candidate's activation.
    ``steps`` says which rows of x belong to which time step. ``reset`` is "before" or "after": the reset gate acts
    before or after the product with U_c.
    """

    x: Tensor  # (rows, inputs)
    W: Tensor  # (3·hidden, inputs)
    U: Tensor  # (3·hidden, hidden)
    bias: Tensor | None  # (3·hidden)
    modulus: Tensor | None  # (hidden)
    bias_hn: Tensor | None  # (hidden), only if the reset acts after the product
    initial: Tensor  # (batch, hidden)
    activation: str
    steps: Steps
    reset: str = "before"


class Saved(NamedTuple):
    """Results of the forward pass of a GRU that its backward pass uses.

    ``gates`` are the values of reset, update and candidate after their activations. ``products`` are U_c h + b_hn, or
    None if the reset acts before the product with U_c.
    """

    states: Tensor  # (rows, hidden)
    gates: Tensor  # (rows, 3·hidden)
    products: Tensor | None  # (rows, hidden): U_c h + b_hn, only if the reset acts after the product


@in_single_precision
def gru_unroll(given: GRUInputs) -> Tensor:
    """Return all states (rows, hidden) of a GRU over whole sequences, with the fastest implementation available.

    With reset gate r, update gate u and candidate c, the next state is (1 − u)∘h + u∘c. In `torch.nn.GRU` the update
    gate is 1 − u. Raise ValueError for a ``bias_hn`` with the reset "before".
    """
    if given.bias_hn is not None and given.reset == "before":
        raise ValueError('gru_unroll expects bias_hn to be None with reset="before"; got a tensor')
    if has_operator(given.activation, given.steps.time):
        *tensors, activation, steps, reset = given
        return gru_forward(*tensors, steps.sizes, activation, reset, steps.reverse)[0]
    backend = choose_for(given.x, given.U, given.steps.resets is not None)
    if backend == "reference":
        return gru_unroll_reference(given)
    arguments = native.contiguous(given)
    if not torch.is_grad_enabled():  # without the cost of an autograd function
        return FORWARD[backend](GRUInputs(*arguments)).states
    return GRU.apply(*arguments, backend)


def gru_unroll_reference(given: GRUInputs) -> Tensor:
    """Return what `gru_unroll` returns, computed by the definition. All implementations are tested against it."""
    x, W, U, bias, modulus, bias_hn, initial, activation, steps, reset = given

    def step(z: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        (h,), (x_r, x_u, x_c) = state, z.chunk(3, dim=1)
        U_r, U_u, U_c = U.chunk(3)  # here, because torch's scan takes no two views of one tensor
        r = (x_r + h @ U_r.mT).sigmoid()
        u = (x_u + h @ U_u.mT).sigmoid()
        product = (r * h) @ U_c.mT if reset == "before" else r * torch.nn.functional.linear(h, U_c, bias_hn)
        c = activate(activation, x_c + product, modulus)
        return ((1 - u) * h + u * c,)

    return unroll_rows(step, torch.nn.functional.linear(x, W, bias), (initial,), steps)[0]


class GRU(torch.autograd.Function):
    """Autograd function of `gru_unroll` with a hand-written backward pass, in C or Python."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        """Return all states (rows, hidden). The arguments are those of `GRUInputs`, then "c" or "python"."""
        *inputs, ctx.backend = arguments
        given = GRUInputs(*inputs)
        saved = FORWARD[ctx.backend](given)
        ctx.save_for_backward(*given[:7], *saved)
        ctx.settings = given[7:]
        return saved.states

    @staticmethod
    @in_own_precision
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments of `forward`, None for non-tensors, from the gradient of the states."""
        *tensors, states, gates, products = ctx.saved_tensors
        given, saved = GRUInputs(*tensors, *ctx.settings), Saved(states, gates, products)
        if wants_graph():
            return (*with_graph(lambda *inputs: gru_unroll_reference(GRUInputs(*inputs)), given, [gradient]), None)
        gradients = BACKWARD[ctx.backend](given, saved, native.dense(gradient), ctx.needs_input_grad[0])
        return *needed(gradients, ctx.needs_input_grad), None, None, None, None


Gradients = tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor]
"""gradients of x, W, U, the bias, the bias of modReLU, b_hn (None if the reset is before) and the initial states"""


def needed(gradients: Sequence[Tensor | None], asked: Sequence[bool]) -> Iterator[Tensor | None]:
    """Return an iterator over the gradients, with None in the place of those that are not asked for."""
    return (gradient if ask else None for gradient, ask in zip(gradients, asked, strict=False))


def forward_c(given: GRUInputs) -> Saved:
    """Return a `Saved` of the states, gates and products of `gru_unroll`, computed by the C kernel."""
    x, W, U, bias, modulus, bias_hn, initial, activation, steps, reset = given
    N, I = U.shape[1], W.shape[1]
    products = native.empty(x, steps.rows, N) if reset == "after" else None
    saved = Saved(native.empty(x, steps.rows, N), native.empty(x, steps.rows, 3 * N), products)
    parts = native.slices(steps, 3 * N * (N + I))
    tensors = (x, W, bias, U, modulus, bias_hn, initial, *saved)
    native.call("gru_forward", steps, N, I, ACTIVATIONS.index(activation), *tensors, parts)
    return saved


def backward_c(given: GRUInputs, saved: Saved, gradient: Tensor, need_x: bool) -> Gradients:
    """Return the `Gradients`, computed by the C kernel.

    ``given`` are the arguments and ``saved`` the results of the forward pass. ``gradient`` (rows, hidden) is the
    gradient of all states. Without ``need_x`` the gradient of x is None. The gradients of the bias and of modReLU's
    bias are tensors even if the forward pass had no such bias.

    One loop over time computes all gradients except that of x, while the gradients of the gates are in cache. The
    gradient of x needs the gradients of the gates at all steps: they are stored in ``deltas`` only with ``need_x``.
    """
    W, U, initial, steps = given.W, given.U, given.initial, given.steps
    N, I = U.shape[1], W.shape[1]
    parts = native.slices(steps, 6 * N * (N + I))
    deltas = native.empty(saved.gates, *saved.gates.shape) if need_x else None
    d_U, d_W, d_bias = torch.empty_like(U), torch.empty_like(W), U.new_empty(5 * N)
    d_initial = torch.zeros_like(initial)
    sources, results = (gradient, given.x, *saved, U, initial), (deltas, d_U, d_W, d_bias, d_initial)
    native.call("gru_backward", steps, N, I, ACTIVATIONS.index(given.activation), *sources, *results, parts)
    d_gates, d_modulus, d_hn = d_bias.split([3 * N, N, N])
    d_x = None if deltas is None else matmul(deltas, W)
    return d_x, d_W, d_U, d_gates, d_modulus, None if saved.products is None else d_hn, d_initial


def forward_python(given: GRUInputs) -> Saved:
    """Return a `Saved` of the states, gates and products of `gru_unroll`, computed by a Python loop."""
    x, W, U, bias, modulus, bias_hn, initial, activation, steps, reset = given
    N = U.shape[1]
    gates = torch.nn.functional.linear(x, W, bias)
    products = x.new_empty(steps.rows, N) if reset == "after" else None
    U_ru, U_c = U[: 2 * N].mT, U[2 * N :].mT

    def step(rows: slice, state: tuple[Tensor, ...]) -> tuple[Tensor]:
        """Return the next state, and overwrite W x + b of this step with the values of the gates."""
        (h,), r_u, c = state, gates[rows, : 2 * N], gates[rows, 2 * N :]
        r_u.copy_(torch.addmm(r_u, h, U_ru).sigmoid_())
        r, u = r_u.chunk(2, dim=1)
        if products is None:
            z = torch.addmm(c, r * h, U_c)
        else:
            product = torch.mm(h, U_c, out=products[rows])
            z = torch.addcmul(c, r, product if bias_hn is None else product.add_(bias_hn))
        c.copy_(activate(activation, z, modulus))
        return (torch.lerp(h, c, u),)

    (states,) = unroll(step, steps.slices, (initial,), steps)
    return Saved(states, gates, products)


def backward_python(given: GRUInputs, saved: Saved, gradient: Tensor, need_x: bool) -> Gradients:
    """Return the `Gradients`, computed by a Python loop.

    The arguments and results are those of `backward_c`.
    """
    x, W, U, _, _, _, initial, activation, steps, _ = given
    states, gates, products = saved
    N = U.shape[1]
    deltas = torch.empty_like(gates)
    resets = None if products is None else torch.empty_like(products)  # gradients of U_c h + b_hn
    d_initial = torch.zeros_like(initial)  # carries the gradient of the state from step to step
    previous = steps.previous(states, initial)
    for t in reversed(steps.order()):
        here = steps.slices[t]
        carried, h = d_initial[: steps.sizes[t]], previous[here]
        r, u, c = gates[here].chunk(3, dim=1)
        d = gradient[here] + carried
        delta = deltas[here]
        delta[:, 2 * N :] = activation_backward(activation, c, d * u)
        delta[:, N : 2 * N] = d * (c - h) * u * (1 - u)
        if products is None or resets is None:
            d_reset = delta[:, 2 * N :] @ U[2 * N :]  # gradient of r∘h
            delta[:, :N] = d_reset * h * r * (1 - r)
            kept = d * (1 - u) + d_reset * r
        else:
            resets[here] = delta[:, 2 * N :] * r
            delta[:, :N] = delta[:, 2 * N :] * products[here] * r * (1 - r)
            kept = torch.addmm(d * (1 - u), resets[here], U[2 * N :])
        carried.copy_(torch.addmm(kept, delta[:, : 2 * N], U[: 2 * N]))
    candidate = deltas[:, 2 * N :]
    d_U_c = candidate.mT @ (previous * gates[:, :N]) if resets is None else resets.mT @ previous
    d_U = torch.cat([deltas[:, : 2 * N].mT @ previous, d_U_c])
    d_modulus = bias_gradient("modrelu", gates[:, 2 * N :], candidate)
    d_hn = None if resets is None else resets.sum(0)
    return deltas @ W if need_x else None, deltas.mT @ x, d_U, deltas.sum(0), d_modulus, d_hn, d_initial


FORWARD, BACKWARD = {"c": forward_c, "python": forward_python}, {"c": backward_c, "python": backward_python}


def given_to_operator(
    tensors: Sequence[Tensor | None], sizes: Tensor | None, activation: str, reset: str, reverse: bool
) -> tuple[GRUInputs, str]:
    """Return the arguments of an operator as `GRUInputs`, and the implementation to run, "c" or "python"."""
    x, W, U, bias, modulus, bias_hn, initial = dense(tensors)
    steps = real_steps(len(x), len(initial), sizes, reverse)
    return GRUInputs(x, W, U, bias, modulus, bias_hn, initial, activation, steps, reset), own_backend(x, U)


@torch.library.custom_op("steadygrad::gru_forward", mutates_args=())
def gru_forward(
    x: Tensor,
    W: Tensor,
    U: Tensor,
    bias: Tensor | None,
    modulus: Tensor | None,
    bias_hn: Tensor | None,
    initial: Tensor,
    sizes: Tensor | None,
    activation: str,
    reset: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors of `Saved`, the states of `gru_unroll` first, as an operator of torch.

    ``sizes`` are those of `TracedSteps`. The products are an empty tensor if the reset acts before the product.
    """
    given, backend = given_to_operator((x, W, U, bias, modulus, bias_hn, initial), sizes, activation, reset, reverse)
    states, gates, products = or_empty(x, *FORWARD[backend](given))
    return states, gates, products


@torch.library.custom_op("steadygrad::gru_backward", mutates_args=())
def gru_backward(
    gradient: Tensor,
    states: Tensor,
    gates: Tensor,
    products: Tensor,
    x: Tensor,
    W: Tensor,
    U: Tensor,
    bias: Tensor | None,
    modulus: Tensor | None,
    bias_hn: Tensor | None,
    initial: Tensor,
    sizes: Tensor | None,
    activation: str,
    reset: str,
    reverse: bool,
    need_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the `Gradients`, with an empty tensor in the place of None."""
    given, backend = given_to_operator((x, W, U, bias, modulus, bias_hn, initial), sizes, activation, reset, reverse)
    states, gates, products, gradient = dense((states, gates, products, gradient))
    saved = Saved(states, gates, products if reset == "after" else None)
    d_x, d_W, d_U, *d_biases, d_initial = or_empty(x, *BACKWARD[backend](given, saved, gradient, need_x))
    d_bias, d_modulus, d_hn = (part.clone() for part in d_biases)  # they are parts of one tensor
    return d_x, d_W, d_U, d_bias, d_modulus, d_hn, d_initial


@gru_forward.register_fake
def _(x: Tensor, W: Tensor, U: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    N, reset = U.shape[1], rest[-2]
    states, gates = x.new_empty(x.shape[0], N), x.new_empty(x.shape[0], 3 * N)
    return states, gates, torch.empty_like(states) if reset == "after" else x.new_empty(0)


@gru_backward.register_fake
def _(gradient: Tensor, states: Tensor, gates: Tensor, products: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    x, W, U, _, _, _, initial, *_, reset, _, need_x = arguments
    N = U.shape[1]
    d_hn = (N,) if reset == "after" else (0,)
    shapes = x.shape if need_x else (0,), W.shape, U.shape, (3 * N,), (N,), d_hn, initial.shape
    return tuple(x.new_empty(shape) for shape in shapes)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the tensors and settings that the backward pass of `gru_forward` needs."""
    ctx.save_for_backward(*output, *inputs[:8])
    ctx.settings = inputs[8:]


def gradients_of_operator(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `gru_forward`, None for those that have none."""
    asked = ctx.needs_input_grad
    gradients = gru_backward(gradient, *ctx.saved_tensors, *ctx.settings, asked[0])
    return *needed(gradients, asked), None, None, None, None


gru_forward.register_autograd(gradients_of_operator, setup_context=keep)
