"""The registries of matrices: functions that build a `Matrix` of a given size, by name."""

from collections.abc import Callable
from typing import TypeVar

from steadygrad.check import enter
from steadygrad.matrices.matrix import Matrix

Function = TypeVar("Function", bound=Callable[..., Matrix])

MATRICES: dict[str, Callable[..., Matrix]] = {}
"""builders of real matrices"""

COMPLEX: dict[str, Callable[..., Matrix]] = {}
"""builders of complex matrices; in a layer of 2n real units, a complex n × n matrix is used in its real form"""


def entered(name: str, *, complex: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that enters a function (size, options) → `Matrix` into `MATRICES`, or `COMPLEX` if complex.

    The decorator raises ValueError if another function has the name.
    """

    def enter_builder(function: Function) -> Function:
        enter(COMPLEX if complex else MATRICES, name, function)
        return function

    return enter_builder
