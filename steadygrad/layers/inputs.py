"""Checks of what a caller passes to a recurrent layer: InputError or TypeError before anything runs."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from steadygrad.check import InputError
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
    """Raise InputError unless the input has ``size`` features and the dtype and device of the layer's parameters.

    The input must also be dense, with a number of dimensions in ``ranks``. ``parameter`` is one of the layer's
    parameters. ``who`` is the layer's name in the message.
    """
    check_like(who, "input", input, parameter)
    if input.dim() not in ranks:
        dimensions = "packed data of 2 dimensions" if ranks == (2,) else "input of 2 dimensions (unbatched) or 3"
        raise InputError(f"{who} expects {dimensions}; got input of shape {tuple(input.shape)}")
    if input.shape[-1] != size:
        raise InputError(f"{who} expects {size} features per step; got input of shape {tuple(input.shape)}")


def check_like(who: str, name: str, tensor: Tensor, parameter: Tensor) -> None:
    """Raise InputError unless the tensor is dense, with the dtype and device of ``parameter``, one of the layer's.

    ``who`` and ``name`` are the names of the layer and of the tensor in the message.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else tensor.layout
        raise InputError(f"{who} expects {name} of layout {torch.strided}; got {kind}")
    if tensor.dtype is not parameter.dtype:
        raise InputError(f"{who} expects {name} of type {parameter.dtype}, as its parameters are; got {tensor.dtype}")
    if not same_device(tensor, parameter):
        raise InputError(f"{who} expects {name} on {parameter.device}, as its parameters are; got {tensor.device}")


def same_device(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are on the same device. A comparison of devices takes longer than `is_cpu`."""
    return (one.is_cpu and other.is_cpu) or one.device == other.device


def check_table(who: str, table: Tensor, symbols: int, size: int, parameter: Tensor) -> None:
    """Raise InputError unless the table of a `Lookup` is a dense tensor (``symbols``, ``size``).

    The table must also have the dtype and device of ``parameter``, one of the layer's parameters. ``who`` is the
    layer's name in the message.
    """
    if table.shape != (symbols, size):
        raise InputError(f"{who} expects a table of shape {(symbols, size)}; got {tuple(table.shape)}")
    check_like(who, "a table", table, parameter)


def check_state(
    who: str, state: Any, parts: Sequence[Part], leading: tuple[int, ...], like: Tensor
) -> tuple[Tensor, ...]:
    """Return a recurrent state as a tuple of tensors. Raise InputError if it does not fit ``parts``.

    ``state`` is a tensor, or a tuple or list of tensors: one dense tensor for each `Part` in ``parts``. The shape of
    each must be (*leading, *part.shape). ``leading`` is (num_layers · directions, batch), or (num_layers · directions,)
    for input without a batch. Device and dtype must be those of ``like``, unless the part has a dtype of its own.
    ``who`` is the layer's name in the message.
    """
    given = tuple(state) if isinstance(state, tuple | list) else (state,)
    if len(given) != len(parts):
        shapes = [(*leading, *part.shape) for part in parts]
        raise InputError(f"{who} expects a state of {len(shapes)} tensor(s) {shapes}; got {len(given)}")
    start = len(leading)
    for tensor, part in zip(given, parts, strict=True):
        shape = (*leading, *part.shape)
        if not isinstance(tensor, Tensor):
            raise InputError(f"{who} expects a hidden state of shape {shape}; got {tensor!r}")
        if tensor.layout is not torch.strided or tensor.is_nested:
            raise InputError(f"{who} expects a hidden state of layout {torch.strided}; got {tensor.layout}")
        if (size := tensor.shape) != shape and (size[:start] != leading or not part.fits(size[start:])):
            raise InputError(f"{who} expects a hidden state of shape {shape}; got {tuple(size)}")
        if tensor.dtype is not (dtype := part.dtype or like.dtype):
            raise InputError(f"{who} expects a hidden state of type {dtype}; got {tensor.dtype}")
        if not same_device(tensor, like):
            raise InputError(f"{who} expects a hidden state on {like.device}, as its input is; got {tensor.device}")
    return given


def packed_steps(who: str, input: PackedSequence, state: Any) -> Steps:
    """Return the layout of a PackedSequence as `Steps`. Raise InputError if the sequence's parts do not fit together.

    While traced, the result is a `TracedSteps`. The number of sequences is then that of the sequence's indices or,
    without indices, that of ``state``. Without either it is the first batch size, a value that the compiler does not
    know.
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
    try:
        steps = Steps.packed(input.batch_sizes, len(input.data))
    except ValueError as error:
        raise InputError(f"{who}: {error}") from None
    for name in ("sorted_indices", "unsorted_indices"):
        indices = getattr(input, name)
        if indices is not None and not is_order(indices, steps.batch, input.data.device):
            got = f"{tuple(indices.shape)} of {indices.dtype} on {indices.device}"
            raise InputError(
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
