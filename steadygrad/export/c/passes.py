"""Simplification of a time step: unused values are left out, products are merged, results are stored where they go."""

from collections import Counter

import torch

from steadygrad.export.c.values import Constant, Item, Joined, Pointwise, Product, Source, Store, Value, View, views


def simplified(items: list[Item]) -> list[Item]:
    """Return the items of a time step after all simplifications, in an order in which they can be computed."""
    return used(in_place(used(interpolated(used(merged(used(items)))))))


def used(items: list[Item]) -> list[Item]:
    """Return the items on which the output or the state depend."""
    found: set[Value] = set()
    kept: list[Item] = []
    for item in reversed(items):
        value = item.target.value if isinstance(item, Store) else item
        if value in found or isinstance(value, Source):
            kept.append(item)
            found.update(view.value for view in views(item))
    return kept[::-1]


def readers(items: list[Item]) -> Counter[Value]:
    """Return how many operands each value is."""
    return Counter(view.value for item in items for view in views(item))


def merged(items: list[Item]) -> list[Item]:
    """Return the items with each sum of products, or of a product and a constant, as one `Product`."""
    count, replaced = readers(items), dict[Value, Value]()
    found: list[Item] = []
    for item in items:
        item.change(lambda view: View(replaced.get(view.value, view.value), view.layout, view.shift))
        if isinstance(item, Pointwise) and (one := sum_of_products(item, count)) is not None:
            replaced[item], count[one] = one, count[item]
            item = one
        found.append(item)
    return found


def sum_of_products(item: Pointwise, count: Counter[Value]) -> Product | None:
    """Return the `Product` that an operation on entries amounts to, if it adds products that nothing else reads."""
    parts = list(views(item))
    if item.operation != "add" or len(parts) != 2 or not all(part.is_whole for part in parts):
        return None
    if any(part.layout.numel() != torch.Size(item.shape).numel() for part in parts):
        return None
    products = [part.value for part in parts if isinstance(part.value, Product) and count[part.value] == 1]
    biases = [part for part in parts if isinstance(part.value, Constant)]
    if not products or len(products) + len(biases) != 2:
        return None
    biases += [product.bias for product in products if product.bias is not None]
    if len(biases) > 1 or any(part.layout.dtype is not item.dtype for part in parts):
        return None
    terms = [term for product in products for term in product.terms]
    return Product(item.shape, item.dtype, terms, biases[0] if biases else None)


def interpolated(items: list[Item]) -> list[Item]:
    """Return the items with (1 − u) h + u c as h + u (c − h), whose rounding error is smaller where u is near 0.

    A gated network keeps a state for thousands of steps by such gates, and the C kernels compute them so.
    """
    found: list[Item] = []
    for item in items:
        if isinstance(item, Pointwise) and item.operation == "add" and (parts := interpolation(item)) is not None:
            h, u, c = parts
            difference = Pointwise(item.shape, item.dtype, "sub", [c, h], item.dtype)
            scaled = Pointwise(item.shape, item.dtype, "mul", [u, difference.whole], item.dtype)
            found += [difference, scaled]
            item.given = [h, scaled.whole]
        found.append(item)
    return found


def interpolation(item: Pointwise) -> tuple[View, View, View] | None:
    """Return h, u and c if an addition is (1 − u) h + u c, in any order of the factors, else None."""
    pairs = [factors(part) for part in views(item)]
    if len(pairs) != 2:
        return None
    for kept, new in (pairs, pairs[::-1]):
        for rest, h in kept:
            minus = rest.value
            if not (
                rest.is_whole and isinstance(minus, Pointwise) and minus.operation == "sub" and minus.given[0] == 1
            ):
                continue
            for u, c in new:
                other = minus.given[1]
                if isinstance(other, View) and other.value is u.value and other.is_whole and u.is_whole:
                    return h, u, c
    return None


def factors(view: View) -> list[tuple[View, View]]:
    """Return the two factors of a product of entries, in both orders; an empty list if the view is no such product."""
    value = view.value
    parts = list(views(value))
    if not (view.is_whole and isinstance(value, Pointwise) and value.operation == "mul" and len(parts) == 2):
        return []
    if any(part.layout.numel() != torch.Size(value.shape).numel() for part in parts):
        return []
    return [(parts[0], parts[1]), (parts[1], parts[0])]


def in_place(items: list[Item]) -> list[Item]:
    """Return the items with what fills a `Joined` value stored at once where a copy of it would go."""
    count, found = readers(items), list(items)
    for item in reversed(items):  # outer ones first
        if not (isinstance(item, Store) and item.source.is_whole and item.target.is_dense):
            continue
        inner = item.source.value
        if isinstance(inner, Joined) and count[inner] == 1:
            found.remove(item)
            for store in [one for one in items if isinstance(one, Store) and one.target.value is inner]:
                store.target = moved(store.target, item.target)
    return found


def moved(part: View, target: View) -> View:
    """Return the view of part of a value as the same part of ``target``, a dense view of another value."""
    base = torch.empty(target.value.shape, device="meta", dtype=target.layout.dtype).flatten()
    layout = base.as_strided(part.layout.shape, part.layout.stride(), part.offset + target.offset)
    return View(target.value, layout)
