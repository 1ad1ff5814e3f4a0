"""Conversion of torch's operators to values of a time step, one operator at a time."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from steadygrad.export.c.operations import COMPARISONS, OF_FLAGS, OPERATIONS
from steadygrad.export.c.values import (
    Constant,
    Joined,
    Operand,
    Pointwise,
    Product,
    Reduction,
    Source,
    Step,
    Store,
    View,
)
from steadygrad.export.program import CHECKS, example

Converter = Callable[..., Any]
"""function (step, node, *arguments, **options) → `View` or sequence of them, for an operator of torch"""

REDUCTIONS = ("all", "amax", "amin", "any", "mean", "sum")


def convert(step: Step, node: fx.Node, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the value of a call of an operator of torch, in views, and add to the step what it needs.

    What does not depend on input and state is computed now, by torch, and is a tensor. Raise ValueError for an operator
    that is not known.
    """
    target: Any = node.target
    name = getattr(target, "_opname", target)
    if name in CHECKS:
        return None
    if target is operator.getitem:
        return arguments[0][arguments[1]]
    parts = [part for one in (*arguments, *options.values()) for part in (one if isinstance(one, list) else [one])]
    if not any(isinstance(part, View) for part in parts):
        found = target(*arguments, **options)
        return step.derived(found, *parts) if isinstance(found, Tensor) else found
    if isinstance(value := example(node), Tensor) and value.numel() == 0:
        return torch.empty(value.shape, dtype=value.dtype)
    if target.is_view:
        return seen(step, target, *arguments, **options)
    if name not in CONVERTERS:
        raise ValueError(f"export to C does not support the operator {target} of torch; use .onnx or .pt2")
    return CONVERTERS[name](step, node, *arguments, **options)


def seen(step: Step, target: Callable[..., Any], view: View, *rest: Any, **options: Any) -> Any:
    """Return the view, or list of views, that an operator makes of a view. A copy is made where torch needs one."""
    try:
        found = target(view.layout, *rest, **options)
    except (RuntimeError, ValueError):
        if view.is_dense:
            raise
        return seen(step, target, step.copied(view), *rest, **options)
    if isinstance(found, Tensor):
        return View(view.value, found, view.shift)
    return [View(view.value, part, view.shift) for part in found]


def as_view(value: Any) -> View:
    """Return a tensor as a view of a constant, and a view as it is."""
    return Constant.of(value).whole if isinstance(value, Tensor) else value


def as_operand(value: Any) -> Operand:
    """Return a tensor as a view of a constant, or as a number if it has one entry; others as they are."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else as_view(value)
    return value


def dense(step: Step, value: Any) -> View:
    """Return a tensor or view as a view whose entries follow each other in memory."""
    if isinstance(value, Tensor):
        return as_view(step.derived(value.contiguous(), value))
    return value if value.is_dense else step.copied(value)


def pointwise(
    step: Step, shape: Sequence[int], dtype: torch.dtype, name: str, *operands: Any, working: Any = None
) -> View:
    """Add an operation on entries, and return its result. The operands are converted to ``working`` or ``dtype``."""
    working = working or dtype
    name = OF_FLAGS.get(name, name) if working is torch.bool else name
    found: View = step.add(Pointwise(tuple(shape), dtype, name, [as_operand(one) for one in operands], working))
    return found


def entries(step: Step, node: fx.Node, *operands: Any, name: str = "", alpha: float = 1) -> View:
    """Convert an operation on entries, of which ``alpha`` scales the second operand. ``name`` is by default torch's."""
    name = name or getattr(node.target, "_opname", "")
    value = example(node)
    working = value.dtype
    if name in COMPARISONS:
        left, right = (example(one) for one in node.args)
        working = torch.result_type(left, right)
    if alpha != 1:
        operands = (operands[0], pointwise(step, example(node.args[1]).shape, working, "mul", operands[1], alpha))
    return pointwise(step, value.shape, value.dtype, name, *operands, working=working)


def power(step: Step, node: fx.Node, x: Any, exponent: Any) -> View:
    """Convert a power. A square is a product."""
    if isinstance(exponent, int | float) and exponent == 2:
        return entries(step, node, x, x, name="mul")
    return entries(step, node, x, exponent)


def clamp(step: Step, node: fx.Node, x: Any, least: Any = None, most: Any = None) -> View:
    """Convert a limit to a range, of which one end may be absent."""
    for name, bound in (("maximum", least), ("minimum", most)):
        x = x if bound is None else entries(step, node, x, bound, name=name)
    return x


def to_copy(step: Step, node: fx.Node, x: View, **_: Any) -> View:
    """Convert a change of dtype, or a copy, which is the value itself."""
    return x if example(node).dtype is x.layout.dtype else entries(step, node, x, name="copy")


def product(step: Step, node: fx.Node, a: Any, b: Any) -> View:
    """Convert a product of matrices, or of batches of them. A single row times a matrix becomes a `Product`."""
    shape = tuple(example(node).shape)
    dtype, columns = example(node).dtype, shape[-1]
    if sum(shape[:-1]) == len(shape) - 1 and columns > 1:
        return step.add(Product(shape, dtype, [(dense(step, a), dense(step, b))]))
    if isinstance(a, Tensor) and columns == 1 and len(shape) == 2:
        return step.add(Product(shape, dtype, [(dense(step, b), dense(step, a.mT))]))
    aten: Any = torch.ops.aten
    left = seen(step, aten.unsqueeze, as_view(a), -2)
    turned = as_view(b.mT.contiguous()) if isinstance(b, Tensor) else seen(step, aten.mT, b)
    right = seen(step, aten.unsqueeze, turned, -3)
    terms = pointwise(
        step, (*shape, a.shape[-1] if isinstance(a, Tensor) else a.layout.shape[-1]), dtype, "mul", left, right
    )
    return step.add(Reduction(shape, dtype, "sum", terms, (len(shape),)))


def addmm(step: Step, node: fx.Node, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> View:
    """Convert beta · bias + alpha · a b."""
    found = product(step, node, a, b)
    if alpha != 1:
        found = entries(step, node, found, alpha, name="mul")
    if beta != 1:
        bias = entries(step, node, bias, beta, name="mul")
    return entries(step, node, found, bias, name="add")


def reduction(kind: str, step: Step, node: fx.Node, x: View, dims: Any = None, *_: Any, **__: Any) -> View:
    """Convert a reduction over some dimensions, by default over all. Its shape is that of the node's value."""
    value = example(node)
    return reduced(step, kind, x, dims, value.shape, value.dtype)


def reduced(step: Step, kind: str, x: View, dims: Any, shape: Sequence[int], dtype: torch.dtype) -> View:
    """Add a reduction and return its result, of this shape."""
    rank = x.layout.dim()
    given = range(rank) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    return step.add(Reduction(tuple(shape), dtype, kind, x, tuple(sorted(dim % rank for dim in given))))


def extreme(kind: str, step: Step, node: fx.Node, x: View, dim: int, keep: bool = False) -> tuple[View, View]:
    """Convert the smallest or largest entries along a dimension and their first places."""
    values, places = example(node)
    found = reduced(step, f"a{kind}", x, dim, values.shape, values.dtype)
    return found, reduced(step, f"arg{kind}", x, dim, places.shape, places.dtype)


def softmax(step: Step, node: fx.Node, x: View, dim: int, half: bool) -> View:
    """Convert softmax along a dimension: e^{x − max} divided by its sum."""
    shape, dtype = tuple(x.layout.shape), x.layout.dtype
    narrow = [1 if i == dim % len(shape) else size for i, size in enumerate(shape)]
    largest = reduced(step, "amax", x, dim, narrow, dtype)
    found = pointwise(step, shape, dtype, "exp", pointwise(step, shape, dtype, "sub", x, largest))
    return pointwise(step, shape, dtype, "div", found, reduced(step, "sum", found, dim, narrow, dtype))


def cat(step: Step, node: fx.Node, parts: Sequence[Any], dim: int = 0) -> Any:
    """Convert a concatenation. Parts without entries are left out."""
    value = example(node)
    return joined(step, [as_view(part) for part in parts], dim, value.dtype)


def joined(step: Step, parts: Sequence[View], dim: int, dtype: torch.dtype) -> View:
    """Return the concatenation of some views along a dimension."""
    filled = [part for part in parts if part.layout.numel()]
    if len(filled) == 1 and filled[0].layout.dtype is dtype:
        return filled[0]
    shape = list(filled[0].layout.shape)
    shape[dim] = sum(part.layout.shape[dim] for part in filled)
    value, begin = Joined(tuple(shape), dtype), 0
    whole = value.whole
    for part in filled:
        size = part.layout.shape[dim]
        if part.layout.dtype is not dtype:
            part = pointwise(step, part.layout.shape, dtype, "copy", part)
        step.add(Store(View(value, whole.layout.narrow(dim, begin, size)), part))
        begin += size
    step.add(value)
    return whole


def pad(step: Step, node: fx.Node, x: View, widths: Sequence[int], value: float = 0) -> View:
    """Convert a border of constant entries, of positive or negative width; torch lists the last dimension first."""
    dtype = x.layout.dtype
    for i in range(len(widths) // 2):
        dim = x.layout.dim() - 1 - i
        before, after = widths[2 * i : 2 * i + 2]
        first, last = max(0, -before), x.layout.shape[dim] - max(0, -after)
        x = View(x.value, x.layout.narrow(dim, first, last - first), x.shift)
        sizes = [[width if j == dim else size for j, size in enumerate(x.layout.shape)] for width in (before, after)]
        left, right = (as_view(torch.full([max(0, size) for size in one], value, dtype=dtype)) for one in sizes)
        x = joined(step, [left, x, right], dim, dtype)
    return x


def embedding(step: Step, node: fx.Node, table: Any, index: View, *_: Any) -> View:
    """Convert the row of a table for the token that is the input."""
    if not (isinstance(table, Tensor) and isinstance(index.value, Source) and index.value.kind == "x"):
        raise ValueError("export to C expects an embedding of the input token; got one of a computed token")
    rows = as_view(table.contiguous())
    return View(rows.value, rows.layout[:1].view(*index.layout.shape, -1), f"token * {table.shape[1]}")


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(OPERATIONS - {"copy"}, entries),
    **dict.fromkeys(("bitwise_not",), partial(entries, name="bitwise_not")),
    **{kind: partial(reduction, kind) for kind in REDUCTIONS},
    **{kind: partial(extreme, kind) for kind in ("max", "min")},
    **dict.fromkeys(("mm", "bmm"), product),
    **dict.fromkeys(("clone", "contiguous", "lift_fresh_copy", "_to_copy"), to_copy),
    "_softmax": softmax,
    "_unsafe_view": lambda step, node, x, sizes: seen(step, torch.ops.aten.view, x, sizes),
    "addmm": addmm,
    "cat": cat,
    "clamp": clamp,
    "constant_pad_nd": pad,
    "embedding": embedding,
    "full_like": lambda step, node, x, value, **_: torch.full(example(node).shape, value, dtype=example(node).dtype),
    "pow": power,
    "reciprocal": lambda step, node, x: entries(step, node, 1.0, x, name="div"),
    "rsqrt": lambda step, node, x: entries(step, node, 1.0, entries(step, node, x, name="sqrt"), name="div"),
    "rsub": lambda step, node, x, y: entries(step, node, y, x, name="sub"),
}
"""converters of torch's operators, by name"""
