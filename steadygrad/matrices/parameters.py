"""Free tensors of a matrix, as the parameters of a module: names, shapes, checks."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

UNSHARDED = (nn.Parameter, Tensor)
"""types of tensors that are not sharded over processes; other types are asked, which takes longer"""


class NonFiniteError(ValueError):
    """Raised if a parameter or a state is NaN or infinite, usually because training has diverged."""


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over processes, as a parameter of FSDP2 is between passes."""
    return type(tensor) not in UNSHARDED and hasattr(tensor, "full_tensor")  # DTensor; its import takes a second


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor if ``tensor`` is sharded over processes, such as a parameter of FSDP2 between passes.

    All processes must make this call together. The backward pass shards the gradient again. A tensor that is not
    sharded is returned unchanged.
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


CONSTRAINED = ("skew", "reflector")
"""kinds of free tensors whose size has another meaning than the size of a weight: they have a learning rate of their
own, and no weight decay"""


def free_kinds(map: nn.Module, count: int) -> tuple[str, ...]:
    """Return the kinds of the ``count`` free tensors of a map, by default "matrix" for each."""
    return getattr(map, "kinds", None) or ("matrix",) * count


def free_names(map: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of the ``count`` free tensors of a map: its ``names``, or the kinds, numbered if they repeat."""
    kinds = free_kinds(map, count)
    default = kinds if len(set(kinds)) == len(kinds) else tuple(f"{kind}_{i}" for i, kind in enumerate(kinds))
    return getattr(map, "names", default)


def as_row(tensor: Tensor) -> Tensor:
    """Return a tensor of fewer than two dimensions as one row (1, k), another one unchanged."""
    return tensor if tensor.dim() > 1 else tensor.reshape(1, -1)


def as_parameter(free: Tensor) -> nn.Parameter:
    """Return a free tensor as a parameter of at least two dimensions.

    A parameter of two dimensions is returned itself, and one of fewer as another parameter that shares its memory. A
    tensor is copied.
    """
    if isinstance(free, nn.Parameter):
        return free if free.dim() > 1 else nn.Parameter(as_row(free.detach()), requires_grad=free.requires_grad)
    return nn.Parameter(as_row(free.detach().clone(memory_format=torch.contiguous_format)))


def is_own(free: Tensor) -> bool:
    """Return whether a map's argument is a leaf or a view of one, not a tensor computed from it."""
    return (free if free._base is None else free._base).is_leaf


def check_finite(who: str, name: str, tensor: Tensor, kind: str = "matrix") -> None:
    """Raise NonFiniteError, in the name of ``who``, if a tensor of this ``kind`` has NaN or infinity."""
    # one NaN or infinity makes the sum non-finite, and the sum is cheaper than a check of every entry
    if not math.isfinite(tensor.detach().sum().item()) and (wrong := tensor.numel() - int(tensor.isfinite().sum())):
        rate = f" (lr_constrained for {name})" if kind in CONSTRAINED else ""
        raise NonFiniteError(
            f"{who} expects finite parameters; got {wrong} NaN or infinite values in {name} of shape "
            f"{tuple(tensor.shape)}. If training has diverged, lower the learning rate{rate}"
        )


def is_frozen(free: Tensor) -> bool:
    """Return whether the tensor ``free`` is a parameter that requires no gradient.

    Another tensor in a parameter's place does not count as frozen, because it may carry a tangent.
    """
    return isinstance(free, nn.Parameter) and not free.requires_grad


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Return an iterator over the parameters and buffers of a module and its parts, faster than `nn.Module` does.

    A tensor that several parts share is returned several times.
    """
    for tensors in (module._parameters, module._buffers):
        for tensor in tensors.values():
            if tensor is not None:
                yield tensor
    for part in module._modules.values():
        if part is not None:
            yield from tensors_of(part)


def version(tensor: Tensor) -> int:
    """Return the version counter of a tensor, or −1 for a tensor created in inference mode, which has no counter."""
    return -1 if tensor.is_inference() else tensor._version


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal in value, dtype, shape and device."""
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
