"""List layers, tasks and papers, or say what one of them is.

steadygrad show                     everything by name
steadygrad show nnrnn               a layer: its equation and options
steadygrad show copy                a task: one example drawn, its options
steadygrad show nnrnn-2019          a paper: its tables, row by row
steadygrad show nnrnn-2019 --bibtex
steadygrad show kernels             which implementation runs here, and why
"""

import argparse
import inspect
from collections import defaultdict
from dataclasses import fields

from steadygrad.cli.common import console, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a layer, a task, a paper, or kernels")
    parser.add_argument("--bibtex", action="store_true", help="how to cite the paper")


def run(options: argparse.Namespace) -> int:
    from steadygrad import experiments, kernels
    from steadygrad.cli.common import dotted
    from steadygrad.layers import LAYERS
    from steadygrad.tasks import TASKS
    from steadygrad.training import Train

    dotted(options.rest, ())
    out, name = console(), options.name
    if name is None:
        overview()
    elif name == "kernels":
        out.print(kernels.describe())
    elif name == "train":
        out.print(table("train", ["key", "default"], [[f.name, str(f.default)] for f in fields(Train)], 9))
    elif name in LAYERS:
        describe_layer(name)
    elif name in TASKS:
        task = TASKS[name]
        out.print(f"[bold]{name}[/]")
        out.print(inspect.cleandoc(task.__doc__ or ""), highlight=False, markup=False)
        out.print()
        out.print(table("", ["option", "default"], [[f"--task.{f.name}", str(f.default)] for f in fields(task)], 9))
        out.print(f"guessing scores a loss of {task().guessing_loss:.4g}", highlight=False)
    elif name in experiments.names():
        describe_paper(name, options.bibtex)
    else:
        known = [*LAYERS, *TASKS, *experiments.names(), "kernels", "train"]
        raise ValueError(f"nothing is called {name!r}; known: {', '.join(known)}")
    return 0


def overview() -> None:
    from steadygrad import experiments, kernels
    from steadygrad.layers import LAYERS
    from steadygrad.tasks import TASKS

    out = console()
    out.print(table("layers", ["name", "equation"], [[name, first_line(layer)] for name, layer in LAYERS.items()], 9))
    out.print()
    out.print(table("tasks", ["name", "what"], [[name, first_line(task)] for name, task in TASKS.items()], 9))
    out.print()
    papers = [experiments.load(name) for name in experiments.names()]
    rows = [[p.name, p.title, ", ".join(dict.fromkeys(r.table for r in p.recipes))] for p in papers]
    out.print(table("papers", ["name", "title", "tables"], rows, 9))
    out.print()
    out.print(kernels.describe(), highlight=False)


def first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def describe_layer(name: str) -> None:
    from steadygrad.layers import LAYERS
    from steadygrad.training.settings import layer_options

    out, layer = console(), LAYERS[name]
    out.print(f"[bold]{name}[/]  steadygrad.layers.{layer.__name__}", highlight=False)
    out.print(inspect.cleandoc(layer.__doc__ or ""), highlight=False, markup=False)
    out.print()
    rows = [
        [f"--layer.{key}", "needed" if option.default is inspect.Parameter.empty else str(option.default)]
        for key, option in layer_options(layer).items()
    ]
    out.print(table("", ["option", "default"], rows, 9))


def describe_paper(name: str, bibtex: bool) -> None:
    from steadygrad import experiments

    out, paper = console(), experiments.load(name)
    if bibtex:
        if not paper.header.get("bibtex"):
            raise ValueError(f"{name} has no bibtex entry")
        out.print(paper.header["bibtex"].strip(), highlight=False, markup=False, soft_wrap=True)
        return
    out.print(f"[bold]{paper.title}[/]", highlight=False)
    for line in ("{authors}, {venue} {year}", "{url}"):
        out.print(line.format_map(defaultdict(str, paper.header)), highlight=False)
    for number, recipe in enumerate(paper.recipes):
        if number == 0 or recipe.table != paper.recipes[number - 1].table:
            out.print(f"\n[bold]{name}/{recipe.table}[/]  {recipe.caption}", highlight=False)
        published = ", ".join(f"{key} {value:g}" for key, value in recipe.published.items())
        missing = f"needs {recipe.missing}, not built yet" if recipe.missing else ""
        out.print(f"  {recipe.row:14} {published:20} {missing}".rstrip(), highlight=False)
