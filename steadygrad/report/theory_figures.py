"""Figures on the theory of memory and of gradients."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from steadygrad.report import figures
from steadygrad.report.figures import COLOURS, save

Curve = Sequence[float]
Band = tuple[Curve, Curve]
"""mean and standard deviation"""

STYLE = figures.STYLE | {"savefig.dpi": 130}  # for a PNG on a page; SVG and PDF have no resolution
GUIDE: Any = {"color": "0.35", "linestyle": "--", "linewidth": 1}
GUIDED = 20  # a slope is drawn over the last part of a curve, from 1/20 of its length on


def fisher(chains: Mapping[tuple[float, float, float], Curve], normal: Curve, bound: float, path: str | Path) -> Path:
    """Draw Fisher memory curves J(k), a panel for each d, and their sums up to k with Ganguli's bound, to a file.

    ``chains`` is a dict of the curves of chains by (α, β, d): d is on the diagonal of the recurrent matrix, α on the
    first sub-diagonal, β everywhere below. ``normal`` is the curve of a normal network. ``bound`` is Ganguli's bound of
    the sums. Return the path.
    """
    diagonals = sorted({d for _, _, d in chains})
    colours = palette(alpha for alpha, _, _ in chains)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(diagonals) + 1, figsize=(3.5 * len(diagonals) + 3.5, 3.5), squeeze=False, layout="constrained"
        )
        *memory, sums = axes[0]
        for (alpha, beta, d), curve in sorted(chains.items()):
            label, line = f"α = {alpha:g}, β = {beta:g}", "--" if beta else "-"
            memory[diagonals.index(d)].plot(curve, line, color=colours[alpha], linewidth=1.6, label=label)
            if not beta:  # the sums with β coincide with these
                sums.plot(list(accumulate(curve)), ":" if d else "-", color=colours[alpha], linewidth=1.6)
        for axis, d in zip(memory, diagonals, strict=True):
            axis.plot(normal, color="0.35", linewidth=1.2, label="normal network")
            axis.set(yscale="log", ylim=(1e-3, 1.5), title=f"d = {d:g}", xlabel="steps ago, k", ylabel="$J(k)$")
        sums.plot(list(accumulate(normal)), color="0.35", linewidth=1.2)
        sums.axhline(bound, **GUIDE)
        for height, text in ((bound, f"Ganguli's bound, {bound:g}"), (1, "normal network, 1")):
            sums.annotate(text, (0.99, height), (0, 4), sums.get_yaxis_transform(), "offset points", ha="right")
        for d in diagonals:
            sums.plot([], ":" if d else "-", color="0.35", label=f"β = 0, d = {d:g}")
        sums.set(yscale="log", ylim=(0.07, 2.5 * bound), title="sum up to k", xlabel="k", ylabel="$J(0) + … + J(k)$")
        sums.legend(loc="lower right")
        figure.legend(*memory[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(colours) + 1)
        return save(figure, path)


def transients(chains: Mapping[tuple[float, float], tuple[Band, Band]], path: str | Path) -> Path:
    """Draw the standard deviation of h_t across units, and the norm of h_t, over time to the file ``path``.

    ``chains`` has these two, in this order, for chains by (α, β): α is on the first sub-diagonal, β below it. Each is a
    mean and a standard deviation over random starts, which is drawn as a band. Return the path.
    """
    colours = palette(alpha for alpha, _ in chains)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.6), layout="constrained")
        for panel, (axis, what) in enumerate(zip(axes, ("standard deviation across units", "norm"), strict=True)):
            seen: list[float] = []
            for (alpha, beta), bands in sorted(chains.items()):
                mean, spread = bands[panel]
                t = [k for k, value in enumerate(mean) if value > 0]  # the state is 0 after N steps
                label, line = f"α = {alpha:g}, β = {beta:g}", "--" if beta else "-"
                axis.plot(t, [mean[k] for k in t], line, color=colours[alpha], linewidth=1.6, label=label)
                low, high = ([mean[k] + sign * spread[k] for k in t] for sign in (-1, 1))
                axis.fill_between(t, low, high, color=colours[alpha], alpha=0.15, linewidth=0)
                seen += [mean[k] for k in t]
            axis.set(yscale="log", xlim=(0, len(mean) - 1), ylim=(min(seen) / 2, max(seen) * 3))
            axis.set(xlabel="time step", title=what)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(colours))
        return save(figure, path)


def powers(norms: Mapping[int, Curve], x: float, growth: float, path: str | Path) -> Path:
    """Draw ‖Wᵏ‖ by size N to a file and return its path.

    ``norms`` has the norms for k = 0, 1, … by N. x, the entry above the diagonal of W, is in the title. Each curve has
    a line of slope N − 1 through its end. growthᵏ, an exponential, is drawn for comparison.
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
        last = min(map(len, norms.values())) - 1
        k, end = range(1, last + 1), range(max(1, last // GUIDED), last + 1)
        for colour, (size, curve) in zip(cycle(COLOURS), norms.items(), strict=False):
            axis.plot(k, curve[1 : last + 1], color=colour, linewidth=1.8, label=f"N = {size}: degree {size - 1}")
            axis.plot(end, [curve[last] * (i / last) ** (size - 1) for i in end], **GUIDE)
        axis.plot([], **GUIDE, label="slope N − 1")
        axis.plot(k, [growth**i for i in k], ":k", linewidth=1.4, label=f"eigenvalue {growth:g}")
        top = max(curve[last] for curve in norms.values())
        axis.set(xscale="log", yscale="log", xlim=(1, last), ylim=(0.7, 5 * top), xlabel="power k", ylabel="$‖W^k‖_2$")
        axis.set_title(f"1 on the diagonal, {x:g} above it")
        figure.legend(loc="outside right center")
        return save(figure, path)


def attention(
    plain: Mapping[float, Curve],
    uniform: Mapping[float, tuple[Curve, float]],
    sparse: Mapping[int, tuple[Curve, Curve]],
    sparse_eigenvalue: float,
    path: str | Path,
) -> Path:
    """Draw |ds_T/dh_t| in two panels to a file and return its path.

    Left is |ds_T/dh_1| against T, right |ds_T/dh_t| against T − t.

    Left, by eigenvalue λ: ``plain`` has the curves without attention, ``uniform`` those with uniform attention, each
    with its rate r in Tʳ. Right, by the number κ of attended states: ``sparse`` has the curves of sparse attention and
    their bounds. ``sparse_eigenvalue`` is λ on the right.
    """
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.7), layout="constrained")
        length = min(len(curve) for curve, _ in uniform.values())
        T, end = range(1, length + 1), range(max(1, length // GUIDED), length + 1)
        for colour, (eigenvalue, (curve, rate)) in zip(cycle(COLOURS), uniform.items(), strict=False):
            left.plot(T, curve, color=colour, linewidth=1.8, label=f"λ = {eigenvalue:g}: $T^{{{rate:z.2f}}}$")
            left.plot(end, [curve[-1] * (i / length) ** rate for i in end], **GUIDE)
            left.plot(T, plain[eigenvalue], ":", color=colour, linewidth=1.4)
        left.plot([], ":", color="0.35", label="no attention")
        seen = [curve[-1] for curve, _ in uniform.values()]
        left.set(xscale="log", yscale="log", xlim=(1, length), ylim=(min(seen) / 3, 300 * max(2, *seen)))
        left.set(xlabel="length T", ylabel="$|ds_T/dh_1|$", title="uniform attention")
        left.legend(ncols=2, loc="upper left")
        for colour, (kappa, (curve, bound)) in zip(cycle(COLOURS), sparse.items(), strict=False):
            right.plot(curve, color=colour, linewidth=1.8, label=f"κ = {kappa}")
            right.plot(bound, color=colour, linestyle="--", linewidth=1, drawstyle="steps-mid")
        right.plot([], **GUIDE, label=r"bound $\lambda^d/\kappa^{d+1}$")
        right.set(yscale="log", xlabel="steps between, T − t", ylabel="$|ds_T/dh_t|$")
        right.set_title(f"sparse attention through relays, λ = {sparse_eigenvalue:g}")
        right.legend(loc="lower left")
        return save(figure, path)


def palette(values: Iterable[float]) -> dict[float, str]:
    """Return a dict with a colour for each different value."""
    return dict(zip(sorted(set(values)), cycle(COLOURS), strict=False))
