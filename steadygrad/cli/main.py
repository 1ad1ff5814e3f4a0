"""The command line: selects the verb, and reports invalid input in one line with exit code 2."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import steadygrad
from steadygrad.cli.common import Parser, fail, needs_memory, take_settings

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `steadygrad` with ``arguments`` (default: sys.argv) and return its exit code.

    The code is 0 for success, 1 if training diverged or a row failed, 2 for invalid input, and 130 after Ctrl-C.
    If argparse refuses the arguments, for example an unknown verb, SystemExit with code 2 is raised instead. --help
    and --version raise SystemExit with code 0.
    """
    parser = Parser(
        prog="steadygrad",
        description="Recurrent networks whose gradients neither vanish nor explode.",
        epilog="steadygrad VERB --help says more. First steps: steadygrad show, steadygrad train nnrnn copy",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"steadygrad {steadygrad.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        module = import_module(f"steadygrad.cli.{verb}")
        summary = (module.__doc__ or "").splitlines()[0]
        own = verbs.add_parser(
            verb,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(own)
        own.set_defaults(run=module.run, parser=own)
    given = list(sys.argv[1:] if arguments is None else arguments)
    plain, settings = take_settings(given)
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
