"""Gradients of a loss with respect to the states of a recurrent module, along time."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from steadygrad.diagnostics.flow import (
    State,
    as_tuple,
    attends,
    attentive_cells,
    check,
    check_without_memory,
    flatten,
    initial_states,
    looking_at,
    states_before,
    step,
    unflatten,
)
from steadygrad.layers import RecurrentLayer
from steadygrad.layers.attentive import AttentiveCell
from steadygrad.layers.stack import Stack

AT_ONCE = 2 * 10**7
"""limit for the numbers in the states of all steps together, of sequences that are measured in one pass"""


def gradient_norms(
    module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None, state: State | None = None
) -> Tensor:
    """Return ‖∂L/∂s_t‖ for t = 0 … T − 1, (T,), s_0 the initial state, along one sequence x (T, inputs).

    L is ``loss`` of all outputs (T, features), or the sum of the last output. The gradient contains the effect of s_t
    on later outputs only. For a layer that attends to its past states, s_t is h_t, with c_t for an LSTM. The gradient
    then includes all paths: the next step, attention now and later, and the memory (RelRNN, figure 2). Raise ValueError
    for a bidirectional module, and for a module of which only a part attends.
    """
    check(module, x)

    def of_outputs(outputs: Tensor) -> Tensor:
        return outputs[-1].sum() if loss is None else loss(outputs[:, 0])

    return norms_of_batch(module, x[:, None], of_outputs, state)[:, 0]


def batch_gradient_norms(module: nn.Module, x: Tensor, loss: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Return the `gradient_norms` of several sequences x (T, batch, inputs), measured together: (T, batch).

    ``loss`` is a function of the outputs (T, sequences, features) of some sequences, and of the slice of the batch that
    they are. It returns the sum of their losses, in which no sequence may depend on another one. As many sequences are
    measured at once as the limit `AT_ONCE` allows.
    """
    check(module, x[:, 0])
    with looking_at(module), torch.no_grad():
        one = x[:, :1]
        _, state = module(one.transpose(0, 1) if getattr(module, "batch_first", False) else one)
    count = max(1, AT_ONCE // (len(x) * sum(part.numel() for part in as_tuple(state))))
    slices = (slice(begin, begin + count) for begin in range(0, x.shape[1], count))
    return torch.cat([norms_of_batch(module, x[:, here], part_of(loss, here)) for here in slices], dim=1)


def part_of(loss: Callable[[Tensor, slice], Tensor], here: slice) -> Callable[[Tensor], Tensor]:
    """Return the loss of the sequences ``here`` as a function of their outputs alone."""
    return lambda outputs: loss(outputs, here)


def norms_of_batch(
    module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor], state: State | None = None
) -> Tensor:
    """Return ‖∂L/∂s_t‖ (T, batch), where L is ``loss`` of the outputs (T, batch, features) for x (T, batch, inputs).

    All sequences start from ``state`` (a batch of one), or from the module's initial state.
    """
    x = x.detach()
    with looking_at(module), torch.enable_grad():
        if attends(module):
            return attentive_norms(module, x, loss, state)
        check_without_memory(module, x[:, 0])
        time_axis = 1 if getattr(module, "batch_first", False) else 0
        before, shapes = states_before(module, x[:1, 0], state)
        states, outputs = [before.detach().repeat(x.shape[1], 1).requires_grad_()], []
        for x_t in x:
            output, after = step(module, x_t, unflatten(states[-1], shapes))
            states.append(flatten(after))
            outputs.append(output.select(time_axis, 0))
        gradients = torch.autograd.grad(loss(torch.stack(outputs)), states[:-1], materialize_grads=True)
    return torch.stack([gradient.double().norm(dim=1) for gradient in gradients])  # in double: no square underflows


def attentive_norms(
    layer: RecurrentLayer | Stack, x: Tensor, loss: Callable[[Tensor], Tensor], state: State | None
) -> Tensor:
    """Return `norms_of_batch` (time, batch) of a layer that attends to its past states."""
    batch = x.shape[1]
    read, handed = [x], []  # what each level, and finally the loss, reads; the states from step to step of each level
    for cell, start in zip(attentive_cells(layer), initial_states(layer, x[:, 0], state), strict=True):
        outputs, states = handed_on(cell, read[-1], tuple(part.expand(batch, *part.shape[1:]) for part in start))
        read.append(outputs)
        handed.append(states)
    value = loss(read[-1])
    squares = torch.zeros(len(x), batch, dtype=torch.float64, device=x.device)
    for outputs, states in zip(read[1:], handed, strict=True):
        *found, elsewhere = torch.autograd.grad(value, [*states, outputs], retain_graph=True, materialize_grads=True)
        units = states[0].shape[1]  # the outputs begin with h; those of SAB have more features after it
        gradients = torch.stack(found).view(len(x), -1, batch, units).double()
        gradients[1:, 0] -= elsewhere[:-1, :, :units]  # without what the loss or the next level reads
        squares += gradients.square().sum(dim=(1, 3))
    return squares.sqrt()


def handed_on(cell: AttentiveCell, x: Tensor, start: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """Run an attention cell over sequences x (time, batch, inputs), keeping the graph for gradients of its states.

    Return the pair of the outputs (time, batch, features) and a list of the states before each step, tensors (batch,
    units): h, or for an LSTM h and c, step after step. ``start`` is the initial state with the memory.
    """
    own, count = len(cell.cell.state_sizes), len(cell.state_sizes)
    state = [part.clone().requires_grad_() if i < own else part for i, part in enumerate(start[:count])]
    weights, contents = cell.weights(), cell.memory.unpack(start[count:], cell.alignment.keys)
    if (place := cell.memory.latest(contents)) is not None:  # the initial state is in memory too
        h = state[0][:, None]
        for name, new in (("states", h), ("keys", cell.alignment.keys(h))):
            contents[name] = torch.cat([contents[name][:, :place], new, contents[name][:, place + 1 :]], dim=1)
    outputs, states = [], []
    for x_t in cell.inputs(x.flatten(0, 1)).unflatten(0, x.shape[:2]):
        states += state[:own]
        output, (*state,), contents = cell.step(weights, x_t, tuple(state), contents, None)
        outputs.append(output)
    return torch.stack(outputs), states


def growth_back(norms: Tensor) -> float:
    """Return the slope, per step back in time, of a least-squares line through the logarithms of ``norms`` (time,).

    It is the mean growth of gradient norms. Norms that are 0, NaN or infinite are left out. With fewer than two others
    the result is 0.0.
    """
    usable = (norms > 0) & norms.isfinite()
    back = torch.arange(len(norms), 0, -1, dtype=torch.float64, device=norms.device)[usable]
    logarithms = norms[usable].double().log()
    away = back - back.mean()
    return float((away @ logarithms) / (away @ away)) if len(back) > 1 else 0.0
