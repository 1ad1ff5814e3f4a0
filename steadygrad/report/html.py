"""One HTML page about runs. It is self-contained, works offline and responds to mouse and keyboard."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template, select_autoescape
from markupsafe import Markup

from steadygrad import files, records
from steadygrad.report import tables
from steadygrad.report.charts import Chart, Measurements, curve, lines
from steadygrad.report.runs import Found, PaperTable, Run, group_of, labels, printable
from steadygrad.report.sections import Fold, Section, Table, network_sections

FOLDER = Path(__file__).parent / "page"
MEASURED = 8_000_000
"""largest number of characters of all networks' measurements on a page"""


def report_page(found: Found, version: str, title: str = "Runs") -> str:
    """Return an HTML page on runs: papers' numbers against ours, curves, measurements, and the settings of each run.

    Files that could not be read are listed first.
    """
    sections = [paper_section(found.papers)] if found.papers else []
    runs = in_order(found.runs, found.papers)
    names = dict(zip([run.path for run in runs], labels(runs), strict=True))
    colours: dict[str, int] = {}
    for run in runs:
        colours.setdefault(group_of(names[run.path]), len(colours))
    for task, group in groupby(runs, key=lambda run: run.task):
        same = list(group)
        own = [names[run.path] for run in same]
        shown_tables = [Table(*tables.runs_header_and_rows(same, own))]
        shown_tables += [Table(header, rows, title) for title, header, rows in tables.score_tables(same, own)]
        sections.append(Section(f"Runs: {task}", tables=shown_tables, charts=list(run_curves(same, names, colours))))
    networks = [
        Measurements(name, colours[name], run.portrait or {}, run.observations, run.curve("neumann_norm"))
        for name, run in first_of_each(runs, names).items()
        if run.portrait or run.observations
    ]
    shown = small_enough(networks)
    sections += network_sections(shown)
    problems = found.problems + left_out([network.name for network in networks[len(shown) :]])
    sections[:0] = [Section("Problems", problems)] if problems else []
    sections.append(Section("Settings and versions", folds=[settings(run, names[run.path]) for run in runs]))
    return render(title, sections, version)


def small_enough(networks: Sequence[Measurements]) -> list[Measurements]:
    """Return the first networks, as many as have at most `MEASURED` characters of measurements together."""
    sizes = accumulate(len(json.dumps([network.portrait, network.observations])) for network in networks)
    return [network for network, size in zip(networks, sizes, strict=True) if size <= MEASURED]


def left_out(names: Sequence[str]) -> list[str]:
    """Return a list with one line that names the networks whose measurements are not shown; empty if there are none."""
    more = f" and {len(names) - tables.FEW} more" if len(names) > tables.FEW else ""
    listed = ", ".join(names[: tables.FEW]) + more
    words = "Measurements are left out to keep the page small; a page of fewer runs shows them"
    return [f"{words}: {listed}."] if names else []


def write(page: str, target: Path) -> None:
    """Write the HTML page to the file ``target`` atomically. Create its folder if there is none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write(target, page)


def portrait_page(name: str, portrait: dict[str, Any], version: str) -> str:
    """Return an HTML page with the charts and findings of one network's measurements."""
    return render(f"Diagnosis: {name}", network_sections([Measurements(name, 0, portrait)]), version)


def render(title: str, sections: Sequence[Section], version: str) -> str:
    """Return an HTML page of these sections. Sections and charts are given ids in place."""
    charts: dict[str, Chart] = {}
    for number, section in enumerate(sections):
        section.id = f"part-{number}"
        for chart in section.charts:
            chart["id"] = f"chart-{len(charts)}"
            charts[chart["id"]] = chart
    return template().render(
        title=title,
        sections=sections,
        version=version,
        css=Markup((FOLDER / "page.css").read_text("utf-8")),
        js=Markup((FOLDER / "page.js").read_text("utf-8")),
        data=Markup(script_json(charts)),
        marks={"pass": "pass", "miss": "miss"},
    )


@cache  # to compile it takes longer than to fill in a small page
def template() -> Template:
    """Return the template of the page. It escapes every text."""
    return Environment(loader=FileSystemLoader(FOLDER), autoescape=select_autoescape()).get_template("page.html")


def script_json(value: Any) -> str:
    """Return JSON in which characters of markup are escaped, so that it is safe inside a script element.

    Raise ValueError if there is NaN or infinity in the value.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def in_order(runs: Sequence[Run], papers: Sequence[PaperTable]) -> list[Run]:
    """Return the runs sorted by task, and within a task in the order of the rows of the papers' tables."""
    rows = [paper.path.parent / row["row"] for paper in papers for row in paper.rows]
    places = {row: place for place, row in enumerate(rows)}
    return sorted(runs, key=lambda run: (run.task, places.get(run.path.parent, len(places))))


def first_of_each(runs: Sequence[Run], names: dict[Path, str]) -> dict[str, Run]:
    """Return one run for every group of runs that differ only in their seeds, by the name of the group.

    It is the first run with a portrait or, if there is none, the first with observations or, failing that, the first.
    """
    seen: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (run.portrait is None, not run.observations)):
        seen.setdefault(group_of(names[run.path]), run)
    return {group_of(names[run.path]): seen[group_of(names[run.path])] for run in runs}


# papers, curves, settings


def paper_section(papers: Sequence[PaperTable]) -> Section:
    """Return the section of the page with papers' tables, each with the tests on other settings below it."""
    section = Section("Published numbers and ours")
    for paper in papers:
        header, rows = tables.paper_header_and_rows(paper.rows)
        if any(row["published"] is not None for row in paper.rows):
            header = [*header, "verdict"]
            rows = [[*cells, tables.verdict(row)] for cells, row in zip(rows, paper.rows, strict=True)]
        first = paper.rows[0]
        title = f"{first['paper']}/{first['table']}: {first['caption']}"
        section.tables.append(Table(header, rows, title, tables.paper_notes(paper.rows)))
        header, rows = tables.transfer_header_and_rows(paper.rows)
        if rows:
            section.tables.append(Table(header, rows, f"{first['paper']}/{first['table']}: on other settings"))
    return section


def run_curves(runs: Sequence[Run], names: dict[Path, str], colours: dict[str, int]) -> Iterator[Chart]:
    """Yield line charts of runs against updates: the validation loss and, if it is another metric, the task's score."""
    score = runs[0].result["score"]
    for metric in ["loss"] if score in ("loss", "mse") else ["loss", score]:
        series = []
        for run in runs:
            found, name = run.curve(metric), names[run.path]
            if found.x:
                colour = colours[group_of(name)]
                series.append(curve(name, found.x, found.y, colour, measured=found.measured))
        loss = metric == "loss"
        guesses = sorted({run.result["guessing_loss"] for run in runs}) if loss else []
        if series:
            yield lines(
                f"Validation {metric}",
                series,
                "update",
                metric,
                log=loss,
                marks=[{"name": "guessing", "y": guess} for guess in guesses],
                bounds=[0, 1] if metric == "accuracy" else None,
            )


def settings(run: Run, name: str) -> Fold:
    """Return a collapsible list of the settings, versions and result of a run, with the command that repeats it."""
    result: Mapping[str, Any] = run.result
    tables = records.settings_tables(run.result)
    pairs = [(f"{table}.{key}", str(value)) for table, values in tables.items() for key, value in values.items()]
    known = ("seed", "steps", "parameters", "wall_seconds", "threads", "status", "why", "commit")
    pairs += [(key, str(result[key])) for key in known if key in result]
    pairs += [(f"version of {key}", str(value)) for key, value in result.get("versions", {}).items()]
    pairs.append(("directory", printable(run.path.as_posix())))
    pairs += [("problem", note) for note in run.notes]
    return Fold(name, pairs, run.command)
