"""Values of declared types: dataclasses and networks from tables whose keys and types are checked."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from torch import nn

from steadygrad.catalog.networks import NOT_FOR_LAYERS
from steadygrad.check import refuse_unknown

Record = TypeVar("Record")


def layer_options(layer: Callable[..., nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a layer's constructor that settings may give, a dict by name."""
    return {key: p for key, p in inspect.signature(layer).parameters.items() if key not in NOT_FOR_LAYERS}


def keyword_options(model: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a model's constructor, a dict by name. The task gives the others."""
    return {key: p for key, p in inspect.signature(model).parameters.items() if p.kind is p.KEYWORD_ONLY}


def construct(who: str, cls: Any, positional: Sequence[Any], given: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Return ``cls(*positional, **given)``. Raise ValueError if an option is unknown, missing or of the wrong type.

    ``known`` are the options of ``cls``, `inspect.Parameter`s by name. A TypeError of ``cls`` becomes a ValueError too.
    """
    refuse_unknown(who, given, known)
    if missing := [key for key, option in known.items() if option.default is option.empty and key not in given]:
        raise ValueError(f"{who} expects {', '.join(missing)}; got {', '.join(given) or 'nothing'}")
    options = {key: check_type(who, key, value, known[key].annotation) for key, value in given.items()}
    try:
        return cls(*positional, **options)
    except TypeError as error:
        raise ValueError(f"{who}: {error}") from error


def build(cls: type[Record], given: Mapping[str, Any], who: str) -> Record:
    """Return a dataclass instance of ``cls`` from a dict of its fields.

    Raise ValueError if a key is unknown or missing, or if a value has the wrong type.
    """
    record: Any = cls  # a dataclass, which a type variable cannot express
    known = {field.name: field for field in fields(record)}
    refuse_unknown(who, given, known)
    if missing := [name for name, field in known.items() if is_required(field) and name not in given]:
        raise ValueError(f"{who} expects {', '.join(missing)}")
    hints = typing.get_type_hints(cls)
    return cls(**{key: check_type(who, key, value, hints[key]) for key, value in given.items()})


def is_required(field: "Field[Any]") -> bool:
    """Return whether a dataclass field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def check_type(who: str, key: str, value: Any, expected: Any) -> Any:
    """Return ``value`` if it has the expected type, else raise ValueError.

    An integer passes for a float and a list for a tuple; both are converted. Types without a rule here pass, because
    the class that takes the option checks them.
    """
    if type(value) is int and abs(value) >= 2**63:
        raise ValueError(f"{who} expects {key} to be below 2⁶³, as torch's integers are; got {value!r}")
    value = none_as_string(value, expected)
    rules = [rule(option) for option in alternatives(expected)]
    for found in rules:
        if found is None or found.fits(value):
            return value if found is None else found.convert(value)
    wanted = " or ".join(found.description for found in rules if found and found.description)
    raise ValueError(f"{who} expects {key} to be {wanted}; got {value!r}")


class Rule(NamedTuple):
    """How option values of one type are recognised, described in an error, and converted."""

    description: str
    fits: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value


PLAIN: dict[Any, Rule] = {
    type(None): Rule("", lambda value: value is None),
    bool: Rule("true or false", lambda value: type(value) is bool),
    int: Rule("an integer", lambda value: type(value) is int),
    float: Rule("a number", lambda value: type(value) in (int, float), float),
    str: Rule("a string", lambda value: type(value) is str),
    dict: Rule("a table", lambda value: isinstance(value, dict)),
}


def rule(expected: Any) -> Rule | None:
    """Return the `Rule` by which option values of the type ``expected`` are recognised and converted.

    ``expected`` is a type annotation, such as int, Literal["a", "b"] or tuple[int, ...]. Return None for a type without
    a rule, such as Tensor, and for a union, whose members have their own rules.
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is Literal:
        *others, last = map(str, arguments)
        return Rule(f"{', '.join(others)} or {last}" if others else last, lambda value: value in arguments)
    if origin is tuple and (item := rule(arguments[0])):
        plural = item.description.split()[-1] + "s"
        return Rule(f"a list of {plural}", lambda value: isinstance(value, list) and all(map(item.fits, value)), tuple)
    return PLAIN.get(origin or expected)


def alternatives(expected: Any) -> tuple[Any, ...]:
    """Return the members of a union type as a tuple: int | None → (int, NoneType). Another type is the only member."""
    return get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)


def none_as_string(value: Any, expected: Any) -> Any:
    """Return ``value``, but "none" for None if the option takes a string and not None.

    The command line reads ``none`` as None.
    """
    options = alternatives(expected)
    return "none" if value is None and str in options and type(None) not in options else value
