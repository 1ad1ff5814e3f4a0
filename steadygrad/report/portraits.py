"""Figures of measurements of networks, in publication quality."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
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
from steadygrad.report import compare
from steadygrad.report.figures import COLOURS, STYLE, curves, plain, save, tasks_of
from steadygrad.report.runs import Run, distinct_names, group_of, labels, level_name, part_name

FLOOR = 1e-8
"""fraction of the largest norm below which a map does not distinguish influence from none"""
ATTENTION_FLOOR = 1e-3
"""smallest attention that a map shows"""
ABOVE = 1.03
"""vertical position of the marks above the columns, as a fraction of the height of a map"""
FEW = 10
"""largest number of objects for which relations are also printed as numbers"""
Portrait = dict[str, Any]


def draw_all(runs: Sequence[Run], folder: Path, format: str = "svg") -> list[Path]:
    """Draw the curves of every task and all available figures of the first run of every group; return the files."""
    written: list[Path] = []
    for task, group in groupby(sorted(runs, key=lambda run: run.task), key=lambda run: run.task):
        same = list(group)
        written.append(curves(same, folder / f"{file_name(task)}-curves.{format}", task))
        if len(norms := loss_gradients(same)) > 1:
            written.append(compare.gradients(norms, folder / f"{file_name(task)}-gradients.{format}", task))
    outcomes = unseen(runs)
    if len({one[:3] for one in outcomes}) > len({one[:2] for one in outcomes}):  # a line has several points
        written.append(compare.held_out(outcomes, folder / f"held-out.{format}"))
    named = zip(map(group_of, labels(runs)), runs, strict=True)
    for name, run in dict(reversed(list(named))).items():  # reversed, so that the first run of each name stays
        stem = folder / file_name(name)
        taken = {path.name for path in written}
        while any(other.startswith(f"{stem.name}-") for other in taken):
            stem = stem.with_name(f"{stem.name}+")
        written += draw(run, name, stem, format)
    return written


def draw_table(runs: Sequence[Run], kinds: Sequence[str], path: Callable[[str], Path], title: str) -> list[Path]:
    """Draw the figures of these kinds that compare all rows of a table, each into the file ``path(name)``."""
    written: list[Path] = []
    if compare.compares_gradients(kinds) and len(norms := loss_gradients(runs)) > 1:
        written.append(compare.gradients(norms, path("gradients"), f"{title}: gradients along time"))
    if "held-out" in kinds and (outcomes := unseen(runs)):
        written.append(compare.held_out(outcomes, path("held-out"), title))
    return written


def loss_gradients(runs: Sequence[Run]) -> dict[str, list[float | None]]:
    """Return ‖∂L/∂s_t‖ along time, for the first run of every group that has it.

    The norms are averages over a batch if all these runs have them, otherwise those of one sequence.
    """
    portraits: dict[str, Portrait] = {}
    for name, run in zip(map(group_of, labels(runs)), runs, strict=True):
        if run.portrait and run.portrait.get("loss_gradients"):
            portraits.setdefault(name, run.portrait)
    averaged = all("batch_gradients" in portrait for portrait in portraits.values())
    return {name: portrait["batch_gradients" if averaged else "loss_gradients"] for name, portrait in portraits.items()}


def unseen(runs: Sequence[Run]) -> list[compare.Outcome]:
    """Return the last accuracy of each run on a task with held-out shapes."""
    tested = [run for run in runs if "held_out" in run.result["task"] and run.curve("accuracy")[1]]
    tasks = tasks_of(tested)
    networks = distinct_names([run.result["layer"] for run in tested])
    return [
        compare.Outcome(
            task,
            network,
            run.result["task"]["held_out"],
            run.curve("accuracy")[1][-1],
            math.exp(-run.result["guessing_loss"]),  # all answers are equally likely
        )
        for task, network, run in zip(tasks, networks, tested, strict=True)
    ]


def draw(run: Run, name: str, stem: Path, format: str, kinds: Sequence[str] = ()) -> list[Path]:
    """Draw the figures of these kinds, or all that the run has, into ``stem``-KIND.FORMAT; return the files."""
    with plt.rc_context(STYLE):
        return [
            save(make(), stem.with_name(f"{stem.name}-{kind}.{format}"))
            for kind, make in drawings(run, plain(name)).items()
            if not kinds or kind in kinds
        ]


def drawings(run: Run, name: str) -> dict[str, Callable[[], Figure]]:
    """Return the functions that draw the figures for which the run has data, by kind."""
    portrait = run.portrait or {}
    found: dict[str, Callable[[], Figure]] = {}
    if "input_maps" in portrait:
        found["reach"] = lambda: reach(portrait, name)
    if "output_gradients" in portrait:
        found["gradients"] = lambda: gradients(portrait, name)
    if "attention" in portrait:
        found["attention"] = lambda: attention(portrait, name)
    if "matrices" in portrait:
        found["eigenvalues"] = lambda: eigenvalues(portrait, name)
    for matrix, learned in portrait.get("schur", {}).items():
        kind = "schur" if len(portrait["schur"]) == 1 else f"schur-{file_name(matrix)}"
        found[kind] = partial(schur, learned, name)
    if "gates" in portrait:
        found["gates"] = lambda: gates(portrait["gates"], name)
    if "similarity" in portrait:
        found["similarity"] = lambda: similarity(portrait["similarity"], name)
    if watched := [row for row in run.observations if "matrices" in row]:
        found["drift"] = lambda: drift(watched, run, name)
    return found


def reach(portrait: Portrait, name: str) -> Figure:
    """Draw ‖∂s_τ/∂x_t‖ with t to the right and τ downwards (ENRNN, figures 4 and 5)."""
    maps, every = portrait["input_maps"], portrait["every"]
    figure, axes = plt.subplots(
        1, len(maps), figsize=(3.6 * len(maps) + 0.9, 3.4), squeeze=False, layout="constrained", sharey=True
    )
    known = [10**v for rows in maps.values() for row in rows for v in row if v is not None]
    high = max(known, default=1.0)
    scale = LogNorm(max(min(known, default=1.0), high * FLOOR), high)
    for axis, (part, rows) in zip(axes[0], maps.items(), strict=True):
        show_map(axis, rows, every, scale)
        axis.set_title(part_name(name, part), fontsize=10)
        axis.set_xlabel("input at t")
    axes[0][0].set_ylabel("state at τ")
    figure.colorbar(ScalarMappable(scale, "viridis"), ax=axes[0].tolist(), label="‖∂s_τ / ∂x_t‖", shrink=0.9)
    return figure


def attention(portrait: Portrait, name: str) -> Figure:
    """Draw α_{t,i} with states i to the right and steps t downwards; mark the states that were kept (RelRNN, B.4)."""
    levels = portrait["attention"]
    figure, axes = plt.subplots(
        1, len(levels), figsize=(3.6 * len(levels) + 0.9, 3.4), squeeze=False, layout="constrained", sharey=True
    )
    scale = LogNorm(ATTENTION_FLOOR, 1)
    for number, (axis, found) in enumerate(zip(axes[0], levels, strict=True)):
        show_map(axis, found["map"], portrait["every"], scale)
        mark_kept(axis, found)
        axis.set_title(level_name(name, number, levels), fontsize=10, pad=12)  # the marks stand below
        axis.set_xlabel("state i")
    axes[0][0].set_ylabel("step t")
    figure.colorbar(
        ScalarMappable(scale, "viridis"), ax=axes[0].tolist(), label="attention α", shrink=0.9, extend="min"
    )
    return figure


def mark_kept(axis: Axes, found: Portrait) -> None:
    """Mark the columns of states that were in R at the end, and of those that were in R only for a while."""
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


def show_map(axis: Axes, rows: Sequence[Sequence[float | None]], every: int, scale: Normalize) -> None:
    """Draw a map from logarithms to base 10, given row by row up to the diagonal. None stays white."""
    size = len(rows)
    square = [[math.nan if v is None else 10**v for v in row] + [math.nan] * (size - len(row)) for row in rows]
    extent = (0, size * every, size * every, 0)
    axis.imshow(square, norm=scale, cmap="viridis", extent=extent, interpolation="nearest")
    axis.grid(False)


def gradients(portrait: Portrait, name: str) -> Figure:
    """Draw the gradient norms of the last output and of the loss along time."""
    figure, axis = single()
    kinds = {"output_gradients": "last output", "loss_gradients": "loss"}
    for number, (key, label) in enumerate(kinds.items()):
        if key in portrait:
            axis.semilogy([v or math.nan for v in portrait[key]], color=COLOURS[number], label=label)
    axis.set(xlabel="step t", ylabel="‖∂ · / ∂s_t‖", title=name)
    axis.legend()
    return figure


def eigenvalues(portrait: Portrait, name: str) -> Figure:
    """Draw the eigenvalues of each matrix in the complex plane, with the unit circle."""
    matrices = portrait["matrices"]
    figure, axes = plt.subplots(
        1, len(matrices), figsize=(3.3 * len(matrices), 3.4), squeeze=False, layout="constrained"
    )
    for axis, (matrix, found) in zip(axes[0], matrices.items(), strict=True):
        axis.add_patch(Circle((0, 0), 1, fill=False, color="0.5", linewidth=1))
        re, im = found["eigenvalues"]
        if not found.get("complex"):  # one of each conjugate pair was stored
            re, im = [*re, *re], [*im, *(-v for v in im)]
        axis.scatter(re, im, s=9, color=COLOURS[0], alpha=0.8, linewidths=0)
        far = 1.08 * max(1.0, found["radius"])
        axis.set(xlim=(-far, far), ylim=(-far, far), aspect="equal", xlabel="Re λ", title=f"{name}: {matrix}")
        axis.title.set_fontsize(10)
    axes[0][0].set_ylabel("Im λ")
    return figure


def schur(found: Portrait, name: str) -> Figure:
    """Draw |Λ + T|, mean |T| by sub-diagonal, and a histogram of the angles (nnRNN, figures 3 and 5)."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
    picture = left.imshow(schur_form(found), cmap="magma_r", norm=Normalize(0, 1), interpolation="nearest")
    left.grid(False)
    every = found.get("T_every", 1)
    left.set_title(f"|Λ + T|, {name}" + (f", largest of {every} × {every}" if every > 1 else ""), fontsize=10)
    figure.colorbar(picture, ax=left, shrink=0.9)
    means = found["mean_by_subdiagonal"]
    middle.plot(range(1, len(means) + 1), means, color=COLOURS[0], linewidth=1.2)
    middle.set(xlabel="sub-diagonal k", ylabel="mean |T|", ylim=(0, None))
    middle.set_title(f"T is {100 * found['transient_share']:.2g} % of ‖Λ + T‖", fontsize=10)
    right.hist(found["angles"], bins=16, range=(0, 2 * math.pi), color=COLOURS[1], rwidth=0.92)
    right.set_xticks([0, math.pi, 2 * math.pi], ["0", "π", "2π"])
    right.set(xlabel="angle θ", ylabel="rotations")
    return figure


def schur_form(found: Portrait) -> list[list[float]]:
    """Return |Λ + T|.

    For a large matrix each entry is the largest |T| of a block, and on the diagonal at least the moduli of Λ there.
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
    """Draw the largest factor by which each step can change a gradient, and its bound by theorem 1 of NC-GRU."""
    figure, axis = single()
    axis.plot(found["bound"], color=COLOURS[1], linestyle="--", label="α + β‖U_c‖")
    axis.plot(found["true"], color=COLOURS[0], label="‖∂h_t / ∂h_(t−1)‖")
    axis.set(xlabel="step t", title=name, ylim=(0, None))
    axis.legend()
    return figure


def drift(watched: Sequence[Portrait], run: Run, name: str) -> Figure:
    """Draw the distance from orthogonal over training.

    If it was recorded, the norm that must be below 1 for the Neumann series to converge is drawn too.
    """
    steps, neumann = run.curve("neumann_norm")
    figure, axes = plt.subplots(
        1, 2 if steps else 1, figsize=(9 if steps else 4.8, 3.3), squeeze=False, layout="constrained"
    )
    for number, matrix in enumerate(watched[-1]["matrices"]):
        values = [row["matrices"][matrix]["orthogonality_error"] or math.nan for row in watched]
        colour = COLOURS[number % len(COLOURS)]
        axes[0][0].semilogy([row["step"] for row in watched], values, color=colour, label=matrix)
    axes[0][0].set(xlabel="update", ylabel="‖WᵀW − I‖", title=name)
    axes[0][0].legend()
    if steps:
        axes[0][1].semilogy(steps, neumann, color=COLOURS[0], linewidth=1.2)
        axes[0][1].axhline(1, color="0.45", linestyle="--", linewidth=1)
        axes[0][1].set(xlabel="update", ylabel="‖(I + A)⁻¹ δA‖₂", title="Neumann condition")
    return figure


def similarity(found: Portrait, name: str) -> Figure:
    """Draw how a network relates the objects of one problem; the objects are left of the rows and above the columns."""
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
    """Return rows of RGB colours in [0, 1] from lines of hexadecimal digits of one or three channels."""
    red, *others = [[[int(digit, 16) / 15 for digit in line] for line in channel] for channel in channels]
    green, blue = others or (red, red)
    return [[list(colour) for colour in zip(*lines, strict=True)] for lines in zip(red, green, blue, strict=True)]


def single() -> tuple[Figure, Axes]:
    """Return a new figure with a single axis."""
    return plt.subplots(figsize=(4.8, 3.3), layout="constrained")
