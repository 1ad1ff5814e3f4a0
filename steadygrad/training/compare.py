"""Differences between the settings of a stored run and those of a command."""

from collections.abc import Mapping
from typing import Any

LENGTHS = ("train.steps", "train.epochs", "train.frames")
"""settings that give the length of a run"""


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return a list of texts, one for each setting in which ``wanted`` differs from the saved run ``found``.

    More updates, epochs or frames are no difference: they extend the run. The exception is the cosine schedule, because
    its learning rates depend on the length.
    """
    flat_found, flat_wanted = flat(found), flat(wanted)
    cosine = flat_found.get("train.schedule") == "cosine"
    why = dict.fromkeys(LENGTHS, " (a cosine is made for its length)") if cosine else {}
    for length in () if cosine else LENGTHS:
        if length in flat_found and flat_found[length] <= flat_wanted.get(length, 0):
            flat_found[length] = flat_wanted[length]
    return [
        f"{key} {flat_found.get(key, 'not given')!r}, asked {flat_wanted.get(key, 'not given')!r}{why.get(key, '')}"
        for key in sorted(flat_found.keys() | flat_wanted.keys())
        if flat_found.get(key) != flat_wanted.get(key)
    ]


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict of tables as one dict with keys TABLE.KEY. A value outside a table keeps its key."""
    result: dict[str, Any] = {}
    for key, value in tables.items():
        result |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return result
