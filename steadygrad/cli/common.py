"""Shared by all verbs: dotted settings, output, and error messages."""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from steadygrad.check import closest, did_you_mean, suggestion
from steadygrad.files import DEEPEST, is_nested_deeper, parse_value

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

TABLES = ("layer", "task", "train")
FRAMES = 20
"""largest number of frames of a traceback that are shown"""
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""characters that a terminal obeys instead of showing them, such as ESC, and bytes of file names that are no text"""


def printable(text: str) -> str:
    """Return the text with control characters, except newline and tab, as escapes: ESC becomes \\x1b.

    All output of the command line passes here, because names in files of runs may contain terminal commands.
    """
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def note(text: str) -> None:
    """Print the text as one line on stderr."""
    print(printable(" ".join(text.split())), file=sys.stderr)


def fail(message: str, code: int = 2) -> int:
    """Print ``message`` as one line on stderr and return the exit code ``code`` (default 2)."""
    note(f"steadygrad: {message}")
    return code


def needs_memory(error: Exception) -> bool:
    """Return whether ``error`` means that a tensor does not fit into memory, or that its size overflows.

    This holds for `MemoryError`, `OverflowError` and errors with such a message, which torch raises.
    """
    words = ("allocate memory", "not enough memory", "out of memory", "size calculation overflowed", "overflow")
    text = str(error).lower()
    return isinstance(error, MemoryError | OverflowError) or any(word in text for word in words)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error message as one line on stderr and exit with code 2. A wrong choice gets the closest one."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = did_you_mean(wrong[1], [choice.strip("'") for choice in wrong[2].split(", ")]) if wrong else ""
        sys.exit(fail(f"{message}; {self.prog} --help lists the options{hint}"))


def console() -> "Console":
    """Return a rich console: coloured on a terminal, otherwise plain and 200 characters wide for other programs."""
    from rich.console import Console

    plain = Console()
    return plain if plain.is_terminal else Console(width=200, no_color=True, highlight=False)


def dotted(rest: Sequence[str], tables: Sequence[str] = TABLES, known: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Parse dotted settings of the command line into a dict of tables. Raise ValueError for any other argument.

    ``--layer.hidden_size 64 --task.delay=100`` gives {"layer": {"hidden_size": 64}, "task": {"delay": 100}}. ``known``
    are the options that the error may propose.
    """
    found: dict[str, dict[str, Any]] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        table, dot, name = key.removeprefix("--").partition(".")
        if not key.startswith("--") or not dot or table not in tables or not name:
            where = f"settings are {', '.join(f'--{table}.KEY' for table in tables)}, and " if tables else ""
            hint = suggestion(close_options(key, known))
            raise ValueError(f"unknown argument {word!r}; {where}--help lists the options{hint}")
        if not equals:
            if not words or words[0].startswith("--"):
                raise ValueError(f"{key} expects a value")
            value = words.pop(0)
        found.setdefault(table, {})[name] = parsed(key, value)
    return found


def close_options(word: str, known: Iterable[str]) -> list[str]:
    """Return the known options closest to a word of the command line, at most two: --lr → --train.lr.

    Their last parts are compared, so that a missing or wrong table does not matter. Of equal ones, that of the same
    table comes first. The list is empty for a word that is no option.
    """
    if not word.startswith("--"):
        return []
    table, _, name = word.removeprefix("--").rpartition(".")
    options = sorted(known, key=lambda option: option.startswith(f"--{table}."))  # the last one wins in the dict
    last_parts = {option.removeprefix("--").rpartition(".")[2]: option for option in options}
    return [last_parts[part] for part in closest(name, last_parts)]


def parsed(key: str, text: str) -> Any:
    """Return ``text``, the value of the setting ``key``, parsed. Raise ValueError if nested deeper than `DEEPEST`."""
    try:
        value = parse_value(text)
        if not is_nested_deeper(value, DEEPEST):
            return value
    except RecursionError:
        pass
    raise ValueError(f"{key} expects at most {DEEPEST} lists or tables inside each other; got more")


def is_setting(word: str) -> bool:
    """Return whether a command-line word is a dotted setting: --layer.KEY, --task.KEY or --train.KEY."""
    return any(word.startswith(f"--{table}.") for table in TABLES)


def take_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split command-line words into two lists: plain arguments, and dotted settings (--layer.KEY) with their values."""
    plain: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not is_setting(word):
            plain.append(word)
            continue
        settings.append(word)
        if "=" not in word and rest and not rest[0].startswith("--"):
            settings.append(rest.pop(0))
    return plain, settings


def say(text: str) -> None:
    """Print the text to the console without markup: brackets, as in a path, are printed as they are.

    Control characters are printed as escapes (`printable`).
    """
    console().print(printable(text), highlight=False, markup=False, emoji=False, soft_wrap=True)


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], right_from: int = 1) -> None:
    """Print a table with a title to the console. Columns from ``right_from`` on, counted from 0, are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    if title:
        console().print(Text(printable(title), "bold"), soft_wrap=True)
    result = Table(header_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(header):
        result.add_column(Text(printable(name)), justify="right" if number >= right_from else "left", overflow="fold")
    for row in rows:
        result.add_row(*(Text(printable(cell)) for cell in row))
    console().print(result)


@contextmanager
def users_code(file: Path) -> Iterator[None]:
    """Context manager around code of a user's file. An error in it is shown with the user's lines only.

    The traceback is printed without the frames of this package and of libraries, and a ValueError that names the error
    is raised. An error that did not pass through files in the folder of ``file`` is raised unchanged. An error that
    this package raised while it handled one of the user's is raised unchanged, too, after the user's lines are printed.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        for shown in (error, error.__context__):
            if shown is not None and (lines := users_lines(shown, file)):
                print(printable("".join(["Traceback, lines of your files only:\n", *lines])).rstrip(), file=sys.stderr)
                if shown is error:
                    raise ValueError(f"{file} raised {type(error).__name__}; see the lines above") from None
        raise


def users_lines(error: BaseException, file: Path) -> list[str]:
    """Return the frames of a user's files in the traceback of an error, then the error, as a list of strings.

    `is_users` decides which files are the user's: those in the folder of ``file``, without libraries. At most the last
    `FRAMES` frames are returned. The list is empty if there are none, except for a SyntaxError in a user's file.
    """
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename, file)]
    if not own and not (isinstance(error, SyntaxError) and is_users(error.filename or "", file)):
        return []
    return [*traceback.StackSummary.from_list(own[-FRAMES:]).format(), *traceback.format_exception_only(error)]


def is_users(name: str, file: Path) -> bool:
    """Return whether the source file ``name`` is in the folder of the user's ``file``, and not part of a library."""
    path, own = Path(name).resolve(), Path(__file__).resolve().parents[1]
    return path.is_relative_to(file.resolve().parent) and not path.is_relative_to(own) and "site-packages" not in name


def check_target(who: str, name: str | None, endings: Sequence[str]) -> None:
    """Raise ValueError if the output file ``name`` has a wrong ending or cannot be written. An empty name passes."""
    if not name:
        return
    if Path(name).suffix not in endings:
        raise ValueError(f"{who} expects -o {' or '.join(f'FILE{ending}' for ending in endings)}; got {name}")
    check_folder(Path(name).absolute().parent)


def check_folder(folder: Path) -> None:
    """Raise ValueError unless the folder is writable or can be created."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"cannot write in {folder}: {there} is {'not writable' if there.is_dir() else 'a file'}")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the option --threads N (number of torch threads) to a parser."""
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="default: as torch chooses; bit-exact with 1",
    )


def set_threads(options: argparse.Namespace) -> None:
    """Set the number of torch threads to --threads, if given. Raise ValueError if it is out of range."""
    if options.threads is None:
        return
    most = max(64, 4 * (os.cpu_count() or 1))  # thousands of threads crash torch
    if not 1 <= options.threads <= most:
        raise ValueError(f"--threads expects 1 to {most} here; got {options.threads}")
    import torch

    torch.set_num_threads(options.threads)


def new_layer(name: str, given: dict[str, Any], inputs: int | None) -> "nn.Module":
    """Return an untrained layer of this name with ``inputs`` features, by default 10, and the settings ``given``.

    The default hidden size is 64. The torch seed is 0. Raise ValueError for ``inputs`` below 1.
    """
    import torch

    from steadygrad.training import Settings, Train

    if inputs is not None and inputs < 1:
        raise ValueError(f"--inputs expects at least 1; got {inputs}")
    torch.manual_seed(0)
    table = {"name": name, "hidden_size": 64, **given}
    return Settings(table, {"name": "copy"}, Train()).build_layer(10 if inputs is None else inputs)
