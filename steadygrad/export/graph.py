"""Builder of an ONNX graph: names, constants and nodes. The only module that imports the package onnx."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import onnx
    from onnx import helper
except ImportError:
    onnx = None  # type: ignore[assignment]

OPSET, IR_VERSION = 18, 9
"""versions of ONNX in which graphs are written; runtimes of 2023 and later read them"""

TYPES = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Name:
    """A value that is known when the graph runs, by its name in the graph."""

    name: str


@dataclass(frozen=True)
class Last:
    """States of all steps, of which ONNX returns only the final one, (1, batch, units), by its name."""

    final: Name


Value = Name | Last | Tensor | int | float | bool | None
"""result of a node: a value of the graph, or a constant"""


def require_onnx() -> None:
    """Raise ValueError if the package onnx is not installed."""
    if onnx is None:
        raise ValueError("export to ONNX needs the package onnx: pip install steadygrad[export]")


def type_of(dtype: torch.dtype) -> int:
    """Return the number of a dtype in ONNX. Raise ValueError if the exporter does not support it."""
    if dtype not in TYPES:
        raise ValueError(f"export to ONNX expects tensors of {', '.join(map(str, TYPES))}; got {dtype}")
    return int(getattr(onnx.TensorProto, TYPES[dtype]))


class Graph:
    """An ONNX graph that is being built. The body of a Scan is a Graph too, and shares constants and names."""

    def __init__(self, outer: "Graph | None" = None) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {} if outer is None else outer.constants
        self._known: dict[tuple[Any, ...], tuple[Tensor, Name]] = {} if outer is None else outer._known
        self._count: list[int] = [0] if outer is None else outer._count

    def new(self, kind: str) -> Name:
        """Return a name that no other value of the graph has."""
        self._count[0] += 1
        return Name(f"{kind.lower()}_{self._count[0]}")

    def node(self, kind: str, *inputs: Value | Sequence[int], outputs: int = 1, **attributes: Any) -> Any:
        """Add a node of this kind and return the `Name` of its output, or a tuple of names for several ``outputs``.

        An input None is left out, and constants become initializers.
        """
        made = tuple(self.new(kind) for _ in range(outputs))
        given = ["" if value is None else self.name(value) for value in inputs]
        self.nodes.append(helper.make_node(kind, given, [one.name for one in made], **attributes))
        return made[0] if outputs == 1 else made

    def name(self, value: Any) -> str:
        """Return the name of a value. A tensor, a number or a list of integers becomes a constant of the graph."""
        if isinstance(value, Name):
            return value.name
        if isinstance(value, Last):
            raise ValueError("export to ONNX expects a graph that uses the final cells of an LSTM only")
        tensor = value if isinstance(value, Tensor) else torch.tensor(value)
        return self._constant(tensor.detach()).name

    def _constant(self, tensor: Tensor) -> Name:
        key = (
            (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            if tensor.numel() > 8
            else (
                tensor.dtype,
                tuple(tensor.shape),
                tuple(tensor.flatten().tolist()),
            )
        )
        if key not in self._known:
            name = self.new("constant")
            dense = tensor.contiguous()
            self.constants[name.name] = helper.make_tensor(
                name.name, type_of(dense.dtype), dense.shape, dense.numpy().tobytes(), raw=True
            )
            self._known[key] = tensor, name  # the tensor stays alive, so that its address stays its own
        return self._known[key][1]

    def shape(self, sizes: Iterable[Value]) -> Any:
        """Return a shape from integers and values (1,) of the graph: a list, or the `Name` of a tensor."""
        parts = list(sizes)
        if all(isinstance(size, int) for size in parts):
            return parts
        return self.node("Concat", *([size] if isinstance(size, int) else size for size in parts), axis=0)

    def rename(self, value: Value, name: str) -> None:
        """Give a value this name, as an output of the graph."""
        self.nodes.append(helper.make_node("Identity", [self.name(value)], [name]))

    def cast(self, value: Value, dtype: torch.dtype, before: torch.dtype | None = None) -> Value:
        """Return a value converted to a dtype. ``before`` is its dtype, unless it is a constant."""
        if isinstance(value, Tensor):
            return value.to(dtype)
        if not isinstance(value, Name):
            return torch.tensor(value, dtype=dtype)
        return value if before is dtype else self.node("Cast", value, to=type_of(dtype))

    def scan(self, body: "Graph", initial: Sequence[Value], rows: Sequence[Value], of_body: "Body") -> list[Name]:
        """Add a Scan with the graph ``body`` over ``rows``, and return the names of final states and stacked results.

        ``of_body`` has the names and types of what the body takes and returns.
        """
        inputs, outputs = (
            [helper.make_tensor_value_info(name.name, type_of(dtype), [None] * rank) for name, dtype, rank in values]
            for values in of_body
        )
        graph = helper.make_graph(body.nodes, self.new("step").name, inputs, outputs)
        attributes = {"num_scan_inputs": len(rows), "body": graph}
        found = self.node("Scan", *initial, *rows, outputs=len(outputs), **attributes)
        return [found] if isinstance(found, Name) else list(found)

    def model(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """Return the checked ONNX model with these inputs and outputs, each (name, dtype, shape)."""
        import steadygrad

        before, after = (
            [helper.make_tensor_value_info(name, type_of(dtype), shape) for name, dtype, shape in values]
            for values in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, "steadygrad", before, after, initializer=list(self.constants.values()))
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="steadygrad",
            producer_version=steadygrad.__version__,
        )
        onnx.checker.check_model(model)
        return model


class Body(NamedTuple):
    """Names, dtypes and numbers of dimensions of what the body of a Scan takes and returns."""

    inputs: list[tuple[Name, torch.dtype, int]]
    outputs: list[tuple[Name, torch.dtype, int]]


Converter = Callable[..., Any]
"""function (graph, node, *arguments, **options) → value, for an operator of torch"""
