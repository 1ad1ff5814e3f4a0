"""Parameters of a recurrent layer under the names that torch.nn.GRU gives them.

A cell creates its parameters as attributes: ``weight_ih`` multiplies the input and ``weight_hh`` the state. The layer
then takes them over as ``weight_ih_l0``, ``weight_ih_l0_reverse``, ``weight_ih_l1`` and so on, and the cell reads them
from the layer. So a tool that replaces a parameter by name, such as pruning, weight norm or weight dropout, changes
what the cell computes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn


class Owned:
    """Attribute of a cell, or of a part of one, that holds a parameter, or the module of a constrained matrix.

    A class declares it as ``weight_ih = Owned()``, and its constructor assigns an nn.Parameter, a `Matrix` or None. A
    layer that is built with such a cell takes the parameter over and adds its suffix to the name (`take_over`). Other
    parameters of a cell stay where they are.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type | None = None) -> Any:
        """Return the parameter from the layer. Before the layer takes it over, `nn.Module` finds it in the cell."""
        if part is None:
            return self
        layer = part.__dict__.get("_layer")
        if layer is None:
            raise AttributeError(self.name)  # Python then calls nn.Module.__getattr__
        name = self.name + part.__dict__["_suffix"]
        parameters = layer._parameters  # faster than attributes
        return parameters[name] if name in parameters else getattr(layer, name)


class Lender(nn.Module):
    """Base class of cells, and of parts of cells, with attributes `Owned`.

    An assignment to such an attribute changes the layer's parameter, once the layer has taken it over.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        layer = self.__dict__.get("_layer")
        if layer is not None and isinstance(getattr(type(self), name, None), Owned):
            setattr(layer, name + self.__dict__["_suffix"], value)
        else:
            super().__setattr__(name, value)


class Place(NamedTuple):
    """Where a layer has a parameter, or the module of a constrained matrix, of one of its cells."""

    name: str
    """name in the layer, such as ``weight_ih_l0``"""
    attribute: str
    """name in the cell's part, such as ``weight_ih``"""
    path: str
    """path of the part in the layer, such as ``cells.0.`` or ``cells.0.alignment.``"""
    part: Any


def suffix(layer: Any, index: int) -> str:
    """Return the suffix of the names of a layer's cell number ``index``: ``_l0``, ``_l0_reverse``, ``_l1``, …

    It is empty if the layer is not ``suffixed``, as the cells in `steadygrad.layers.cells`.
    """
    if not layer.suffixed:
        return ""
    return f"_l{index // layer.directions}{'_reverse' if index % layer.directions else ''}"


def owned(part: nn.Module) -> Iterator[str]:
    """Return an iterator over the names of the attributes `Owned` of a module, those of its base classes first."""
    for base in reversed(type(part).__mro__):
        yield from (name for name, value in vars(base).items() if isinstance(value, Owned))


def candidates(layer: Any) -> Iterator[Place]:
    """Return an iterator over the `Place` of every attribute `Owned` of a layer's cells, also of those without one."""
    for index, cell in enumerate(layer.cells):
        end = suffix(layer, index)
        for inner, part in cell.named_modules():
            path = ".".join(filter(None, ("cells", str(index), inner))) + "."
            yield from (Place(name + end, name, path, part) for name in owned(part))


def take_over(layer: Any) -> None:
    """Move the parameters of a layer's cells into the layer, under the names that torch gives them.

    Only attributes `Owned` of the cells and of their parts are moved. Raise KeyError if two have the same name.
    """
    for name, attribute, _, part in list(candidates(layer)):
        if (parameter := part._parameters.pop(attribute, None)) is not None:
            layer.register_parameter(name, parameter)
        elif (module := part._modules.pop(attribute, None)) is not None:
            layer.add_module(name, module)
        part.__dict__["_layer"], part.__dict__["_suffix"] = layer, name.removeprefix(attribute)


def places(layer: Any) -> Iterator[Place]:
    """Return an iterator over the `Place` of everything that a layer took over from its cells."""
    return (place for place in candidates(layer) if hasattr(layer, place.name))
