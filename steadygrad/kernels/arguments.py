"""The tensors that each C kernel takes, in the order of its struct in c/, and the check of every call against them.

C reads and writes as many numbers as the sizes say. So a tensor of another shape, dtype, device or layout would corrupt
memory. `addresses` is the only way for a tensor to get to a kernel.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor

from steadygrad.kernels.activations import C_ENUM, COMPLEX_MODRELU

Shape = tuple[int, ...] | None
"""shape of a tensor; None if the kernel must get no tensor"""


class Field(NamedTuple):
    """What a kernel expects of one tensor among its arguments: name, shape, dtype, and whether it may be None.

    The dtype None stands for the dtype in which the kernel works. The shape None means that no tensor may be passed.
    """

    name: str
    shape: Shape
    dtype: torch.dtype | None
    optional: bool


class Walk(NamedTuple):
    """Sizes of a call of a kernel, which the shapes of its tensors depend on: four integers.

    They are the numbers of time steps, of rows (one for each time step of each sequence), of sequences, and of the
    slices of the batch that threads process.
    """

    time: int
    rows: int
    batch: int
    slices: int


DTYPES = dict.fromkeys(("kept", "members", "times", "ages", "oldest"), torch.int64) | {"detached": torch.bool}
"""dtypes of fields that hold no floating-point numbers, by name"""
LSTM = -1
"""activation of an LSTM among the arguments of the attention kernels"""


def fields(optional: str = "", /, **shapes: Shape) -> tuple[Field, ...]:
    """Return a tuple with one `Field` for each keyword argument ``name=shape``, in this order.

    ``optional`` is a string of the names, separated by spaces, of the tensors that may be None.
    """
    names = optional.split()
    return tuple(Field(name, shape, DTYPES.get(name), name in names) for name, shape in shapes.items())


def biases(N: int, activation: int) -> int:
    """Return the number of biases of N real units: N, or N/2 for complex modReLU.

    A complex unit consists of two real units, its real and its imaginary part, and has one bias. ``activation`` is an
    index in `C_ENUM`. Raise ValueError for complex modReLU and an odd N.
    """
    if C_ENUM[activation] != COMPLEX_MODRELU:
        return N
    if N % 2:
        raise ValueError(f"{COMPLEX_MODRELU} expects an even number of units, real and imaginary parts; got {N}")
    return N // 2


def elman_forward(walk: Walk, N: int, I: int, activation: int) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``elman_forward_t``: return a tuple with one `Field` for each.

    N is the number of units and I the number of inputs. ``activation`` is an index in `C_ENUM`.
    """
    rows, batch = walk.rows, walk.batch
    return fields(
        "bias", x=(rows, I), U=(N, I), bias=(biases(N, activation),), W=(N, N), initial=(batch, N), states=(rows, N)
    )


def elman_backward(walk: Walk, N: int, I: int, activation: int) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``elman_backward_t``: return a tuple with one `Field` for each.

    N is the number of units and I the number of inputs. ``activation`` is an index in `C_ENUM`.
    """
    states, initial, bias = (walk.rows, N), (walk.batch, N), (biases(N, activation),)
    sources = {"gradient": states, "x": (walk.rows, I), "states": states, "bias": bias, "W": (N, N), "initial": initial}
    results = {"deltas": states, "d_W": (N, N), "d_U": (N, I), "d_bias": bias, "d_initial": initial}
    return fields("bias deltas d_bias", **sources, **results)


def gru_forward(walk: Walk, N: int, I: int, activation: int) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``gru_forward_t``: return a tuple with one `Field` for each.

    N is the number of units and I the number of inputs. ``activation`` does not matter.
    """
    states, initial = (walk.rows, N), (walk.batch, N)
    weights = {"W": (3 * N, I), "bias": (3 * N,), "U": (3 * N, N), "modulus": (N,), "bias_hn": (N,), "initial": initial}
    results = {"states": states, "gates": (walk.rows, 3 * N), "products": states}
    return fields("bias modulus bias_hn products", x=(walk.rows, I), **weights, **results)


def gru_backward(walk: Walk, N: int, I: int, activation: int) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``gru_backward_t``: return a tuple with one `Field` for each.

    N is the number of units and I the number of inputs. ``activation`` does not matter.
    """
    states, initial, gates = (walk.rows, N), (walk.batch, N), (walk.rows, 3 * N)
    saved = {"x": (walk.rows, I), "states": states, "gates": gates, "products": states, "U": (3 * N, N)}
    results = {"deltas": gates, "d_U": (3 * N, N), "d_W": (3 * N, I), "d_bias": (5 * N,), "d_initial": initial}
    return fields("products deltas", gradient=states, **saved, initial=initial, **results)


def lstm_forward(walk: Walk, N: int, I: int) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``lstm_forward_t``: return a tuple with one `Field` for each.

    N is the number of units and I the number of inputs.
    """
    states, initial = (walk.rows, N), (walk.batch, N)
    weights = {"W": (4 * N, I), "bias": (4 * N,), "U": (4 * N, N), "initial": initial, "initial_cells": initial}
    return fields("bias", x=(walk.rows, I), **weights, states=states, cells=states, gates=(walk.rows, 4 * N))


def lstm_backward(walk: Walk, N: int, I: int) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``lstm_backward_t``: return a tuple with one `Field` for each.

    N is the number of units and I the number of inputs.
    """
    states, initial, gates = (walk.rows, N), (walk.batch, N), (walk.rows, 4 * N)
    saved = {"x": (walk.rows, I), "states": states, "cells": states, "gates": gates, "U": (4 * N, N)}
    starts = {"initial": initial, "initial_cells": initial, "detached": (walk.time,)}
    results = {"deltas": gates, "d_U": (4 * N, N), "d_W": (4 * N, I), "d_bias": (4 * N,)}
    ends = {"d_initial": initial, "d_initial_cells": initial}
    gradients = {"gradient": states, "cell_gradient": states}
    return fields("cell_gradient detached deltas", **gradients, **saved, **starts, **results, **ends)


def attention_forward(
    walk: Walk, N: int, I: int, short: int, relevant: int, carried: int, activation: int, exponentials: int, f: float
) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``attention_forward_t``: return a tuple with one `Field` for each.

    N is the number of units and I the number of inputs. ``short``, ``relevant`` and ``carried`` are the ``sizes`` of
    `steadygrad.kernels.attention_types.Plan`. ``activation`` is an index in `C_ENUM`, or `LSTM`. ``exponentials`` and f
    do not matter.
    """
    lstm, rows, batch = activation == LSTM, walk.rows, walk.batch
    states, initial, every = (rows, N), (batch, N), (rows + batch * (carried + relevant), N)
    wide = 4 * N if lstm else N
    weights = {"x": (rows, I), "U": (wide, I), "bias": (wide,), "W": (wide, N), "A": (N, N), "B": (N, N), "v": (N,)}
    starts = {"initial": initial, "initial_cells": initial if lstm else None, "initial_macro": initial}
    results = {"states": every, "cells": states if lstm else None, "gates": (rows, wide) if lstm else None}
    scores = {"macro": states, "keys": every, "queries": states, "weights": (rows, short + relevant)}
    memory = {"received": (batch, short) if relevant else None, "scores": (batch, relevant)}
    members = {"members": (batch, relevant), "times": (batch, relevant), "ages": (batch,)}
    return fields("bias v", **weights, **starts, **results, **scores, kept=(rows, relevant), **memory, **members)


def attention_backward(
    walk: Walk, N: int, short: int, relevant: int, carried: int, activation: int, exponentials: int, f: float
) -> tuple[Field, ...]:
    """Describe the tensors of the C struct ``attention_backward_t``: return a tuple with one `Field` for each.

    The arguments are those of `attention_forward` without I.
    """
    lstm, rows, batch = activation == LSTM, walk.rows, walk.batch
    states, initial, every = (rows, N), (batch, N), (rows + batch * (carried + relevant), N)
    wide = 4 * N if lstm else N
    weights = {"W": (wide, N), "A": (N, N), "B": (N, N), "v": (N,), "initial_cells": initial if lstm else None}
    saved = {"states": every, "cells": states if lstm else None, "gates": (rows, wide) if lstm else None}
    scores = {"keys": every, "queries": states, "weights": (rows, short + relevant)}
    memory = {"kept": (rows, relevant), "ages": (batch,)}
    gradients = {"cell_gradient": states if lstm else None, "macro_gradient": states}
    results = {"d_states": every, "deltas": (rows, wide), "d_keys": every, "d_queries": states}
    starts = {"d_initial": initial, "d_initial_cells": initial if lstm else None, "d_initial_macro": initial}
    optional = "v cell_gradient macro_gradient d_v"
    return fields(
        optional, **weights, **saved, **scores, **memory, **gradients, **results, **starts, d_v=(walk.slices, N)
    )


def exponential_forward(walk: Walk, n: int) -> tuple[Field, ...]:
    """Describe the tensors of the C function ``exponential_forward``: return a tuple with one `Field` for each.

    The matrices are n × n.
    """
    return fields(table=(4, 4), **dict.fromkeys(("A", "A2", "X", "S", "E", "B4"), (n, n)))


def exponential_backward(walk: Walk, n: int) -> tuple[Field, ...]:
    """Describe the tensors of the C function ``exponential_backward``: return a tuple with one `Field` for each.

    The matrices are n × n.
    """
    return fields(table=(4, 4), **dict.fromkeys(("G", "A", "S", "E", "B4", "dA"), (n, n)))


KERNELS: dict[str, Callable[..., tuple[Field, ...]]] = {
    kernel.__name__: kernel
    for kernel in (
        *(elman_forward, elman_backward, gru_forward, gru_backward, lstm_forward, lstm_backward),
        *(attention_forward, attention_backward, exponential_forward, exponential_backward),
    )
}
SIZES = {name: len(signature(kernel).parameters) - 1 for name, kernel in KERNELS.items()}
"""how many numbers precede the tensors, by kernel"""


@lru_cache(maxsize=256)
def product_fields(M: int, N: int, K: int) -> tuple[Field, ...]:
    """Return a tuple with one `Field` for each of A (M, K), B (K, N) and C (M, N), for a matrix product C = A B."""
    return fields(A=(M, K), B=(K, N), C=(M, N))


@lru_cache(maxsize=256)
def expected(name: str, time: int, rows: int, batch: int, slices: int, *sizes: int | float) -> tuple[Field, ...]:
    """Return a tuple with one `Field` for each tensor that the kernel ``name`` takes in a call with these sizes.

    ``sizes`` are separate arguments: those that the kernel's function in `KERNELS` takes after the `Walk`. Raise
    ValueError if the first size is below 1, another below −1, or the number of slices is not from 1 to ``batch``.
    """
    integers = [size for size in sizes if isinstance(size, int)]
    if sizes[0] < 1 or min(integers) < LSTM or not 1 <= slices <= max(1, batch):
        raise ValueError(f"{name} expects positive sizes and 1 to {max(1, batch)} slices; got {sizes} and {slices}")
    return KERNELS[name](Walk(time, rows, batch, slices), *sizes)


def addresses(
    who: str, wanted: Iterable[Field], tensors: Iterable[Tensor | None], dtype: torch.dtype, strided: bool = False
) -> list[int]:
    """Return a list of the address of each tensor, 0 for None. Raise ValueError if a tensor does not fit the kernel.

    A tensor fits if it agrees with its `Field` in ``wanted`` and is on the CPU, with the dtype ``dtype`` unless the
    field has its own. It must be contiguous unless ``strided`` is True. ``who`` is the kernel's name in the message.
    """
    found = []
    for (name, shape, own, optional), tensor in zip(wanted, tensors, strict=True):
        if tensor is None and (optional or shape is None):
            found.append(0)
        elif (
            tensor is not None
            and tensor.shape == shape
            and tensor.dtype is (own or dtype)
            and tensor.is_cpu
            and (strided or tensor.is_contiguous())
            and ((address := tensor.data_ptr()) or not tensor.numel())
        ):
            found.append(address)
        else:
            raise ValueError(f"{who} expects {name} {described(shape, own or dtype, strided)}; got {actual(tensor)}")
    return found


def described(shape: Shape, dtype: torch.dtype, strided: bool) -> str:
    """Return a text for an error message: what tensor a kernel expects."""
    layout = "" if strided else ", contiguous"
    return "to be None" if shape is None else f"of shape {shape} and type {dtype}, on the CPU{layout}"


def actual(tensor: Tensor | None) -> str:
    """Return a text for an error message: shape, dtype, device and layout of the tensor that was passed, or "None"."""
    if tensor is None:
        return "None"
    layout = f"strides {tensor.stride()}" if tensor.data_ptr() or not tensor.numel() else "no storage"
    return f"{tuple(tensor.shape)} and {tensor.dtype}, on {tensor.device}, with {layout}"
