"""Where the values of a time step are in C: scratch memory with planned lifetimes, names of constants and helpers."""

import re
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from steadygrad.export.c.operations import HELPERS, TYPES
from steadygrad.export.c.values import Constant, Source, Value, View

SCRATCH = {torch.bool: "flags", torch.int32: "small", torch.int64: "integers"}
"""names of the arrays of scratch memory in the struct, by dtype; that of floating-point numbers is "scratch" """


class Memory:
    """Places of values in C, and the constants and helpers that the code has asked for."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.origins: dict[int, str] = {}
        """names of constants by the address of their storage"""
        self.names = set(SCRATCH.values()) | {"scratch"}
        """names of arrays of the struct"""
        self.places: dict[Value, tuple[str, int]] = {}
        self.scratch: dict[torch.dtype, int] = {}
        self.constants: dict[tuple[torch.dtype, bytes], tuple[str, Tensor]] = {}
        self.helpers: dict[str, None] = {}
        self.taken = {"state", "init", "reset", "step", "add_product", *HELPERS}
        self.taken |= {"H", "INPUTS", "OUTPUTS", "VOCABULARY", "MAIN", "DECLARATIONS"}

    def unique(self, name: str) -> str:
        """Return a name of the file with the prefix, with a number at its end if another has it."""
        name = re.sub(r"\W", "_", name, flags=re.ASCII)
        found, number = name, 1
        while found in self.taken:
            number += 1
            found = f"{name}_{number}"
        self.taken.add(found)
        return f"{self.prefix}_{found}"

    def field(self, name: str) -> str:
        """Return the name in the struct for a tensor of the state: "h" is h, "1.h" layer1_h."""
        found = re.sub(r"\W", "_", re.sub(r"^(\d)", r"layer\1", name), flags=re.ASCII).removesuffix("_n")
        while found in self.names:
            found += "_"
        self.names.add(found)
        return found

    def helper(self, operation: str) -> str:
        """Return the name of a helper function, which the file then defines."""
        self.helpers[operation] = None
        return f"{self.prefix}_{operation}"

    def constant(self, tensor: Tensor, name: str = "") -> str:
        """Return the name of a constant array. Equal arrays are stored once."""
        dense = tensor.detach().contiguous()
        key = dense.dtype, dense.numpy().tobytes()
        if key not in self.constants:
            origin = name or self.origins.get(tensor.untyped_storage().data_ptr(), "constant")
            self.constants[key] = self.unique(origin), dense
        return self.constants[key][0]

    def base(self, value: Value) -> tuple[str, int]:
        """Return the array in which a value is, and the place of its first entry."""
        if isinstance(value, Constant):
            return self.constant(value.tensor), 0
        if isinstance(value, Source):
            return value.name, 0
        return self.places[value]

    def entry(self, view: View, terms: Sequence[tuple[int, str]]) -> str:
        """Return the C expression of an entry of a view, whose index is the sum of stride · variable."""
        name, begin = self.base(view.value)
        parts = [name_ if stride == 1 else f"{stride} * {name_}" for stride, name_ in terms if stride]
        parts += [view.shift] if view.shift else []
        offset = begin + view.offset
        parts += [str(offset)] if offset or not parts else []
        return f"{name}[{' + '.join(parts)}]"

    def pointer(self, view: View) -> str:
        """Return the C expression of the address of a view's first entry."""
        name, begin = self.base(view.value)
        offset = begin + view.offset
        parts = [name, *([view.shift] if view.shift else []), *([str(offset)] if offset else [])]
        return " + ".join(parts)

    def plan(self, lifetimes: Iterable[tuple[Value, int, int]]) -> None:
        """Give each value the first free place of scratch memory. A lifetime is a value, its first and last unit."""
        used: dict[torch.dtype, list[tuple[int, int, int, int]]] = {}
        for value, first, last in sorted(lifetimes, key=lambda one: one[1]):
            size = int(torch.Size(value.shape).numel())
            others = sorted(one for one in used.setdefault(value.dtype, []) if one[2] <= last and one[3] >= first)
            place = 0
            for begin, end, _, _ in others:
                if place + size <= begin:
                    break
                place = max(place, end)
            used[value.dtype].append((place, place + size, first, last))
            self.scratch[value.dtype] = max(self.scratch.get(value.dtype, 0), place + size)
            self.places[value] = f"state->{scratch_name(value.dtype)}", place

    def fields(self) -> list[tuple[torch.dtype, str, int]]:
        """Return the arrays of scratch memory: dtype, name and number of entries."""
        return [(dtype, scratch_name(dtype), size) for dtype, size in self.scratch.items()]


def scratch_name(dtype: torch.dtype) -> str:
    """Return the name of the scratch array of a dtype."""
    return SCRATCH.get(dtype, "scratch")


def declared(dtype: torch.dtype, name: str, size: int) -> str:
    """Return the declaration of an array in C."""
    return f"{TYPES[dtype]} {name}[{size}];"
