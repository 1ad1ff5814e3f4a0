"""Factorisation of a unitary matrix into the layers of plane rotations of `Givens`.

A rotation at the left or right end of the product W = F_L … F_1 D acts on two rows or columns. Without it some entries
of one of them would be zero, because no path through the other layers leads there. That determines the rotation. It is
then removed from W, and so on until a diagonal matrix is left. With a full capacity this is the method of Clements et
al. (2016).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class Rotation:
    """A plane rotation of the units i and j in one layer: (a, b) → (e^{iφ} (a cos θ − b sin θ), a sin θ + b cos θ)."""

    layer: int
    i: int
    j: int
    theta: float = 0.0
    phase: complex = 1.0
    """e^{iφ}; of a rotation at the right end first a factor of its column i, before the phases are moved to D"""


def ends(rotations: Iterable[Rotation]) -> list[Rotation]:
    """Return the rotations that come before all others on both of their units."""
    covered: set[int] = set()
    found = []
    for one in rotations:
        if one.i not in covered and one.j not in covered:
            found.append(one)
        covered |= {one.i, one.j}
    return found


def reachable(rotations: Iterable[Rotation], size: int) -> list[int]:
    """Return which units each unit depends on after the rotations, the first of which acts first: bit k is unit k."""
    units = [1 << k for k in range(size)]
    for one in rotations:
        units[one.i] = units[one.j] = units[one.i] | units[one.j]
    return units


def at_end(order: list[Rotation], size: int) -> list[tuple[Rotation, list[int], list[int]]]:
    """Return the rotations at that end of a product at which ``order`` begins, each with two lists of units.

    Without these rotations, row (or column) i of the product may differ from zero at the first units, but row j may
    not; at the second units the reverse holds.
    """
    outer = ends(order)
    without = set(order) - set(outer)
    units = reachable((one for one in reversed(order) if one in without), size)
    pairs = [(one, units[one.i] & ~units[one.j], units[one.j] & ~units[one.i]) for one in outer]
    return [(one, bits(only_i), bits(only_j)) for one, only_i, only_j in pairs]


def bits(number: int) -> list[int]:
    """Return the positions of the ones in the binary form of a number."""
    return [k for k in range(number.bit_length()) if number >> k & 1]


def smallest(X: Tensor, zero: list[int], other: list[int]) -> tuple[complex, complex]:
    """Return the unit vector y for which yᴴ X is smallest in the columns ``zero`` and largest in the columns ``other``.

    X is (2, columns). If all vectors are as good, y is the second unit vector, which belongs to the angle 0.
    """
    first, second = X[:, zero], X[:, other]
    M = first @ first.mH - second @ second.mH
    values, vectors = torch.linalg.eigh(M)
    if values[1] - values[0] <= 1e-31 * X.abs().square().sum():
        return 0.0, 1.0
    y0, y1 = vectors[:, 0].tolist()
    return y0, y1


def direction(z: complex) -> complex:
    """Return z/|z|, or 1 for z = 0."""
    return z / abs(z) if z else 1.0


def peel_left(W: Tensor, one: Rotation, zero: list[int], other: list[int]) -> None:
    """Determine a rotation at the left end of W and remove it from W in place.

    Without it row j is zero in the columns ``zero``, and row i in the columns ``other``.
    """
    rows = [one.i, one.j]
    y0, y1 = smallest(W[rows], zero, other)
    if W.is_complex():
        one.theta, one.phase = math.atan2(abs(y0), abs(y1)), -direction(y0) * direction(y1).conjugate()
    else:
        one.theta = math.atan2(-y0.real, y1.real)
    c, s, e = math.cos(one.theta), math.sin(one.theta), one.phase
    turn = torch.tensor([[e.conjugate() * c, s], [-e.conjugate() * s, c]], dtype=W.dtype)
    W[rows] = turn @ W[rows]


def peel_right(W: Tensor, one: Rotation, zero: list[int], other: list[int]) -> None:
    """Determine a rotation R(θ) diag(e^{iφ}, 1) at the right end of W and remove it from W in place.

    Without it column j is zero in the rows ``zero``, and column i in the rows ``other``.
    """
    columns = [one.i, one.j]
    y0, y1 = smallest(W[:, columns].mH, zero, other)
    if W.is_complex():
        one.theta, one.phase = math.atan2(abs(y0), abs(y1)), direction(y1) * direction(y0).conjugate()
    else:
        one.theta = math.atan2(y0.real, y1.real)
    c, s, p = math.cos(one.theta), math.sin(one.theta), one.phase.conjugate()
    W[:, columns] = W[:, columns] @ torch.tensor([[p * c, p * s], [-s, c]], dtype=W.dtype)


def peeled(W: Tensor, layers: list[list[tuple[int, int]]]) -> tuple[list[Rotation], Tensor]:
    """Return the rotations of all layers in order, and the diagonal of D, whose product W = F_L … F_1 D is.

    W is in double precision. If W has no such factors, the product is another unitary matrix. For a real W all e^{iφ}
    are 1, and D is the identity or, if the product has the determinant −1, has one −1.
    """
    W = W.clone()
    rotations = [Rotation(k, i, j) for k, layer in enumerate(layers) for i, j in layer]
    inner, right = rotations, []  # those that are not determined yet; those taken from the right, in that order
    corner = True  # zeros of the lower left corner alone, as W is unitary; those of the upper right one only if needed
    while inner:
        taken = set()
        for one, only_i, only_j in at_end(inner[::-1], len(W)):
            zero, other = only_i, [] if corner else only_j
            if zero or other:
                peel_left(W, one, zero, other)
                taken.add(one)
        inner = [one for one in inner if one not in taken]
        for one, only_i, only_j in at_end(inner, len(W)):
            zero, other = [] if corner else only_i, only_j
            if zero or other:
                peel_right(W, one, zero, other)
                taken.add(one)
                right.append(one)
        inner = [one for one in inner if one not in taken]
        if not (taken or corner):  # no entry determines the rest, which therefore keeps the angle 0
            break
        corner = bool(taken)
    D = [direction(z) for z in W.diagonal().tolist()]
    (move_phases if W.is_complex() else move_signs)(rotations, right, D)
    return rotations, torch.tensor(D, dtype=W.dtype)


def move_phases(rotations: list[Rotation], right: list[Rotation], D: list[complex]) -> None:
    """Move the diagonal D, in place, from the left of the rotations ``right`` to the right end of the product."""
    for one in reversed(right):
        a, b = D[one.i], D[one.j]  # diag(a, b) R(θ) diag(p, 1) = [e^{iφ} = a/b] R(θ) diag(b p, b)
        D[one.i], D[one.j], one.phase = b * one.phase, b, a / b


def move_signs(rotations: list[Rotation], right: list[Rotation], D: list[complex]) -> None:
    """Move the signs D, in place, from the left of the rotations ``right`` to the right end, and cancel them there.

    The rotations are real. A rotation by π more changes two signs, so at most one −1 is left.
    """
    for one in reversed(right):
        if D[one.i] != D[one.j]:  # diag(1, −1) R(θ) = R(−θ) diag(1, −1)
            one.theta = -one.theta
    links = tree([(one.i, one.j) for one in rotations], len(D))
    of_pair = {(one.i, one.j): one for one in reversed(rotations)}
    for unit, parent in reversed(links):
        if D[unit] == -1:
            flipped = of_pair[min(unit, parent), max(unit, parent)]
            flipped.theta += math.pi
            for one in rotations:  # the two signs pass the layers to the right of this one
                if one.layer < flipped.layer and len({one.i, one.j} & {unit, parent}) == 1:
                    one.theta = -one.theta
            D[unit], D[parent] = 1.0, -D[parent]


def tree(pairs: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return (unit, parent) of all units but the roots of a forest in the graph of ``pairs``, parents first."""
    neighbours: list[list[int]] = [[] for _ in range(size)]
    for i, j in pairs:
        neighbours[i].append(j)
        neighbours[j].append(i)
    links, seen = [], set()
    for root in range(size):
        waiting = [] if root in seen else [root]
        seen.add(root)
        while waiting:
            parent = waiting.pop()
            for unit in neighbours[parent]:
                if unit not in seen:
                    seen.add(unit)
                    links.append((unit, parent))
                    waiting.append(unit)
    return links
