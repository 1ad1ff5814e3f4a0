"""Conversion of torch's operators to ONNX nodes, one operator at a time.

A converter takes the `Graph` that is being built, the node of the traced graph, and the arguments of torch's operator.
It adds nodes of ONNX to the graph and returns the name of the result.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from steadygrad.export.graph import Converter, Graph, Last, Name, Value, type_of
from steadygrad.export.program import example

UNARY = {
    "abs": "Abs",
    "bitwise_not": "Not",
    "cos": "Cos",
    "erf": "Erf",
    "exp": "Exp",
    "log": "Log",
    "logical_not": "Not",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "sign": "Sign",
    "sin": "Sin",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
}
BINARY = {
    "add": "Add",
    "bitwise_and": "And",
    "bitwise_or": "Or",
    "div": "Div",
    "eq": "Equal",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "lt": "Less",
    "maximum": "Max",
    "minimum": "Min",
    "mul": "Mul",
    "pow": "Pow",
    "sub": "Sub",
}
SAME = ("alias", "clone", "contiguous", "detach", "lift_fresh_copy")
REDUCTIONS = {"amax": "ReduceMax", "amin": "ReduceMin", "mean": "ReduceMean", "sum": "ReduceSum"}
SYMBOLS = {operator.add: "Add", operator.floordiv: "Div", operator.mul: "Mul", operator.sub: "Sub"}
"""operators on symbolic sizes, which are at least 0"""


LARGEST = 2**63 - 1
"""end of a slice that goes to the end of a dimension"""


def size(value: Any) -> Any:
    """Return a size as an input of an ONNX node: an integer as a list of one, a symbolic size (1,) unchanged."""
    return [value] if isinstance(value, int) else value


def unary(kind: str) -> Converter:
    """Return a converter to the ONNX node ``kind``, which has one input."""
    return lambda graph, node, x: graph.node(kind, x)


def binary(kind: str) -> Converter:
    """Return a converter to the ONNX node ``kind``, whose two inputs are cast to their common dtype in torch."""

    def convert(graph: Graph, node: fx.Node, a: Value, b: Value, *, alpha: float = 1) -> Name:
        left, right = map(example, node.args[:2])
        dtype = torch.result_type(left, right)
        if kind == "Div" and not dtype.is_floating_point:
            dtype = torch.float32
        a, b = (graph.cast(v, dtype, getattr(e, "dtype", None)) for v, e in ((a, left), (b, right)))
        if alpha != 1:
            b = graph.node("Mul", b, torch.tensor(alpha, dtype=dtype))
        return graph.node(kind, a, b)

    return convert


def reduction(kind: str) -> Converter:
    """Return a converter to the ONNX node ``kind``, which reduces some dimensions of its input."""

    def convert(graph: Graph, node: fx.Node, x: Value, dims: Any = None, keep: bool = False, **_: Any) -> Name:
        return graph.node(kind, x, dims or None, keepdims=int(keep))

    return convert


def same(graph: Graph, node: fx.Node, x: Value, **_: Any) -> Value:
    """Convert an operator that only changes strides or aliases: return x, because ONNX has neither."""
    return x


def to_copy(graph: Graph, node: fx.Node, x: Value, *, dtype: torch.dtype | None = None, **_: Any) -> Value:
    """Convert a change of dtype to an ONNX Cast."""
    before = example(node.args[0]).dtype
    return graph.cast(x, dtype or before, before)


def addmm(graph: Graph, node: fx.Node, b: Value, x: Value, W: Value, *, beta: float = 1, alpha: float = 1) -> Name:
    """Convert torch.addmm, β b + α x W with β = ``beta`` and α = ``alpha``, to an ONNX Gemm."""
    return graph.node("Gemm", x, W, b, alpha=float(alpha), beta=float(beta))


def view(graph: Graph, node: fx.Node, x: Value, sizes: Sequence[Value]) -> Value:
    """Convert a change of shape to an ONNX Reshape.

    With ``allowzero`` a size of 0 means 0. Without it, ONNX would copy the size of the input. A `Last` is returned
    unchanged.
    """
    return x if isinstance(x, Last) else graph.node("Reshape", x, graph.shape(sizes), allowzero=1)


def expand(graph: Graph, node: fx.Node, x: Value, sizes: Sequence[Value], **_: Any) -> Name:
    """Convert a broadcast to an ONNX Expand. A size of −1, with which torch keeps a dimension, becomes 1."""
    return graph.node("Expand", x, graph.shape(1 if size == -1 else size for size in sizes))


def squeeze(graph: Graph, node: fx.Node, x: Value, dims: Any) -> Value:
    """Convert the removal of dimensions of size 1 to an ONNX Squeeze. As in torch, other dimensions are kept."""
    shape = example(node.args[0]).shape
    removed = [dim for dim in ([dims] if isinstance(dims, int) else dims) if shape[dim] == 1]
    return graph.node("Squeeze", x, removed) if removed else x


def slice_(
    graph: Graph, node: fx.Node, x: Value, dim: int = 0, start: Value = None, end: Value = None, step: int = 1
) -> Value:
    """Convert x[start:end:step] along a dimension to an ONNX Slice. A slice of everything is x itself."""
    begin: Value = 0 if start is None else start
    stop: Value = LARGEST if end is None else end
    if (begin, stop, step) == (0, LARGEST, 1):
        return x
    return graph.node("Slice", x, size(begin), size(stop), [dim], [step])


def select(graph: Graph, node: fx.Node, x: Value, dim: int, index: int) -> Name:
    """Convert x[index] along a dimension to an ONNX Gather.

    For a `Last`, which has only the last step, an ONNX Squeeze removes the time dimension.
    """
    if isinstance(x, Last):
        return graph.node("Squeeze", x.final, [0])
    return graph.node("Gather", x, index, axis=dim)


def split(graph: Graph, node: fx.Node, x: Value, sizes: Any, dim: int = 0) -> tuple[Name, ...]:
    """Convert a split along a dimension into parts of known sizes to an ONNX Split. Return the names of the parts."""
    parts = [int(part.shape[dim]) for part in node.meta["val"]]
    found = graph.node("Split", x, parts, outputs=len(parts), axis=dim)
    return (found,) if isinstance(found, Name) else found


def cat(graph: Graph, node: fx.Node, parts: Sequence[Value], dim: int = 0) -> Value:
    """Convert a concatenation to an ONNX Concat. Parts without entries are left out."""
    examples = [example(part) for part in node.args[0]]  # type: ignore[union-attr]
    dtype = example(node).dtype
    cast = [graph.cast(part, dtype, e.dtype) for part, e in zip(parts, examples, strict=True)]
    filled = [part for part, e in zip(cast, examples, strict=True) if 0 not in e.shape] or cast
    return filled[0] if len(filled) == 1 else graph.node("Concat", *filled, axis=dim)


def where(graph: Graph, node: fx.Node, mask: Value, a: Value, b: Value) -> Name:
    """Convert a choice of entries by a mask to an ONNX Where.

    Boolean entries, which onnxruntime's Where does not support, are converted to And, Or and Not.
    """
    _, *sides = map(example, node.args)
    dtype = example(node).dtype
    a, b = (graph.cast(value, dtype, side.dtype) for value, side in zip((a, b), sides, strict=True))
    if dtype is not torch.bool:
        return graph.node("Where", mask, a, b)
    return graph.node("Or", graph.node("And", mask, a), graph.node("And", graph.node("Not", mask), b))


def full(graph: Graph, node: fx.Node, sizes: Sequence[Value], value: Any, **_: Any) -> Name:
    """Convert a tensor of equal entries to an ONNX Expand of a single number."""
    return graph.node("Expand", torch.tensor(value, dtype=example(node).dtype), graph.shape(sizes))


def full_like(graph: Graph, node: fx.Node, x: Value, value: Any, **_: Any) -> Name:
    """Convert a tensor of equal entries in the shape of x to an ONNX Expand of a single number."""
    return graph.node("Expand", torch.tensor(value, dtype=example(node).dtype), graph.node("Shape", x))


def min_of(graph: Graph, node: fx.Node, x: Value, dim: int, keep: bool = False) -> tuple[Name, Name]:
    """Convert torch.min along a dimension to an ONNX ReduceMin and ArgMin. Return the names of values and indices."""
    smallest = graph.node("ReduceMin", x, [dim], keepdims=int(keep))
    return smallest, graph.node("ArgMin", x, axis=dim, keepdims=int(keep))


def any_of(graph: Graph, node: fx.Node, x: Value, dim: Any, keep: bool = False) -> Name:
    """Convert torch.any along some dimensions to an ONNX ReduceMax of integers."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    number = graph.node("Cast", x, to=type_of(torch.int32))
    return graph.node("Cast", graph.node("ReduceMax", number, dims, keepdims=int(keep)), to=type_of(torch.bool))


def pad(graph: Graph, node: fx.Node, x: Value, widths: Sequence[int], value: float = 0) -> Name:
    """Convert a border of constant entries to an ONNX Pad. Negative widths are not possible for Boolean entries.

    The widths of the last dimension come first in torch, and last in ONNX.
    """
    given = example(node.args[0])
    rank, dtype = given.dim(), given.dtype
    before, after = ([0] * rank for _ in range(2))
    for i in range(len(widths) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = widths[2 * i : 2 * i + 2]
    return graph.node("Pad", x, [*before, *after], torch.tensor(value, dtype=dtype))


def flip(graph: Graph, node: fx.Node, x: Value, dims: Sequence[int]) -> Name:
    """Convert a reversal of dimensions to an ONNX Slice with steps of −1."""
    count = len(dims)
    return graph.node("Slice", x, [-1] * count, [-LARGEST] * count, list(dims), [-1] * count)


def dim_node(kind: str) -> Converter:
    """Return a converter to the ONNX node ``kind``, which has one input and an attribute ``axis``."""
    return lambda graph, node, x, dim, *_: graph.node(kind, x, axis=dim)


def gather(graph: Graph, node: fx.Node, x: Value, dim: int, index: Value) -> Name:
    """Convert torch.index_select, x at the indices ``index`` along a dimension, to an ONNX Gather."""
    return graph.node("Gather", x, index, axis=dim)


def symbol(kind: str) -> Converter:
    """Return a converter of an operator on sizes to the ONNX node ``kind``. A symbolic size is a value (1,)."""
    return lambda graph, node, a, b: graph.node(kind, size(a), size(b))


CONVERTERS: dict[str | Callable[..., Any], Converter] = {
    **{name: unary(kind) for name, kind in UNARY.items()},
    **{name: binary(kind) for name, kind in BINARY.items()},
    **{name: reduction(kind) for name, kind in REDUCTIONS.items()},
    **dict.fromkeys(SAME, same),
    **{function: symbol(kind) for function, kind in SYMBOLS.items()},
    **dict.fromkeys(("mm", "bmm"), lambda graph, node, a, b: graph.node("MatMul", a, b)),
    **dict.fromkeys(("view", "_unsafe_view", "reshape"), view),
    **dict.fromkeys(("split", "split_with_sizes"), split),
    "_log_softmax": dim_node("LogSoftmax"),
    "_softmax": dim_node("Softmax"),
    "_to_copy": to_copy,
    "addmm": addmm,
    "any": any_of,
    "cat": cat,
    "constant_pad_nd": pad,
    "embedding": lambda graph, node, table, index, *_: graph.node("Gather", table, index, axis=0),
    "expand": expand,
    "flip": flip,
    "full": full,
    "full_like": full_like,
    "index_select": gather,
    "min": min_of,
    "log1p": lambda graph, node, x: graph.node("Log", graph.node("Add", x, torch.ones((), dtype=example(node).dtype))),
    "ne": lambda graph, node, a, b: graph.node("Not", binary("Equal")(graph, node, a, b)),
    "permute": lambda graph, node, x, order: graph.node("Transpose", x, perm=list(order)),
    "select": select,
    "slice": slice_,
    "squeeze": squeeze,
    "sym_size": lambda graph, node, x, dim: graph.node("Shape", x, start=dim, end=dim + 1),
    "unsqueeze": lambda graph, node, x, dim: graph.node("Unsqueeze", x, [dim]),
    "where": where,
    operator.getitem: lambda graph, node, parts, i: parts[i],
}
"""converters of torch's operators, by name, and of Python's operators on symbolic sizes"""
