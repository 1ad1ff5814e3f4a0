"""Compute and draw what theorems say about memory and gradients.

steadygrad theory fisher -o fisher.png        how much chains of units remember of a signal in noise
steadygrad theory transients --samples 200    how chains amplify the signal before they forget it
steadygrad theory powers --size 6 -o p.svg    with eigenvalues of 1, powers grow only as polynomials
steadygrad theory attention --json            gradients without attention, with uniform and with sparse attention
"""

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

from steadygrad.cli import known
from steadygrad.cli.common import add_threads, check_target, say, set_threads, show_table


class Option(NamedTuple):
    """An option of `steadygrad theory`: default, help and accepted values. A list as default means several numbers."""

    default: float | list[float] | list[int]
    help: str
    range: str
    """the values that are accepted, in words"""
    accepts: Callable[[float], bool]


def within(default: float | list[int], help: str, least: int, most: int) -> Option:
    """Return an Option that accepts numbers from ``least`` to ``most``."""
    return Option(default, help, f"from {least} to {most}", lambda value: least <= value <= most)


THEORIES: dict[str, tuple[str, dict[str, Option]]] = {
    "fisher": (
        "Fisher memory of chains of units, a normal network and Ganguli's bound (nnRNN, table 6 and figure 1c).",
        {"size": within(100, "units of a chain", 2, 120)},  # more units with a diagonal need more than double precision
    ),
    "transients": (
        "Norm of the states of chains of units from random starts on the unit sphere (nnRNN, figure 1b).",
        {"size": within(100, "units of a chain", 2, 200), "samples": within(1000, "random starts", 2, 1000)},
    ),
    "powers": (
        "Powers of matrices with 1 on the diagonal and x above it grow as polynomials (thesis, proposition 3.4.2).",
        {
            "size": within(6, "units of the largest matrix", 2, 8),
            "x": Option(0.5, "entries above the diagonal", "above 0 and up to 10", lambda x: 0 < x <= 10),
            "steps": within(1000, "highest power", 20, 5000),
        },
    ),
    "attention": (
        "Gradients without attention, with uniform and with sparse attention (thesis, theorems 4.4.2 and 4.4.3).",
        {
            "eigenvalues": Option(
                [-0.5, 0.0, 0.3, 0.5, 0.6],
                "eigenvalues of V, for uniform attention",
                "between -1 and 1",
                lambda value: abs(value) < 1,
            ),
            "kappa": within([2, 3, 8], "number of attended states, for sparse attention", 1, 100),
            "depth": within(3, "relays on the path, for sparse attention", 0, 10),
            "steps": within(1000, "sequence length", 40, 5000),
        },
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the theories and the options of each to the parser of `steadygrad theory`."""
    chosen = parser.add_subparsers(dest="what", metavar="|".join(THEORIES), required=True)
    for name, (summary, options) in THEORIES.items():
        own = chosen.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for key, option in options.items():
            values = as_list(option.default)
            own.add_argument(
                f"--{key}",
                type=type(values[0]),
                default=option.default,
                metavar="N",
                nargs="+" if isinstance(option.default, list) else None,
                help=f"{option.help} (default {listed(values)})",
            )
        own.add_argument("-o", "--output", metavar="FILE", help="draw the figure to FILE.png, FILE.svg or FILE.pdf")
        own.add_argument("--json", action="store_true", help="print the tables as JSON")
        add_threads(own)
        own.set_defaults(parser=own)


def run(options: argparse.Namespace) -> int:
    """Compute the chosen theory, print its tables and notes, draw its figure with -o, and return 0."""
    known.settings(options, {})
    set_threads(options)
    from steadygrad.diagnostics import theory
    from steadygrad.files import json_text
    from steadygrad.report import theory_figures
    from steadygrad.report.figures import FORMATS

    check_target(f"theory {options.what}", options.output, list(FORMATS))
    _, choices = THEORIES[options.what]
    given = {key: getattr(options, key) for key in choices}
    for key, value in given.items():
        if not all(map(choices[key].accepts, as_list(value))):
            got = listed(as_list(value))
            raise ValueError(f"theory {options.what} expects --{key} {choices[key].range}; got {got}")
    found = getattr(theory, options.what)(**given)
    draw = getattr(theory_figures, options.what)
    figure = draw(**found.curves, path=options.output) if options.output else None
    if options.json:
        tables = {table.title: table.records() for table in found.tables}
        print(json_text({"tables": tables, "notes": found.notes, "figure": figure and str(figure)}))
        return 0
    for table in found.tables:
        show_table(table.title, list(table.columns), table.cells(), right_from=0)
        say("")
    for note in found.notes:
        say(note)
    if figure:
        say(f"drawn in {figure}")
    return 0


def as_list(value: float | list[float] | list[int]) -> Sequence[float]:
    """Return the value as a list: a single number becomes a list of one."""
    return value if isinstance(value, list) else [value]


def listed(values: Sequence[float]) -> str:
    """Return numbers as text, separated by commas."""
    return ", ".join(format(value, "g") for value in values)
