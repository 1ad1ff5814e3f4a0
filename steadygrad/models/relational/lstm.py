"""An LSTM over objects, a baseline of Webb et al. (2021)."""

from typing import Any

import torch
from torch import nn

from steadygrad.layers import LSTM, RecurrentLayer
from steadygrad.models.relational import initialisation
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.recurrent import Recurrent
from steadygrad.problem import Problem


class RelationalLSTM(Recurrent):
    """y = C h_T + c,  h = LSTM(z) of 512 units.

    A recurrent baseline. It reads the objects one by one and answers from its last state h_T. z are the normalised
    features of the objects, y the logits.

    Computation and initialisation follow Webb's program (taylorwwebb/emergent_symbols, LSTM.py): weights are Xavier
    normal, biases are 0. The program has two bias vectors and only uses their sum; here there is one, b = b_ih + b_hh.
    """

    revision = 2  # revision 1 had torch's initialisation

    def __init__(self, problem: Problem, *, hidden_size: int = 512, **shared: Any) -> None:
        super().__init__(LSTM(FEATURES, hidden_size), problem, **shared)
        initialise(self.sequence.layer)


@torch.no_grad()
def initialise(layer: RecurrentLayer) -> None:
    """Initialise an `LSTM` layer in place as in Webb's program: weights by `lstm_gates`, biases 0.

    These weights are Xavier normal, with gain 5/3 for the cell gate.
    """
    for name, parameter in layer.named_parameters():
        if name.startswith("weight"):
            initialisation.lstm_gates(parameter)
        else:
            nn.init.zeros_(parameter)
