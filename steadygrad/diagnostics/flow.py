"""Flow of signals and gradients through time, in any module that is called like torch.nn.RNN, GRU or LSTM."""

import math
from collections.abc import Iterator
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
"""largest number of steps of a sequence that are measured"""
ENTRIES, WORK = 10**8, 5 * 10**10
"""limits for the Jacobians of all steps together: their entries, and the multiplications in one product with each;
1024 units are followed for 46 steps"""
REMEMBERED = 2 * 10**8
"""limit for the numbers in the memories of all steps together, for a layer that attends to its past states"""


@dataclass(frozen=True)
class Jacobians:
    """One-step Jacobians along a sequence: ``state`` is ∂s_t/∂s_{t−1} and ``input`` is ∂s_t/∂x_t, with s the state.

    The shapes are (time, S, S) and (time, S, inputs), because s is the state as one vector of S numbers (`flatten`).
    ``parts`` has the length of each tensor of the state in this vector. For a layer of N units, it is (N,) for a GRU,
    and (N, N) for an LSTM: N numbers of h, then N numbers of c.
    """

    state: Tensor
    input: Tensor
    parts: tuple[int, ...]

    @cached_property
    def exponents(self) -> Tensor:
        """Lyapunov exponents along the sequence, (S,), the largest first, as `lyapunov_exponents` returns them."""
        return lyapunov_from(self.state)


@contextmanager
def looking_at(module: nn.Module) -> Iterator[None]:
    """Context manager: put a module in evaluation mode, without gradients of parameters; restore all at the end."""
    modes = {part: part.training for part in module.modules()}
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.eval()
    for parameter in trained:
        parameter.requires_grad = False  # so that a matrix is evaluated once, not at every step
    try:
        with torch.backends.cudnn.flags(enabled=False):  # cuDNN has no backward pass in evaluation mode
            yield
    finally:
        for part, training in modes.items():
            part.training = training
        for parameter in trained:
            parameter.requires_grad = True


def jacobians(module: nn.Module, x: Tensor, state: State | None = None) -> Jacobians:
    """Return the `Jacobians` along one sequence x (time, inputs), from ``state`` (batch of one) or the initial state.

    All steps are computed at once, as one batch of one-step sequences with S copies of each step, one copy for every
    row of its Jacobian. Raise ValueError for bidirectional modules, and for layers that attend to their past states,
    because their memory is part of the state.
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
        picked = flatten(after).view(time, size, size).diagonal(dim1=1, dim2=2)  # copy i gives row i
        d_state, d_input = torch.autograd.grad(picked.sum(), (rows, inputs), materialize_grads=True)
    parts = tuple(math.prod(shape) for shape in shapes)
    d_state, d_input = at_least_single(d_state), at_least_single(d_input)
    return Jacobians(d_state.view(time, size, size), d_input.view(time, size, -1), parts)


def states_before(module: nn.Module, x: Tensor, state: State | None) -> tuple[Tensor, list[tuple[int, int]]]:
    """Run a module over x (time, inputs) and return the pair of the states before each step and their shapes.

    The states are flattened to (time, S). The shapes are a list of (layers, units), one for each tensor of the state.
    """
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
    """Return the pair (output, new state) of a module after one step x (batch, inputs). The output has time 1."""
    x = x[:, None] if getattr(module, "batch_first", False) else x[None]
    return module(x) if state is None else module(x, state)


def as_tuple(state: State) -> tuple[Tensor, ...]:
    """Return a recurrent state as a tuple of tensors, also if it is a single tensor."""
    return tuple(state) if isinstance(state, tuple | list) else (state,)


def flatten(state: State) -> Tensor:
    """Return a recurrent state as one matrix (batch, S): tensor after tensor, and layer after layer in each."""
    return torch.cat([part.transpose(0, 1).flatten(1) for part in as_tuple(state)], dim=1)


def unflatten(rows: Tensor, shapes: list[tuple[int, int]]) -> State:
    """Return the state that `flatten` turns into ``rows``, a tensor or tuple; ``shapes`` are (layers, units) each."""
    parts = rows.split([math.prod(shape) for shape in shapes], dim=1)
    state = tuple(part.unflatten(1, shape).transpose(0, 1) for part, shape in zip(parts, shapes, strict=True))
    return state if len(state) > 1 else state[0]


def check(module: nn.Module, x: Tensor) -> None:
    """Raise ValueError if the module is bidirectional or x is not one sequence (time, inputs)."""
    if getattr(module, "bidirectional", False):
        raise ValueError("the flow through time expects one direction; got a bidirectional module")
    if x.dim() != 2 or len(x) < 1:
        raise ValueError(f"the flow through time expects one sequence (time, inputs); got shape {tuple(x.shape)}")


def check_without_memory(module: nn.Module, x: Tensor) -> None:
    """Raise ValueError as `check` does, and also if any part of the module attends to its past states."""
    check(module, x)
    if any(isinstance(part, AttentiveCell) for part in module.modules()):
        raise ValueError(
            f"the flow from state to state expects a state of one small size; that of {type(module).__name__} has the "
            "past states in it that it attends to: use gradient_norms and attention_map, of such layers by themselves"
        )


def attends(module: nn.Module) -> TypeGuard[RecurrentLayer | Stack]:
    """Return whether the module is a steadygrad layer that attends to its past states, or a stack of only such."""
    layers = list(module) if isinstance(module, Stack) else [module]
    return all(isinstance(layer, RecurrentLayer) and isinstance(layer.cells[0], AttentiveCell) for layer in layers)


def stacked(module: RecurrentLayer | Stack) -> list[RecurrentLayer]:
    """Return the layers of a stack as a list, or a list of the one layer."""
    return list(module.layers()) if isinstance(module, Stack) else [module]


def attentive_cells(module: RecurrentLayer | Stack) -> list[AttentiveCell]:
    """Return a list of the attention cells of all levels (stacked layers) of a module that `attends`, in order."""
    return [cast(AttentiveCell, cell) for layer in stacked(module) for cell in layer.cells]


def shortened(module: nn.Module, x: Tensor) -> Tensor:
    """Return the first steps of x (time, inputs), at least 2, as many as the limits for memory and time allow.

    The limits apply to Jacobians, or for a layer with attention to its memories of past states.
    """
    check(module, x)
    with looking_at(module), torch.no_grad():
        _, state = module(x) if attends(module) else step(module, x[:1], None)
    size = sum(part.numel() for part in as_tuple(state))
    if attends(module):  # every step stores what it attended to, which grows with the square of the length
        return x[: max(2, int(len(x) * min(1, math.sqrt(REMEMBERED / (len(x) * size)))))]
    return x[: max(2, min(STEPS, ENTRIES // (size * (size + x.shape[1])), WORK // size**3))]


def initial_states(module: RecurrentLayer | Stack, x: Tensor, state: State | None = None) -> list[tuple[Tensor, ...]]:
    """Return a list of each level's initial state, a tuple of tensors (1, …): of ``state`` or, if None, the default."""
    if state is None:
        state = tuple(part for layer in stacked(module) for part in layer.default_states(1, x))
    parts = iter([part.detach().unbind(0) for part in as_tuple(state)])
    own = (islice(parts, len(layer.state_parts)) for layer in stacked(module))
    return [start for of_layer in own for start in zip(*of_layer, strict=True)]


def input_map(module: nn.Module, x: Tensor, block: slice | None = None, state: State | None = None) -> Tensor:
    """Return ‖∂s_τ/∂x_t‖₂ at [τ, t], (time, time), zero for t > τ: how much the state at τ depends on the input at t.

    See figures 4 and 5 of ENRNN. ``block`` selects a part of the flat state: ``slice(0, 24)`` is the first 24 units.
    `state_blocks` returns the named parts. Other arguments and errors are those of `jacobians`.
    """
    return input_maps(jacobians(module, x, state), {"": block or slice(None)})[""]


def input_maps(found: Jacobians, blocks: dict[str, slice], every: int = 1) -> dict[str, Tensor]:
    """Return a dict of the `input_map` of each of the named ``blocks`` of the state, from Jacobians.

    Only every ``every``-th τ and t is computed, so a map is (⌈time / every⌉, ⌈time / every⌉), in double precision.
    """
    time = len(found.state)
    cells = len(range(0, time, every))
    norms = {name: found.input.new_zeros(cells, cells, dtype=torch.float64) for name in blocks}
    influence = found.input[:0].double()  # ∂s_τ/∂x_t of the inputs so far: (inputs so far, S, inputs)
    for tau in range(time):
        influence = found.state[tau].double() @ influence
        if tau % every == 0:
            influence = torch.cat([influence, found.input[tau, None].double()])
            for name, block in blocks.items():
                norms[name][tau // every, : tau // every + 1] = largest_singular_values(influence[:, block])
    return norms


def state_blocks(module: nn.Module, parts: tuple[int, ...]) -> dict[str, slice]:
    """Return a dict of the named parts of a module's flat state as slices; ``parts`` are those of `Jacobians`.

    They are the module's ``blocks``, "h" and "c" if the state has two tensors, or the blocks of its only matrix; else
    the dict is empty.
    """
    if isinstance(own := getattr(module, "blocks", None), dict):
        return own
    if len(parts) == 2:
        return {"h": slice(0, parts[0]), "c": slice(parts[0], sum(parts))}
    maps = [part.map for part in module.modules() if isinstance(part, Matrix)]
    named = [blocks for map in maps if isinstance(blocks := getattr(map, "blocks", None), dict)]
    return named[0] if len(named) == 1 and len(maps) == 1 else {}


def lyapunov_exponents(module: nn.Module, x: Tensor, state: State | None = None, skip: int | None = None) -> Tensor:
    """Return the mean growth per step, in natural logarithms, of S orthogonal perturbations of the state: (S,).

    S is the size of the flat state. The largest exponent comes first. With 0 a perturbation is kept for ever; with −0.1
    it shrinks by a factor of e every ten steps. The first ``skip`` steps (by default a tenth) align the directions and
    are not counted. Raise ValueError unless 0 ≤ skip < time. Other arguments and errors are those of `jacobians`.
    """
    return lyapunov_from(jacobians(module, x, state).state, skip)


def lyapunov_from(jacobians: Tensor, skip: int | None = None) -> Tensor:
    """Return the Lyapunov exponents (S,), the largest first, from Jacobians ∂s_t/∂s_{t−1} (time, S, S)."""
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
    """Return the number of steps after which half of a perturbation is left at this Lyapunov exponent; inf for ≥ 0."""
    return math.inf if exponent >= 0 else math.log(0.5) / exponent
