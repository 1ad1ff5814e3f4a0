"""Compare runs: as one HTML page, or as Markdown tables with curves in PNG.

steadygrad report runs/demo -o demo.html              one page that opens offline
steadygrad report runs/demo -o demo.md                demo.md and demo-copy.png
steadygrad report runs/demo --figures figures         every figure for publications, as SVG
steadygrad report runs/a runs/b                       only prints the table
"""

import argparse
from itertools import groupby
from pathlib import Path
from shlex import join

from steadygrad.cli import known
from steadygrad.cli.common import check_target, say, show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad report` to its parser."""
    parser.add_argument("folders", nargs="+", metavar="DIR", help="run directories, or folders that contain them")
    parser.add_argument("-o", "--output", metavar="FILE.html|.md", help="page to write (default: only print the table)")
    parser.add_argument("--title", help="title of the page (default: the first folder's name)")
    parser.add_argument("--figures", metavar="DIR", help="also draw every figure into this folder")
    parser.add_argument("--format", default="svg", choices=("svg", "png", "pdf"), help="of the figures (default svg)")


def run(options: argparse.Namespace) -> int:
    """Print a table of the runs in the folders for each task and return 0. Options also write a page or figures."""
    known.settings(options, {})
    import steadygrad
    from steadygrad.report import html, runs, tables

    check_target("report", options.output, [".html", ".md"])
    found = runs.find_all(options.folders)
    for task, group in groupby(sorted(found.runs, key=lambda run: run.task), key=lambda run: run.task):
        same = list(group)
        show_table(task, *tables.runs_header_and_rows(same))
        for title, header, rows in tables.score_tables(same):
            show_table(f"{task}: {title.lower()}", header, rows)
    for problem in found.problems:
        say(f"problem: {problem}")
    if not options.output and not options.figures:
        say(f"next: steadygrad report {join(options.folders)} -o report.html writes a page with charts")
    if options.output:
        target = Path(options.output)
        if target.suffix == ".md":
            from steadygrad.report import markdown

            markdown.write(found, target, options.title or "Runs")
        else:
            title = options.title or f"Runs: {Path(options.folders[0]).resolve().name}"
            html.write(html.report_page(found, steadygrad.__version__, title), target)
        say(f"written to {target}")
    if options.figures:
        from steadygrad.report import portrait_figures

        written = portrait_figures.draw_all(found.runs, Path(options.figures), options.format)
        say(f"{len(written)} figures in {options.figures}")
    return 0
