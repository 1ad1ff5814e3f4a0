"""Plain operations in the place of code of our own, for torch.func, export and second derivatives; and precision."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def needs_plain(x: Tensor) -> bool:
    """Whether ``x`` is not mere numbers in memory: a stand-in that notes what is done to it, or one with a tangent."""
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_exporting():
        return True
    if torch.compiler.is_compiling():
        return False
    return x.is_meta or torch._C._is_tracing() or forward_ad._current_level >= 0


def autocasts(kind: str) -> bool:
    """Whether operations on this kind of device choose their precision themselves."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def own_precision(kind: str) -> AbstractContextManager[Any]:
    """Where autocast on this kind of device does not reach."""
    return torch.autocast(kind, enabled=False) if autocasts(kind) else nullcontext()


def at_least_single(values: Tensor) -> Tensor:
    """In single precision if they have less: half has neither the digits for a matrix nor the decompositions."""
    return values if values.dtype.itemsize > 2 else values.float()


def wants_graph() -> bool:
    """Inside a backward pass: whether the gradients must have gradients (``create_graph=True``)."""
    return torch.is_grad_enabled()


def with_graph(
    definition: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Any], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The gradients of ``inputs`` by plain operations, from those of what ``definition`` makes of them."""
    with torch.enable_grad():
        asked = [isinstance(part, Tensor) and part.requires_grad for part in inputs]
        # a tensor may stand in two places; each has a gradient of its own
        aliases = [part.view_as(part) if ask else part for part, ask in zip(inputs, asked, strict=True)]
        outputs = definition(*aliases)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        known = [(out, gradient) for out, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        wanted = [alias for alias, ask in zip(aliases, asked, strict=True) if ask]
        if not known:
            return (None,) * len(asked)
        values, upstream = zip(*known, strict=True)
        found = iter(torch.autograd.grad(values, wanted, upstream, create_graph=True, allow_unused=True))
        return tuple(next(found) if ask else None for ask in asked)


def in_own_precision(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For a backward pass written by hand: autocast where it is called does not reach into it."""

    @wraps(backward)
    def undisturbed(ctx: Any, *gradients: Tensor | None) -> Any:
        kind = next((gradient.device.type for gradient in gradients if gradient is not None), "cpu")
        with own_precision(kind):
            return backward(ctx, *gradients)

    return undisturbed
