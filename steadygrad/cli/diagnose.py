"""Explain why a network remembers or forgets.

steadygrad diagnose runs/nnrnn-copy-0                         a trained run, on its own task
steadygrad diagnose lstm --layer.hidden_size 64               an untrained layer, on random inputs
steadygrad diagnose model.py:make --inputs 10 --steps 300     the module that make() in your file returns
steadygrad diagnose lstm -o lstm.html                         also as a page: gradients, maps, eigenvalues
"""

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from steadygrad.check import is_integer
from steadygrad.cli import known
from steadygrad.cli.common import add_threads, check_target, new_layer, note, say, set_threads, users_code
from steadygrad.files import finite, json_text

if TYPE_CHECKING:
    from torch import Tensor, nn

USERS_FILE = "__diagnosed__"
"""module name of the user's file, because its own name may be that of another module, such as torch"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad diagnose` to its parser."""
    parser.add_argument("what", metavar="RUN|LAYER|FILE.py:FUNCTION")
    parser.add_argument(
        "--inputs",
        type=int,
        metavar="N",
        help="number of features of the random inputs (default: the module's input_size)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="length of the random inputs (default 200)")
    parser.add_argument("-o", "--output", metavar="FILE.html", help="also write a page with charts")
    parser.add_argument("--json", action="store_true", help="print numbers and findings as JSON")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Measure a run, a layer or a user's module, print the findings and return 0. -o also writes a page with charts."""
    given = known.settings(options, known.of_layer(options.what)).get("layer", {})
    is_layer = options.what in known.names("layers")
    if not is_layer and given:
        raise ValueError(f"--layer.KEY goes with the name of a layer; got {options.what}")
    if not (is_layer or known.is_run(options.what) or ".py:" in options.what):
        raise known.no_layer("diagnose expects a run's directory, FILE.py:FUNCTION or", options.what)
    from rich.console import Console

    from steadygrad.diagnostics import diagnose
    from steadygrad.experiments import trained_layer
    from steadygrad.report import html
    from steadygrad.training import RunDirectory

    set_threads(options)
    if options.steps is not None and options.steps < 2:
        raise ValueError(f"--steps expects at least 2; got {options.steps}")
    if options.inputs is not None and options.inputs < 1:
        raise ValueError(f"--inputs expects at least 1; got {options.inputs}")
    check_target("diagnose", options.output, [".html"])
    users: AbstractContextManager[None] = nullcontext()
    if is_layer:
        module, x = fresh_layer(options, given)
    elif RunDirectory(options.what).exists():
        if options.steps is not None or options.inputs is not None:
            raise ValueError("--steps and --inputs are for random inputs; a run is measured on its own task")
        module, x = trained_layer(RunDirectory(options.what))
    else:
        module = load_module(options.what)
        file = Path(options.what.rpartition(":")[0])
        with users_code(file):
            x = random_inputs(module, options)
        users = users_code(file)
    with Console(stderr=True).status("measuring gradients along time"), users:  # the status: only on a terminal
        found = diagnose(module, x)
        page = make_page(module, x, found.name) if options.output else ""
    if options.json:
        findings = [vars(finding) for finding in found.findings]
        print(json_text({"name": found.name, "findings": findings, "numbers": found.numbers}))
    else:
        say(str(found))
    if options.output:
        html.write(page, Path(options.output))
        note(f"written to {options.output}")
    return 0


def make_page(module: "nn.Module", x: "Tensor", name: str) -> str:
    """Return an HTML page with charts of a module's gradients and eigenvalues, measured on the first sequence of x."""
    import steadygrad
    from steadygrad.diagnostics import portrait
    from steadygrad.report import html

    one = x[0] if getattr(module, "batch_first", False) else x[:, 0]
    return html.portrait_page(name, finite(portrait(module, one)), steadygrad.__version__)


def fresh_layer(options: argparse.Namespace, given: dict) -> "tuple[nn.Module, Tensor]":
    """Return an untrained layer from command-line options and its ``given`` settings, and random inputs for it."""
    layer = new_layer(options.what, given, options.inputs)
    return layer, random_inputs(layer, options)


def load_module(what: str) -> "nn.Module":
    """Run the user's file in ``FILE.py:NAME``. Return the torch module NAME, or the one that function NAME returns.

    Raise ValueError if there is no such file or module, or if the function needs arguments.
    """
    from torch import nn

    path, _, name = what.rpartition(":")
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(USERS_FILE, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is no Python file")
    loaded = sys.modules[USERS_FILE] = importlib.util.module_from_spec(spec)
    with importing_from(Path(path).resolve().parent):
        with users_code(Path(path)):
            spec.loader.exec_module(loaded)
        module = getattr(loaded, name, None)
        if not callable(module):
            raise ValueError(f"{path} has no function {name!r}")
        if not isinstance(module, nn.Module):
            try:
                inspect.signature(module).bind()
            except TypeError as error:
                raise ValueError(f"{what} expects to be called without arguments: {error}") from error
            with users_code(Path(path)):
                module = module()
    if not isinstance(module, nn.Module):
        raise ValueError(f"{what} expects to return a torch module; got {type(module).__name__}")
    return module


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Context manager: put ``folder`` first on sys.path, so that its modules can be imported."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def random_inputs(module: "nn.Module", options: argparse.Namespace) -> "Tensor":
    """Return random input sequences for a module, with its input_size or --inputs features and --steps steps (200).

    They are batch first if the module is. Raise ValueError if the number of features is unknown or does not fit.
    """
    from steadygrad.diagnostics import random_sequences

    own = getattr(module, "input_size", None)
    size = own if options.inputs is None else options.inputs
    if not is_integer(size, 1):
        raise ValueError("diagnose expects --inputs N for a module that has no input_size")
    if isinstance(own, int) and size != own:
        raise ValueError(f"diagnose expects --inputs {own}, which the module has; got {size}")
    return random_sequences(module, size, options.steps or 200)
