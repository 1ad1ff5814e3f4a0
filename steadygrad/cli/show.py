"""List layers, tasks and papers, or describe one of them.

steadygrad show                     everything, one line each
steadygrad show nnrnn               a layer: its equation and options
steadygrad show copy                a task: an example and its options
steadygrad show copy --guessing [--task.KEY V]            the loss of guessing, with these settings
steadygrad show rmts --picture rmts.png [--task.KEY V]    problems of a task of objects
steadygrad show corelnet            a network that relates objects
steadygrad show nnrnn-2019          a paper: its tables, row by row
steadygrad show nnrnn-2019 --bibtex
steadygrad show train               the settings of training
steadygrad show kernels             which implementation runs here, and why
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

from steadygrad.catalog import networks, papers
from steadygrad.catalog.source import Class, Option
from steadygrad.check import check_name, did_you_mean
from steadygrad.cli import known
from steadygrad.cli.common import say, show_table

PROBLEMS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad show` to its parser."""
    parser.add_argument("name", nargs="?", help="a layer, a network, a task, a paper, train or kernels")
    parser.add_argument("--bibtex", action="store_true", help="print the BibTeX entry of a paper or layer")
    parser.add_argument("--guessing", action="store_true", help="print the loss of guessing on a task")
    parser.add_argument("--picture", metavar="FILE", help="draw problems of a task of objects: .png, .svg or .pdf")


def run(options: argparse.Namespace) -> int:
    """Print an overview, or describe one layer, network, task or paper, the training settings or kernels. Return 0.

    --bibtex prints a BibTeX entry, --guessing the loss of guessing; --picture draws problems to a file. Only kernels
    and the last two import torch.
    """
    name, tasks = options.name, networks.tasks()
    keys = networks.task_options(name) if name in tasks else None
    given = known.settings(options, {"task": keys} if options.picture or options.guessing else {}).get("task", {})
    if options.bibtex:
        say(papers.bibtex(name))
    elif options.picture:
        objects = [task for task in tasks if networks.kind_of(task)[1]]
        if name not in objects:
            got = f"{name or 'no name'}{did_you_mean(name, objects)}"
            raise ValueError(f"--picture expects a task of objects, out of {', '.join(objects)}; got {got}")
        draw_task(name, given, options.picture)
    elif options.guessing:
        say(guessing(check_name("task", name, tasks), given))
    elif name is None:
        overview()
    elif name == "kernels":
        from steadygrad import kernels

        say(kernels.describe())
    elif name == "train":
        show_options("train", networks.train_options())
    elif name in networks.layers() or name in networks.networks():
        describe_networks(name)
    elif name in tasks:
        describe_task(name)
    elif name in papers.names():
        describe_paper(name)
    else:
        names = [*dict.fromkeys([*networks.layers(), *networks.networks()]), *tasks, *papers.names()]
        names += ["kernels", "train"]
        raise ValueError(f"nothing is called {name!r}; known: {', '.join(names)}{did_you_mean(name, names)}")
    return 0


def overview() -> None:
    """Print one line for each layer, relational network, task and paper."""
    for title, column, classes in (
        ("layers", "equation", networks.layers()),
        ("relational networks", "equation", networks.networks()),
        ("tasks", "description", networks.tasks()),
    ):
        show_table(title, ["name", column], [[name, cls.first_line] for name, cls in classes.items()], 9)
        say("")
    found = {name: papers.load(name) for name in papers.names()}
    rows = [[name, str(paper.header.get("title", name)), ", ".join(paper.tables)] for name, paper in found.items()]
    show_table("papers", ["name", "title", "tables"], rows, 9)
    say(
        "\nsteadygrad show NAME describes one of them, show train the settings of training, show kernels what runs here"
    )


def show_options(table: str, options: Mapping[str, Option]) -> None:
    """Print options as dotted settings of a table, with their defaults and, where there are any, descriptions."""
    rows = [
        [f"--{table}.{key}", "required" if option.default is None else option.default, option.description]
        for key, option in options.items()
    ]
    columns = ["option", "default", *(["description"] if any(row[2] for row in rows) else [])]
    show_table("", columns, [row[: len(columns)] for row in rows], 9)


def describe_networks(name: str) -> None:
    """Print the docstring and options of the layer of this name, of the relational network of this name, or of both."""
    layer, network = networks.layers().get(name), networks.networks().get(name)
    if layer:
        say(f"{name}: steadygrad.layers.{layer.name}\n\n{layer.doc}\n")
        show_options("layer", networks.layer_options(name))
    if network:
        above = "\n" if layer else ""
        say(f"{above}{name} among objects: steadygrad.models.relational.{network.name}\n\n{network.doc}\n")
        show_options("layer", networks.network_options(name))
    say(f"\nnext: steadygrad train {name} {'copy' if layer else 'same-different'}")


def describe_task(name: str) -> None:
    """Print the docstring and options of a task, and the model that surrounds a layer on this task."""
    task, (around, _) = networks.tasks()[name], networks.kind_of(name)
    say(f"{name}: steadygrad.tasks.{task.name}\n")
    say("\n\n".join([task.doc, *inherited_notes(task)]) + "\n")
    show_options("task", networks.task_options(name))
    say(f"\nA layer that is trained on it is part of a {around.name}:\n\n{around.doc}\n")
    show_options("layer", networks.model_options(name))
    say(f"\nnext: steadygrad train nnrnn {name}, or steadygrad show {name} --guessing for the loss of guessing")


def guessing(name: str, given: dict[str, Any]) -> str:
    """Return a line of text with the loss of guessing on a task with the options ``given``.

    Raise ValueError if an option is wrong or if the task's data are missing.
    """
    from steadygrad.tasks import TASKS
    from steadygrad.training.typed import build

    return f"guessing has a loss of {build(TASKS[name], given, f'task {name}').guessing_loss:.4g}"


def draw_task(name: str, given: dict[str, Any], target: str) -> None:
    """Draw example problems of a task of objects, each above its answer, to the image file ``target``.

    ``given`` are options of the task. Raise ValueError if one is wrong.
    """
    from torch import Generator

    from steadygrad.report.problem_figures import Problem, draw_problems
    from steadygrad.tasks import TASKS, ObjectTask
    from steadygrad.training.typed import build

    task, generator = cast(ObjectTask, build(TASKS[name], given, f"task {name}")), Generator().manual_seed(0)
    examples = [task.example(generator) for _ in range(PROBLEMS)]
    draw_problems([Problem(picture, f"answer {answer}") for picture, answer in examples], target)
    say(f"written to {target}")


def inherited_notes(task: Class) -> list[str]:
    """Return the paragraphs on options in the docstrings of a task's base classes, as a list of strings."""
    texts = [base.doc for base in task.lineage[1:]]
    paragraphs = [part for text in texts if text.startswith("Base class") for part in text.split("\n\n")]
    return [part for part in paragraphs if part.startswith("``")]


def describe_paper(name: str) -> None:
    """Print the title and source of a paper, and its tables row by row with the published numbers."""
    header, tables = papers.load(name)
    say(str(header.get("title", name)))
    for line in ("{authors}, {venue} {year}", "{url}"):
        say(line.format_map(defaultdict(str, header)))
    for table, content in tables.items():
        say(f"\n{name}/{table}: {content.caption}")
        for row in content.rows:
            published = ", ".join(f"{key} {float(value):g}" for key, value in content.published(row).items())
            say(f"  {row:14} {published}".rstrip())
    say(f"\nnext: steadygrad reproduce {name}/{next(iter(tables))}")
