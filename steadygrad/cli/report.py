"""Compare runs: as one HTML page, or as tables in markdown with curves in PNG.

steadygrad report runs/demo -o demo.html              one page that opens offline
steadygrad report runs/demo -o demo.md                demo.md and demo-copy.png
steadygrad report runs/demo --figures figures         every figure in paper quality, as SVG
steadygrad report runs/a runs/b                       only prints the table
"""

import argparse
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from steadygrad import files
from steadygrad.cli.common import check_target, dotted, say, show_table

if TYPE_CHECKING:
    from steadygrad.report.runs import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="DIR", help="run directories, or folders that hold some")
    parser.add_argument("-o", "--output", metavar="FILE.html|.md", help="without it the table is only printed")
    parser.add_argument("--title", help="of the page (default: the first folder's name)")
    parser.add_argument("--figures", metavar="DIR", help="also draw every figure into this folder")
    parser.add_argument("--format", default="svg", choices=("svg", "png", "pdf"), help="of the figures (default svg)")


def run(options: argparse.Namespace) -> int:
    dotted(options.rest, ())
    from steadygrad.report import runs, tables

    writers = {".html": write_page, ".md": write_markdown}
    target = Path(options.output) if options.output else None
    check_target("report", options.output, list(writers))
    found = sorted(runs.find(options.folders), key=lambda run: run.task)
    for task, group in groupby(found, key=lambda run: run.task):
        show_table(task, *tables.runs_header_and_rows(list(group)))
    if target:
        writers[target.suffix](found, target, options)
        say(f"written to {target}")
    if options.figures:
        from steadygrad.report import portraits

        written = portraits.draw_all(found, Path(options.figures), options.format)
        say(f"{len(written)} figures in {options.figures}")
    return 0


def write_page(found: "list[Run]", target: Path, options: argparse.Namespace) -> None:
    """Write all runs, and the tables of papers in the folders, as one HTML page."""
    import steadygrad
    from steadygrad.report import html, runs

    title = options.title or f"Runs: {Path(options.folders[0]).resolve().name}"
    page = html.report_page(found, runs.find_papers(options.folders), steadygrad.__version__, title)
    html.write(page, target)


def write_markdown(found: "list[Run]", target: Path, options: argparse.Namespace) -> None:
    """Write a table and a PNG with curves for each task."""
    from steadygrad.report import figures, tables

    parts = []
    for task, group in groupby(found, key=lambda run: run.task):
        same = list(group)
        picture = figures.curves(same, target.with_name(f"{target.stem}-{task}.png"), task)
        parts += [f"## {task}\n", tables.markdown(*tables.runs_header_and_rows(same)), f"\n![{task}]({picture.name})\n"]
    files.write(target, f"# {options.title or 'Runs'}\n\n" + "\n".join(parts))
