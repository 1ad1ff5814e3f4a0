"""Run a paper's rows and print our numbers beside theirs.

    steadygrad reproduce nnrnn-2019/copy --seeds 3
    steadygrad reproduce 'ncgru-2022/adding/*-200' --scale paper
    steadygrad reproduce enrnn-2020 --scale smoke                 seconds: only shows that it runs

Scales: paper = its own setting; desk = as far as two cores get in about 20 minutes a row, what differs is printed;
smoke = seconds. What is done is not done again; after a stop
the same command goes on. Two such commands at once share the work.
"""

import argparse
import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from steadygrad.cli.common import add_threads, dotted, fail, say, set_threads, show_table

if TYPE_CHECKING:
    from steadygrad.experiments import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rows", metavar="PAPER[/TABLE[/ROW]]", help="TABLE and ROW may have * and ?")
    parser.add_argument("--scale", default="desk", choices=("smoke", "desk", "paper"))
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each row (default 1)")
    parser.add_argument("--out", metavar="DIR", help="default: runs/SCALE")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    dotted(options.rest, ())
    from steadygrad.experiments import reproduce, select

    set_threads(options)
    recipes = select(options.rows)
    out = Path(options.out or f"runs/{options.scale}")
    rows = reproduce(recipes, scale=options.scale, seeds=options.seeds, out=out, watches=follow)
    failed = False
    for _, group in groupby(rows, key=lambda row: (row["paper"], row["table"])):
        found = list(group)
        show(found, out)
        failed |= any(one["status"] == "failed" for row in found for one in row["runs"])
    return fail("some rows failed, see above", 1) if failed else 0


def follow(recipe: "Recipe", seed: int) -> list:
    from steadygrad.experiments import Observer
    from steadygrad.training import ShowProgress

    return [ShowProgress(f"{recipe.table}/{recipe.row} seed {seed}"), Observer()]


def show(rows: list[dict], out: Path) -> None:
    """The table on the screen, and with its curves and a page in the folder of the table."""
    import steadygrad
    from steadygrad.report import figures, html, portraits, runs, tables

    first = rows[0]
    folder = out / first["paper"] / first["table"]
    folder.mkdir(parents=True, exist_ok=True)
    show_table(f"{first['paper']}/{first['table']}: {first['caption']}", *tables.paper_header_and_rows(rows))
    header, tests = tables.transfer_header_and_rows(rows)
    if tests:
        show_table("The same weights on other settings", header, tests)
    (folder / "table.md").write_text(tables.paper_table(rows), "utf-8")
    (folder / "table.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    for row in rows:
        for one in row["runs"]:
            if one.get("why"):
                say(f"{row['row']}, seed {one['seed']}: {one['status']}: {one['why']}")
    written = ["table.md", "table.json"]
    if any(one["status"] not in ("failed", "not run") for row in rows for one in row["runs"]):
        found = runs.find([folder])
        figures.curves(found, folder / "curves.png", first["caption"])
        title = f"{first['paper']}/{first['table']}"
        page = html.report_page(found, runs.find_papers([folder]), steadygrad.__version__, title)
        html.write(page, folder / "report.html")
        written += ["curves.png", "report.html"]
        drawn = portraits.draw_table(found, first["figures"], lambda name: folder / f"{name}.png", title)
        written += [path.name for path in drawn]
        first_seeds = {one.path.parent: one for one in reversed(found)} if first["figures"] else {}
        for stem, one in sorted(first_seeds.items()):
            written += [path.name for path in portraits.draw(one, stem.name, stem, "png", first["figures"])]
    say(f"{', '.join(written)} in {folder}")
