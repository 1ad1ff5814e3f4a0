"""Initialisation as in the programs of Webb et al. (2021), https://github.com/taylorwwebb/emergent_symbols."""

import torch
from torch import Tensor, nn

TANH_GAIN = 5 / 3


def kaiming(module: nn.Module) -> None:
    """Initialise a Conv2d or Linear in place: weights N(0, 2 / fan_in), as in He et al. (2015), biases 0.

    It is meant for a layer that a ReLU follows. Other modules are not changed, so it can be passed to
    `nn.Module.apply`.
    """
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def xavier(module: nn.Module, gain: float = 1.0) -> None:
    """Initialise a Linear in place: weights N(0, 2 gain² / (fan_in + fan_out)), as in Glorot & Bengio (2010), biases 0.

    Other modules are not changed.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight, gain)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def decoder(layers: nn.Sequential) -> None:
    """Initialise an output perceptron in place: `kaiming` before each ReLU, `xavier` for the last layer.

    ``layers`` is an nn.Sequential that ends with a Linear.
    """
    layers.apply(kaiming)
    xavier(layers[-1])


@torch.no_grad()
def lstm_gates(weights: Tensor) -> None:
    """Initialise the ``weights`` (4 · hidden_size, inputs) of an LSTM's gates in place, Xavier normal.

    The gates are input, forget, cell and output, in this order. The input and the forget gate count as one matrix. The
    cell gate has the gain 5/3 of tanh.
    """
    hidden_size = len(weights) // 4
    nn.init.xavier_normal_(weights[: 2 * hidden_size])
    nn.init.xavier_normal_(weights[2 * hidden_size : 3 * hidden_size], TANH_GAIN)
    nn.init.xavier_normal_(weights[3 * hidden_size :])


def lstm_cell(cell: nn.LSTMCell) -> None:
    """Initialise the weights of an nn.LSTMCell in place by `lstm_gates`, and its biases to 0."""
    lstm_gates(cell.weight_ih)
    lstm_gates(cell.weight_hh)
    nn.init.zeros_(cell.bias_ih)
    nn.init.zeros_(cell.bias_hh)
