"""Continue a text with a trained language model.

steadygrad generate runs/nnrnn-char-ptb-0 --prompt "the company "
steadygrad generate RUN --length 2000 --temperature 0.7 --seed 3
"""

import argparse
import sys
from itertools import islice

from steadygrad.cli.common import add_threads, dotted, set_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", help="a run's directory")
    parser.add_argument("--prompt", default="\n", metavar="TEXT", help="what to go on from (default: a new line)")
    parser.add_argument("--length", type=int, default=500, metavar="N", help="tokens to make up (default 500)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="0 takes the likeliest, 1 as the model thinks"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", choices=("best", "last"), default="best")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    dotted(options.rest, ())
    from steadygrad.models import LanguageModel
    from steadygrad.tasks import TextTask
    from steadygrad.training import RunDirectory, load_model, stream

    set_threads(options)
    if options.length < 1:
        raise ValueError(f"--length expects at least 1; got {options.length}")
    directory = RunDirectory(options.run_directory)
    model, task, settings = load_model(directory, weights=options.weights)
    if not isinstance(task, TextTask) or not isinstance(model, LanguageModel):
        raise ValueError(f"generate expects a run on a text; {directory} is one on {settings.task['name']}")
    prompt = task.encode(options.prompt)
    chance = stream(options.seed, "generate")
    tokens = model.generate(prompt, options.temperature, chance, window=settings.train.window)
    sys.stdout.write(task.decode(prompt.tolist()).lstrip("\n"))  # each word ends with a space, as generated words do
    for token in islice(tokens, options.length):
        sys.stdout.write(task.decode([token]))
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0
