"""Continue a text with a trained language model.

steadygrad generate runs/nnrnn-char-ptb-0 --prompt "the company "
steadygrad generate RUN --length 2000 --temperature 0.7 --seed 3
"""

import argparse
import sys

from steadygrad.cli import known
from steadygrad.cli.common import add_threads, printable, set_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad generate` to its parser."""
    parser.add_argument("run_directory", metavar="RUN", help="a run's directory")
    parser.add_argument("--prompt", default="\n", metavar="TEXT", help="text to continue (default: a new line)")
    parser.add_argument("--length", type=int, default=500, metavar="N", help="tokens to generate (default 500)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="0: always the most likely token; 1: the probabilities of the model (default 1)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", choices=("best", "last"), default="best")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Print a text that a trained language model generates after --prompt, token by token. Return 0."""
    known.settings(options, {})
    from steadygrad.experiments.generate import generate_text
    from steadygrad.training import RunDirectory

    set_threads(options)
    if options.length < 1:
        raise ValueError(f"--length expects at least 1; got {options.length}")
    for text in generate_text(
        RunDirectory(options.run_directory),
        options.prompt,
        options.length,
        temperature=options.temperature,
        seed=options.seed,
        weights=options.weights,
    ):
        sys.stdout.write(printable(text))
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0
