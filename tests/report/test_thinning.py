"""Thinned curves: few points, and no extreme lost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.report import charts
from steadygrad.report.thinning import CHART_POINTS, LEAST, MOST, Curve, Thinner, points_per_curve, thin


def thinned(y, most):
    thinner = Thinner(most)
    for x, value in enumerate(y):
        thinner.add(x, value)
    return thinner.curve()


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), max_size=40), st.integers(40, 60))
def test_short_curve_stays_whole(y, most):
    assert thinned(y, most) == Curve(list(range(len(y))), y, len(y))


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=400), st.integers(1, 60))
def test_thinned_curve_keeps_ends_and_extremes_in_order(y, most):
    found = thinned(y, most)
    assert found.measured == len(y)
    assert len(found.x) <= max(4, most) + 4
    assert found.x == sorted(set(found.x))
    assert [y[x] for x in found.x] == found.y
    assert (found.x[0], found.x[-1]) == (0, len(y) - 1)
    assert (min(found.y), max(found.y)) == (min(y), max(y))


def test_every_spike_of_a_long_curve_is_kept():
    y = [0.0] * 100_000
    spikes = [random.Random(start).randrange(start, start + 4000) for start in range(0, 100_000, 5000)]
    for place in spikes:
        y[place] = 1.0 + place
    found = thinned(y, 500)
    assert {1.0 + place for place in spikes} <= set(found.y)
    assert len(found.x) <= 504
    gaps = [later - earlier for earlier, later in zip(found.x, found.x[1:], strict=False)]
    assert max(gaps) <= 2 * 100_000 / 125  # no part of the curve has much fewer points than the others


@pytest.mark.parametrize(("curves", "points"), [(0, MOST), (1, MOST), (200, CHART_POINTS // 200), (10**6, LEAST)])
def test_points_per_curve_depend_on_number_of_curves(curves, points):
    assert points_per_curve(curves) == points


def test_thin_leaves_out_missing_values_only_if_it_thins():
    assert thin([1, 2], [None, 3.0], 10) == ([1, 2], [None, 3.0])
    x, y = thin(range(100), [None, *map(float, range(1, 100))], 10)
    assert (x[0], x[-1], len(x) <= 14) == (1, 99, True)
    assert None not in y


def test_line_chart_says_that_it_is_thinned():
    long = charts.curve("a", range(20_000), [0.0] * 20_000, 0)
    chart = charts.lines("t", [long, charts.curve("b", [1], [1.0], 1)], "x", "y", explain="Flat.")
    words = "Thinned from up to 20,000 points a curve: of each part the smallest and the largest value."
    assert chart["explain"] == f"Flat. {words}"
    assert len(chart["series"][0]["x"]) <= MOST + 4
    assert charts.lines("t", [charts.curve("b", [1], [1.0], 1)], "x", "y")["explain"] == ""
