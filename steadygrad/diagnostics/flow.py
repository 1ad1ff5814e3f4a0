"""How signals and gradients travel through time, in any module that is called as torch.nn.RNN, GRU or LSTM."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.matrices import Matrix

State = Any  # a tensor (layers, batch, units) or a tuple of such


@dataclass(frozen=True)
class Jacobians:
    """∂s_t/∂s_{t−1} (``state``: time, S, S) and ∂s_t/∂x_t (``input``: time, S, inputs), s the whole state in a row.

    ``parts`` says how long each tensor of the state is in s: (N,) for a GRU, (N, N) for an LSTM's h and c.
    """

    state: Tensor
    input: Tensor
    parts: tuple[int, ...]


@contextmanager
def looking_at(module: nn.Module) -> Iterator[None]:
    """Without dropout, or anything else that belongs to training; afterwards every part is as it was."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.backends.cudnn.flags(enabled=False):  # which has no gradients outside training
            yield
    finally:
        for part, training in modes.items():
            part.training = training


def jacobians(module: nn.Module, x: Tensor, state: State | None = None) -> Jacobians:
    """Along one sequence x (time, inputs), from ``state`` (batch of one) or the module's own start.

    All steps at once: S copies of each, one for every row of its Jacobian, as one batch of one-step sequences.
    """
    check(module, x)
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
    return Jacobians(d_state.view(time, size, size), d_input.view(time, size, -1), parts)


def states_before(module: nn.Module, x: Tensor, state: State | None) -> tuple[Tensor, list[tuple[int, int]]]:
    """The state that each step starts from, (time, S), and the shape (layers, units) of each of its tensors."""
    if state is None:
        _, like = step(module, x[:1], None)
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


def largest_singular_values(matrices: Tensor) -> Tensor:
    """Of a batch of tall matrices, by the eigenvalues of MᵀM, which is small; infinite where an entry is."""
    size = matrices.abs().amax(dim=(1, 2), keepdim=True)
    scaled = (matrices / size.where(size > 0, 1)).nan_to_num(0.0, 0.0, 0.0).double()  # so that squares fit
    largest = torch.linalg.eigvalsh(scaled.mT @ scaled)[:, -1].clamp_min(0).sqrt()
    return (largest.to(matrices.dtype) * size[:, 0, 0]).where(size[:, 0, 0].isfinite(), math.inf)


def state_blocks(module: nn.Module, parts: tuple[int, ...]) -> dict[str, slice]:
    """Parts of the state with a name: h and c of an LSTM, long and short of a matrix that tells them apart."""
    if len(parts) == 2:
        return {"h": slice(0, parts[0]), "c": slice(parts[0], sum(parts))}
    maps = [part.map for part in module.modules() if isinstance(part, Matrix)]
    named = [blocks for map in maps if isinstance(blocks := getattr(map, "blocks", None), dict)]
    return named[0] if len(named) == 1 and len(maps) == 1 else {}


def gradient_norms(
    module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None, state: State | None = None
) -> Tensor:
    """‖∂L/∂s_t‖ for t = 0 … T − 1, s_0 the initial state; L is a ``loss`` of all outputs, or the sum of the last."""
    check(module, x)
    time_axis = 1 if getattr(module, "batch_first", False) else 0
    with looking_at(module), torch.enable_grad():
        before, shapes = states_before(module, x[:1].detach(), state)
        rows = before.detach().requires_grad_()
        states, outputs = [rows], []
        for x_t in x:
            output, after = step(module, x_t[None], unflatten(states[-1], shapes))
            states.append(flatten(after))
            outputs.append(output)
        result = torch.cat(outputs, dim=time_axis).squeeze(1 - time_axis)
        value = result[-1].sum() if loss is None else loss(result)
        gradients = torch.autograd.grad(value, states[:-1], materialize_grads=True)
    return torch.stack([gradient.double().norm() for gradient in gradients])  # squares of tiny ones need the range


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
    start = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
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
