"""Sections of the report page about measured networks: tables, texts and the charts of `steadygrad.report.charts`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from steadygrad.report import charts, tables
from steadygrad.report.charts import Chart, Measurements


@dataclass
class Table:
    """A table of the report page, with a title above and notes below."""

    header: list[str]
    rows: tables.Rows
    title: str = ""
    notes: list[str] = field(default_factory=list)
    words: bool = False
    """whether the cells are text instead of numbers"""


@dataclass
class Fold:
    """A collapsible list of names and values on the report page, with the command of a run if it has one."""

    title: str
    pairs: list[tuple[str, str]]
    command: str = ""


@dataclass
class Section:
    """A section of the report page: title, texts, tables, charts and collapsible lists, shown in this order."""

    title: str
    texts: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    folds: list[Fold] = field(default_factory=list)
    id: str = ""


def network_sections(networks: Sequence[Measurements]) -> list[Section]:
    """Return the sections of the report page about measured networks, without the empty ones."""
    of_charts = {
        "How far gradients reach": (charts.gradient_curves, charts.influence_maps),
        "Spectrum": (charts.eigenvalue_planes, charts.power_curves, charts.exponent_curves),
        "Rotations and transients": (charts.schur_charts,),
        "Gates": (charts.gate_curves,),
        "Drift": (charts.drift_curves, charts.neumann_curves),
    }
    gradients, *others = (
        Section(title, charts=[chart for draw in functions for chart in draw(networks)])
        for title, functions in of_charts.items()
    )
    found = [diagnosis(networks), gradients, attention(networks), relations(networks), *others]
    return [section for section in found if section.tables or section.charts or section.texts]


def diagnosis(networks: Sequence[Measurements]) -> Section:
    """Return the section with the findings of `diagnose` for each network, and the numbers that it measured."""
    rows = [
        [network.name, finding["what"], finding["sure"], finding["advice"] or "–"]
        for network in networks
        for finding in network.portrait.get("findings", [])
    ]
    failed = [f"{n.name} could not be measured: {why}" for n in networks if (why := n.portrait.get("failed"))]
    header = ["network", "finding", "how sure", "what to try"]
    measured = [
        Fold(f"Numbers: {n.name}", [(key, "–" if value is None else f"{value:.4g}") for key, value in numbers.items()])
        for n in networks
        if (numbers := n.portrait.get("numbers"))
    ]
    found = [Table(header, rows, words=True)] if rows else []
    return Section("Why it remembers or forgets", failed, found, folds=measured)


def attention(networks: Sequence[Measurements]) -> Section:
    """Return the section on attention: how far back each stacked layer (level) attends, after and during training."""
    section = Section("What it attends to")
    levels = charts.attention_levels(networks)
    if levels:
        header = ["network", "steps back, on average", "attention to states kept as relevant", "kept at the end"]
        rows = [attention_row(name, level) for name, _, level in levels]
        section.tables.append(Table(header, rows, words=True))
        section.charts = charts.attention_maps(networks) + charts.attention_curves(networks)
    return section


def attention_row(name: str, level: dict[str, Any]) -> list[str]:
    """Return the cells of a level, one of stacked layers, in the table of attention.

    They are the name, the mean reach in steps, the share on states kept as relevant, and those kept at the end.
    """
    reach, share, kept = level["reach"], level["share_of_kept"], ", ".join(map(str, level["kept_at_end"]))
    return [
        name,
        "–" if reach is None else f"{reach:.3g}",
        "–" if share is None else f"{100 * share:.3g} %",
        kept or "–",
    ]


def relations(networks: Sequence[Measurements]) -> Section:
    """Return the section with tables of how networks relate the objects of one unseen problem, pair by pair."""
    section = Section("How it relates objects")
    for network in networks:
        if found := network.portrait.get("similarity"):
            places = [str(place) for place in range(1, len(found["matrix"]) + 1)]
            rows = [[place, *map(relation, row)] for place, row in zip(places, found["matrix"], strict=True)]
            title = f"{network.name}: answers {found['answered']}, right is {found['answer']}"
            section.tables.append(Table(["object", *places], rows, title))
    if section.tables:
        section.texts.append(
            "The relation of every pair of objects, in a problem with shapes that are not in training."
        )
    return section


def relation(value: float | None) -> str:
    """Return a relation as text with two decimals. What rounds to 0 is left empty; None becomes "–"."""
    return "–" if value is None else f"{value:.2f}" if abs(value) >= 0.005 else ""
