"""Initialisations of weights, by name, so that an experiment can use those of the authors' program."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from torch import Tensor, nn

from steadygrad.check import check_choice
from steadygrad.matrices import Spec

Initialiser = Callable[[Tensor], object]
"""a function that fills a tensor in place"""
Law = TypeVar("Law")


def uniform(bound: float) -> Initialiser:
    """Return a function that fills a tensor in place with random numbers from U(−bound, bound)."""
    return partial(nn.init.uniform_, a=-bound, b=bound)


def normal(std: float) -> Initialiser:
    """Return a function that fills a tensor in place with random numbers from N(0, std²)."""
    return partial(nn.init.normal_, std=std)


def he_uniform(fan_in: int) -> Initialiser:
    """Return a function that fills a tensor in place from U(±√(6/fan_in)), as TensorFlow's he_uniform does.

    The bound depends on the argument ``fan_in``, not on the shape of the tensor.
    """
    return uniform(math.sqrt(6 / fan_in))


def he_normal(fan_in: int) -> Initialiser:
    """Return a function that fills a tensor in place from the distribution of TensorFlow's he_normal.

    The distribution is N(0, s²) truncated at ±2s, with s such that the standard deviation is √(2/fan_in). It depends on
    the argument ``fan_in``, not on the shape of the tensor.
    """
    s = math.sqrt(2 / fan_in) / 0.87962566103423978  # standard deviation of a unit normal truncated at ±2
    return partial(nn.init.trunc_normal_, std=s, a=-2 * s, b=2 * s)


def glorot_uniform(fan_in: int, fan_out: int) -> Initialiser:
    """Return a function that fills a tensor in place from U(±√(6/(fan_in + fan_out))).

    The bound depends on the arguments, not on the shape of the tensor.
    """
    return uniform(math.sqrt(6 / (fan_in + fan_out)))


INPUT_STARTS: dict[str, Initialiser] = {
    "xavier": nn.init.xavier_normal_,
    "kaiming": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
    "small": uniform(0.01),
}
"""initialisers of an input matrix (units, features): N(0, 2/(units + features)), N(0, 2/features), U(±0.01)"""

BIAS_STARTS: dict[str, Callable[[int, int], Initialiser]] = {
    "inputs": lambda features, units: uniform(1 / math.sqrt(features)),
    "units": lambda features, units: uniform(1 / math.sqrt(units)),
    "zeros": lambda features, units: nn.init.zeros_,
}
"""initialisers of a bias: U(±1/√features) as in torch.nn.Linear(features, units), U(±1/√units) as in torch.nn.RNN, 0"""

ORTHOGONAL_START: Spec = {"name": "free", "init": "henaff"}
"""a free W that starts as exp(A), with the A of Henaff et al. (2016), as in the authors' code of RelRNN"""


def choose(who: str, option: str, name: object, laws: Mapping[str, Law]) -> Law:
    """Return the entry ``laws[name]`` of a dict of initialisations by name. Raise ValueError if there is none.

    ``who`` and ``option`` are the names of the layer and of its option in the message.
    """
    check_choice(who, option, name, laws)
    return laws[str(name)]
