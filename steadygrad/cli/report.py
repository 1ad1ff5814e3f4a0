"""Put runs side by side: a table and curves, as markdown and PNG.

steadygrad report runs/demo -o demo.md        writes demo.md and demo-copy.png
steadygrad report runs/a runs/b
"""

import argparse
from itertools import groupby
from pathlib import Path

from steadygrad.cli.common import dotted, say, show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="DIR", help="run directories, or folders that hold some")
    parser.add_argument("-o", "--output", metavar="FILE.md", help="without it the table is only printed")


def run(options: argparse.Namespace) -> int:
    dotted(options.rest, ())
    from steadygrad.report import figures, runs, tables

    if options.output and not options.output.endswith(".md"):
        raise ValueError(f"report expects -o FILE.md; got {options.output}")
    found = sorted(runs.find(options.folders), key=lambda run: run.task)
    parts = []
    for task, group in groupby(found, key=lambda run: run.task):
        same = list(group)
        header, rows = tables.runs_header_and_rows(same)
        show_table(task, header, rows)
        if options.output:
            target = Path(options.output)
            picture = target.with_name(f"{target.stem}-{task}.png")
            figures.curves(same, picture, task)
            parts += [f"## {task}\n", tables.markdown(header, rows), f"\n![{task}]({picture.name})\n"]
    if options.output:
        target.write_text("# Runs\n\n" + "\n".join(parts), "utf-8")
        say(f"written to {target}")
    return 0
