"""What a time step computes, between torch's graph and C: values, views of them, and stores into the state."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Number = int | float | bool
"""a scalar operand, which becomes a literal"""


@dataclass(eq=False)
class Value:
    """An array of a fixed shape and dtype. Its entries are contiguous where it is stored."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def operands(self) -> "Sequence[View | Number]":
        """Return the operands from which the value is computed; none for the input, the state and constants."""
        return ()

    def change(self, function: "Callable[[View], View]") -> None:
        """Replace each view among the operands by the result of a function."""

    @property
    def whole(self) -> "View":
        """The value as a view of itself."""
        return View(self, torch.empty(self.shape, dtype=self.dtype, device="meta"))


@dataclass(frozen=True, eq=False)
class View:
    """Entries of a value, in the order that the shape, the strides and the offset of a meta tensor describe.

    torch computes the views of a view: an operator is applied to ``layout``. ``shift`` is a C expression that is added
    to the offset, as for the row of a token in a table.
    """

    value: Value
    layout: Tensor
    shift: str = ""

    @property
    def offset(self) -> int:
        """Place of the first entry."""
        return int(self.layout.storage_offset())

    @property
    def end(self) -> int:
        """Place after the last entry."""
        sizes = zip(self.layout.shape, self.layout.stride(), strict=True)
        return self.offset + sum((size - 1) * stride for size, stride in sizes) + 1

    @property
    def is_dense(self) -> bool:
        """Whether the entries follow each other in the order of the view."""
        return self.layout.is_contiguous()

    @property
    def is_whole(self) -> bool:
        """Whether the view has all entries of the value in their order, possibly in another shape."""
        full = self.layout.numel() == torch.Size(self.value.shape).numel()
        return full and self.is_dense and not self.offset and not self.shift

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of the view, broadcast to a shape, for the dimensions that are larger than 1."""
        wide = self.layout.expand(tuple(shape))
        return tuple(stride for stride, size in zip(wide.stride(), shape, strict=True) if size > 1)

    def overlaps(self, other: "View") -> bool:
        """Return whether the two views of one value may have an entry in common."""
        return self.offset < other.end and other.offset < self.end


Operand = View | Number


@dataclass(eq=False)
class Source(Value):
    """The input, the output or a tensor of the state, by its ``name`` in C; ``kind`` is "x", "y" or "state"."""

    name: str
    kind: str


@dataclass(eq=False)
class Constant(Value):
    """A constant array."""

    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> "Constant":
        """Return the constant with the entries of a tensor, which may be a view of a parameter."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor)

    @cached_property
    def uniform(self) -> Number | None:
        """The value of all entries if they are equal, else None."""
        flat = self.tensor.flatten()
        return flat[0].item() if bool((flat == flat[0]).all()) else None


@dataclass(eq=False)
class Pointwise(Value):
    """Entry by entry the result of an operation in `steadygrad.export.c.operations`, of operands that are broadcast.

    The operands are converted to the dtype ``working``, but the Boolean mask of "where".
    """

    operation: str
    given: Sequence[Operand]
    working: torch.dtype

    def operands(self) -> Sequence[Operand]:
        return self.given

    def change(self, function: Callable[[View], View]) -> None:
        self.given = [function(one) if isinstance(one, View) else one for one in self.given]


@dataclass(eq=False)
class Product(Value):
    """b + Σ x W over pairs of a vector x (…, K), dense, and a matrix W (K, N), dense; b may be absent."""

    terms: Sequence[tuple[View, View]]
    bias: View | None = None

    def operands(self) -> Sequence[Operand]:
        return [*(part for term in self.terms for part in term), *([] if self.bias is None else [self.bias])]

    def change(self, function: Callable[[View], View]) -> None:
        self.terms = [(function(vector), function(matrix)) for vector, matrix in self.terms]
        self.bias = None if self.bias is None else function(self.bias)


@dataclass(eq=False)
class Reduction(Value):
    """The sum, mean, largest or smallest entry, its place, or "any" or "all", over some dimensions of an operand."""

    kind: str
    given: View
    dims: tuple[int, ...]

    def operands(self) -> Sequence[Operand]:
        return [self.given]

    def change(self, function: Callable[[View], View]) -> None:
        self.given = function(self.given)


@dataclass(eq=False)
class Joined(Value):
    """An array that several stores fill, such as a concatenation."""


@dataclass(eq=False)
class Store:
    """A copy of ``source`` to the entries ``target``, a view of a `Joined` value, the output or the state."""

    target: View
    source: View

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the source, and of the target up to dimensions of size 1."""
        return tuple(self.source.layout.shape)

    def operands(self) -> Sequence[Operand]:
        """Return the source."""
        return [self.source]

    def change(self, function: Callable[[View], View]) -> None:
        """Replace the source by the result of a function."""
        self.source = function(self.source)


Item = Value | Store


@dataclass
class Step:
    """The values and stores of a time step, in an order in which they can be computed."""

    items: list[Item] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """names of constants by the address of their storage"""
    tensors: list[Tensor] = field(default_factory=list)
    """the tensors with a name, so that no other one gets their address"""

    def name(self, tensor: Tensor, name: str) -> Tensor:
        """Give a constant tensor a name, unless its storage has one. Return the tensor."""
        self.names.setdefault(tensor.untyped_storage().data_ptr(), name)
        self.tensors.append(tensor)
        return tensor

    def derived(self, tensor: Tensor, *origins: Any) -> Tensor:
        """Give a constant tensor the name of the first one of the tensors from which it was computed. Return it."""
        for origin in origins:
            known = isinstance(origin, Tensor) and self.names.get(origin.untyped_storage().data_ptr())
            if known:
                return self.name(tensor, known)
        return tensor

    def add(self, item: Any) -> Any:
        """Append an item. Return a value as a view of itself, and a store as it is."""
        self.items.append(item)
        return item.whole if isinstance(item, Value) else item

    def copied(self, view: View) -> View:
        """Return a dense copy of a view."""
        found: View = self.add(
            Pointwise(tuple(view.layout.shape), view.layout.dtype, "copy", [view], view.layout.dtype)
        )
        return found


def views(item: Item) -> Iterator[View]:
    """Return an iterator over the views among an item's operands."""
    return (operand for operand in item.operands() if isinstance(operand, View))
