"""Support for torch.func, export and second derivatives, which need plain torch operations, and for autocast."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def needs_plain(x: Tensor) -> bool:
    """Return whether only plain torch operations can be applied to ``x``.

    The result is True under torch.func, torch.compile, torch.export, tracing and forward-mode AD, and on the meta
    device.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    return x.is_meta or torch._C._is_tracing() or forward_ad._current_level >= 0


def traced() -> bool:
    """Return whether torch.compile or torch.export is tracing this call.

    While traced, a kernel calls its custom operator (`torch.library`) instead of its autograd function. The operators
    have no rules for the transforms of torch.func, so the result is False inside such a transform.
    """
    return torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()


_kept: tuple[str, ...] | None = None
"""activations for which `has_operator` is True; None for all. A global variable, because torch.compile guards on it."""


@contextmanager
def portable(*kept: str) -> Iterator[None]:
    """Context manager in which traced loops over time consist of torch's own operators only.

    These are `scan` and the operators of a step. A graph that is traced in this context can be loaded without
    steadygrad. Loops with an activation whose name is in ``kept`` remain operators of steadygrad.
    """
    global _kept
    before, _kept = _kept, kept
    try:
        yield
    finally:
        _kept = before


def has_operator(activation: str, time: int) -> bool:
    """Return whether an operator of steadygrad runs a loop over ``time`` steps with this activation.

    An operator runs the loop while torch.compile or torch.export traces it, unless `portable` forbids that. Inside
    `portable` a loop of one step is never an operator.
    """
    return traced() and (_kept is None or (activation in _kept and not is_single_step(time)))


def is_single_step(time: int) -> bool:
    """Return whether a loop inside `portable` has exactly one step. A symbolic number of steps never counts."""
    return _kept is not None and isinstance(time, int) and time == 1


def autocasts(kind: str) -> bool:
    """Return whether autocast is enabled for this type of device, such as "cpu"."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def own_precision(kind: str) -> AbstractContextManager[Any]:
    """Return a context manager that disables autocast for this type of device, such as "cpu"."""
    return torch.autocast(kind, enabled=False) if autocasts(kind) else nullcontext()


def at_least_single(values: Tensor) -> Tensor:
    """Return the values, converted to single precision if their dtype has 16 bits or fewer.

    Half precision has too few digits for a matrix, and torch has no decompositions for it.
    """
    return values if values.dtype.itemsize > 2 else values.float()


def wants_graph() -> bool:
    """Return whether the backward pass that is running must compute its gradients by plain torch operations.

    It must if the gradients are to be differentiable (``create_graph=True``) or come in a batch
    (``is_grads_batched=True``).
    """
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return True
    level = torch._C._vmapmode_increment_nesting()  # the only question about vmap inside autograd that torch answers
    torch._C._vmapmode_decrement_nesting()
    return level > 1


def with_graph(
    definition: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Any], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return gradients of ``inputs``, from the ``gradients`` of the outputs ``definition(*inputs)``.

    The result has one entry for each input: None if the input is no tensor or requires no gradient. The returned
    gradients can be differentiated again if gradients are enabled.
    """
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        asked = [isinstance(part, Tensor) and part.requires_grad for part in inputs]
        # the same tensor may be passed twice; each position has its own gradient
        aliases = [part.view_as(part) if ask else part for part, ask in zip(inputs, asked, strict=True)]
        outputs = definition(*aliases)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        known = [(out, gradient) for out, gradient in zip(outputs, gradients, strict=True) if gradient is not None]
        wanted = [alias for alias, ask in zip(aliases, asked, strict=True) if ask]
        if not known:
            return (None,) * len(asked)
        values, upstream = zip(*known, strict=True)
        found = iter(torch.autograd.grad(values, wanted, upstream, create_graph=differentiable, allow_unused=True))
        return tuple(next(found) if ask else None for ask in asked)


def in_own_precision(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a hand-written backward pass so that autocast has no effect inside it."""

    @wraps(backward)
    def undisturbed(ctx: Any, *gradients: Tensor | None) -> Any:
        kind = next((gradient.device.type for gradient in gradients if gradient is not None), "cpu")
        if not autocasts(kind):
            return backward(ctx, *gradients)
        with own_precision(kind):
            return backward(ctx, *gradients)

    return undisturbed
