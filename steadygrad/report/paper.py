"""A paper's table beside our numbers: as files in a folder, and as a section of a Markdown page.

A table is a list of rows, as `steadygrad.experiments.summary` returns them and ``table.json`` holds them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from steadygrad import files
from steadygrad.records import TableRow
from steadygrad.report import comparison_figures, figures, html, portrait_figures, tables
from steadygrad.report.runs import Run, find_all


def write_table(table: Sequence[TableRow], folder: Path, version: str) -> list[str]:
    """Write a paper's table, with our numbers, to ``folder`` and return the names of the files.

    The files are table.md, table.json and, if a run in ``folder`` has a result, curves.png, report.html and the figures
    that the table asks for. ``version`` is printed on the page.
    """
    contents = {"table.md": tables.paper_table(table), files.TABLE: files.json_text(table, indent=1) + "\n"}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        files.write(folder / name, content)
    if not any("score" in run for row in table for run in row["runs"]):
        return list(contents)
    found, title = find_all([folder]), table_name(table[0])
    curves = figures.curves(found.runs, folder / "curves.png", table[0]["caption"])
    html.write(html.report_page(found, version, title), folder / "report.html")
    drawn = draw_figures(found.runs, table[0]["figures"], lambda name: folder / f"{name}.png", title)
    return [*contents, curves.name, "report.html", *(path.name for path in drawn)]


def draw_figures(runs: Sequence[Run], kinds: Sequence[str], path: Callable[[str], Path], title: str) -> list[Path]:
    """Draw the figures of these kinds from runs, each into the file ``path(name)``, and return the files.

    A figure of all rows is named after its kind. A figure of one row is drawn from the row's first seed and named
    ROW-KIND.
    """
    written: list[Path] = []
    norms = comparison_figures.loss_gradients(runs) if {"attention", "gradients"} & set(kinds) else {}
    if len(norms) > 1:
        along = f"{title}: gradients along time"
        written.append(comparison_figures.gradients_along_time(norms, path("gradients"), along))
    if "held-out" in kinds and (results := comparison_figures.held_out_results(runs)):
        written.append(comparison_figures.held_out_accuracy(results, path("held-out"), title))
    first_seeds = {run.path.parent.name: run for run in reversed(runs)} if kinds else {}
    for row, run in sorted(first_seeds.items()):
        stem = path(row)
        written += portrait_figures.draw_run(run, row, stem.with_suffix(""), stem.suffix[1:], kinds)
    return written


def table_name(row: TableRow) -> str:
    """Return the name of the table that a row belongs to: PAPER/TABLE."""
    return f"{row['paper']}/{row['table']}"


def table_section(table: Sequence[TableRow], title: str, texts: Sequence[str], images: dict[str, str]) -> str:
    """Return a paper's table as a section of a Markdown page, with the paper's title, texts and images.

    ``images`` are files by description.
    """
    pictures = [f"![{description}]({file})\n" for description, file in images.items()]
    return "\n".join([f"## {table_name(table[0])}\n", f"*{title}*\n", tables.paper_table(table), *texts, *pictures])
