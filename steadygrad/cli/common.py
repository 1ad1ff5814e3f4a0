"""Shared by all verbs: dotted settings, output, and error messages."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steadygrad.files import parse_value

TABLES = ("layer", "task", "train")


def fail(message: str, code: int = 2) -> int:
    """Print ``message`` as one line on stderr and return the exit code ``code`` (default 2)."""
    print("steadygrad: " + " ".join(message.split()), file=sys.stderr)
    return code


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the error message as one line on stderr and exit with code 2."""
        sys.exit(fail(f"{message}; {self.prog} --help lists the options"))


def console() -> Console:
    """Return a rich console: coloured on a terminal, otherwise plain and 200 characters wide for other programs."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=200, no_color=True, highlight=False)


def dotted(rest: Sequence[str], tables: Sequence[str] = TABLES) -> dict[str, dict[str, Any]]:
    """Parse dotted settings of the command line into a dict of tables. Raise ValueError for any other argument.

    ``--layer.hidden_size 64 --task.delay=100`` gives {"layer": {"hidden_size": 64}, "task": {"delay": 100}}.
    """
    found: dict[str, dict[str, Any]] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        table, dot, name = key.removeprefix("--").partition(".")
        if not key.startswith("--") or not dot or table not in tables or not name:
            known = f"settings are {', '.join(f'--{table}.KEY' for table in tables)}, and " if tables else ""
            raise ValueError(f"unknown argument {word!r}; {known}--help lists the options")
        if not equals:
            if not words or words[0].startswith("--"):
                raise ValueError(f"{key} expects a value")
            value = words.pop(0)
        found.setdefault(table, {})[name] = parse_value(value)
    return found


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
    """Print the text to the console as it is: brackets, as in a path, are not markup."""
    console().print(text, highlight=False, markup=False, soft_wrap=True)


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], right_from: int = 1) -> None:
    """Print a table with a title to the console. Columns from number ``right_from`` on are aligned to the right."""
    if title:
        console().print(Text(title, "bold"), soft_wrap=True)
    result = Table(header_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(header):
        result.add_column(Text(name), justify="right" if number >= right_from else "left", overflow="fold")
    for row in rows:
        result.add_row(*map(Text, row))
    console().print(result)


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
