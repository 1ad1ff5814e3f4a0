"""Campaigns: long random trials of faults, bad files and odd input. A short one of each is part of the tests."""

from importlib import import_module
from typing import NamedTuple

from tests.campaigns.campaign import Run


class Entry(NamedTuple):
    """A campaign: its share of the time of `make campaign`, and the number of tries in `make test`."""

    weight: float
    tries: int


CAMPAIGNS: dict[str, Entry] = {
    "signals": Entry(weight=4, tries=2),
    "kills-in-writes": Entry(weight=1, tries=2),
    "file-faults": Entry(weight=0.5, tries=8),
    "run-files": Entry(weight=3, tries=40),
    "report-files": Entry(weight=1, tries=30),
    "data-files": Entry(weight=1, tries=150),
    "command-lines": Entry(weight=1.5, tries=40),
    "layer-calls": Entry(weight=2, tries=25),
    "packed": Entry(weight=0.5, tries=150),
    "fork": Entry(weight=0.5, tries=3),
    "matrix-values": Entry(weight=1, tries=300),
    "drift": Entry(weight=1, tries=6),
}
"""campaigns by name; the function is ``run`` in the module of the same name, with _ for -"""


def load(name: str) -> Run:
    """Return the function of a campaign."""
    run: Run = import_module(f"tests.campaigns.{name.replace('-', '_')}").run
    return run
