"""An ONNX model of a layer or model: native RNN, GRU and LSTM nodes where they are exact, Scan elsewhere."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from steadygrad.export import native, operators
from steadygrad.export.graph import Body, Graph, Last, Name, Value, require_onnx
from steadygrad.export.program import CHECKS, example, exported_program

CONVERTERS = operators.CONVERTERS | native.CONVERTERS


def onnx_model(module: nn.Module, *, state: bool = True) -> Any:
    """Return a layer, a `Stack` or a model as an ONNX model (`onnx.ModelProto`), with its matrices as plain weights.

    The inputs are "x" and the initial state, "h_0", for an LSTM also "c_0"; the outputs are "y" and the final state,
    "h_n" and so on. All are dynamic in time and batch, so a sequence may be processed step by step. The numbers are
    float32. Without ``state`` the only input is "x", and the module starts from its own initial state.

    Raise ValueError if the package onnx is missing, and for a module that cannot be exported (`exported_program`).
    """
    require_onnx()
    program, names, axes = exported_program(module, state=state, kept=tuple(native.NATIVE))
    graph, values = Graph(), dict[fx.Node, Any]()
    given, inputs = iter(names.inputs), []
    nodes = program.graph.find_nodes(op="placeholder")
    for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            values[node] = Name(next(given))
            inputs.append((values[node].name, example(node)))
        else:
            source = program.constants if spec.target in program.constants else program.state_dict
            values[node] = cast(Tensor, source[cast(str, spec.target)]).detach()
    for name, value in zip(names.outputs, convert(graph, program.graph_module, values), strict=True):
        graph.rename(value, name)
    symbols = {str(size): name for size, name in zip(inputs[0][1].shape, axes, strict=False)}
    (results,) = program.graph.output_node().args
    outputs = zip(names.outputs, map(example, cast(Sequence[Any], results)), strict=True)

    def described(name: str, value: Any) -> tuple[str, torch.dtype, list[int | str]]:
        sizes = (size if isinstance(size, int) else symbols.get(str(size), str(size)) for size in value.shape)
        return name, value.dtype, list(sizes)

    return graph.model([described(*one) for one in inputs], [described(*one) for one in outputs])


def convert(graph: Graph, module: fx.GraphModule, values: dict[fx.Node, Any]) -> list[Value]:
    """Add the nodes of a traced module to the graph and return the values that it returns.

    ``values`` are those of the module's inputs. What does not depend on the inputs is computed now, by torch.
    """
    for node in module.graph.nodes:
        if node.op == "get_attr":
            values[node] = attrgetter(node.target)(module)
        elif node.op == "call_function":
            arguments, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = call(graph, node, arguments, options)
        elif node.op == "output":
            return list(fx.map_arg(node.args[0], values.__getitem__))
    raise ValueError("export to ONNX expects a graph with an output")


def call(graph: Graph, node: fx.Node, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Add the nodes for one call of an operator of torch and return its value. Raise ValueError for an unknown one."""
    target = cast(Callable[..., Any], node.target)
    if target is torch.ops.higher_order.scan:
        return scan(graph, node, *arguments)
    key = getattr(target, "_opname", target)
    if key in CHECKS:
        return None
    if not any(isinstance(leaf, Name | Last) for leaf in pytree.tree_leaves((arguments, options))):
        return target(*arguments, **options)
    if key not in CONVERTERS:
        raise ValueError(f"export to ONNX does not support the operator {target} of torch")
    return CONVERTERS[key](graph, node, *arguments, **options)


def scan(
    graph: Graph,
    node: fx.Node,
    step: fx.GraphModule,
    initial: Sequence[Value],
    rows: Sequence[Value],
    others: Sequence[Value],
) -> list[Name]:
    """Convert torch's scan, whose step is a traced module of the state, the rows of a step and ``others``."""
    body, count = Graph(graph), len(initial)
    nodes = step.graph.find_nodes(op="placeholder")
    used = [i for i, (_, input) in enumerate(zip(rows, nodes[count:], strict=False)) if input.users]
    inside = [*nodes[:count], *(nodes[count + i] for i in used)]
    values: dict[fx.Node, Any] = {input: body.new("input") for input in inside}
    values |= zip(nodes[count + len(rows) :], others, strict=True)
    results = [body.node("Identity", value) for value in convert(body, step, values)]
    (outputs,) = step.graph.output_node().args

    def described(names: Sequence[Name], nodes: Sequence[Any]) -> list[tuple[Name, torch.dtype, int]]:
        found = map(example, nodes)
        return [(name, value.dtype, value.dim()) for name, value in zip(names, found, strict=True)]

    sides = Body(
        described([values[input] for input in inside], inside), described(results, cast(Sequence[Any], outputs))
    )
    return graph.scan(body, initial, [rows[i] for i in used], sides)
