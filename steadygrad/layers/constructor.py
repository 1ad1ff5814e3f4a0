"""Constructors of layers: the keyword arguments of every layer, and torch's order of the positional ones."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, TypedDict, Unpack

import torch

from steadygrad.layers.attentive import AttentionSpec

TORCH_ORDER = ("bias", "batch_first", "dropout", "bidirectional")
"""arguments that follow ``num_layers`` by position, as in torch.nn.GRU"""


class Common(TypedDict, total=False):
    """The keyword arguments of every layer: six of torch.nn.GRU's, ``attention`` and ``trained_state``.

    All are optional. The six are ``bias``, ``batch_first``, ``dropout``, ``bidirectional``, ``device`` and ``dtype``.
    """

    bias: bool
    """whether the layer has bias vectors"""
    batch_first: bool
    dropout: float
    """probability that an output of a layer is set to zero before the next one"""
    bidirectional: bool
    """whether a second set of cells reads the sequence backwards"""
    attention: AttentionSpec | None
    """table of options of attention over past states"""
    trained_state: bool
    """whether the initial state is trained"""
    device: torch.device | str | None
    dtype: torch.dtype | None


def with_attention(who: str, common: Common, attention: AttentionSpec) -> Common:
    """Return a layer's common keyword arguments with its own ``attention``. Raise ValueError if they have another."""
    if common.get("attention") is not None:
        raise ValueError(f"{who} has attention of its own and expects attention=None; got {common['attention']!r}")
    return Common(**{**common, "attention": attention})


def in_torch_order(init: Callable[..., None], positional: tuple[str, ...], common: Signature) -> Callable[..., None]:
    """Return a layer's ``__init__`` that also takes the arguments named in ``positional`` by position, after its own.

    Its signature lists them there, and the other parameters of `Common` at the end instead of ``**common``. The
    defaults are those of the signature ``common``. An ``__init__`` without ``**common: Unpack[Common]`` is returned
    unchanged.
    """
    own = signature(init)
    declared = {name: one for name, one in own.parameters.items() if one.annotation != Unpack[Common]}
    if len(declared) == len(own.parameters):
        return init
    known = {name: common.parameters[name] for name in Common.__annotations__} | declared
    leading = [name for name, one in declared.items() if one.kind is not Parameter.KEYWORD_ONLY]
    ordered = [known[name].replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for name in positional]
    named = [known[name] for name in dict.fromkeys((*declared, *known)) if name not in (*leading, *positional)]
    most = len(leading) + len(positional)

    @wraps(init)
    def constructor(*given: Any, **options: Any) -> None:
        if len(given) > most:
            raise TypeError(
                f"{type(given[0]).__name__} expects at most {most - 1} positional arguments, the last of them "
                f"{positional[-1]}; got {len(given) - 1}. Pass the others by name"
            )
        further = dict(zip(positional, given[len(leading) :], strict=False))
        if twice := further.keys() & options.keys():
            raise TypeError(f"{type(given[0]).__name__} got two values for {', '.join(sorted(twice))}")
        init(*given[: len(leading)], **further, **options)

    vars(constructor)["__signature__"] = own.replace(
        parameters=[
            *(known[name] for name in leading),
            *ordered,
            *(one.replace(kind=Parameter.KEYWORD_ONLY) for one in named),
        ]
    )
    return constructor
