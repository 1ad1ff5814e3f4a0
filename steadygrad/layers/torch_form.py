"""How the weights of torch.nn.RNN, nn.GRU and nn.LSTM are those of a cell, and their state dicts those of a layer."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadygrad.layers.naming import suffix

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""parameters of one level and direction of a layer of torch.nn, without their suffix; weight_hr is the projection"""

Weights = dict[str, Tensor]
"""weights of one level and direction by name, without the suffix"""


class TorchForm(NamedTuple):
    """A cell as one level and direction of a layer of torch.nn.

    ``mode`` is the ``mode`` of torch's layer: RNN_TANH, RNN_RELU, GRU or LSTM.
    """

    mode: str
    weights: Weights


def with_one_bias(weights: Weights) -> Weights:
    """Return torch's weights with its two biases added. Weights without ``bias_hh`` are returned unchanged."""
    if "bias_hh" not in weights:
        return weights
    rest = {name: value for name, value in weights.items() if name not in ("bias_ih", "bias_hh")}
    return rest | {"bias_ih": weights["bias_ih"] + weights["bias_hh"]}


def with_two_biases(weights: dict[str, Tensor | None]) -> Weights:
    """Return a cell's weights as torch's: without those that are None, and ``bias_hh`` is 0 if there is a ``bias_ih``.

    A ``bias_hh`` among the weights is kept.
    """
    found = {name: value for name, value in weights.items() if value is not None}
    return found if "bias_ih" not in found else {"bias_hh": torch.zeros_like(found["bias_ih"])} | found


def negate_update(rows: Tensor) -> Tensor:
    """Return rows of the gates of a GRU, reset, update and candidate, with those of the update gate negated.

    Because σ(−x) = 1 − σ(x), this turns torch's z, which keeps the state, into u = 1 − z, and back.
    """
    units = len(rows) // 3
    return torch.cat([rows[:units], -rows[units : 2 * units], rows[2 * units :]])


def read_torch_state(layer: Any, state: dict[str, Tensor], prefix: str) -> None:
    """Replace the weights of torch's layer in a state dict by those of ``layer``, in place.

    The keys begin with ``prefix``. Torch's state is recognised by its second bias, ``bias_hh_l0``. Without biases the
    keys are those of the layer itself, and nothing is changed.
    """
    for index, cell in enumerate(layer.cells):
        end = suffix(layer, index)
        keys = {name: f"{prefix}{name}{end}" for name in NAMES}
        if {keys["bias_ih"], keys["bias_hh"]} <= state.keys():
            given = {name: state.pop(key) for name, key in keys.items() if key in state}
            state.update({f"{prefix}{name}{end}": value for name, value in cell.from_torch(given).items()})
