"""Values of declared types: dataclasses and networks from tables whose keys and types are checked."""

import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar, Union, get_args, get_origin

from torch import nn

NOT_FOR_LAYERS = {"input_size", "batch_first", "device", "dtype"}
"""keyword arguments of a layer that settings cannot give"""

Record = TypeVar("Record")


def refuse_unknown(who: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError if a given key is not known."""
    known = list(known)
    if unknown := [key for key in given if key not in known]:
        raise ValueError(f"{who}: unknown key {', '.join(map(repr, unknown))}; known: {', '.join(known)}")


def layer_options(layer: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a layer's constructor that settings may give, by name."""
    return {key: p for key, p in inspect.signature(layer).parameters.items() if key not in NOT_FOR_LAYERS}


def keyword_options(model: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a model's constructor by name. The task gives the others."""
    return {key: p for key, p in inspect.signature(model).parameters.items() if p.kind is p.KEYWORD_ONLY}


def construct(who: str, cls: Any, positional: Sequence[Any], given: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Return an instance of ``cls``. Raise ValueError if an option is unknown, missing or of the wrong type."""
    refuse_unknown(who, given, known)
    if missing := [key for key, option in known.items() if option.default is option.empty and key not in given]:
        raise ValueError(f"{who} expects {', '.join(missing)}; got {', '.join(given) or 'nothing'}")
    options = {key: check_type(who, key, value, known[key].annotation) for key, value in given.items()}
    try:
        return cls(*positional, **options)
    except TypeError as error:
        raise ValueError(f"{who}: {error}") from error


def build(cls: type[Record], given: Mapping[str, Any], who: str) -> Record:
    """Return a dataclass instance of ``cls``. Raise ValueError if a key is unknown, missing or of the wrong type."""
    record: Any = cls  # a dataclass, which a type variable cannot express
    known = {field.name: field for field in fields(record)}
    refuse_unknown(who, given, known)
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in given]:
        raise ValueError(f"{who} expects {', '.join(missing)}")
    hints = typing.get_type_hints(cls)
    return cls(**{key: check_type(who, key, value, hints[key]) for key, value in given.items()})


def check_type(who: str, key: str, value: Any, expected: Any) -> Any:
    """Return ``value`` if it has the expected type, else raise ValueError. An integer also passes for a float."""
    value = meant(value, expected)
    options = alternatives(expected)
    plain = [option for option in options if option in (int, float, str, bool, dict, type(None))]
    if len(plain) < len(options) or type(value) in plain:  # other types are checked by the class that takes the option
        return value
    if float in plain and type(value) is int:
        return float(value)
    kinds = {int: "an integer", float: "a number", str: "a string", bool: "true or false", dict: "a table"}
    wanted = " or ".join(kinds[option] for option in plain if option in kinds)
    raise ValueError(f"{who} expects {key} to be {wanted}; got {value!r}")


def alternatives(expected: Any) -> tuple[Any, ...]:
    """Return the members of a union type: int | None → (int, NoneType)."""
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)


def meant(value: Any, expected: Any) -> Any:
    """Return "none" for None if the option takes a string and not None: the command line reads ``none`` as None."""
    options = alternatives(expected)
    return "none" if value is None and str in options and type(None) not in options else value
