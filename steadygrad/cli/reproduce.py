"""Run rows of a paper and compare our numbers with the published ones.

    steadygrad reproduce nnrnn-2019/copy --seeds 3
    steadygrad reproduce 'ncgru-2022/adding/*-200' --scale paper
    steadygrad reproduce enrnn-2020 --scale smoke                 takes seconds, checks only that it runs
    steadygrad reproduce all --missing --hours 8 --jobs 2 --nice  the queue: rows without a result, cheapest first

Scales: paper uses the settings of the paper. desk is reduced to about 20 minutes per row on two cores, and the changes
are printed. smoke takes seconds. Finished runs are not repeated, and failed runs are tried again. After a stop the same
command resumes. Two such commands at the same time share the work. A table shows all of its rows and seeds in the same
folder whose runs ended at this scale.

--missing runs only rows and seeds without a result, each in its own process with one thread. A result is a finished run
in --out, or one under results/ in the source tree. Estimates are printed first; --dry-run ends there. Runs of up to 2
core-hours come first and runs of up to 6 core-hours last. Longer runs are only listed. The queue stops after --hours or
on Ctrl-C, and it may be killed. The same command resumes it.
"""

import argparse
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadygrad.catalog import papers
from steadygrad.cli import known
from steadygrad.cli.common import add_threads, check_folder, fail, printable, say, set_threads, show_table
from steadygrad.records import TableRow, TableRun

if TYPE_CHECKING:
    from steadygrad.experiments import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad reproduce` to its parser."""
    parser.add_argument("rows", metavar="PAPER[/TABLE[/ROW]]", help="or all; TABLE and ROW may have * and ?")
    parser.add_argument("--scale", default="desk", choices=("smoke", "desk", "paper"))
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each row (default 1)")
    parser.add_argument("--out", metavar="DIR", help="default: runs/SCALE")
    add_threads(parser)
    queue = parser.add_argument_group("the queue")
    queue.add_argument("--missing", action="store_true", help="run rows and seeds without a result, cheapest first")
    queue.add_argument("--hours", type=float, metavar="H", help="stop after H hours (default: when all is done)")
    queue.add_argument("--hours-per-run", type=float, metavar="H", help="leave out longer runs (default 6 core-hours)")
    queue.add_argument("--jobs", type=int, metavar="N", help="runs at once (default 1)")
    queue.add_argument("--nice", action="store_true", help="run at the lowest priority (nice 19)")
    queue.add_argument("--results", metavar="DIR", help="stored results that count (default: those of the source tree)")
    queue.add_argument("--dry-run", action="store_true", help="print the estimates and run nothing")


QUEUE = ("hours", "hours_per_run", "jobs", "nice", "results", "dry_run")


def run(options: argparse.Namespace) -> int:
    """Train rows of papers, print and write tables of our numbers beside the published ones, and return the exit code.

    With --missing, run the queue instead.
    """
    known.settings(options, {})
    papers.select(options.rows)  # raises an error before the import of torch
    given = {name: value for name in QUEUE if (value := getattr(options, name)) is not None and value is not False}
    if given and not options.missing:
        raise ValueError(f"--{next(iter(given)).replace('_', '-')} expects --missing; add --missing to use the queue")
    if options.missing and options.threads is not None:
        raise ValueError("--missing gives each run one thread; got --threads: use --jobs N to use N cores")
    from steadygrad.experiments import reproduce, select

    set_threads(options)
    recipes = select(options.rows)
    out = Path(options.out or f"runs/{options.scale}")
    check_folder(out)
    if options.missing:
        return run_queue(recipes, options.scale, options.seeds, out, given)
    rows = reproduce(recipes, scale=options.scale, seeds=options.seeds, out=out, callbacks=follow)
    failed = False
    for _, group in groupby(rows, key=lambda row: (row["paper"], row["table"])):
        found = list(group)
        show(found, out)
        failed |= any(has_failed(one) for row in found for one in row["runs"])
    return fail("some rows failed, see above", 1) if failed else 0


def run_queue(recipes: list["Recipe"], scale: str, seeds: int, out: Path, given: dict[str, Any]) -> int:
    """Train the rows and seeds without a result, print progress, and return the exit code: 1 if a run failed, else 0.

    ``given`` holds the queue's options, such as hours and jobs.
    """
    from steadygrad.cli.queue import ShowQueue
    from steadygrad.experiments import run_missing

    listener = ShowQueue()
    try:
        runs = run_missing(recipes, scale=scale, seeds=seeds, out=out, listener=listener, **given)
    finally:
        listener.clear()
    return fail("some runs failed, see above", 1) if any(run.status == "failed" for run in runs) else 0


def has_failed(one: TableRun) -> bool:
    """Return whether a run in a paper's table, or one of its transfer tests, failed."""
    return one["status"] == "failed" or any("why" in test for test in one["transfer"])


def follow(recipe: "Recipe", seed: int) -> list:
    """Return the callbacks for one training run (a recipe with a seed): a progress display and an Observer."""
    from steadygrad.experiments import Observer
    from steadygrad.training import ShowProgress

    return [ShowProgress(printable(f"{recipe.table}/{recipe.row} seed {seed}")), Observer()]


def show(rows: list[TableRow], out: Path) -> None:
    """Print a paper's table with our numbers, and write it with curves and a report page to its folder under ``out``.

    The table has ``rows``, and its other rows and seeds that ended at this scale.
    """
    import steadygrad
    from steadygrad.experiments import load
    from steadygrad.experiments.reproduce import whole_table
    from steadygrad.report import paper, tables

    first = rows[0]
    table = whole_table(rows, load(first["paper"]).rows(first["table"]), first["scale"], out)
    show_table(f"{paper.table_name(first)}: {first['caption']}", *tables.paper_header_and_rows(table))
    say(tables.evaluation_note(table))
    header, tests = tables.transfer_header_and_rows(table)
    if tests:
        show_table("The same weights on other settings", header, tests)
    for trouble in tables.troubles(table):
        say(trouble)
    folder = out / first["paper"] / first["table"]
    written = paper.write_table(table, folder, steadygrad.__version__)
    say(f"{', '.join(written)} in {folder}")
