"""Test a trained run, also on other settings of its task (transfer test).

steadygrad evaluate runs/demo/copy/nnrnn/seed-0
steadygrad evaluate RUN --task.delay 500                      a longer delay than in training
steadygrad evaluate RUN --task.delay 100,200,400 --examples 500
steadygrad evaluate RUN --split valid                         the same numbers as in its result.json

The test split has sequences that neither training nor its evaluations used. For tasks that generate their sequences,
`reproduce`, `report` and result.json show the validation split. For tasks with a data set they show the test split, as
this command does.
"""

import argparse
from typing import Any

from steadygrad.cli import known
from steadygrad.cli.common import add_threads, set_threads, show_table
from steadygrad.files import json_text, parse_value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad evaluate` to its parser."""
    parser.add_argument("run_directory", metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--examples",
        type=int,
        metavar="N",
        help="number of sequences (default: 1000 for test, as in training for valid); not for data sets",
    )
    parser.add_argument("--split", choices=("test", "valid"), default="test", help="default: test")
    parser.add_argument("--weights", choices=("best", "last"), default="best")
    parser.add_argument("--json", action="store_true", help="print one JSON object per setting")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Evaluate a trained run on a held-out split, for each given task setting. Print a table or JSON and return 0."""
    given = known.settings(options, known.of_run_directory(options.run_directory)).get("task", {})
    from steadygrad.experiments.transfer import evaluate_changes
    from steadygrad.training import RunDirectory, ShowProgress
    from steadygrad.training.evaluate import examples_of

    set_threads(options)
    if options.examples is not None and options.examples < 1:
        raise ValueError(f"--examples expects at least 1; got {options.examples}")
    directory = RunDirectory(options.run_directory)
    settings = directory.settings()
    of_data = settings.build_task().has_splits
    if of_data and options.examples is not None:
        raise ValueError(f"{settings.task['name']} is evaluated on all its data and expects no --examples")
    show = ShowProgress("evaluate")

    def tell(share: float) -> None:
        percent = round(100 * share)
        show.show(percent, 100, lambda: f"{percent} % tested")

    show.start(0, 100)
    try:
        found = evaluate_changes(
            directory,
            variants(given),
            weights=options.weights,
            split=options.split,
            examples=options.examples,
            progress=tell,
        )
    finally:
        show.close()
    if options.json:
        for row in found:
            print(json_text({"split": options.split, "weights": options.weights, **row}))
        return 0
    metrics = [key for key in found[0] if key != "task"]
    changed = list(given)
    rows = [[*(str(row["task"][key]) for key in changed), *(f"{row[key]:.4g}" for key in metrics)] for row in found]
    count = "" if of_data else f" of {options.examples or examples_of(settings, options.split)} sequences"
    of_run = f"{settings.layer['name']} on {settings.task['name']}"
    what = f"{of_run}, {options.split} split{count}, {options.weights} weights"
    show_table(what, [*changed, *metrics], rows, 0)
    return 0


def variants(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one dict of task settings per evaluation: ``delay: "100,200"`` becomes two dicts.

    Several comma-separated lists must have the same length, else ValueError is raised.
    """
    lists = {key: [parse_value(part) for part in value.split(",")] for key, value in given.items() if is_list(value)}
    lengths = {len(values) for values in lists.values()}
    if len(lengths) > 1:
        raise ValueError(f"lists of settings expect one length; got {', '.join(map(str, sorted(lengths)))}")
    return [given | {key: values[i] for key, values in lists.items()} for i in range(lengths.pop() if lengths else 1)]


def is_list(value: object) -> bool:
    """Return whether the value of a setting is a string with commas, such as "100,200"."""
    return isinstance(value, str) and "," in value
