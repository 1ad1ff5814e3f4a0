"""Recurrent layers with the interface of torch.nn.GRU. A new layer is one file and one line here, its import."""

# isort: off
# `LAYERS` lists the layers in the order of these imports.
from steadygrad.layers.rnn import RNN as RNN
from steadygrad.layers.orthogonal import OrthogonalRNN as OrthogonalRNN
from steadygrad.layers.orthogonal import IRNN as IRNN
from steadygrad.layers.henaff import HenaffRNN as HenaffRNN
from steadygrad.layers.lstm import LSTM as LSTM
from steadygrad.layers.gru import GRU as GRU
from steadygrad.layers.scornn import ScoRNN as ScoRNN
from steadygrad.layers.exprnn import ExpRNN as ExpRNN
from steadygrad.layers.nnrnn import NNRNN as NNRNN
from steadygrad.layers.enrnn import ENRNN as ENRNN
from steadygrad.layers.ncgru import NCGRU as NCGRU
from steadygrad.layers.goru import GORU as GORU
from steadygrad.layers.hdetach import HDetachLSTM as HDetachLSTM
from steadygrad.layers.ornn import ORNN as ORNN
from steadygrad.layers.svdrnn import SpectralRNN as SpectralRNN
from steadygrad.layers.unitary import URNN as URNN
from steadygrad.layers.unitary import FullCapacityURNN as FullCapacityURNN
from steadygrad.layers.unitary import ScuRNN as ScuRNN
from steadygrad.layers.unitary import EURNN as EURNN
from steadygrad.layers.cornn import CoRNN as CoRNN
from steadygrad.layers.lem import LEM as LEM
from steadygrad.layers.antisymmetric import AntisymmetricRNN as AntisymmetricRNN
from steadygrad.layers.memrnn import MemRNN as MemRNN
from steadygrad.layers.memrnn import MemLSTM as MemLSTM
from steadygrad.layers.sab import SAB as SAB
from steadygrad.layers.relrnn import RelRNN as RelRNN
from steadygrad.layers.relrnn import RelLSTM as RelLSTM
# isort: on

from steadygrad.layers import cells as cells
from steadygrad.layers.calibration import calibrate as calibrate
from steadygrad.layers.cell import Cell as Cell
from steadygrad.layers.cell import StepCell as StepCell
from steadygrad.layers.memory import Memory as Memory
from steadygrad.layers.naming import Owned as Owned
from steadygrad.layers.recurrent import LAYERS as LAYERS
from steadygrad.layers.recurrent import LayerClass as LayerClass
from steadygrad.layers.recurrent import RecurrentLayer as RecurrentLayer
from steadygrad.layers.relevance import Score as Score
from steadygrad.layers.stack import Stack as Stack
from steadygrad.layers.stream import Stream as Stream
from steadygrad.layers.torch_weights import from_torch as from_torch
from steadygrad.layers.torch_weights import to_torch as to_torch
