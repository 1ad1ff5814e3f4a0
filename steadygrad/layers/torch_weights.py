"""Layers of torch.nn as layers of this package with the same weights, and back."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from steadygrad.layers.cell import Cell
from steadygrad.layers.gru import GRU
from steadygrad.layers.lstm import LSTM
from steadygrad.layers.naming import suffix
from steadygrad.layers.recurrent import LayerClass, RecurrentLayer
from steadygrad.layers.rnn import RNN
from steadygrad.layers.torch_form import NAMES, TorchForm


class Pair(NamedTuple):
    """A class of torch.nn and a class of this package that compute the same, with the options that make them so."""

    theirs: Callable[..., nn.RNNBase]
    their_options: Mapping[str, Any]
    ours: LayerClass
    our_options: Mapping[str, Any]


PAIRS = {
    "RNN_TANH": Pair(nn.RNN, {"nonlinearity": "tanh"}, RNN, {"activation": "tanh"}),
    "RNN_RELU": Pair(nn.RNN, {"nonlinearity": "relu"}, RNN, {"activation": "relu"}),
    "GRU": Pair(nn.GRU, {}, GRU, {"reset": "after"}),
    "LSTM": Pair(nn.LSTM, {}, LSTM, {}),
}
"""pairs of classes by the ``mode`` of torch's layer"""
SHARED = ("num_layers", "batch_first", "dropout", "bidirectional")
"""options that both classes of a pair have as attributes"""


def from_torch(module: nn.RNNBase) -> RecurrentLayer:
    """Return an `RNN`, `LSTM` or `GRU` with the weights of a torch.nn.RNN, nn.LSTM or nn.GRU, which computes the same.

    The GRU has ``reset="after"``. All options of torch's layer are kept, and so are its dtype, its device, its training
    mode and ``requires_grad`` of each parameter. Torch's two biases are added. The weights are copied. The initial
    state is 0, as in torch. Raise ValueError for another module.
    """
    pair = PAIRS.get(module.mode) if isinstance(module, nn.RNNBase) else None
    if pair is None:
        raise ValueError(f"from_torch expects a torch.nn.RNN, nn.GRU or nn.LSTM; got {type(module).__name__}")
    first: Any = module.weight_ih_l0
    options = {name: getattr(module, name) for name in SHARED} | dict(pair.our_options) | {"bias": module.bias}
    if module.proj_size:
        options["proj_size"] = module.proj_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that dropout does nothing with one level, which torch has said
        layer = pair.ours(module.input_size, module.hidden_size, **options, device=first.device, dtype=first.dtype)
    for index, cell in enumerate(layer._cells()):
        end = suffix(layer, index)
        given = {name: getattr(module, name + end) for name in NAMES if hasattr(module, name + end)}
        for name, value in cell.from_torch(given).items():
            replace(layer.get_parameter(name + end), value, value.requires_grad)
    return layer.train(module.training)


def to_torch(layer: RecurrentLayer) -> nn.RNNBase:
    """Return a torch.nn.RNN, nn.LSTM or nn.GRU that computes what a layer computes in evaluation mode.

    Each matrix is copied as it is now. What a layer does in training only is not carried over: torch's layer has no
    constraint on a matrix, no ``penalty()`` and no dropout of weights. Torch's second bias ``bias_hh`` is 0, except for
    b_hn of a GRU. Options, dtype, device and training mode are kept. A parameter that is frozen in the layer is
    frozen in torch's layer, too.

    Raise ValueError if torch has no such layer: with another activation than tanh and relu, for a GRU with
    ``reset="before"``, with complex units, attention or a trained initial state.
    """
    if not isinstance(layer, RecurrentLayer):
        raise ValueError(f"to_torch expects a layer of steadygrad; got {type(layer).__name__}")
    forms = torch_forms(layer)
    pair, first = PAIRS[forms[0].mode], forms[0].weights["weight_ih"]
    options = {name: getattr(layer, name) for name in SHARED} | dict(pair.their_options)
    if "weight_hr" in forms[0].weights:
        options["proj_size"] = len(forms[0].weights["weight_hr"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that dropout does nothing with one level, which the layer has said
        module = pair.theirs(
            layer.input_size,
            layer.hidden_size,
            bias="bias_ih" in forms[0].weights,
            device=first.device,
            dtype=first.dtype,
            **options,
        )
    trained: dict[str, bool] = {}  # a matrix under a constraint has several tensors, such as weight_hh_l0.skew
    for name, parameter in layer.named_parameters():
        own, _, _ = name.partition(".")
        trained[own] = trained.get(own, False) or parameter.requires_grad
    for index, form in enumerate(forms):
        end = suffix(layer, index)
        for name, value in form.weights.items():
            own = name.replace("bias_hh", "bias_ih") + end
            replace(module.get_parameter(name + end), value, trained.get(own, True))
    return module.train(layer.training)


def torch_forms(layer: RecurrentLayer) -> list[TorchForm]:
    """Return the `TorchForm` of each cell of a layer. Raise ValueError, with the reason, if torch has no such layer."""
    try:
        if layer.initial_state is not None:
            raise ValueError("torch has no trained initial state")
        return [cast(Cell, cell).to_torch() for cell in layer.baked().cells]
    except ValueError as reason:
        who = type(layer).__name__
        raise ValueError(
            f"to_torch expects a layer that torch.nn has; got {who}: {reason}. For inference use {who}.baked(), a copy "
            "with plain weights, or steadygrad.export"
        ) from None


@torch.no_grad()
def replace(parameter: nn.Parameter, value: torch.Tensor, trained: bool) -> None:
    """Copy a value into a parameter, and set whether it requires a gradient."""
    parameter.copy_(value).requires_grad_(trained)
