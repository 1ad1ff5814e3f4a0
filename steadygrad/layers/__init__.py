"""Recurrent layers with the call of torch.nn.GRU. A layer is one file and one line here."""

from steadygrad.layers.enrnn import ENRNN
from steadygrad.layers.exprnn import ExpRNN
from steadygrad.layers.gru import GRU
from steadygrad.layers.lstm import LSTM
from steadygrad.layers.ncgru import NCGRU
from steadygrad.layers.nnrnn import NNRNN
from steadygrad.layers.orthogonal import IRNN, OrthogonalRNN
from steadygrad.layers.recurrent import Cell, RecurrentLayer
from steadygrad.layers.rnn import RNN
from steadygrad.layers.scornn import ScoRNN

LAYERS: dict[str, type[RecurrentLayer]] = {
    "rnn": RNN,
    "rnn-orth": OrthogonalRNN,
    "irnn": IRNN,
    "lstm": LSTM,
    "gru": GRU,
    "scornn": ScoRNN,
    "exprnn": ExpRNN,
    "nnrnn": NNRNN,
    "enrnn": ENRNN,
    "ncgru": NCGRU,
}

__all__ = [
    "ENRNN",
    "GRU",
    "IRNN",
    "LAYERS",
    "LSTM",
    "NCGRU",
    "NNRNN",
    "RNN",
    "Cell",
    "ExpRNN",
    "OrthogonalRNN",
    "RecurrentLayer",
    "ScoRNN",
]
