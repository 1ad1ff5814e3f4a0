"""Order of a time step: which values are computed in one loop, and when a tensor of the state may be overwritten."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from steadygrad.export.c.passes import readers
from steadygrad.export.c.values import Item, Joined, Pointwise, Product, Reduction, Source, Store, Value, View, views

Unit = list[Item]
"""items that are computed together: a product, the entries of a reduction and the reduction, or a loop over entries"""


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without dimensions of size 1: that of a loop."""
    return tuple(size for size in shape if size != 1)


def is_entry(item: Item, view: View, found: Item) -> bool:
    """Return whether an item, in its loop, reads of the value ``found`` the entry that the same loop computes."""
    if view.value is not found or not isinstance(found, Pointwise) or view.offset or view.shift:
        return False
    whole = found.whole
    return view.strides(shape_of(item)) == whole.strides(found.shape) and squeezed(shape_of(item)) == squeezed(
        found.shape
    )


def shape_of(item: Item) -> tuple[int, ...]:
    """Return the shape of the loop that computes an item: for a reduction that of its operand."""
    return tuple(item.given.layout.shape) if isinstance(item, Reduction) else item.shape


def absorbed(items: list[Item]) -> Iterator[Unit]:
    """Return an iterator over units of one item each, and of reductions with the entries that only they read."""
    count = readers(items)
    owner: dict[Item, Item] = {}
    for item in reversed(items):
        last = item if isinstance(item, Reduction) else owner.get(item)
        if last is None:
            continue
        for view in views(item):
            if count[view.value] == 1 and is_entry(item, view, view.value):
                owner[view.value] = last
    units: dict[Item, Unit] = defaultdict(list)
    for item in items:
        if not isinstance(item, Joined):
            units[owner.get(item, item)].append(item)
    yield from units.values()


class Schedule:
    """Finds the order of the units of a time step. The result is ``units``."""

    def __init__(self, items: list[Item]) -> None:
        self.pending = list(absorbed(items))
        self.units: list[Unit] = []
        self.done: set[Item] = set()
        self.stores: dict[Value, list[Store]] = defaultdict(list)
        self.reads: dict[Value, list[tuple[Item, View]]] = defaultdict(list)
        for item in items:
            if isinstance(item, Store):
                self.stores[item.target.value].append(item)
            for view in views(item):
                self.reads[view.value].append((item, view))
        while self.pending:
            self.units.append(self.next())
            self.done.update(self.units[-1])

    def next(self) -> Unit:
        """Remove the next unit from those that are pending and return it: products and reductions first, then loops."""
        heavy = (unit for unit in self.pending if isinstance(unit[-1], Product | Reduction))
        for unit in heavy:
            if self.is_ready(unit, []):
                self.pending.remove(unit)
                return unit
        for kind in (Pointwise, Store):
            for unit in self.pending:
                if isinstance(unit[-1], kind) and self.is_ready(unit, []):
                    return self.loop(unit)
        return self.copy_of_state()

    def loop(self, first: Unit) -> Unit:
        """Remove a loop over entries from the pending units: ``first`` and all that can be computed with it."""
        self.pending.remove(first)
        group = list(first)
        if self.is_shift(first[0]):
            return group
        size, before = squeezed(shape_of(first[0])), 0
        while before < len(group):
            before = len(group)
            for unit in list(self.pending):
                (*_, item) = unit
                fits = isinstance(item, Pointwise | Store) and squeezed(shape_of(item)) == size
                if fits and not self.is_shift(item) and self.is_ready(unit, group):
                    self.pending.remove(unit)
                    group.append(item)
        return group

    def copy_of_state(self) -> Unit:
        """Return a unit that copies a part of the state which one pending store reads and another one overwrites."""
        for unit in self.pending:
            (store,) = unit
            if isinstance(store, Store) and isinstance(store.source.value, Source):
                source = store.source
                copy = Pointwise(tuple(source.layout.shape), source.layout.dtype, "copy", [source], source.layout.dtype)
                self.reads[source.value] = [
                    (copy if item is store else item, view) for item, view in self.reads[source.value]
                ]
                store.source = copy.whole
                self.reads[copy].append((store, store.source))
                return [copy]
        raise ValueError("export to C expects a graph without cycles")

    def is_ready(self, unit: Unit, group: Unit) -> bool:
        """Return whether a unit can be computed now, or in the loop of ``group``."""
        return all(self.has_operands(item, unit, group) and self.may_write(item, group) for item in unit)

    def has_operands(self, item: Item, unit: Unit, group: Unit) -> bool:
        """Return whether all operands of an item are computed."""
        for view in views(item):
            value = view.value
            if isinstance(value, Joined):
                if not self.done.issuperset(self.stores[value]):
                    return False
            elif value in self.reads and not isinstance(value, Source) and self.is_computed(value):
                inside = value in unit or (value in group and is_entry(item, view, value))
                if value not in self.done and not inside:
                    return False
        return True

    @staticmethod
    def is_computed(value: Value) -> bool:
        """Return whether a value is computed in the time step, not a constant or part of the state."""
        return isinstance(value, Pointwise | Product | Reduction)

    def may_write(self, item: Item, group: Unit) -> bool:
        """Return whether what a store overwrites is not needed any more, but for the same entries in its own loop."""
        if not (isinstance(item, Store) and isinstance(item.target.value, Source)):
            return True
        for reader, view in self.reads[item.target.value]:
            if reader in self.done or not view.overlaps(item.target):
                continue
            if reader is item and self.is_shift(item):
                continue
            same = view.offset == item.target.offset and view.strides(shape_of(reader)) == item.target.strides(
                item.shape
            )
            if not (same and (reader in group or reader is item)):
                return False
        return True

    @staticmethod
    def is_shift(item: Item) -> bool:
        """Return whether an item moves entries of a tensor towards its beginning, which a loop can do in place."""
        if not isinstance(item, Store) or item.source.value is not item.target.value:
            return False
        return item.source.is_dense and item.target.is_dense and item.source.offset > item.target.offset
