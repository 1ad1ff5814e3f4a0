"""Conversion of a traced time step to values and stores."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx
from torch.export.graph_signature import InputKind

from steadygrad.export.c.operators import as_view, convert
from steadygrad.export.c.trace import TracedStep
from steadygrad.export.c.values import Source, Step, Store, View


class Converted(NamedTuple):
    """A time step, its input, output and state. ``vocabulary`` is the number of tokens, 0 unless the input is one."""

    step: Step
    x: Source
    y: Source
    state: list[Source]
    vocabulary: int


def converted(traced: TracedStep, fields: Sequence[str]) -> Converted:
    """Return the values and stores of a traced time step. ``fields`` are the names of the state in the struct of C."""
    program, step, values = traced.program, Step(), dict[fx.Node, Any]()
    sources: list[Source] = []
    given = iter((("x", "x"), *((f"state->{name}", "state") for name in fields)))
    nodes = program.graph.find_nodes(op="placeholder")
    for spec, node in zip(program.graph_signature.input_specs, nodes, strict=True):
        example = node.meta["val"]
        if spec.kind is InputKind.USER_INPUT:
            sources.append(Source(tuple(example.shape), example.dtype, *next(given)))
            values[node] = sources[-1].whole if example.numel() else torch.empty(example.shape, dtype=example.dtype)
        else:
            name = cast(str, spec.target)
            tensors = program.constants if name in program.constants else program.state_dict
            values[node] = step.name(cast(Tensor, tensors[name]).detach(), name.removeprefix("module."))
    vocabulary = 0
    for node in program.graph.nodes:
        if node.op == "call_function":
            arguments, options = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = convert(step, node, arguments, options)
            if getattr(node.target, "_opname", "") == "embedding":
                vocabulary = len(arguments[0])
    (results,) = program.graph.output_node().args
    y, *final = (as_view(values[node]) for node in cast(Iterable[fx.Node], results))
    x, *state = sources
    output = Source(tuple(y.layout.shape), y.layout.dtype, "y", "y")
    for target, source in zip((output, *state), (y, *final), strict=True):
        if not (source.value is target and source.is_whole) and source.layout.numel():
            step.add(Store(View(target, target.whole.layout.view(source.layout.shape)), source))
    return Converted(step, x, output, state, vocabulary)
