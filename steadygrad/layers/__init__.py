"""Recurrent layers with the interface of torch.nn.GRU. A new layer is one file and one line in `LAYERS`."""

from steadygrad.layers.antisymmetric import AntisymmetricRNN
from steadygrad.layers.cell import Cell, StepCell
from steadygrad.layers.cornn import CoRNN
from steadygrad.layers.enrnn import ENRNN
from steadygrad.layers.exprnn import ExpRNN
from steadygrad.layers.goru import GORU
from steadygrad.layers.gru import GRU
from steadygrad.layers.hdetach import HDetachLSTM
from steadygrad.layers.henaff import HenaffRNN
from steadygrad.layers.lem import LEM
from steadygrad.layers.lstm import LSTM
from steadygrad.layers.memory import Memory, Score
from steadygrad.layers.memrnn import MemLSTM, MemRNN
from steadygrad.layers.ncgru import NCGRU
from steadygrad.layers.nnrnn import NNRNN
from steadygrad.layers.ornn import ORNN
from steadygrad.layers.orthogonal import IRNN, OrthogonalRNN
from steadygrad.layers.recurrent import LayerClass, RecurrentLayer
from steadygrad.layers.relrnn import RelLSTM, RelRNN
from steadygrad.layers.rnn import RNN
from steadygrad.layers.sab import SAB
from steadygrad.layers.scornn import ScoRNN
from steadygrad.layers.stack import Stack
from steadygrad.layers.svdrnn import SpectralRNN
from steadygrad.layers.unitary import EURNN, URNN, FullCapacityURNN, ScuRNN

LAYERS: dict[str, LayerClass] = {
    "rnn": RNN,
    "rnn-orth": OrthogonalRNN,
    "irnn": IRNN,
    "henaff": HenaffRNN,
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
    "cornn": CoRNN,
    "lem": LEM,
    "antisymmetric": AntisymmetricRNN,
    "memrnn": MemRNN,
    "memlstm": MemLSTM,
    "sab": SAB,
    "relrnn": RelRNN,
    "rellstm": RelLSTM,
}
"""layer classes by name"""

__all__ = [
    "ENRNN",
    "EURNN",
    "GORU",
    "GRU",
    "IRNN",
    "LAYERS",
    "LEM",
    "LSTM",
    "NCGRU",
    "NNRNN",
    "ORNN",
    "RNN",
    "SAB",
    "URNN",
    "AntisymmetricRNN",
    "Cell",
    "CoRNN",
    "ExpRNN",
    "FullCapacityURNN",
    "HDetachLSTM",
    "HenaffRNN",
    "MemLSTM",
    "MemRNN",
    "Memory",
    "OrthogonalRNN",
    "RecurrentLayer",
    "RelLSTM",
    "RelRNN",
    "ScoRNN",
    "Score",
    "ScuRNN",
    "SpectralRNN",
    "Stack",
    "StepCell",
]
