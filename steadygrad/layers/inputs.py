"""Checks of what a caller passes to a recurrent layer: ValueError or TypeError before anything runs."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from steadygrad.kernels import Steps, TracedSteps, needs_plain, traced
from steadygrad.layers.cell import Lookup, Part


def rows_of_input(who: str, input: Any) -> Tensor:
    """Return the tensor of an input: itself, the data of a PackedSequence or the rows of a `Lookup`.

    Raise TypeError for any other input; ``who`` is the layer's name in the message.
    """
    rows = input[0] if isinstance(input, PackedSequence | Lookup) else input
    if not isinstance(rows, Tensor):
        raise TypeError(f"{who} expects a tensor, a PackedSequence or a Lookup; got {type(rows).__name__}")
    return rows


def in_dtype(input: Any, state: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return an input and a state with their floating-point tensors converted to this dtype."""

    def convert(part: Any) -> Any:
        return part.to(dtype) if isinstance(part, Tensor) and part.is_floating_point() else part

    if isinstance(input, PackedSequence):
        input = PackedSequence(convert(input.data), *input[1:])
    else:
        input = Lookup(*map(convert, input)) if isinstance(input, Lookup) else convert(input)
    return input, tuple(map(convert, state)) if isinstance(state, tuple | list) else convert(state)


def check_input(who: str, input: Tensor, size: int, ranks: tuple[int, ...], parameter: Tensor) -> None:
    """Raise ValueError unless the input has ``size`` features and the dtype and device of the layer's parameters.

    It must also be dense, with a number of dimensions in ``ranks``. ``parameter`` is one of the layer's parameters.
    """
    check_like(who, "input", input, parameter)
    if input.dim() not in ranks:
        dimensions = "packed data of 2 dimensions" if ranks == (2,) else "input of 2 dimensions (unbatched) or 3"
        raise ValueError(f"{who} expects {dimensions}; got input of shape {tuple(input.shape)}")
    if input.shape[-1] != size:
        raise ValueError(f"{who} expects {size} features per step; got input of shape {tuple(input.shape)}")


def check_like(who: str, name: str, tensor: Tensor, parameter: Tensor) -> None:
    """Raise ValueError unless the tensor is dense, with the dtype and device of ``parameter``, one of the layer's."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else tensor.layout
        raise ValueError(f"{who} expects {name} of layout {torch.strided}; got {kind}")
    if tensor.dtype is not parameter.dtype:
        raise ValueError(f"{who} expects {name} of type {parameter.dtype}, as its parameters are; got {tensor.dtype}")
    if not same_device(tensor, parameter):
        raise ValueError(f"{who} expects {name} on {parameter.device}, as its parameters are; got {tensor.device}")


def same_device(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are on the same device. A comparison of devices takes longer than `is_cpu`."""
    return (one.is_cpu and other.is_cpu) or one.device == other.device


def check_table(who: str, table: Tensor, symbols: int, size: int, parameter: Tensor) -> None:
    """Raise ValueError unless the table of a `Lookup` is a dense tensor (symbols, size).

    It must also have the dtype and device of ``parameter``, one of the layer's. ``symbols`` and ``size`` are integers.
    """
    if table.shape != (symbols, size):
        raise ValueError(f"{who} expects a table of shape {(symbols, size)}; got {tuple(table.shape)}")
    check_like(who, "a table", table, parameter)


def check_state(
    who: str, state: Any, parts: Sequence[Part], leading: tuple[int, ...], like: Tensor
) -> tuple[Tensor, ...]:
    """Return a state, which is a tensor or a tuple or list of tensors, as a tuple. Raise ValueError if it does not fit.

    It must have one dense tensor for each of ``parts``, of shape (*leading, *shape) with the shape of the part, on the
    device of ``like`` and with its dtype, unless the part has its own.
    """
    given = tuple(state) if isinstance(state, tuple | list) else (state,)
    if len(given) != len(parts):
        shapes = [(*leading, *part.shape) for part in parts]
        raise ValueError(f"{who} expects a state of {len(shapes)} tensor(s) {shapes}; got {len(given)}")
    start = len(leading)
    for tensor, part in zip(given, parts, strict=True):
        shape = (*leading, *part.shape)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{who} expects a hidden state of shape {shape}; got {tensor!r}")
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise ValueError(f"{who} expects a hidden state of layout {torch.strided}; got {tensor.layout}")
        if (size := tensor.shape) != shape and (size[:start] != leading or not part.fits(size[start:])):
            raise ValueError(f"{who} expects a hidden state of shape {shape}; got {tuple(size)}")
        if tensor.dtype is not (dtype := part.dtype or like.dtype):
            raise ValueError(f"{who} expects a hidden state of type {dtype}; got {tensor.dtype}")
        if not same_device(tensor, like):
            raise ValueError(f"{who} expects a hidden state on {like.device}, as its input is; got {tensor.device}")
    return given


def packed_steps(who: str, input: PackedSequence, state: Any) -> Steps:
    """Return the layout of a PackedSequence. Raise ValueError if its parts do not fit together.

    While traced, the number of sequences is that of ``state`` or of the indices, if there are any. Otherwise it is the
    first batch size, a value that the compiler does not know.
    """
    if traced():
        indices, (time,) = input.sorted_indices, input.batch_sizes.shape
        if indices is not None:
            batch = indices.shape[0]
        elif state is not None:
            batch = (state if isinstance(state, Tensor) else state[0]).shape[1]
        else:
            batch = int(input.batch_sizes[0])
        return cast(Steps, TracedSteps(time, batch, input.data.shape[0], input.batch_sizes))
    steps = Steps.packed(input.batch_sizes, len(input.data))
    for name in ("sorted_indices", "unsorted_indices"):
        indices = getattr(input, name)
        if indices is not None and not is_order(indices, steps.batch, input.data.device):
            got = f"{tuple(indices.shape)} of {indices.dtype} on {indices.device}"
            raise ValueError(
                f"{who} expects {name} to be a permutation of the {steps.batch} sequences, on {input.data.device}; "
                f"got {indices.tolist() if indices.numel() <= 20 and not indices.is_meta else got}"
            )
    return steps


def is_order(indices: Tensor, size: int, device: torch.device) -> bool:
    """Return whether the indices are 0 to ``size`` − 1 in some order, int64 or int32, on this device.

    The values are not checked where they may not exist, as on the meta device (`needs_plain`).
    """
    if indices.shape != (size,) or indices.dtype not in (torch.int64, torch.int32) or indices.device != device:
        return False
    return needs_plain(indices) or torch.equal(indices.sort().values, torch.arange(size, device=device).to(indices))
