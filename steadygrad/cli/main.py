"""The command line: selects the verb, and reports invalid input in one line with exit code 2."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import steadygrad
from steadygrad.catalog.source import module
from steadygrad.cli.common import Parser, fail, needs_memory, say, take_settings

VERBS = (
    "show",
    "train",
    "evaluate",
    "generate",
    "listen",
    "reproduce",
    "diagnose",
    "export",
    "theory",
    "report",
    "bench",
)


GUIDE = """\
steadygrad {version}: recurrent networks in PyTorch whose gradients neither vanish nor explode.

  steadygrad show               list layers, tasks and papers; show NAME describes one
  steadygrad train nnrnn copy   train a layer on a task
  steadygrad diagnose lstm      explain why a network remembers or forgets
  steadygrad reproduce demo     train three networks, and write a page that compares them

steadygrad --help lists all commands, steadygrad COMMAND --help the options of one.
The documentation begins in README.md of the source tree and continues in its folder docs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `steadygrad` with ``arguments`` (default: sys.argv) and return its exit code.

    The code is 0 for success, 1 if training diverged or a row failed, 2 for invalid input, and 130 after Ctrl-C.
    Without arguments it prints a short guide. If argparse refuses the arguments, for example an unknown verb,
    SystemExit with code 2 is raised instead. --help and --version raise SystemExit with code 0.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        say(GUIDE.format(version=steadygrad.__version__))
        return 0
    parser, words = (verb_parser(given[0]), given[1:]) if given[0] in VERBS else (overview_parser(), given)
    plain, settings = take_settings(words)
    options, rest = parser.parse_known_args(plain)
    options.rest = rest + settings
    try:
        return options.run(options) or 0
    except KeyboardInterrupt:
        return fail("stopped", 130)
    except ValueError as error:
        return fail(str(error))
    except RecursionError:
        return fail(f"{options.verb} expects values that are not nested this deep; got more in a file or an argument")
    except (MemoryError, OverflowError, RuntimeError) as error:
        if not needs_memory(error):
            raise
        return fail(f"{options.verb} expects sizes that fit into memory: {type(error).__name__}: {error}")
    except BrokenPipeError:  # the reader of the output has closed the pipe, as `head` does
        sys.stderr.close()
        return 0
    except OSError as error:
        return fail(f"{error.filename or 'a file'}: {error.strerror or error}")


def verb_parser(verb: str) -> Parser:
    """Return the parser of one verb, with its options."""
    command = import_module(f"steadygrad.cli.{verb}")
    parser = Parser(
        prog=f"steadygrad {verb}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(verb=verb, run=command.run, parser=parser)
    command.add_arguments(parser)
    return parser


def overview_parser() -> Parser:
    """Return the parser for --version, --help and wrong verbs. It knows the verbs, but not their options."""
    parser = Parser(
        prog="steadygrad",
        description="Recurrent networks whose gradients neither vanish nor explode.",
        epilog="steadygrad VERB --help says more. First steps: steadygrad show, steadygrad train nnrnn copy",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"steadygrad {steadygrad.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        verbs.add_parser(verb, help=module(f"cli.{verb}").doc.partition("\n")[0], add_help=False)
    parser.set_defaults(run=refuse, parser=parser)
    return parser


def refuse(options: argparse.Namespace) -> int:
    """Raise ValueError, because an option is in front of the verb."""
    raise ValueError(f"options follow the verb, as in steadygrad {options.verb} --help; got one before it")
