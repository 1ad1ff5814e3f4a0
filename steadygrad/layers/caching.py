"""Many calls of a layer with recurrent matrices that are evaluated once, for loops that call it step by step."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import local
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from steadygrad.kernels import Shared, needs_plain
from steadygrad.layers.cell import Cell
from steadygrad.layers.parameters import ParameterOwner
from steadygrad.matrices.parameters import is_sharded, version

Tensors = dict[str, Tensor | None]


class Graph:
    """The graph from parameters to matrices. It notices when a backward pass frees what the graph has saved."""

    freed = False
    """whether a saved tensor was freed, so that another backward pass would fail"""

    def pack(self, tensor: Tensor) -> "Saved":
        """Return what the graph stores in the place of a tensor."""
        return Saved(self, tensor)


class Saved:
    """A tensor that a `Graph` has saved, with its version at that time."""

    def __init__(self, graph: Graph, tensor: Tensor) -> None:
        self.graph, self.tensor, self.version = graph, tensor, version(tensor)

    def unpack(self) -> Tensor:
        """Return the tensor. Raise RuntimeError if it has changed since it was saved."""
        if version(self.tensor) != self.version:
            raise RuntimeError(
                f"cached() expects parameters to stay as they are until the backward pass; one of shape "
                f"{tuple(self.tensor.shape)} was changed in place after the recurrent matrices were evaluated"
            )
        return self.tensor

    def __del__(self) -> None:
        self.graph.freed = True


class Evaluated:
    """The evaluated matrices of all cells of a layer, with what tells whether they are still valid.

    They are evaluated outside of a checkpoint (`torch.utils.checkpoint`), which would evaluate them again.
    """

    def __init__(self, layer: ParameterOwner) -> None:
        self.graph, self.training = Graph(), layer.training
        # in training with a graph in any case, so that weight dropout is drawn once
        self.differentiable = layer.training or torch.is_grad_enabled()
        # outside inference mode, because a tensor created in it cannot be used in training
        hooks, grad = saved_tensors_hooks(self.graph.pack, Saved.unpack), self.differentiable
        with torch.inference_mode(False), torch.set_grad_enabled(grad), hooks:
            cells = [cast(Cell, cell) for cell in layer.cells]
            self.runs = [partial(cell.run, marked(cell.weights())) for cell in cells]
        self.graph.freed = False  # intermediate results that no gradient needs were freed by now
        self.tensors = [tensors for part in layer.modules() for tensors in held(part) if tensors]
        self.parameters = present(self.tensors)  # kept alive, so that no other tensor gets their addresses
        self.marks = marks(self.tensors)

    def is_valid(self, layer: ParameterOwner) -> bool:
        """Return whether a call can use the matrices.

        It cannot if a parameter or buffer has changed, if the layer's mode has, or if the gradient needs a graph that
        was freed or never made.
        """
        if self.training is not layer.training or marks(self.tensors) != self.marks:
            return False
        return not torch.is_grad_enabled() or (self.differentiable and not self.graph.freed)


def marked(weights: Any) -> Any:
    """Return what `Cell.weights` returned, a tuple or None, with each tensor that requires a gradient as `Shared`."""
    if weights is None:
        return None
    return tuple(
        Shared.apply(weight) if isinstance(weight, Tensor) and weight.requires_grad else weight for weight in weights
    )


def held(part: nn.Module) -> tuple[Tensors, Tensors]:
    """Return the dicts of the parameters and of the buffers of a module, without those of its parts."""
    return part._parameters, part._buffers  # type: ignore[return-value]


def present(tensors: Iterable[Tensors]) -> list[Tensor]:
    """Return a list of the tensors of dicts, without None."""
    return [tensor for part in tensors for tensor in part.values() if tensor is not None]


def marks(tensors: Iterable[Tensors]) -> list[int]:
    """Return the identity, address and version counter of each tensor in dicts of tensors, as one list."""
    found = present(tensors)
    return [*map(id, found), *map(Tensor.data_ptr, found), *map(version, found)]


class Active(local):
    """The layers whose matrices are shared between calls, in this thread: a dict of what they have evaluated."""

    def __init__(self) -> None:
        self.layers: dict[Any, Evaluated | None] = {}


ACTIVE = Active()


def shared_runs(layer: Any) -> Any:
    """Return `Cell.run` of all cells of a layer, with evaluated matrices, inside `Cacheable.cached`; otherwise None.

    While traced or transformed by torch.func, and with sharded parameters, nothing
    is shared: the result is None.
    """
    if torch.compiler.is_compiling() or layer not in ACTIVE.layers:
        return None
    found = ACTIVE.layers[layer]
    first = next(layer.parameters(), None) if found is None else found.parameters[0]
    if first is None or needs_plain(first) or is_sharded(first):
        return None
    if found is None or not found.is_valid(layer):
        found = ACTIVE.layers[layer] = Evaluated(layer)
    return found.runs


def forget(layer: Any) -> None:
    """Let the next call of a layer evaluate its matrices anew."""
    if layer in ACTIVE.layers:
        ACTIVE.layers[layer] = None


@contextmanager
def shared(layers: Iterable[Any], kept: dict[Any, Evaluated | None] | None = None) -> Iterator[None]:
    """Context manager: calls of these layers in this thread share their evaluated matrices.

    Layers that share them already, in an outer context, are left alone. ``kept`` is a dict that the caller keeps: what
    it has evaluated in one context is used in the next one.
    """
    own = [layer for layer in layers if layer not in ACTIVE.layers]
    kept = {} if kept is None else kept
    ACTIVE.layers.update({layer: kept.get(layer) for layer in own})
    try:
        yield
    finally:
        kept.update({layer: ACTIVE.layers.pop(layer, None) for layer in own})


class Cacheable:
    """Base class of layers and models, beside nn.Module, with the method `cached`."""

    def cached(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the recurrent matrices are evaluated once, for many calls.

        Use it for loops that call a layer or model step by step:

            with layer.cached():
                for x in inputs:
                    output, state = layer(x, state)
                loss(output).backward()

        Values and gradients are those of the same calls without it. All calls share the graph of the matrices, so the
        gradients of many steps pass through it once. Weight dropout is drawn once. The matrices are evaluated again in
        the next call after a parameter has changed, ``train()`` or ``eval()`` was called, or a backward pass without
        ``retain_graph`` has freed the graph. A backward pass through calls before a change raises RuntimeError if it
        needs the changed parameters.

        The context holds for the thread that enters it. Contexts can be nested. It has no effect while torch.compile or
        torch.export traces the call, under torch.func and for parameters that are sharded over processes.
        """
        return shared(own_layers(cast(nn.Module, self)))


def own_layers(module: nn.Module) -> list[ParameterOwner]:
    """Return a list of the recurrent layers in a module, itself included."""
    return [part for part in module.modules() if isinstance(part, ParameterOwner)]
