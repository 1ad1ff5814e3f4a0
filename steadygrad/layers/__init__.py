"""Recurrent layers with the call of torch.nn.GRU. A layer is one file and one line here."""

from steadygrad.layers.enrnn import ENRNN
from steadygrad.layers.exprnn import ExpRNN
from steadygrad.layers.goru import GORU
from steadygrad.layers.gru import GRU
from steadygrad.layers.hdetach import HDetachLSTM
from steadygrad.layers.lstm import LSTM
from steadygrad.layers.ncgru import NCGRU
from steadygrad.layers.nnrnn import NNRNN
from steadygrad.layers.ornn import ORNN
from steadygrad.layers.orthogonal import IRNN, OrthogonalRNN
from steadygrad.layers.recurrent import Cell, RecurrentLayer
from steadygrad.layers.rnn import RNN
from steadygrad.layers.scornn import ScoRNN
from steadygrad.layers.svdrnn import SpectralRNN
from steadygrad.layers.unitary import EURNN, URNN, FullCapacityURNN, ScuRNN

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
    "goru": GORU,
    "h-detach": HDetachLSTM,
    "ornn": ORNN,
    "svdrnn": SpectralRNN,
    "urnn": URNN,
    "full-urnn": FullCapacityURNN,
    "scurnn": ScuRNN,
    "eurnn": EURNN,
}

__all__ = [
    "ENRNN",
    "EURNN",
    "GORU",
    "GRU",
    "IRNN",
    "LAYERS",
    "LSTM",
    "NCGRU",
    "NNRNN",
    "ORNN",
    "RNN",
    "URNN",
    "Cell",
    "ExpRNN",
    "FullCapacityURNN",
    "HDetachLSTM",
    "OrthogonalRNN",
    "RecurrentLayer",
    "ScoRNN",
    "ScuRNN",
    "SpectralRNN",
]
