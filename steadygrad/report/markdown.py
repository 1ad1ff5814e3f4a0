"""One Markdown page about runs: a table and a PNG with curves for each task."""

from itertools import groupby
from pathlib import Path

from steadygrad import files
from steadygrad.report import figures, tables
from steadygrad.report.runs import Found


def write(found: Found, target: Path, title: str = "Runs") -> None:
    """Write a Markdown page to ``target``: for each task a table of its runs and curves, as a PNG beside the page.

    Files that could not be read are listed first.
    """
    problems = [f"- {tables.escaped(problem)}" for problem in found.problems]
    parts = ["## Problems\n", *problems, ""] if problems else []
    for task, group in groupby(sorted(found.runs, key=lambda run: run.task), key=lambda run: run.task):
        same = list(group)
        picture = figures.curves(same, target.with_name(f"{target.stem}-{files.file_name(task)}.png"), task)
        parts += [f"## {task}\n", tables.markdown(*tables.runs_header_and_rows(same)), f"\n![{task}]({picture.name})\n"]
        parts += [f"{title}:\n\n{tables.markdown(header, rows)}\n" for title, header, rows in tables.score_tables(same)]
    files.write(target, f"# {title}\n\n" + "\n".join(parts))
