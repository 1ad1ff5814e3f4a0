"""Charts of measured networks as plain numbers.

The script of the report page draws them from JSON, and `steadygrad.report.portrait_figures` draws them with matplotlib.
Every function returns a list of charts, which is empty if the networks lack the measurement.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from steadygrad.report.runs import level_name, part_name
from steadygrad.report.thinning import Curve, points_per_curve, thin

FLOOR = -8.0
"""base-10 logarithm of the smallest influence, relative to the largest, that a map distinguishes from none"""
ATTENTION_FLOOR = -3.0
"""base-10 logarithm of the smallest attention that a map shows; attention is at most 1"""
ANGLE_BINS = 16

Chart = dict[str, Any]


@dataclass(frozen=True)
class Measurements:
    """Measurements of one network (portrait, observations), with its name and the colour that it has in every chart."""

    name: str
    colour: int
    portrait: dict[str, Any]
    observations: list[dict[str, Any]] = field(default_factory=list)
    neumann: Curve = field(default_factory=Curve)
    """norm that must be below 1 for the Neumann series to converge, against updates"""

    def matrix_rows(self) -> list[dict[str, Any]]:
        """Return the rows of observations during training that contain recurrent matrices."""
        return [row for row in self.observations if "matrices" in row]


# gradients and attention along time


def gradient_curves(networks: Sequence[Measurements]) -> list[Chart]:
    """Return line charts of gradient norms along time: of the last output, and of the loss.

    Each chart is left out if no network has the measurement.
    """
    kinds = {
        "output_gradients": (
            "Gradient of the last output along time",
            "‖∂output/∂state‖",
            "A flat curve means that the first inputs still count.",
        ),
        "loss_gradients": (
            "Gradient of the loss along time",
            "‖∂L/∂state‖",
            "The gradient at a step is that of all later outputs.",
        ),
    }
    found = []
    for key, (title, label, explain) in kinds.items():
        curves = [series(n, range(len(norms)), norms) for n in networks if (norms := n.portrait.get(key))]
        found += [lines(title, curves, "step", label, log=True, explain=explain)] if curves else []
    return found


def influence_maps(networks: Sequence[Measurements]) -> list[Chart]:
    """Return a list with one chart: heat maps of ‖∂s_τ/∂x_t‖, one for each part of the state s of each network.

    t goes to the right and τ downwards (ENRNN, figures 4 and 5). The list is empty without measurements.
    """
    panels = [
        {"name": part_name(n.name, part), "rows": rows, "every": n.portrait["every"]}
        for n in networks
        for part, rows in n.portrait.get("input_maps", {}).items()
    ]
    known = [value for panel in panels for row in panel["rows"] for value in row if value is not None]
    high = max(known, default=0.0)
    title = "What the state still knows of each input: ‖∂state at τ / ∂input at t‖"
    explain = "t from left to right, τ from top to bottom. An input is remembered if its column stays bright."
    look = {"row": "state at", "column": "input at", "value": "norm", "empty": "not yet"}
    return maps(title, panels, (max(min(known, default=0.0), high + FLOOR), high), explain, exponent=True, **look)


def attention_levels(networks: Sequence[Measurements]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return a list of (name, time steps in a cell of the map, dict of measured attention) for each stacked layer."""
    return [
        (level_name(n.name, number, n.portrait["attention"]), n.portrait["every"], level)
        for n in networks
        for number, level in enumerate(n.portrait.get("attention", []))
    ]


def attention_maps(networks: Sequence[Measurements]) -> list[Chart]:
    """Return a list with one chart: heat maps of the attention α_{t,i} (RelRNN, B.4), with marks for relevant states.

    States i go to the right and steps t downwards. The list is empty without measurements.
    """
    panels = [
        {"name": name, "rows": level["map"], "every": every, **{key: level[key] for key in ("kept", "kept_at_end")}}
        for name, every, level in attention_levels(networks)
    ]
    explain = "States from left to right, steps from top to bottom. Marks above: states kept as relevant; long marks: "
    explain += "kept until the end."
    look = {"row": "step", "column": "state", "value": "attention", "empty": "not yet", "sparse": True}
    title = "Attention of each step to each earlier state"
    return maps(title, panels, (ATTENTION_FLOOR, 0), explain, exponent=True, **look)


def attention_curves(networks: Sequence[Measurements]) -> list[Chart]:
    """Return up to two line charts over training: reach of attention, and its share on states kept as relevant."""
    kinds = {
        "reach": ("How far back attention reaches, over training", "steps", None),
        "share_of_kept": ("Attention to states kept as relevant, over training", "share", [0.0, 1.0]),
    }
    found = []
    for key, (title, label, bounds) in kinds.items():
        curves = []
        for n in networks:
            rows = [row for row in n.observations if "attention" in row]
            for number, last in enumerate(rows[-1]["attention"] if rows else []):
                if last[key] is not None:
                    name = level_name(n.name, number, rows[-1]["attention"])
                    y = [row["attention"][number][key] for row in rows]
                    curves.append(series(n, [row["step"] for row in rows], y, name))
        found += [lines(title, curves, "update", label, bounds=bounds)] if curves else []
    return found


# recurrent matrices


def eigenvalue_planes(networks: Sequence[Measurements]) -> list[Chart]:
    """Return a list with one chart: the eigenvalues in the complex plane, a panel per matrix of each of the networks.

    A panel has a frame for each observation during training or, without observations, one frame from the portrait. The
    list is empty without recurrent matrices.
    """
    panels: list[Chart] = []
    for n in networks:
        rows = n.matrix_rows() or [{"step": None, **n.portrait}]
        for name, last in rows[-1].get("matrices", {}).items():
            real = not last.get("complex", False)  # then eigenvalues come in conjugate pairs, and one of each is stored
            frames = [
                {"step": row["step"], "re": re, "im": im}
                for row in rows
                for re, im in [row["matrices"][name]["eigenvalues"]]
            ]
            panels.append({"name": matrix_name(n, name), "colour": n.colour, "mirrored": real, "frames": frames})
    trained = any(len(panel["frames"]) > 1 for panel in panels)
    explain = "The circle has radius 1." + (
        " Rings show the start of training, dots the update chosen below." if trained else ""
    )
    chart = {"kind": "plane", "title": "Eigenvalues of the recurrent matrices", "explain": explain, "panels": panels}
    return [chart] if panels else []


def power_curves(networks: Sequence[Measurements]) -> list[Chart]:
    """Return a list with one line chart: ‖Wᵏ‖ against k for every recurrent matrix; an empty list without matrices."""
    curves = [
        series(n, range(len(found["powers"])), found["powers"], matrix_name(n, name))
        for n in networks
        for name, found in n.portrait.get("matrices", {}).items()
    ]
    explain = "Where the curve rises above its start, a signal grows for a while, even if all eigenvalues are inside "
    explain += "the circle."
    many = in_own_colours(curves, networks)
    return [lines("Powers of the matrices", many, "k", "‖Wᵏ‖", log=True, explain=explain)] if curves else []


def exponent_curves(networks: Sequence[Measurements]) -> list[Chart]:
    """Return a list with one line chart: the Lyapunov exponents of each network, largest first; empty without them."""
    curves = [series(n, range(1, len(y) + 1), y) for n in networks if (y := n.portrait.get("exponents"))]
    explain = "Growth of a perturbation per step, direction by direction. With 0 it is kept for ever."
    return [lines("Lyapunov exponents", curves, "direction", "exponent", explain=explain)] if curves else []


def schur_charts(networks: Sequence[Measurements]) -> list[Chart]:
    """Return the charts of every learned Schur form Λ + T of the networks, as `schur_form_charts` makes them."""
    return [
        chart
        for n in networks
        for name, found in n.portrait.get("schur", {}).items()
        for chart in schur_form_charts(found, n.name if len(n.portrait["schur"]) == 1 else matrix_name(n, name), n)
    ]


def schur_form_charts(found: dict[str, Any], label: str, network: Measurements) -> list[Chart]:
    """Return three charts of one Schur form: |T|, mean |T| by sub-diagonal, and a histogram of the rotation angles.

    See figures 3 and 5 of nnRNN. ``found`` is the measured form, ``label`` its name in the titles.
    """
    magnitudes, every = [[abs(v) for v in row] for row in found["T"]], found.get("T_every", 1)
    merged = f" Each cell is the largest entry of {every} × {every}." if every > 1 else ""
    title = f"|T| of {label}: {100 * found['transient_share']:.2g} % of the Schur form's norm"
    explain = f"Non-zero entries are transients, which a normal matrix cannot have.{merged}"
    top = max((v for row in magnitudes for v in row), default=0) or 1
    look = {"row": "row", "column": "column", "value": "|T|", "empty": "above the diagonal"}
    means, counts = found["mean_by_subdiagonal"], angle_counts(found["angles"])
    return [
        *maps(title, [{"name": "|T|", "rows": magnitudes, "every": every}], (0, top), explain, exponent=False, **look),
        lines(
            f"Mean |T| by distance from the diagonal: {label}",
            [series(network, range(1, len(means) + 1), means)],
            "sub-diagonal",
            "mean |T|",
        ),
        {
            "kind": "bars",
            "title": f"Angles of the rotations: {label}",
            "values": counts,
            "edges": [2 * math.pi * i / len(counts) for i in range(len(counts) + 1)],
            "labels": ["0", "π/2", "π", "3π/2", "2π"],
            "xlabel": "angle",
            "colour": network.colour,
        },
    ]


def angle_counts(angles: Sequence[float]) -> list[int]:
    """Return the number of angles in each of `ANGLE_BINS` equal parts of the circle."""
    counts = [0] * ANGLE_BINS
    for angle in angles:
        counts[int(angle / (2 * math.pi) * ANGLE_BINS) % ANGLE_BINS] += 1
    return counts


def drift_curves(networks: Sequence[Measurements]) -> list[Chart]:
    """Return two line charts over training, or none: how far recurrent matrices are from orthogonal and normal."""
    kinds = {
        "orthogonality_error": ("Distance from orthogonal", "‖WᵀW − I‖"),
        "departure": ("Departure from normality", "Henrici's measure"),
    }
    found = []
    for key, (title, label) in kinds.items():
        curves = []
        for n in networks:
            rows = n.matrix_rows()
            for name in rows[-1]["matrices"] if rows else []:
                y = [row["matrices"][name][key] for row in rows]
                curves.append(series(n, [row["step"] for row in rows], y, matrix_name(n, name)))
        found += [lines(title, in_own_colours(curves, networks), "update", label, log=True)] if curves else []
    return found


def neumann_curves(networks: Sequence[Measurements]) -> list[Chart]:
    """Return a list with one line chart: the norm that the Neumann series needs below 1, over training; or []."""
    curves = [series(n, n.neumann.x, n.neumann.y) for n in networks if n.neumann.x]
    title, limit = "Norm that the Neumann series needs below 1", [{"name": "limit", "y": 1}]
    return [lines(title, curves, "update", "‖(I + A)⁻¹ δA‖₂", log=True, marks=limit)] if curves else []


# gates


def gate_curves(networks: Sequence[Measurements]) -> list[Chart]:
    """Return line charts for each gated network: how much one step can change a gradient, and its upper bound.

    The bound is that of theorem 1 of NC-GRU. The first chart of a network is along time, the second over training.
    """
    return [chart for n in networks for chart in gate_charts(n)]


def gate_charts(network: Measurements) -> Iterator[Chart]:
    """Yield the charts of `gate_curves` for one network; nothing if its gates were not measured."""
    if found := network.portrait.get("gates"):
        steps = range(len(found["true"]))
        gain = series(network, steps, found["true"], "‖∂h_t / ∂h_(t−1)‖")
        bound = series(network, steps, found["bound"], "bound α + β‖U_c‖", dash=True)
        yield lines(f"Gain of one step and its bound: {network.name}", [gain, bound], "step", "norm")
    rows = [(row["step"], row["gates"]) for row in network.observations if "gates" in row]
    if rows:
        updates = [step for step, _ in rows]
        gain = series(network, updates, [seen["largest"] for _, seen in rows], "largest gain of a step")
        bound = series(network, updates, [seen["largest_bound"] for _, seen in rows], "largest bound", dash=True)
        broken = [step for step, seen in rows if not seen["holds"]]
        held = f"The bound held at all {sum(seen['steps'] for _, seen in rows):,} measured steps."
        words = f"The bound was broken at update {', '.join(map(str, broken))}." if broken else held
        yield lines(f"Over training: {network.name}", [gain, bound], "update", "norm", explain=words)


# parts of charts


def matrix_name(network: Measurements, matrix: str) -> str:
    """Return the name of a matrix in a chart: "network: matrix", or "matrix" if the network has no name."""
    return f"{network.name}: {matrix}" if network.name else matrix


def in_own_colours(curves: list[Chart], networks: Sequence[Measurements]) -> list[Chart]:
    """Return the curves with a new colour for each if there are more curves than networks; otherwise unchanged."""
    if len(curves) <= len(networks):
        return curves
    return [{**curve, "colour": number} for number, curve in enumerate(curves)]


def series(
    network: Measurements, x: Sequence[float], y: Sequence[float | None], name: str = "", dash: bool = False
) -> Chart:
    """Return one curve of a chart as a dict, in the network's colour. By default it has the network's name."""
    return curve(name or network.name, x, y, network.colour, dash)


def curve(
    name: str, x: Sequence[float], y: Sequence[float | None], colour: int, dash: bool = False, measured: int = 0
) -> Chart:
    """Return one curve of a chart as a dict. ``measured`` counts the points before thinning (default: len(x))."""
    found = {"name": name, "colour": colour, "dash": dash, "x": list(x), "y": list(y)}
    return {**found, "measured": measured or len(x)}


def lines(
    title: str,
    series: list[Chart],
    xlabel: str,
    ylabel: str,
    *,
    log: bool = False,
    marks: Sequence[Chart] = (),
    bounds: list[float] | None = None,
    explain: str = "",
) -> Chart:
    """Return a line chart, as a dict, from curves that `series` returned. Curves with too many points are thinned.

    ``marks`` are horizontal lines, dicts of ``name`` and ``y``. ``bounds`` are the least and the largest y.
    """
    most = points_per_curve(len(series))
    shown = [{**one, **dict(zip("xy", thin(one["x"], one["y"], most), strict=True))} for one in series]
    measured = max((one["measured"] for one in shown if len(one["x"]) < one["measured"]), default=0)
    thinned = f"Thinned from up to {measured:,} points a curve: of each part the smallest and the largest value."
    return {
        "kind": "lines",
        "title": title,
        "explain": " ".join(filter(None, [explain, thinned if measured else ""])),
        "series": shown,
        "xlabel": xlabel,
        "ylabel": ylabel,
        "log": log,
        "marks": list(marks),
        **({} if bounds is None else {"bounds": bounds}),
    }


def maps(title: str, panels: list[Chart], range: tuple[float, float], explain: str, **look: Any) -> list[Chart]:
    """Return a list with one chart of heat maps on a common scale; empty without panels.

    ``range`` has the ends of the scale. ``look`` are further entries; ``exponent`` says that values are log10.
    """
    found = {"kind": "maps", "title": title, "explain": explain, "panels": panels, "range": list(range), **look}
    return [found] if panels else []
