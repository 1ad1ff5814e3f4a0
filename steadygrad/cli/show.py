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

from steadygrad.cli.common import dotted, say, show_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a layer, a task, a paper, or kernels")
    parser.add_argument("--bibtex", action="store_true", help="how to cite the paper, or the layer's paper")


def run(options: argparse.Namespace) -> int:
    dotted(options.rest, ())
    from steadygrad import experiments, kernels
    from steadygrad.layers import LAYERS
    from steadygrad.tasks import TASKS
    from steadygrad.training import Train

    name = options.name
    if options.bibtex:
        say(bibtex(name))
    elif name is None:
        overview()
    elif name == "kernels":
        say(kernels.describe())
    elif name == "train":
        show_table("", ["option", "default"], [[f"--train.{f.name}", str(f.default)] for f in fields(Train)], 9)
    elif name in LAYERS:
        describe_layer(name)
    elif name in TASKS:
        describe_task(name)
    elif name in experiments.names():
        describe_paper(name)
    else:
        known = [*LAYERS, *TASKS, *experiments.names(), "kernels", "train"]
        raise ValueError(f"nothing is called {name!r}; known: {', '.join(known)}")
    return 0


def bibtex(name: str | None) -> str:
    """Of the paper of this name, or of the one that brought the layer of this name."""
    from steadygrad import experiments

    for paper in map(experiments.load, experiments.names()):
        if name is not None and name in (paper.name, paper.name.rpartition("-")[0]) and "bibtex" in paper.header:
            return str(paper.header["bibtex"]).strip()
    raise ValueError(f"no bibtex entry for {name!r}; papers: {', '.join(experiments.names())}")


def overview() -> None:
    from steadygrad import experiments, kernels
    from steadygrad.layers import LAYERS
    from steadygrad.tasks import TASKS

    show_table("layers", ["name", "equation"], [[name, first_line(layer)] for name, layer in LAYERS.items()], 9)
    say("")
    show_table("tasks", ["name", "what"], [[name, first_line(task)] for name, task in TASKS.items()], 9)
    say("")
    papers = [experiments.load(name) for name in experiments.names()]
    rows = [[p.name, p.title, ", ".join(dict.fromkeys(r.table for r in p.recipes))] for p in papers]
    show_table("papers", ["name", "title", "tables"], rows, 9)
    say("")
    say(kernels.describe())


def first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0].replace("``", "")


def describe_layer(name: str) -> None:
    from steadygrad.layers import LAYERS
    from steadygrad.training.settings import layer_options

    layer = LAYERS[name]
    say(f"{name}: steadygrad.layers.{layer.__name__}\n")
    say(inspect.cleandoc(layer.__doc__ or "") + "\n")
    rows = [
        [f"--layer.{key}", "needed" if option.default is inspect.Parameter.empty else str(option.default)]
        for key, option in layer_options(layer).items()
    ]
    show_table("", ["option", "default"], rows, 9)


def describe_task(name: str) -> None:
    from steadygrad.tasks import TASKS

    task = TASKS[name]
    say(f"{name}: steadygrad.tasks.{task.__name__}\n")
    say(inspect.cleandoc(task.__doc__ or "") + "\n")
    show_table("", ["option", "default"], [[f"--task.{f.name}", str(f.default)] for f in fields(task)], 9)
    say(f"\nguessing has a loss of {task().guessing_loss:.4g}")


def describe_paper(name: str) -> None:
    from steadygrad import experiments

    paper = experiments.load(name)
    say(paper.title)
    for line in ("{authors}, {venue} {year}", "{url}"):
        say(line.format_map(defaultdict(str, paper.header)))
    for number, recipe in enumerate(paper.recipes):
        if number == 0 or recipe.table != paper.recipes[number - 1].table:
            say(f"\n{name}/{recipe.table}: {recipe.caption}")
        published = ", ".join(f"{key} {value:g}" for key, value in recipe.published.items())
        missing = f"needs {recipe.missing}, not built yet" if recipe.missing else ""
        say(f"  {recipe.row:14} {published:20} {missing}".rstrip())
