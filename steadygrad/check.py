"""Checks of arguments and their error texts. Nothing here needs torch."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

LARGEST = sys.float_info.max
SIMILAR = 0.7
"""least similarity of two names, from 0 to 1, of which one may be a typing error of the other"""


class InputError(ValueError, RuntimeError):
    """Raised for an input or a state of the wrong shape, dtype or device. torch.nn.GRU raises RuntimeError for most."""


class ArgumentTypeError(ValueError, TypeError):
    """Raised for an argument of the wrong type, such as a float for a size. torch.nn.GRU raises TypeError."""


def is_integer(value: object, least: float = -LARGEST) -> TypeGuard[int]:
    """Return whether ``value`` is an integer, not a bool, of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, low: float = -LARGEST, high: float = LARGEST) -> TypeGuard[float]:
    """Return whether ``value`` is an integer or a float, not a bool, from ``low`` to ``high``. NaN is in no range.

    By default every finite number is in range.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def check_integers(who: str, least: int = 1, most: int | None = None, **values: object) -> None:
    """Raise ValueError unless every further keyword argument is an integer of at least ``least``.

    The integers must be at most ``most``, if that is given. ``who`` is the caller's name in the message:
    ``check_integers("Train", batch=50)``. The error for another type than an integer is a TypeError, too.
    """
    for name, value in values.items():
        if not is_integer(value, least):
            kind = ValueError if is_integer(value) else ArgumentTypeError
            raise kind(f"{who} expects {name} to be an integer of at least {least}; got {value!r}")
        if most is not None and value > most:
            raise ValueError(f"{who} expects {name} to be at most {most:,}; got {value!r}")


def check_flags(who: str, **values: object) -> None:
    """Raise an error that is a TypeError and a ValueError unless every further keyword argument is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ArgumentTypeError(f"{who} expects {name} to be True or False; got {value!r}")


def check_size(who: str, size: int) -> int:
    """Return ``size``, or raise ValueError unless it is an integer of at least 1.

    ``who`` is the caller's name in the message.
    """
    if not is_integer(size, 1):
        raise ValueError(f"{who} expects a size of at least 1; got {size!r}")
    return size


def check_share(who: str, name: str, value: object) -> None:
    """Raise ValueError unless ``value`` is a number from 0 to 1.

    ``who`` is the caller's name in the message, and ``name`` that of the argument.
    """
    if not is_number(value, 0, 1):
        raise ValueError(f"{who} expects {name} between 0 and 1; got {value!r}")


def check_choice(who: str, name: str, value: object, known: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of the strings ``known``.

    ``who`` is the caller's name in the message, and ``name`` that of the argument.
    """
    if value not in (known := tuple(known)):
        hint = did_you_mean(value, known)
        raise ValueError(f"{who} expects {name} to be one of {', '.join(known)}; got {value!r}{hint}")


def check_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Return ``name``, or raise ValueError unless it is one of the known names of this kind, such as "layer"."""
    known = list(known)
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"no {kind} {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")
    return name


def refuse_unknown(who: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError if a given key is not known."""
    known = list(known)
    if unknown := [key for key in given if key not in known]:
        hints = "".join(did_you_mean(key, known) for key in unknown)
        raise ValueError(f"{who}: unknown key {', '.join(map(repr, unknown))}; known: {', '.join(known)}{hints}")


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?" for the end of an error message, with the known names closest to the given one.

    The text is empty if no known name is close. `closest` decides which are.
    """
    return suggestion(closest(given, known) if isinstance(given, str) else [])


def suggestion(names: Sequence[str]) -> str:
    """Return "; did you mean NAME?" for the end of an error message; an empty text without names."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


def closest(given: str, known: Iterable[str]) -> list[str]:
    """Return at most two of the known names that a user may have meant by ``given``, the best first.

    A name is close if it has the same words, if all words of one are words of the other (``batch_size`` and ``batch``),
    if it has the initials of the words (``learning_rate`` and ``lr``), or if the letters are similar.
    """
    from difflib import SequenceMatcher  # slow to import

    def similarity(name: str) -> float:
        own, other = words(given), words(name)
        if own == other:
            return 1.0
        shared = bool(own) and (set(own) <= set(other) or set(other) <= set(own))
        abbreviated = len(own) > 1 and "".join(word[0] for word in own) == name
        alike = SequenceMatcher(None, "".join(own), "".join(other)).ratio()
        return max(alike, 0.9 if shared or abbreviated else 0.0)

    scores = {name: similarity(name) for name in known}
    best = max(scores.values(), default=0.0)
    close = [name for name, score in scores.items() if score >= max(SIMILAR, best - 0.05)]
    return sorted(close, key=lambda name: -scores[name])[:2]


def words(name: str) -> list[str]:
    """Return the words of a name in lower case, a list: ``hidden-size`` and ``Hidden_size`` have the same."""
    return [word for word in re.split(r"[\W_]+", name.lower()) if word]


def enter(registry: dict[str, Any], name: str, entry: Any) -> None:
    """Enter ``entry``, a class or function, into a registry, a dict, under ``name``.

    Raise ValueError if another class or function has this name. An entry that was defined in the same module under the
    same name is replaced instead, because notebooks define classes again.
    """
    known = registry.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (entry.__module__, entry.__qualname__):
        raise ValueError(f"the name {name!r} belongs to {known.__module__}.{known.__qualname__}; choose another name")
    registry[name] = entry
