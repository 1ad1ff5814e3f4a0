"""Campaigns: long random trials of faults, bad files and odd input. A short one of each is part of the tests."""

from importlib import import_module
from typing import NamedTuple

from tests.campaigns.campaign import Run


class Entry(NamedTuple):
    """A campaign: its share of the time of `make campaign`, and the number of tries in `make test`."""

    weight: float
    tries: int


CAMPAIGNS: dict[str, Entry] = {
    "command-lines": Entry(weight=2, tries=40),
    "drift": Entry(weight=2, tries=6),
    "data-files": Entry(weight=1, tries=150),
    "matrix-values": Entry(weight=2, tries=300),
}
"""campaigns by name; the function is ``run`` in the module of the same name, with _ for -"""


def load(name: str) -> Run:
    """Return the function of a campaign."""
    run: Run = import_module(f"tests.campaigns.{name.replace('-', '_')}").run
    return run
