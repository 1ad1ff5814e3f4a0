"""How signals and gradients travel through time, in any module that is called as torch.nn.RNN, GRU or LSTM."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

from steadygrad.kernels import at_least_single
from steadygrad.layers import RecurrentLayer
from steadygrad.layers.attentive import AttentiveCell
from steadygrad.layers.stack import Stack
from steadygrad.matrices import Matrix
from steadygrad.matrices.measures import largest_singular_values

State = Any  # a tensor (layers, batch, units) or a tuple of such

STEPS = 400
"""of a sequence that are looked at"""
ENTRIES, WORK = 10**8, 5 * 10**10
"""of all Jacobians together; multiplications in one product of each, so that 1024 units are followed for 46 steps"""
REMEMBERED = 2 * 10**8
"""numbers in the memories of all steps together, of a layer that attends to its past states"""


@dataclass(frozen=True)
class Jacobians:
    """∂s_t/∂s_{t−1} (``state``: time, S, S) and ∂s_t/∂x_t (``input``: time, S, inputs), s the whole state in a row.

    ``parts`` says how long each tensor of the state is in s: (N,) for a GRU, (N, N) for an LSTM's h and c.
    """

    state: Tensor
    input: Tensor
    parts: tuple[int, ...]

    @cached_property
    def exponents(self) -> Tensor:
        """As `lyapunov_exponents`."""
        return lyapunov_from(self.state)


@contextmanager
def looking_at(module: nn.Module) -> Iterator[None]:
    """Without dropout, gradients of parameters or anything else of training; afterwards every part is as it was."""
    modes = {part: part.training for part in module.modules()}
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.eval()
    for parameter in trained:
        parameter.requires_grad = False  # so that a matrix is evaluated once, not at every step
    try:
        with torch.backends.cudnn.flags(enabled=False):  # which has no gradients outside training
            yield
    finally:
        for part, training in modes.items():
            part.training = training
        for parameter in trained:
            parameter.requires_grad = True


def jacobians(module: nn.Module, x: Tensor, state: State | None = None) -> Jacobians:
    """Along one sequence x (time, inputs), from ``state`` (batch of one) or the module's own start.

    All steps at once: S copies of each, one for every row of its Jacobian, as one batch of one-step sequences. Not for
    layers that attend to their past states, whose memory is part of the state.
    """
    check_without_memory(module, x)
    x = x.detach()
    with looking_at(module), torch.no_grad():
        before, shapes = states_before(module, x, state)
    time, size = before.shape
    rows = before.repeat_interleave(size, dim=0).requires_grad_()
    inputs = x.repeat_interleave(size, dim=0).requires_grad_()
    with looking_at(module), torch.enable_grad():
        _, after = step(module, inputs, unflatten(rows, shapes))
        picked = flatten(after).view(time, size, size).diagonal(dim1=1, dim2=2)  # copy i answers for unit i
        d_state, d_input = torch.autograd.grad(picked.sum(), (rows, inputs), materialize_grads=True)
    parts = tuple(math.prod(shape) for shape in shapes)
    d_state, d_input = at_least_single(d_state), at_least_single(d_input)
    return Jacobians(d_state.view(time, size, size), d_input.view(time, size, -1), parts)


def states_before(module: nn.Module, x: Tensor, state: State | None) -> tuple[Tensor, list[tuple[int, int]]]:
    """The state that each step starts from, (time, S), and the shape (layers, units) of each of its tensors."""
    if state is None:
        _, like = step(module, x[:1], None)
        if isinstance(module, RecurrentLayer | Stack):
            state = tuple(part for layer in stacked(module) for part in layer.default_states(1, x))
        else:
            state = tuple(torch.zeros_like(part) for part in as_tuple(like))
        state = state if isinstance(like, tuple) else state[0]
    shapes = [(part.shape[0], part.shape[2]) for part in as_tuple(state)]
    states = []
    for x_t in x:
        states.append(flatten(state))
        _, state = step(module, x_t[None], state)
    return torch.cat(states), shapes


def step(module: nn.Module, x: Tensor, state: State | None) -> tuple[Tensor, State]:
    """One step of a whole batch: x (batch, inputs)."""
    x = x[:, None] if getattr(module, "batch_first", False) else x[None]
    return module(x) if state is None else module(x, state)


def as_tuple(state: State) -> tuple[Tensor, ...]:
    return tuple(state) if isinstance(state, tuple | list) else (state,)


def flatten(state: State) -> Tensor:
    """(batch, S): layer after layer, tensor after tensor."""
    return torch.cat([part.transpose(0, 1).flatten(1) for part in as_tuple(state)], dim=1)


def unflatten(rows: Tensor, shapes: list[tuple[int, int]]) -> State:
    parts = rows.split([math.prod(shape) for shape in shapes], dim=1)
    state = tuple(part.unflatten(1, shape).transpose(0, 1) for part, shape in zip(parts, shapes, strict=True))
    return state if len(state) > 1 else state[0]


def check(module: nn.Module, x: Tensor) -> None:
    if getattr(module, "bidirectional", False):
        raise ValueError("the flow through time expects one direction; got a bidirectional module")
    if x.dim() != 2 or len(x) < 1:
        raise ValueError(f"the flow through time expects one sequence (time, inputs); got shape {tuple(x.shape)}")


def check_without_memory(module: nn.Module, x: Tensor) -> None:
    check(module, x)
    if any(isinstance(part, AttentiveCell) for part in module.modules()):
        raise ValueError(
            f"the flow from state to state expects a state of one small size; that of {type(module).__name__} has the "
            "past states in it that it attends to: use gradient_norms and attention_map, of such layers by themselves"
        )


def attends(module: nn.Module) -> TypeGuard[RecurrentLayer | Stack]:
    """Whether it is a layer of ours that attends to its past states, or a stack of such."""
    layers = list(module) if isinstance(module, Stack) else [module]
    return all(isinstance(layer, RecurrentLayer) and isinstance(layer.cells[0], AttentiveCell) for layer in layers)


def stacked(module: RecurrentLayer | Stack) -> list[RecurrentLayer]:
    return list(module.layers()) if isinstance(module, Stack) else [module]


def attentive_cells(module: RecurrentLayer | Stack) -> list[AttentiveCell]:
    """Level after level."""
    return [cast(AttentiveCell, cell) for layer in stacked(module) for cell in layer.cells]


def shortened(module: nn.Module, x: Tensor) -> Tensor:
    """As many steps of x as the Jacobians leave room for, or the memory of a layer that attends to its past states."""
    check(module, x)
    with looking_at(module), torch.no_grad():
        if isinstance(module, Stack) and attends(module):
            _, state = module(x, keep_memory=True)
        else:
            _, state = module(x) if attends(module) else step(module, x[:1], None)
    size = sum(part.numel() for part in as_tuple(state))
    if attends(module):  # every step remembers what it attended to, which grows with the square of the length
        return x[: max(2, int(len(x) * min(1, math.sqrt(REMEMBERED / (len(x) * size)))))]
    return x[: max(2, min(STEPS, ENTRIES // (size * (size + x.shape[1])), WORK // size**3))]


def initial_states(module: RecurrentLayer | Stack, x: Tensor, state: State | None = None) -> list[tuple[Tensor, ...]]:
    """What each level starts from, for a batch of one."""
    if state is None:
        state = tuple(part for layer in stacked(module) for part in layer.default_states(1, x))
    parts = iter([part.detach().unbind(0) for part in as_tuple(state)])
    own = (islice(parts, len(layer.state_sizes)) for layer in stacked(module))
    return [start for of_layer in own for start in zip(*of_layer, strict=True)]


def input_map(module: nn.Module, x: Tensor, block: slice | None = None, state: State | None = None) -> Tensor:
    """‖∂s_τ/∂x_t‖₂ at [τ, t], zero for t > τ: how much the state at τ depends on the input at t (ENRNN, figures 4, 5).

    ``block`` takes a part of the state: ``slice(0, 24)`` the first 24 units; `state_blocks` knows those with a name.
    """
    return input_maps(jacobians(module, x, state), {"": block or slice(None)})[""]


def input_maps(found: Jacobians, blocks: dict[str, slice], every: int = 1) -> dict[str, Tensor]:
    """The same for several blocks at once, from the Jacobians; only each ``every``-th τ and t."""
    time = len(found.state)
    cells = len(range(0, time, every))
    norms = {name: found.input.new_zeros(cells, cells, dtype=torch.float64) for name in blocks}
    influence = found.input[:0].double()  # of the inputs so far on the state at τ: (inputs so far, S, inputs)
    for tau in range(time):
        influence = found.state[tau].double() @ influence
        if tau % every == 0:
            influence = torch.cat([influence, found.input[tau, None].double()])
            for name, block in blocks.items():
                norms[name][tau // every, : tau // every + 1] = largest_singular_values(influence[:, block])
    return norms


def state_blocks(module: nn.Module, parts: tuple[int, ...]) -> dict[str, slice]:
    """Parts of the state with a name: those of a module that tells them apart, h and c of an LSTM, or a matrix's."""
    if isinstance(own := getattr(module, "blocks", None), dict):
        return own
    if len(parts) == 2:
        return {"h": slice(0, parts[0]), "c": slice(parts[0], sum(parts))}
    maps = [part.map for part in module.modules() if isinstance(part, Matrix)]
    named = [blocks for map in maps if isinstance(blocks := getattr(map, "blocks", None), dict)]
    return named[0] if len(named) == 1 and len(maps) == 1 else {}


def gradient_norms(
    module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None, state: State | None = None
) -> Tensor:
    """‖∂L/∂s_t‖ for t = 0 … T − 1, s_0 the initial state; L is a ``loss`` of all outputs, or the sum of the last.

    What counts is what s_t does to later outputs. Of a layer that attends to its past states s_t is h_t, and c_t of an
    LSTM, and all ways lead there: the next step, attention now and later, and the memory (RelRNN, figure 2).
    """
    check(module, x)

    def of_outputs(outputs: Tensor) -> Tensor:
        return outputs[-1].sum() if loss is None else loss(outputs)

    with looking_at(module), torch.enable_grad():
        if attends(module):
            return attentive_gradient_norms(module, x.detach(), of_outputs, state)
        check_without_memory(module, x)
        time_axis = 1 if getattr(module, "batch_first", False) else 0
        before, shapes = states_before(module, x[:1].detach(), state)
        rows = before.detach().requires_grad_()
        states, outputs = [rows], []
        for x_t in x:
            output, after = step(module, x_t[None], unflatten(states[-1], shapes))
            states.append(flatten(after))
            outputs.append(output)
        value = of_outputs(torch.cat(outputs, dim=time_axis).squeeze(1 - time_axis))
        gradients = torch.autograd.grad(value, states[:-1], materialize_grads=True)
    return torch.stack([gradient.double().norm() for gradient in gradients])  # squares of tiny ones need the range


def attentive_gradient_norms(
    layer: RecurrentLayer | Stack, x: Tensor, of_outputs: Callable[[Tensor], Tensor], state: State | None
) -> Tensor:
    read, handed = [x], []  # by each level, and at last by the loss; by each step to the next
    for cell, start in zip(attentive_cells(layer), initial_states(layer, x, state), strict=True):
        outputs, states = handed_on(cell, read[-1], start)
        read.append(outputs)
        handed.append(states)
    value = of_outputs(read[-1])
    squares = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for outputs, states in zip(read[1:], handed, strict=True):
        *found, elsewhere = torch.autograd.grad(value, [*states, outputs], retain_graph=True, materialize_grads=True)
        units = states[0].shape[1]  # the outputs begin with h; SAB's have more behind it
        gradients = torch.cat(found).view(len(x), -1, units).double()
        gradients[1:, 0] -= elsewhere[:-1, :units]  # what the loss or the next level reads of a state is not handed on
        squares += gradients.square().sum(dim=(1, 2))
    return squares.sqrt()


def handed_on(cell: AttentiveCell, x: Tensor, start: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """Outputs (time, features), and what each step starts from: h, or h and c, step after step."""
    *state, packed = start
    own = len(cell.cell.state_sizes)
    state[:own] = [part.clone().requires_grad_() for part in state[:own]]
    weights, contents = cell.weights(), cell.memory.unpack(packed, cell.alignment.keys)
    if cell.memory.ends_with_latest(contents).all():  # the state that a walk before this one ended in
        h = state[0][:, None]
        contents["states"] = torch.cat([contents["states"][:, :-1], h], dim=1)
        contents["keys"] = torch.cat([contents["keys"][:, :-1], cell.alignment.keys(h)], dim=1)
    outputs, states = [], []
    for x_t in cell.inputs(x, None).split(1):
        states += state[:own]
        output, (*state,), contents = cell.step(weights, x_t, tuple(state), contents, None)
        outputs.append(output)
    return torch.cat(outputs), states


def growth_back(norms: Tensor) -> float:
    """Growth a step, from the end to the beginning, in natural logarithms: the line that fits them best.

    Norms that are 0 or beyond all numbers are left out.
    """
    usable = (norms > 0) & norms.isfinite()
    back = torch.arange(len(norms), 0, -1, dtype=torch.float64, device=norms.device)[usable]
    logarithms = norms[usable].double().log()
    away = back - back.mean()
    return float((away @ logarithms) / (away @ away)) if len(back) > 1 else 0.0


def lyapunov_exponents(module: nn.Module, x: Tensor, state: State | None = None, skip: int | None = None) -> Tensor:
    """Mean growth a step, in natural logarithms, of S perpendicular perturbations of the state; the largest first.

    0 is kept for ever, −0.1 shrinks by e every ten steps. The first ``skip`` steps (a tenth) only turn the directions.
    """
    return lyapunov_from(jacobians(module, x, state).state, skip)


def lyapunov_from(jacobians: Tensor, skip: int | None = None) -> Tensor:
    """The same from ∂s_t/∂s_{t−1}, (time, S, S)."""
    time, size, _ = jacobians.shape
    skip = time // 10 if skip is None else skip
    if not 0 <= skip < time:
        raise ValueError(f"lyapunov_exponents expects to skip fewer than the {time} steps there are; got {skip}")
    start = torch.randn(size, size, dtype=torch.float64, device="cpu", generator=torch.Generator().manual_seed(0))
    directions = torch.linalg.qr(start.to(jacobians.device)).Q
    growth = torch.zeros(size, dtype=torch.float64, device=jacobians.device)
    for number, J in enumerate(jacobians.double()):
        directions, R = torch.linalg.qr(J @ directions)
        if number >= skip:
            growth += R.diagonal().abs().clamp_min(torch.finfo(R.dtype).tiny).log()
    return (growth / (time - skip)).sort(descending=True).values


def half_life(exponent: float) -> float:
    """Steps after which half of a perturbation is left; infinite where nothing is lost."""
    return math.inf if exponent >= 0 else math.log(0.5) / exponent
