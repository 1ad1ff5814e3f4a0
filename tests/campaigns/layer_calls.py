"""Odd calls of layers, in input and state: a ValueError or TypeError, or outputs of the right shape."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from steadygrad.layers import LAYERS, RecurrentLayer
from tests.campaigns.campaign import Campaign

I, N = 3, 4
FORMS: list[dict[str, Any]] = [{}, {}, {"batch_first": True}, {"bidirectional": True}, {"num_layers": 2}]
CALLS = 20
"""calls a try: the record after each try takes longer than a call"""


@cache
def layer_of(name: str, form: int, double: bool) -> RecurrentLayer:
    """Return a small layer; each is made once."""
    torch.manual_seed(0)
    return LAYERS[name](I, N, **FORMS[form], dtype=torch.float64 if double else None)


def spread(x: Tensor) -> Tensor:
    """Return the tensor with gaps between its numbers."""
    return torch.stack([x, x], dim=-1)[..., 0]


def transposed(x: Tensor) -> Tensor:
    """Return the tensor with its memory in another order."""
    return x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() else x


def expanded(x: Tensor) -> Tensor:
    """Return a tensor of the same shape that repeats its first entry along the first dimension."""
    return x[:1].expand(x.shape) if len(x.shape) and len(x) else x


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    """Return a function that sets the first number of a tensor."""

    def change(x: Tensor) -> Tensor:
        if x.numel() and x.is_floating_point():
            x = x.clone()
            x.view(-1)[0] = value
        return x

    return change


def negated(x: Tensor) -> Tensor:
    """Return the tensor, negated twice: by torch's flag for lazy negation and by value."""
    return (
        torch.complex(torch.zeros_like(x), x).conj().imag.neg() if x.dtype.itemsize > 2 and x.is_floating_point() else x
    )


KEEPING: list[Callable[[Tensor], Tensor]] = [
    *(lambda x: x, spread, transposed, expanded, negated, torch.clone),
    *(with_value(value) for value in (float("nan"), float("inf"), 1e38, 1e-40, 0.0)),
]
"""changes after which a call must succeed"""
BREAKING: list[Callable[[Tensor], Any]] = [
    *(torch.Tensor.half, torch.Tensor.bfloat16, torch.Tensor.float, torch.Tensor.double, torch.Tensor.long),
    *(lambda x: x.to(torch.complex64), lambda x: x.bool(), lambda x: x.to("meta"), lambda x: x[..., :-1]),
    *(lambda x: x[:0], lambda x: x[:, :0] if x.dim() > 1 else x, lambda x: x[None], lambda x: x.flatten()),
    *(lambda x: torch.cat([x, x]), lambda x: torch.cat([x, x], dim=-1), lambda x: x[0] if len(x) else x),
    *(lambda x: None, lambda x: x.tolist(), lambda x: x.numpy(force=True), lambda x: "x", lambda x: 1.5),
    *(lambda x: x.to_sparse(), lambda x: x.to_mkldnn() if x.dtype == torch.float32 else x, lambda x: x.unsqueeze(-1)),
    *(lambda x: x.squeeze(), lambda x: torch.empty(0), lambda x: x.mT if x.dim() > 1 else x),
]
"""changes after which most calls must be refused"""


def input_of(rng: random.Random, layer: RecurrentLayer, dtype: torch.dtype) -> tuple[Tensor, int, bool]:
    """Return an input that the layer takes, the size of its batch, and whether it has one."""
    time, batch = rng.choice([1, 1, 2, 5]), rng.choice([0, 1, 1, 2, 3])
    batched = rng.random() < 0.8
    shape = (time, batch, I) if batched else (time, I)
    if batched and layer.batch_first:
        shape = (batch, time, I)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    return torch.randn(shape, generator=generator, dtype=dtype), batch if batched else 1, batched


def state_of(rng: random.Random, layer: RecurrentLayer, x: Tensor, batch: int, batched: bool) -> Any:
    """Return no state or one that the layer takes, as a tensor, tuple or list."""
    if rng.random() < 0.4:
        return None
    parts = layer.default_states(batch, x)
    if not batched:
        parts = tuple(part.squeeze(1) for part in parts)
    parts = tuple(part.clone() for part in parts)
    return parts[0] if len(parts) == 1 else list(parts) if rng.random() < 0.3 else parts


def changed_state(rng: random.Random, state: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return a state with one of its tensors changed, or with one too many or too few."""
    if state is None or isinstance(state, Tensor):
        return state if state is None else change(state)
    parts = list(state)
    place = rng.randrange(len(parts) + 2)
    if place < len(parts):
        parts[place] = change(parts[place])
    elif place == len(parts):
        parts.pop()
    else:
        parts.append(parts[0])
    return tuple(parts) if rng.random() < 0.5 else parts


def call(campaign: Campaign, rng: random.Random) -> None:
    """Call a layer once, with at most one thing that it must refuse."""
    name, double = rng.choice(sorted(LAYERS)), rng.random() < 0.3
    form = rng.randrange(len(FORMS))
    layer = layer_of(name, form, double)
    x, batch, batched = input_of(rng, layer, torch.float64 if double else torch.float32)
    state = state_of(rng, layer, x, batch, batched)
    kind = rng.choice(["taken", "taken", "odd input", "odd state"])
    given: Any = x
    if kind == "taken":
        given = rng.choice(KEEPING)(x)
    elif kind == "odd input":
        given = rng.choice(BREAKING)(x)
    else:
        state = changed_state(rng, state, rng.choice([*BREAKING, *KEEPING]))
    if isinstance(given, Tensor) and given.is_floating_point() and given.layout == torch.strided:
        given = given.detach().requires_grad_(rng.random() < 0.3)
    what = f"{name} {FORMS[form]}, {kind}, {summary(given)}, state {summary(state)}"
    campaign.count(f"layer calls, {kind}")
    with campaign.expecting(what, *(() if kind == "taken" else (ValueError, TypeError))):
        output, _ = layer(given, state)
        if output.shape != (*given.shape[:-1], layer.output_size) or output.dtype != given.dtype:
            campaign.fail(f"{what}: output of shape {tuple(output.shape)} and {output.dtype}")
        if output.requires_grad and not output.is_meta and rng.random() < 0.5:
            output.sum().backward()
        if kind == "taken" and (given.abs() < 100).all() and not output.isfinite().all():
            campaign.fail(f"{what}: output is not finite")


def summary(value: Any) -> str:
    """Return shape, dtype and strides of a tensor, or of each tensor in a state, as text."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(summary, value))})"
    if isinstance(value, Tensor):
        strides = value.stride() if value.layout == torch.strided else value.layout
        return f"{tuple(value.shape)} {value.dtype} {strides} {value.device.type}"
    return repr(value)[:40]


def run(campaign: Campaign) -> None:
    """Make `CALLS` calls a try, each with a layer, input and state drawn at random."""
    for rng in campaign.tries():
        for _ in range(CALLS):
            call(campaign, rng)
