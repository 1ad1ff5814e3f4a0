"""Programs of torch.export compiled by AOTInductor."""

import os
from typing import Any, cast

import torch
from torch import SymInt, Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node


def aot_package(program: ExportedProgram, path: str | os.PathLike[str]) -> None:
    """Compile a program of torch.export by AOTInductor and write the package to a file whose name ends in .pt2.

    `torch._inductor.aoti_load_package` loads it. Use this function instead of
    `torch._inductor.aoti_compile_and_package`: in torch 2.13 that function fails for a `scan` with a dynamic batch and
    for some complex operators. The program is not changed.
    """
    torch._inductor.aoti_compile_and_package(compilable(program), package_path=os.fspath(path))


def complex_sub(a: Tensor, b: Tensor, *, alpha: Any = 1) -> Tensor:
    """Return a − α b for complex numbers, by operators without α. AOTInductor loses α of a complex operator."""
    return a + -b * alpha if a.is_complex() or b.is_complex() else NotImplemented


def complex_addcmul(a: Tensor, b: Tensor, c: Tensor, *, value: Any = 1) -> Tensor:
    """Return a + v b c for complex numbers, with v = ``value``, by operators without v, as `complex_sub` does."""
    return a + b * c * value if a.is_complex() else NotImplemented


DECOMPOSITIONS = {torch.ops.aten.sub.Tensor: complex_sub, torch.ops.aten.addcmul.default: complex_addcmul}


def compilable(program: ExportedProgram) -> ExportedProgram:
    """Return a program with the same results that AOTInductor can compile.

    Inductor allocates the results of a `scan` from the sizes among its arguments. torch.compile puts the sizes there,
    torch.export does not. So each `scan` passes all dynamic sizes of its tensors to its body, which ignores them.
    """
    copy = program.run_decompositions(DECOMPOSITIONS)
    module = copy.graph_module
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan):
        body, initial, rows, others = node.args
        sizes = sizes_of(module, node, [*initial, *rows])
        step = cast(GraphModule, getattr(module, body.target))
        *_, last = step.graph.find_nodes(op="placeholder")
        for size in reversed(sizes):
            with step.graph.inserting_after(last):
                step.graph.placeholder(f"unused_{size.name}").meta["val"] = size.meta["val"]
        step.recompile()
        node.args = (body, initial, rows, (*others, *sizes))
    module.recompile()
    return copy


def sizes_of(module: GraphModule, scan: Node, tensors: list[Node]) -> list[Node]:
    """Return new nodes before ``scan``, one for each symbol that is a size of one of the ``tensors``."""
    found: dict[object, Node] = {}
    for tensor in tensors:
        for axis, size in enumerate(tensor.meta["val"].shape):
            if isinstance(size, SymInt) and size.node.expr.is_symbol and size.node.expr not in found:
                with module.graph.inserting_before(scan):
                    value = module.graph.call_function(torch.ops.aten.sym_size.int, (tensor, axis))
                value.meta["val"] = size
                found[size.node.expr] = value
    return list(found.values())
