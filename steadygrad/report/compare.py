"""Several networks in one picture, from plain numbers."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.ticker import NullLocator

from steadygrad.report.figures import COLOURS, STYLE, plain, save

Numbers = Sequence[float | None]
MARKERS = "os^Dv<>P"


def compares_gradients(kinds: Sequence[str]) -> bool:
    """Whether a table that draws these figures of its rows is about how far back gradients reach."""
    return bool({"attention", "gradients"} & set(kinds))


def gradients(norms: Mapping[str, Numbers], path: str | Path, title: str = "") -> Path:
    """‖∂L/∂state‖ by steps back from the end, from norms along time (Kerg et al., 2020, figure 2, left)."""
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.6, 3.6), layout="constrained")
        for colour, (name, values) in zip(cycle(COLOURS), norms.items(), strict=False):
            back = range(len(values), 0, -1)
            axis.semilogy(back, [v or math.nan for v in values], color=colour, label=plain(name), linewidth=1.4)
        axis.set(xlabel="steps back from the end", ylabel="‖∂L / ∂state‖", title=plain(title))
        figure.legend(loc="outside right center")
        return save(figure, path)


def growth(
    lengths: Sequence[int], values: Mapping[str, Numbers], path: str | Path, label: str, title: str = ""
) -> Path:
    """Of each network a number for each length, None where it was not measured (the same, centre).

    Both axes are logarithmic: a slope of 1 is in proportion to the length, of 2 to its square.
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.2, 3.8), layout="constrained")
        looks = zip(cycle(COLOURS), cycle(MARKERS), values.items(), strict=False)
        for colour, marker, (name, measured) in looks:
            y = [v or math.nan for v in measured]
            axis.loglog(lengths, y, color=colour, marker=marker, markersize=4, label=plain(name), linewidth=1.4)
        crowded = [n < 1.5 * before for before, n in pairwise([0, *lengths])]
        axis.set_xticks(lengths, ["" if close else str(n) for n, close in zip(lengths, crowded, strict=True)])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel="length T", ylabel=label, title=plain(title))
        figure.legend(loc="outside right center")
        return save(figure, path)
