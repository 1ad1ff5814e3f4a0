"""Figures of measured networks for publications, from the charts of `steadygrad.report.charts`."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from steadygrad.files import file_name
from steadygrad.report import charts, comparison_figures
from steadygrad.report.charts import Chart, Measurements
from steadygrad.report.figures import COLOURS, STYLE, curves, plain, save
from steadygrad.report.runs import Run, group_of, labels

GRADIENTS = {"output_gradients": "last output", "loss_gradients": "loss"}
"""key of gradients in a portrait → what they are gradients of"""
ABOVE = 1.03
"""vertical position of the marks above the columns, as a fraction of the height of a map"""
FEW = 10
"""largest number of objects for which relations are also printed as numbers"""
Portrait = dict[str, Any]
"""measurements of a trained network, or one entry of them: the content of a run's ``portrait.json``"""


def draw_all(runs: Sequence[Run], folder: Path, format: str = "svg") -> list[Path]:
    """Draw learning curves of every task, and all figures of one run of every group, into ``folder``.

    Return the list of the files. Runs that differ only in their seed form a group. ``format`` is the ending of the
    files.
    """
    written: list[Path] = []
    for task, group in groupby(sorted(runs, key=lambda run: run.task), key=lambda run: run.task):
        same = list(group)
        written.append(curves(same, folder / f"{file_name(task)}-curves.{format}", task))
        if len(norms := comparison_figures.loss_gradients(same)) > 1:
            written.append(
                comparison_figures.gradients_along_time(norms, folder / f"{file_name(task)}-gradients.{format}", task)
            )
    results = comparison_figures.held_out_results(runs)
    if len({one[:3] for one in results}) > len({one[:2] for one in results}):  # a line has several points
        written.append(comparison_figures.held_out_accuracy(results, folder / f"held-out.{format}"))
    named = zip(map(group_of, labels(runs)), runs, strict=True)
    for name, run in dict(reversed(list(named))).items():  # reversed, so that the first run of each name stays
        stem = folder / file_name(name)
        taken = {path.name for path in written}
        while any(other.startswith(f"{stem.name}-") for other in taken):
            stem = stem.with_name(f"{stem.name}+")
        written += draw_run(run, name, stem, format)
    return written


def draw_run(run: Run, name: str, stem: Path, format: str, kinds: Sequence[str] = ()) -> list[Path]:
    """Draw figures of one run into files ``stem``-KIND.FORMAT. Return the list of the files.

    ``kinds`` are the names of the figures, keys of `drawing_functions`; without it, all are drawn for which the run has
    data. ``name`` is the name of the run in the figures.
    """
    with plt.rc_context(STYLE):
        return [
            save(make(), stem.with_name(f"{stem.name}-{kind}.{format}"))
            for kind, make in drawing_functions(run, plain(name)).items()
            if not kinds or kind in kinds
        ]


def drawing_functions(run: Run, name: str) -> dict[str, Callable[[], Figure]]:
    """Return a dict, by kind, of functions that draw the figures for which a run has data and return a `Figure`."""
    portrait = run.portrait or {}
    found: dict[str, Callable[[], Figure]] = {}
    if "input_maps" in portrait:
        found["reach"] = lambda: reach(portrait, name)
    if "output_gradients" in portrait:
        found["gradients"] = lambda: gradients(portrait, name)
    if "attention" in portrait:
        found["attention"] = lambda: attention(portrait, name)
    if portrait.get("matrices"):
        found["eigenvalues"] = lambda: eigenvalues(portrait, name)
    for matrix, learned in portrait.get("schur", {}).items():
        kind = "schur" if len(portrait["schur"]) == 1 else f"schur-{file_name(matrix)}"
        found[kind] = partial(schur, learned, name)
    if "gates" in portrait:
        found["gates"] = lambda: gates(portrait["gates"], name)
    if "similarity" in portrait:
        found["similarity"] = lambda: similarity(portrait["similarity"], name)
    if any(row.get("matrices") for row in run.observations):
        found["drift"] = lambda: drift(run, name)
    return found


def reach(portrait: Portrait, name: str) -> Figure:
    """Return a figure of heat maps of ‖∂s_τ/∂x_t‖: how much the state s at step τ depends on the input x at step t.

    t goes to the right and τ downwards, as in figures 4 and 5 of ENRNN.
    """
    (chart,) = charts.influence_maps([Measurements(name, 0, portrait)])
    return draw_maps(chart, "τ", "t", "‖∂s_τ / ∂x_t‖")


def attention(portrait: Portrait, name: str) -> Figure:
    """Return a figure of heat maps of the attention α_{t,i} of step t to state i (RelRNN, B.4).

    States i go to the right and steps t downwards. Triangles mark the states that the layer kept as relevant
    (`mark_kept`).
    """
    (chart,) = charts.attention_maps([Measurements(name, 0, portrait)])
    return draw_maps(chart, "t", "i", "attention α")


def draw_maps(chart: Chart, row: str, column: str, value: str) -> Figure:
    """Return a figure of a chart of heat maps, side by side.

    ``row`` and ``column`` are the symbols of the axes, ``value`` is the label of the colour bar.
    """
    panels, sparse = chart["panels"], chart.get("sparse", False)
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 0.9, 3.4), squeeze=False, layout="constrained", sharey=True
    )
    scale = LogNorm(*(10.0**limit for limit in chart["range"]))
    for axis, panel in zip(axes[0], panels, strict=True):
        draw_map(axis, panel["rows"], panel["every"], scale)
        if "kept" in panel:
            mark_kept(axis, panel)
        axis.set_title(panel["name"], fontsize=10, pad=12 if "kept" in panel else None)  # the marks are below the title
        axis.set_xlabel(f"{chart['column']} {column}")
    axes[0][0].set_ylabel(f"{chart['row']} {row}")
    colours = ScalarMappable(scale, "viridis")
    extend = "min" if sparse else "neither"
    figure.colorbar(colours, ax=axes[0].tolist(), label=value, shrink=0.9, extend=extend)
    return figure


def mark_kept(axis: Axes, found: Portrait) -> None:
    """Mark states that the layer kept in memory as relevant by triangles above a heat map of attention.

    ``axis`` is the axis of the map in matplotlib, and ``found`` the panel of the map in a chart of
    `charts.attention_maps`. Filled triangles are the states in its entry ``kept_at_end``, which are in memory after the
    last step. Open triangles are the other states in its entry ``kept``, which were in memory for a while.
    """
    at_end = found["kept_at_end"]
    for_a_while = sorted({state for state, _, _ in found["kept"]} - set(at_end))
    kinds = (("at the end", at_end, COLOURS[1]), ("for a while", for_a_while, "none"))
    for label, states, fill in kinds:
        if states:
            x, y = [state + 0.5 for state in states], [ABOVE] * len(states)
            look: Any = {"marker": "v", "s": 14, "facecolor": fill, "edgecolor": COLOURS[1], "linewidth": 0.6}
            axis.scatter(x, y, **look, clip_on=False, transform=axis.get_xaxis_transform(), label=f"kept {label}")
    if found["kept"]:
        axis.legend(loc="upper right", fontsize=8, handletextpad=0.2)


def draw_map(axis: Axes, rows: Sequence[Sequence[float | None]], every: int, scale: Normalize) -> None:
    """Draw a heat map on the axis from the base-10 logarithms ``rows``. None stays white.

    ``rows`` are the rows of a triangle, up to the diagonal. ``every`` is the number of time steps in a cell, ``scale``
    the scale of the values, not of their logarithms.
    """
    size = len(rows)
    square = [[math.nan if v is None else 10.0**v for v in row] + [math.nan] * (size - len(row)) for row in rows]
    extent = (0, size * every, size * every, 0)
    axis.imshow(square, norm=scale, cmap="viridis", extent=extent, interpolation="nearest")
    axis.grid(False)


def draw_lines(axis: Axes, chart: Chart, linewidth: float = 1.5) -> None:
    """Draw the curves of a line chart on the axis, each in its own colour, with their marks and axis labels."""
    if chart["log"]:
        axis.set_yscale("log")
    for colour, curve in zip(cycle(COLOURS), chart["series"], strict=False):
        y = [math.nan if v is None or (chart["log"] and v == 0) else v for v in curve["y"]]
        line = "--" if curve["dash"] else "-"
        axis.plot(curve["x"], y, line, color=colour, linewidth=linewidth, label=curve["name"])
    for mark in chart["marks"]:
        axis.axhline(mark["y"], color="0.45", linestyle="--", linewidth=1)
    axis.set(xlabel=chart["xlabel"], ylabel=chart["ylabel"])


def gradients(portrait: Portrait, name: str) -> Figure:
    """Return a figure of the gradient norms of the last output and of the loss along time."""
    figure, axis = single()
    curves = [
        curve
        for key, label in GRADIENTS.items()
        for chart in charts.gradient_curves([Measurements(label, 0, {key: portrait.get(key)})])
        for curve in chart["series"]
    ]
    draw_lines(axis, charts.lines("", curves, "step t", "‖∂ · / ∂s_t‖", log=True))
    axis.set_title(name)
    axis.legend()
    return figure


def eigenvalues(portrait: Portrait, name: str) -> Figure:
    """Return a figure of the eigenvalues of each recurrent matrix of a network, with the unit circle.

    ``portrait`` holds the measurements of the network, ``name`` is its name in the figure.
    """
    (chart,) = charts.eigenvalue_planes([Measurements(name, 0, portrait)])
    panels = chart["panels"]
    figure, axes = plt.subplots(1, len(panels), figsize=(3.3 * len(panels), 3.4), squeeze=False, layout="constrained")
    for axis, panel in zip(axes[0], panels, strict=True):
        axis.add_patch(Circle((0, 0), 1, fill=False, color="0.5", linewidth=1))
        points = list(zip(panel["frames"][-1]["re"], panel["frames"][-1]["im"], strict=True))
        if panel["mirrored"]:  # a real eigenvalue is its own conjugate and is drawn once
            points += [(re, -im) for re, im in points if im]
        axis.scatter(*zip(*points, strict=True), s=9, color=COLOURS[0], alpha=0.8, linewidths=0)
        far = 1.08 * max(1.0, *(math.hypot(re, im) for re, im in points))
        axis.set(xlim=(-far, far), ylim=(-far, far), aspect="equal", xlabel="Re λ")
        axis.set_title(panel["name"], fontsize=10)
    axes[0][0].set_ylabel("Im λ")
    return figure


def schur(found: Portrait, name: str) -> Figure:
    """Return a figure of |Λ + T|, mean |T| by sub-diagonal, and a histogram of the angles (nnRNN, figures 3 and 5).

    nnRNN's matrix is P (Λ + T) Pᵀ, its Schur form, where Λ has the rotations and T is lower triangular. ``found`` is
    the learned form, an entry of ``schur`` in a portrait.
    """
    _, means, angles = charts.schur_form_charts(found, name, Measurements(name, 0, {}))
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
    picture = left.imshow(schur_form(found), cmap="magma_r", norm=Normalize(0, 1), interpolation="nearest")
    left.grid(False)
    every = found.get("T_every", 1)
    left.set_title(f"|Λ + T|, {name}" + (f", largest of {every} × {every}" if every > 1 else ""), fontsize=10)
    figure.colorbar(picture, ax=left, shrink=0.9)
    draw_lines(middle, means, linewidth=1.2)
    middle.set(xlabel="sub-diagonal k", ylim=(0, None))
    middle.set_title(f"T is {100 * found['transient_share']:.2g} % of ‖Λ + T‖", fontsize=10)
    edges = angles["edges"]
    right.hist(edges[:-1], bins=edges, weights=angles["values"], color=COLOURS[1], rwidth=0.92)
    right.set_xticks([0, math.pi, 2 * math.pi], ["0", "π", "2π"])
    right.set(xlabel="angle θ", ylabel="rotations")
    return figure


def schur_form(found: Portrait) -> list[list[float]]:
    """Return the matrix |Λ + T| of a learned Schur form, an entry of ``schur`` in a portrait, as a list of rows.

    For a large matrix, each entry stands for a block: it is the largest |T| in the block or, on the diagonal, the
    largest modulus of Λ in the block if that is larger.
    """
    size, moduli = len(found["T"]), found["moduli"]
    square = [[abs(v) for v in row] + [0.0] * (size - len(row)) for row in found["T"]]
    if found.get("T_every", 1) > 1:
        for k, modulus in enumerate(moduli):
            place = k * size // len(moduli)
            square[place][place] = max(square[place][place], abs(modulus))
        return square
    if len(moduli) == size > 1:  # complex units: Λ is diagonal
        for k, modulus in enumerate(moduli):
            square[k][k] = abs(modulus)
    for k, (angle, modulus) in enumerate(zip(found["angles"], moduli, strict=False)):
        if 2 * k + 1 >= size or len(moduli) == size:
            break
        c, s = abs(modulus * math.cos(angle)), modulus * math.sin(angle)
        square[2 * k][2 * k] = square[2 * k + 1][2 * k + 1] = c
        square[2 * k][2 * k + 1] = abs(s)
        square[2 * k + 1][2 * k] = abs(s + found["T"][2 * k + 1][2 * k])
    if size % 2:
        square[-1][-1] = abs(moduli[-1])
    return square


def gates(found: Portrait, name: str) -> Figure:
    """Return a figure of the largest factor by which each step can change a gradient, and of its upper bound.

    The bound is that of theorem 1 of NC-GRU. ``found`` is the entry ``gates`` of a portrait.
    """
    figure, axis = single()
    (chart,) = charts.gate_curves([Measurements(name, 0, {"gates": found})])
    draw_lines(axis, chart)
    axis.set(xlabel="step t", title=name, ylim=(0, None))
    axis.legend()
    return figure


def drift(run: Run, name: str) -> Figure:
    """Return a figure of ‖WᵀW − I‖ over training for each recurrent matrix W of a run, with the title ``name``.

    If the run recorded the norm that must be below 1 for the Neumann series to converge, a second panel shows it.
    """
    measured = [Measurements("", 0, {}, run.observations, run.curve("neumann_norm"))]
    distance, neumann = charts.drift_curves(measured)[0], charts.neumann_curves(measured)
    figure, axes = plt.subplots(
        1, 1 + len(neumann), figsize=(9 if neumann else 4.8, 3.3), squeeze=False, layout="constrained"
    )
    draw_lines(axes[0][0], distance)
    axes[0][0].set_title(name)
    axes[0][0].legend()
    for axis, chart in zip(axes[0][1:], neumann, strict=True):
        draw_lines(axis, chart, linewidth=1.2)
        axis.set_title("Neumann condition")
    return figure


def similarity(found: Portrait, name: str) -> Figure:
    """Return a figure of how a network relates the objects of one problem, as a matrix with images of the objects.

    ``found`` is the entry ``similarity`` of a portrait.
    """
    matrix = [[math.nan if value is None else value for value in row] for row in found["matrix"]]
    known = [value for row in matrix for value in row if not math.isnan(value)]
    high, signed = max(map(abs, known), default=0.0) or 1.0, min(known, default=0.0) < 0
    scale, colours = Normalize(-high if signed else 0.0, high), colormaps["RdBu_r" if signed else "Blues"]  # 0 is pale
    count = len(matrix)
    side = 0.5 * (count + 1) + 1
    figure, axis = plt.subplots(figsize=(side + 1.2, side), layout="constrained")
    axis.imshow(matrix, norm=scale, cmap=colours, extent=(0, count, count, 0))
    for place, image in enumerate(map(pixels, found["images"])):
        axis.imshow(image, extent=(-1, -0.1, place + 0.95, place + 0.05))
        axis.imshow(image, extent=(place + 0.05, place + 0.95, -0.1, -1))
    for i, row in enumerate(matrix if count <= FEW else []):
        for j, value in enumerate(row):
            dark = sum(colours(scale(value))[:3]) < 1.5
            text = f"{value:.2g}" if abs(value) > 0.005 * high else ""  # none for NaN either
            axis.text(j + 0.5, i + 0.5, text, size=8, ha="center", va="center", color="white" if dark else "black")
    axis.add_patch(Rectangle((0, 0), count, count, fill=False, color="0.7", linewidth=0.8))
    axis.set(xlim=(-1.05, count), ylim=(count, -1.05), xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    axis.set_title(f"{name}\nanswers {found['answered']}, right is {found['answer']}", fontsize=10)
    figure.colorbar(ScalarMappable(scale, colours), ax=axis, shrink=0.8).set_label(
        "relation of row and column", fontsize=8
    )
    return figure


def pixels(channels: Sequence[Sequence[str]]) -> list[list[list[float]]]:
    """Return an image as rows of RGB colours in [0, 1], from lines of hexadecimal digits of one or three channels."""
    red, *others = [[[int(digit, 16) / 15 for digit in line] for line in channel] for channel in channels]
    green, blue = others or (red, red)
    return [[list(colour) for colour in zip(*lines, strict=True)] for lines in zip(red, green, blue, strict=True)]


def single() -> tuple[Figure, Axes]:
    """Return a new figure with a single axis, and the axis."""
    return plt.subplots(figsize=(4.8, 3.3), layout="constrained")
