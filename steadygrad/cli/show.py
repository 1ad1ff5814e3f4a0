"""List layers, tasks and papers, or describe one of them.

steadygrad show                     everything, one line each
steadygrad show nnrnn               a layer: its equation and options
steadygrad show copy                a task: an example and its options
steadygrad show rmts --picture rmts.png [--task.KEY V]    problems of a task of objects
steadygrad show corelnet            a network that relates objects
steadygrad show nnrnn-2019          a paper: its tables, row by row
steadygrad show nnrnn-2019 --bibtex
steadygrad show kernels             which implementation runs here, and why
"""

import argparse
import inspect
from collections import defaultdict
from dataclasses import fields
from typing import Any

from steadygrad.cli.common import dotted, say, show_table

PROBLEMS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad show` to its parser."""
    parser.add_argument("name", nargs="?", help="a layer, a network, a task, a paper, or kernels")
    parser.add_argument("--bibtex", action="store_true", help="print the BibTeX entry of a paper or layer")
    parser.add_argument("--picture", metavar="FILE", help="draw problems of a task of objects: .png, .svg or .pdf")


def run(options: argparse.Namespace) -> int:
    """Print an overview, or describe one layer, network, task or paper, the training settings or kernels. Return 0.

    --bibtex prints a BibTeX entry; --picture draws problems to a file.
    """
    given = dotted(options.rest, ("task",) if options.picture else ())
    from steadygrad import experiments, kernels
    from steadygrad.layers import LAYERS
    from steadygrad.models import MODELS
    from steadygrad.tasks import TASKS
    from steadygrad.training import Train

    name = options.name
    if options.bibtex:
        say(experiments.bibtex(name))
    elif options.picture:
        draw_task(name, given.get("task", {}), options.picture)
    elif name is None:
        overview()
    elif name == "kernels":
        say(kernels.describe())
    elif name == "train":
        show_table("", ["option", "default"], [[f"--train.{f.name}", str(f.default)] for f in fields(Train)], 9)
    elif name in LAYERS or name in MODELS:
        describe_networks(name)
    elif name in TASKS:
        describe_task(name)
    elif name in experiments.names():
        describe_paper(name)
    else:
        known = [*dict.fromkeys([*LAYERS, *MODELS]), *TASKS, *experiments.names(), "kernels", "train"]
        raise ValueError(f"nothing is called {name!r}; known: {', '.join(known)}")
    return 0


def overview() -> None:
    """Print one line for each layer, relational network, task and paper, then which kernels run here."""
    from steadygrad import experiments, kernels
    from steadygrad.layers import LAYERS
    from steadygrad.models import MODELS
    from steadygrad.tasks import TASKS

    show_table("layers", ["name", "equation"], [[name, first_line(layer)] for name, layer in LAYERS.items()], 9)
    say("")
    show_table("relational networks", ["name", "equation"], [[n, first_line(model)] for n, model in MODELS.items()], 9)
    say("")
    show_table("tasks", ["name", "description"], [[name, first_line(task)] for name, task in TASKS.items()], 9)
    say("")
    papers = [experiments.load(name) for name in experiments.names()]
    rows = [[p.name, p.title, ", ".join(dict.fromkeys(r.table for r in p.recipes))] for p in papers]
    show_table("papers", ["name", "title", "tables"], rows, 9)
    say("")
    say(kernels.describe())


def first_line(thing: object) -> str:
    """Return the first line of the docstring of a layer, model or task."""
    return (thing.__doc__ or "").strip().splitlines()[0].replace("``", "")


def describe_networks(name: str) -> None:
    """Print the docstring and options of the layer of this name, of the relational network of this name, or of both."""
    from steadygrad.layers import LAYERS
    from steadygrad.models import MODELS
    from steadygrad.training.typed import keyword_options, layer_options

    layer, model = LAYERS.get(name), MODELS.get(name)
    if layer:
        say(f"{name}: steadygrad.layers.{layer.__name__}\n")
        describe(layer, layer_options(layer))
    if model:
        say(f"{chr(10) if layer else ''}{name} among objects: steadygrad.models.relational.{model.__name__}\n")
        describe(model, keyword_options(model))


def describe(network: object, options: dict[str, inspect.Parameter]) -> None:
    """Print the docstring and the options, with their defaults, of a layer or model."""
    say(inspect.cleandoc(network.__doc__ or "") + "\n")
    rows = [
        [f"--layer.{key}", "required" if option.default is inspect.Parameter.empty else str(option.default)]
        for key, option in options.items()
    ]
    show_table("", ["option", "default"], rows, 9)


def describe_task(name: str) -> None:
    """Print the docstring, options and guessing loss of a task, and the model that surrounds a layer on this task."""
    from steadygrad.tasks import TASKS
    from steadygrad.training.kinds import kind_of
    from steadygrad.training.typed import keyword_options

    task = TASKS[name]
    say(f"{name}: steadygrad.tasks.{task.__name__}\n")
    say("\n\n".join([inspect.cleandoc(task.__doc__ or ""), *inherited_notes(task)]) + "\n")
    show_table("", ["option", "default"], [[f"--task.{f.name}", str(f.default)] for f in fields(task)], 9)
    around = kind_of(name).model
    say(f"\nA layer that is trained on it is part of a {around.__name__}:\n")
    describe(around, keyword_options(around))
    try:
        say(f"\nguessing has a loss of {task().guessing_loss:.4g}")
    except ValueError as error:  # the guessing loss depends on data that are missing
        say(f"\n{error}")


def draw_task(name: str | None, given: dict[str, Any], target: str) -> None:
    """Draw example problems of a task of objects, each above its answer, to the image file ``target``.

    ``given`` are options of the task. Raise ValueError for another kind of task.
    """
    from torch import Generator

    from steadygrad.report.problem_figures import Problem, draw_problems
    from steadygrad.tasks import TASKS, ObjectTask
    from steadygrad.training.typed import build

    tasks = {key: task for key, task in TASKS.items() if issubclass(task, ObjectTask)}
    if name not in tasks:
        raise ValueError(f"--picture expects a task of objects, out of {', '.join(tasks)}; got {name or 'no name'}")
    task, generator = build(tasks[name], given, f"task {name}"), Generator().manual_seed(0)
    examples = [task.example(generator) for _ in range(PROBLEMS)]
    draw_problems([Problem(picture, f"answer {answer}") for picture, answer in examples], target)
    say(f"written to {target}")


def inherited_notes(task: type) -> list[str]:
    """Return the paragraphs on options in the docstrings of a task's base classes, as a list of strings."""
    texts = [inspect.cleandoc(base.__doc__ or "") for base in task.__mro__[1:]]
    paragraphs = [part for text in texts if text.startswith("Base class") for part in text.split("\n\n")]
    return [part for part in paragraphs if part.startswith("``")]


def describe_paper(name: str) -> None:
    """Print the title and source of a paper, and its tables row by row with the published numbers."""
    from steadygrad import experiments

    paper = experiments.load(name)
    say(paper.title)
    for line in ("{authors}, {venue} {year}", "{url}"):
        say(line.format_map(defaultdict(str, paper.header)))
    for number, recipe in enumerate(paper.recipes):
        if number == 0 or recipe.table != paper.recipes[number - 1].table:
            say(f"\n{name}/{recipe.table}: {recipe.caption}")
        published = ", ".join(f"{key} {value:g}" for key, value in recipe.published.items())
        say(f"  {recipe.row:14} {published}".rstrip())
