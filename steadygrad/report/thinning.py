"""Curves with fewer points than were measured, which keep the smallest and the largest value of each part."""

from collections.abc import Sequence
from dataclasses import dataclass, field

CHART_POINTS = 100_000
"""points of all curves of a chart together"""
LEAST, MOST = 40, 10_000
"""points of one curve, whatever the number of curves"""


@dataclass(frozen=True)
class Curve:
    """Points (x, y) of a curve, and the number of points that were measured."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    measured: int = 0


def points_per_curve(curves: int) -> int:
    """Return the largest number of points of a curve in a chart of this many curves."""
    return min(MOST, max(LEAST, CHART_POINTS // max(1, curves)))


def thin(x: Sequence[float], y: Sequence[float | None], most: int) -> tuple[list[float], list[float | None]]:
    """Return x and y, as two lists, with about ``most`` points.

    If there are more than that, points without a value are left out, and each part keeps its smallest and largest y.
    """
    if len(x) <= most + 4:  # a thinned curve may have that many
        return list(x), list(y)
    thinner = Thinner(most)
    for place, value in zip(x, y, strict=True):
        if value is not None:
            thinner.add(place, value)
    found = thinner.curve()
    return found.x, [*found.y]


class Thinner:
    """Takes the points of a curve one by one and keeps about ``most``, in memory that does not grow.

    Points are collected in buckets of equally many points. A bucket keeps its smallest and its largest value. If there
    are too many buckets, neighbours are merged. A bucket of two points keeps both, so a short curve stays whole.
    """

    def __init__(self, most: int) -> None:
        self.limit = max(1, most // 4) * 2  # even, so that buckets merge in pairs
        self.width = 2
        self.x: list[float] = []
        self.y: list[float] = []
        """points of the last bucket, which is not full"""
        self.buckets: list[tuple[list[float], list[float]]] = []
        self.first: tuple[float, float] | None = None

    def add(self, x: float, y: float) -> None:
        """Add the next point of the curve."""
        if len(self.y) == self.width:
            self.close_bucket()
        self.x.append(x)
        self.y.append(y)

    def close_bucket(self) -> None:
        """Reduce the last bucket, which is full, to its extremes.

        If there are too many buckets, merge pairs of the others instead, so that buckets hold twice as many points.
        """
        if self.first is None:
            self.first = self.x[0], self.y[0]
        if len(self.buckets) == self.limit:
            pairs = zip(self.buckets[::2], self.buckets[1::2], strict=True)
            self.buckets = [extremes(x + other_x, y + other_y) for (x, y), (other_x, other_y) in pairs]
            self.width *= 2
        else:
            self.buckets.append(extremes(self.x, self.y))
            self.x, self.y = [], []

    def curve(self) -> Curve:
        """Return the points that are kept. The first and the last point are always among them."""
        measured = len(self.buckets) * self.width + len(self.y)
        parts = [*self.buckets, extremes(self.x, self.y)] if self.y else self.buckets
        x, y = [v for part, _ in parts for v in part], [v for _, part in parts for v in part]
        if self.first and (x[0], y[0]) != self.first:
            x, y = [self.first[0], *x], [self.first[1], *y]
        if self.y and (x[-1], y[-1]) != (self.x[-1], self.y[-1]):
            x, y = [*x, self.x[-1]], [*y, self.y[-1]]
        return Curve(x, y, measured)


def extremes(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the points (x, y) with the smallest and the largest y, in their order, as a list of x and a list of y.

    Of equal values, the first smallest and the last largest count. If both are the same point, each list has one entry.
    """
    low, high = y.index(min(y)), len(y) - 1 - list(reversed(y)).index(max(y))
    places = sorted({low, high})
    return [x[place] for place in places], [y[place] for place in places]
