"""Sections of the page with measurements of networks: tables, and charts that the page's script draws."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from steadygrad.report import tables
from steadygrad.report.runs import level_name, part_name

FLOOR = -8.0
"""base-10 logarithm of the smallest influence, relative to the largest, that a map distinguishes from none"""
ATTENTION_FLOOR = -3.0
"""base-10 logarithm of the smallest attention that a map shows; attention is at most 1"""
ANGLE_BINS = 16

Chart = dict[str, Any]


@dataclass
class Table:
    """A table with a title above and notes below."""

    header: list[str]
    rows: tables.Rows
    title: str = ""
    notes: list[str] = field(default_factory=list)
    words: bool = False
    """whether the cells are text instead of numbers"""


@dataclass
class Fold:
    """A collapsible list of names and values, with the command of a run if it has one."""

    title: str
    pairs: list[tuple[str, str]]
    command: str = ""


@dataclass
class Section:
    """A section of the page, in the order of its fields."""

    title: str
    texts: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    folds: list[Fold] = field(default_factory=list)
    id: str = ""


@dataclass(frozen=True)
class Subject:
    """A network that the page shows, with the colour that it has in every chart."""

    name: str
    colour: int
    portrait: dict[str, Any]
    observations: list[dict[str, Any]] = field(default_factory=list)
    neumann: tuple[list[int], list[float]] = ([], [])
    """updates, and at each the norm that must be below 1 for the Neumann series to converge"""


def inside(subjects: Sequence[Subject]) -> list[Section]:
    """Return all sections about these networks that have content."""
    looks = (doctor, flow, attention, relations, eigenvalues, schur, gates, drift)
    found = [look(subjects) for look in looks]
    return [section for section in found if section.tables or section.charts or section.texts]


def doctor(subjects: Sequence[Subject]) -> Section:
    """Return what `diagnose` found for each network, and the numbers it measured."""
    rows = [
        [subject.name, finding["what"], finding["sure"], finding["advice"] or "–"]
        for subject in subjects
        for finding in subject.portrait.get("findings", [])
    ]
    blind = [f"{s.name} could not be looked at: {why}" for s in subjects if (why := s.portrait.get("failed"))]
    header = ["network", "what was seen", "how sure", "what to try"]
    measured = [
        Fold(f"Numbers: {s.name}", [(key, "–" if value is None else f"{value:.4g}") for key, value in numbers.items()])
        for s in subjects
        if (numbers := s.portrait.get("numbers"))
    ]
    found = [Table(header, rows, words=True)] if rows else []
    return Section("Why it remembers or forgets", blind, found, folds=measured)


def flow(subjects: Sequence[Subject]) -> Section:
    section = Section("How far gradients reach")
    kinds = {
        "output_gradients": (
            "Gradient of the last output along time",
            "Flat: what came first still counts.",
        ),
        "loss_gradients": ("Gradient of the loss along time", "At each step, of all outputs from there on."),
    }
    for key, (title, explain) in kinds.items():
        norms = [(s, values) for s in subjects if (values := s.portrait.get(key))]
        if norms:
            curves = [series(s, list(range(len(values))), values) for s, values in norms]
            label = "‖∂L/∂state‖" if key == "loss_gradients" else "‖∂output/∂state‖"
            section.charts.append(lines(title, curves, "step", label, log=True, explain=explain))
    panels = [
        {"name": part_name(s.name, part), "rows": rows, "every": s.portrait["every"]}
        for s in subjects
        for part, rows in s.portrait.get("input_maps", {}).items()
    ]
    if panels:
        known = [v for panel in panels for row in panel["rows"] for v in row if v is not None]
        high = max(known, default=0.0)
        low = max(min(known, default=0.0), high + FLOOR)
        section.charts.append(
            {
                "kind": "maps",
                "title": "What the state still knows of each input: ‖∂state at τ / ∂input at t‖",
                "explain": "t from left to right, τ from top to bottom. A column that stays bright is remembered.",
                "panels": panels,
                "range": [low, high],
                "exponent": True,
                "row": "state at",
                "column": "input at",
                "value": "norm",
                "empty": "not yet",
            }
        )
    return section


def attention(subjects: Sequence[Subject]) -> Section:
    section = Section("What it attends to")
    levels = [
        (level_name(s.name, number, s.portrait["attention"]), s.portrait["every"], found)
        for s in subjects
        for number, found in enumerate(s.portrait.get("attention", []))
    ]
    if not levels:
        return section
    header = ["network", "steps back, on average", "attention to states kept as relevant", "kept at the end"]
    section.tables.append(Table(header, [attention_row(name, found) for name, _, found in levels], words=True))
    section.charts.append(
        {
            "kind": "maps",
            "title": "Attention of each step to each state before",
            "explain": "States from left to right, steps from top to bottom. Marks above: states kept as relevant, "
            "the long ones until the end.",
            "panels": [
                {
                    "name": name,
                    "rows": found["map"],
                    "every": every,
                    "kept": found["kept"],
                    "kept_at_end": found["kept_at_end"],
                }
                for name, every, found in levels
            ],
            "range": [ATTENTION_FLOOR, 0],
            "sparse": True,
            "exponent": True,
            "row": "step",
            "column": "state",
            "value": "attention",
            "empty": "not yet",
        }
    )
    kinds = {
        "reach": ("How far back attention reaches, over training", "steps", None),
        "share_of_kept": ("Attention to states kept as relevant, over training", "share", [0.0, 1.0]),
    }
    for key, (title, label, bounds) in kinds.items():
        curves = []
        for s in subjects:
            rows = [row for row in s.observations if "attention" in row]
            for number, last in enumerate(rows[-1]["attention"] if rows else []):
                if last[key] is not None:
                    name = level_name(s.name, number, rows[-1]["attention"])
                    y = [row["attention"][number][key] for row in rows]
                    curves.append({**series(s, [row["step"] for row in rows], y), "name": name})
        if curves:
            section.charts.append(lines(title, curves, "update", label, bounds=bounds))
    return section


def attention_row(name: str, found: dict[str, Any]) -> list[str]:
    reach, share, kept = found["reach"], found["share_of_kept"], ", ".join(map(str, found["kept_at_end"]))
    return [
        name,
        "–" if reach is None else f"{reach:.3g}",
        "–" if share is None else f"{100 * share:.3g} %",
        kept or "–",
    ]


def relations(subjects: Sequence[Subject]) -> Section:
    """Return how networks relate the objects of one unseen problem, pair by pair."""
    section = Section("How it relates objects")
    for s in subjects:
        if found := s.portrait.get("similarity"):
            places = [str(place) for place in range(1, len(found["matrix"]) + 1)]
            rows = [[place, *map(share, row)] for place, row in zip(places, found["matrix"], strict=True)]
            title = f"{s.name}: answers {found['answered']}, right is {found['answer']}"
            section.tables.append(Table(["object", *places], rows, title))
    if section.tables:
        section.texts.append("What each network makes of every pair in a problem of shapes that training lacks.")
    return section


def share(value: float | None) -> str:
    """Return the value with two decimals; a value that rounds to 0 is left empty, so that the others stand out."""
    return "–" if value is None else f"{value:.2f}" if abs(value) >= 0.005 else ""


def eigenvalues(subjects: Sequence[Subject]) -> Section:
    panels: list[Chart] = []
    for s in subjects:
        rows = [row for row in s.observations if "matrices" in row] or [{"step": None, **s.portrait}]
        for name, last in rows[-1].get("matrices", {}).items():
            real = not last.get("complex", False)  # then eigenvalues come in conjugate pairs, and one of each is stored
            frames = [
                {"step": row["step"], "re": re, "im": im}
                for row in rows
                for re, im in [row["matrices"][name]["eigenvalues"]]
            ]
            panels.append({"name": matrix_name(s, name), "colour": s.colour, "mirrored": real, "frames": frames})
    section = Section("Spectrum")
    if panels:
        trained = any(len(panel["frames"]) > 1 for panel in panels)
        rings = " Rings show the start of training, dots the update chosen below."
        section.charts.append(
            {
                "kind": "plane",
                "title": "Eigenvalues of the recurrent matrices",
                "explain": "The circle has radius 1." + (rings if trained else ""),
                "panels": panels,
            }
        )
    powers = [
        (s, name, list(range(len(found["powers"]))), found["powers"])
        for s in subjects
        for name, found in s.portrait.get("matrices", {}).items()
    ]
    if powers:
        words = "Above its start: a signal grows for a while, though every eigenvalue may lie inside the circle."
        many = by_matrix(powers, subjects)
        section.charts.append(lines("Powers of the matrices", many, "k", "‖Wᵏ‖", log=True, explain=words))
    exponents = [
        series(s, list(range(1, len(found) + 1)), found) for s in subjects if (found := s.portrait.get("exponents"))
    ]
    if exponents:
        words = "Growth of a perturbation in a step, direction by direction. 0 is kept for ever."
        section.charts.append(lines("Lyapunov exponents", exponents, "direction", "exponent", explain=words))
    return section


def by_matrix(found: Sequence[tuple[Subject, str, list[int], list[float]]], subjects: Sequence[Subject]) -> list[Chart]:
    """Return one curve for each matrix, in the network's colour unless there are more matrices than networks."""
    result = [{**series(s, x, y), "name": matrix_name(s, name)} for s, name, x, y in found]
    if len(result) > len(subjects):
        result = [{**one, "colour": number} for number, one in enumerate(result)]
    return result


def matrix_name(subject: Subject, matrix: str) -> str:
    return f"{subject.name}: {matrix}"


def schur(subjects: Sequence[Subject]) -> Section:
    section = Section("Rotations and transients")
    for s in subjects:
        for name, found in s.portrait.get("schur", {}).items():
            label = s.name if len(s.portrait["schur"]) == 1 else f"{s.name}: {name}"
            magnitudes, every = [[abs(v) for v in row] for row in found["T"]], found.get("T_every", 1)
            merged = f" Each cell is the largest of {every} × {every}." if every > 1 else ""
            section.charts.append(
                {
                    "kind": "maps",
                    "title": f"|T| of {label}: {100 * found['transient_share']:.2g} % of the Schur form's size",
                    "explain": f"Non-zero entries are transients, which a normal matrix cannot have.{merged}",
                    "panels": [{"name": "|T|", "rows": magnitudes, "every": every}],
                    "range": [0, max((v for row in magnitudes for v in row), default=0) or 1],
                    "exponent": False,
                    "row": "row",
                    "column": "column",
                    "value": "|T|",
                    "empty": "above the diagonal",
                }
            )
            means = found["mean_by_subdiagonal"]
            section.charts.append(
                lines(
                    f"Mean |T| by distance from the diagonal: {label}",
                    [series(s, list(range(1, len(means) + 1)), means)],
                    "sub-diagonal",
                    "mean |T|",
                )
            )
            counts = angle_counts(found["angles"])
            section.charts.append(
                {
                    "kind": "bars",
                    "title": f"Angles of the rotations: {label}",
                    "values": counts,
                    "edges": [2 * math.pi * i / len(counts) for i in range(len(counts) + 1)],
                    "labels": ["0", "π/2", "π", "3π/2", "2π"],
                    "xlabel": "angle",
                    "colour": s.colour,
                }
            )
    return section


def angle_counts(angles: Sequence[float]) -> list[int]:
    counts = [0] * ANGLE_BINS
    for angle in angles:
        counts[int(angle / (2 * math.pi) * ANGLE_BINS) % ANGLE_BINS] += 1
    return counts


def gates(subjects: Sequence[Subject]) -> Section:
    section = Section("Gates")
    for s in subjects:
        if found := s.portrait.get("gates"):
            steps = list(range(len(found["true"])))
            both = [series(s, steps, found["true"]), series(s, steps, found["bound"], dash=True)]
            both[0]["name"], both[1]["name"] = "‖∂h_t/∂h_(t−1)‖", "bound α + β‖U_c‖"
            section.charts.append(lines(f"One step's gain and its bound: {s.name}", both, "step", "norm"))
        watched = [(row["step"], row["gates"]) for row in s.observations if "gates" in row]
        if watched:
            x = [step for step, _ in watched]
            both = [
                series(s, x, [seen["largest"] for _, seen in watched]),
                series(s, x, [seen["largest_bound"] for _, seen in watched], dash=True),
            ]
            both[0]["name"], both[1]["name"] = "largest gain of a step", "largest bound"
            broken = [step for step, seen in watched if not seen["holds"]]
            held = f"The bound held at all {sum(seen['steps'] for _, seen in watched):,} steps looked at."
            words = f"The bound broke at update {', '.join(map(str, broken))}." if broken else held
            section.charts.append(lines(f"Over training: {s.name}", both, "update", "norm", explain=words))
    return section


def drift(subjects: Sequence[Subject]) -> Section:
    section = Section("Drift")
    kinds = {
        "orthogonality_error": ("Distance from orthogonal", "‖WᵀW − I‖"),
        "departure": ("Departure from normality", "Henrici's measure"),
    }
    for key, (title, label) in kinds.items():
        found = []
        for s in subjects:
            rows = [row for row in s.observations if "matrices" in row]
            for name in rows[-1]["matrices"] if rows else []:
                values = [row["matrices"][name][key] for row in rows]
                found.append((s, name, [row["step"] for row in rows], values))
        if found:
            section.charts.append(lines(title, by_matrix(found, subjects), "update", label, log=True))
    neumann = [series(s, *s.neumann) for s in subjects if s.neumann[0]]
    if neumann:
        title, limit = "Norm that the Neumann series needs below 1", [{"name": "limit", "y": 1}]
        section.charts.append(lines(title, neumann, "update", "‖(I + A)⁻¹ δA‖", log=True, marks=limit))
    return section


def series(subject: Subject, x: Sequence[float], y: Sequence[float | None], dash: bool = False) -> Chart:
    return {"name": subject.name, "x": list(x), "y": list(y), "colour": subject.colour, "dash": dash}


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
    return {
        "kind": "lines",
        "title": title,
        "explain": explain,
        "series": series,
        "xlabel": xlabel,
        "ylabel": ylabel,
        "log": log,
        "marks": list(marks),
        **({} if bounds is None else {"bounds": bounds}),
    }
