"""C code of the units of a time step: loops over entries, reductions and products."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from steadygrad.export.c.memory import Memory
from steadygrad.export.c.operations import TYPES, bare, cast, expression, literal
from steadygrad.export.c.schedule import Unit, is_entry, shape_of, squeezed
from steadygrad.export.c.values import Constant, Item, Operand, Pointwise, Product, Reduction, Store, Value, View, views

INDENT = "    "
LONGEST = 60
"""largest number of characters of an expression that becomes part of another one"""
EXTREMES = ("amax", "amin", "argmax", "argmin")
START = {
    "amax": "-INFINITY",
    "argmax": "-INFINITY",
    "amin": "INFINITY",
    "argmin": "INFINITY",
    "any": "false",
    "all": "true",
}
"""first value of an accumulator; that of sums is 0"""


@dataclass
class Loop:
    """C code of one unit that is a loop over entries, perhaps with a reduction at its end."""

    unit: Unit
    memory: Memory
    before: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    texts: dict[Item, str] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        last = self.unit[-1]
        shape = shape_of(last)
        dims = last.dims if isinstance(last, Reduction) else ()
        wide = [dim for dim, size in enumerate(shape) if size != 1]
        kept, summed = [d for d in wide if d not in dims], [d for d in wide if d in dims]
        self.order = [wide.index(d) for d in (*kept, *summed)]
        sizes = [shape[d] for d in (*kept, *summed)]
        strides = [self.strides(view, shape_of(item)) for item in self.unit for view in self.accesses(item)]
        self.groups: list[list[int]] = []
        for d in range(len(sizes)):
            joins = bool(d) and d != len(kept) and all(one[d - 1] == one[d] * sizes[d] for one in strides)
            self.groups = [*self.groups[:-1], [*self.groups[-1], d]] if joins else [*self.groups, [d]]
        self.sizes = [int(torch.Size(sizes[d] for d in group).numel()) for group in self.groups]
        self.outer = sum(group[0] < len(kept) for group in self.groups)
        self.names = [f"i{level}" if len(self.groups) > 1 else "i" for level in range(len(self.groups))]

    def strides(self, view: View, shape: Sequence[int]) -> list[int]:
        """Return the strides of a view for the dimensions of the loop, the reduced ones last."""
        own = view.strides(shape)
        return [own[place] for place in self.order]

    def accesses(self, item: Item) -> Iterable[View]:
        """Return an iterator over the views that an item reads, and that it writes if its shape is that of the loop."""
        yield from views(item)
        if isinstance(item, Store):
            yield item.target
        elif isinstance(item, Pointwise):
            yield item.whole

    def place(self, view: View, shape: Sequence[int]) -> str:
        """Return the C expression of the entry of a view in the body of the loop."""
        own = self.strides(view, shape)
        return self.memory.entry(
            view, [(own[group[-1]], name) for group, name in zip(self.groups, self.names, strict=True)]
        )

    def load(self, item: Item, operand: Operand, dtype: torch.dtype) -> str:
        """Return the C expression of an operand of an item, converted to a dtype."""
        if not isinstance(operand, View):
            return literal(operand, dtype)
        value = operand.value
        if value in self.texts and is_entry(item, operand, value):
            return cast(self.texts[value], value.dtype, dtype)
        if isinstance(value, Constant):
            if value.uniform is not None and not operand.shift:
                return literal(value.uniform, dtype)
            if not operand.shift:
                return self.place(View(Constant.of(value.tensor.to(dtype)), operand.layout), shape_of(item))
        text = self.place(operand, shape_of(item))
        if self.groups and not any(self.strides(operand, shape_of(item))):
            text = self.before.setdefault(f"const {TYPES[value.dtype]} {{}} = {text};", f"s{len(self.before)}")
        return cast(text, value.dtype, dtype)

    def compute(self, item: Pointwise) -> None:
        """Add the computation of an entry: a local constant, or an expression if it is short and used once."""
        of_mask = [torch.bool] if item.operation == "where" else []
        dtypes = [*of_mask, *[item.working] * (len(item.given) - len(of_mask))]
        operands = [self.load(item, operand, dtype) for operand, dtype in zip(item.given, dtypes, strict=True)]
        text = expression(item.operation, item.working, operands, self.memory.helper)
        if item.operation == "copy":
            text = cast(text, item.working, item.dtype)
        reads = sum(view.value is item for one in self.unit for view in views(one))
        self.texts[item] = text
        if reads > 1 or len(text) > LONGEST or (item in self.memory.places and self.written > 1):
            self.texts[item] = self.local(item.dtype, text)

    def local(self, dtype: torch.dtype, text: str) -> str:
        """Add a local constant and return its name. Equal expressions have one name: they read the same entries."""
        if text not in self.locals:
            self.locals[text] = f"t{len(self.lines)}"
            self.lines.append(f"const {TYPES[dtype]} {self.locals[text]} = {bare(text)};")
        return self.locals[text]

    def code(self) -> list[str]:
        """Return the lines of C."""
        last = self.unit[-1]
        for item in self.unit:
            if isinstance(item, Pointwise):
                self.compute(item)
        if isinstance(last, Reduction):
            return self.reduced(last)
        ends = [f"{place} = {bare(text)};" for place, text in dict(self.writes()).items()]
        return [*self.head(), *self.nested([*self.lines, *ends], 0)]

    @property
    def written(self) -> int:
        """Number of entries that the body of the loop writes."""
        return sum(isinstance(item, Store) or item in self.memory.places for item in self.unit)

    def writes(self) -> Iterator[tuple[str, str]]:
        """Return an iterator over the entries that the body writes, each with an expression for its new value.

        If there are several, all that they need is read before the first one is written.
        """
        for item in self.unit:
            if isinstance(item, Store):
                text = self.load(item, item.source, item.source.layout.dtype)
                if self.written > 1 and "[" in text:
                    text = self.local(item.source.layout.dtype, text)
                yield self.place(item.target, item.shape), text
            elif isinstance(item, Pointwise) and item in self.memory.places:
                yield self.place(item.whole, item.shape), self.texts[item]

    def head(self) -> list[str]:
        """Return the constants that are the same in the whole loop."""
        return [line.format(name) for line, name in self.before.items()]

    def nested(self, body: list[str], level: int, end: int | None = None) -> list[str]:
        """Return the loops from ``level`` to ``end`` around a body. Without loops the body is a block."""
        end = len(self.groups) if end is None else end
        if level == end:
            return body
        name, size = self.names[level], self.sizes[level]
        inner = [INDENT + line for line in self.nested(body, level + 1, end)]
        return [f"for (int {name} = 0; {name} < {size}; {name}++) {{", *inner, "}"]

    def reduced(self, item: Reduction) -> list[str]:
        """Return the lines of C of a reduction."""
        dtype = item.given.layout.dtype
        of_flags = item.kind in ("any", "all")
        working = torch.bool if of_flags else item.dtype if item.kind in ("sum", "mean") else dtype
        text = bare(self.load(item, item.given, working))
        first = START.get(item.kind, literal(0, working))
        places = item.kind.startswith("arg")
        if item.kind in EXTREMES and not working.is_floating_point:
            raise ValueError(f"export to C does not support {item.kind} of {working}")
        place = self.names[-1] if self.outer < len(self.groups) else "0"
        body = [*self.lines, *accumulated(item.kind, TYPES[working], text, place)]
        found = "place" if places else "found"
        if item.kind == "mean":
            count = int(torch.Size(item.given.layout.shape[dim] for dim in item.dims).numel())
            found = f"found / {literal(count, item.dtype)}"
        start = [f"{TYPES[working]} found = {first};", *(["int place = 0;"] if places else [])]
        contiguous = View(item, torch.empty(squeezed(item.shape), device="meta", dtype=item.dtype))
        own = contiguous.layout.stride()
        steps = [(own[group[-1]], name) for group, name in zip(self.groups[: self.outer], self.names, strict=False)]
        store = f"{self.memory.entry(contiguous, steps)} = {found};"
        inside = [*start, *self.nested(body, self.outer), store]
        return [*self.head(), *self.nested(inside, 0, self.outer)]


def accumulated(kind: str, type: str, text: str, place: str) -> list[str]:
    """Return the statements that take one more entry, an expression, into the accumulator ``found``."""
    if kind in ("sum", "mean"):
        return [f"found += {text};"]
    if kind in ("any", "all"):
        return [f"found = found {'||' if kind == 'any' else '&&'} {text};"]
    sign = ">" if kind.endswith("max") else "<"
    if kind.startswith("arg"):
        return [
            f"const {type} e = {text};",
            f"if (e {sign} found) {{",
            f"{INDENT}found = e;",
            f"{INDENT}place = {place};",
            "}",
        ]
    return [f"const {type} e = {text};", f"found = e {sign} found || e != e ? e : found;"]


def product_code(item: Product, memory: Memory) -> list[str]:
    """Return the lines of C of a product: its bias or zeros, to which each pair of vector and matrix is added."""
    target, columns = memory.pointer(item.whole), item.shape[-1]
    size = f"{columns} * sizeof({TYPES[item.dtype]})"
    lines = [f"memset({target}, 0, {size});"]
    if item.bias is not None:
        lines = [f"memcpy({target}, {memory.pointer(item.bias)}, {size});"]
    for vector, matrix in item.terms:
        arguments = f"{target}, {memory.pointer(matrix)}, {memory.pointer(vector)}, {vector.layout.numel()}, {columns}"
        lines.append(f"{memory.helper('add_product')}({arguments});")
    return lines


def unit_code(unit: Unit, memory: Memory) -> list[str]:
    """Return the lines of C of a unit, in a block of its own if it has local constants outside of loops."""
    last = unit[-1]
    if isinstance(last, Product):
        return product_code(last, memory)
    lines = Loop(unit, memory).code()
    if any(line.startswith(("const ", *(f"{name} " for name in TYPES.values()))) for line in lines):
        return ["{", *(INDENT + line for line in lines), "}"]
    return lines


def needs_memory(units: list[Unit]) -> list[Value]:
    """Return the values that are stored, as they are read outside of the loop that computes them."""
    found: dict[Value, None] = {}
    for unit in units:
        for item in unit:
            for view in views(item):
                value = view.value
                if not (isinstance(value, Pointwise) and value in unit and is_entry(item, view, value)):
                    found[value] = None
            if isinstance(item, Store):
                found[item.target.value] = None
            elif isinstance(item, Product | Reduction):
                found[item] = None
    return [value for value in found if not isinstance(value, Constant)]
