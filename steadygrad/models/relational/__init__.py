"""Networks that answer from the relations between images. A new network is one file and one line in `MODELS`."""

from steadygrad.models.relational.corelnet import CoRelNet
from steadygrad.models.relational.corelnet_diff import CoRelNetDiff
from steadygrad.models.relational.corelnet_mix import CoRelNetMix
from steadygrad.models.relational.corelnet_t import CoRelNetT
from steadygrad.models.relational.encoder import FEATURES, Encoder
from steadygrad.models.relational.esbn import ESBN
from steadygrad.models.relational.lstm import RelationalLSTM
from steadygrad.models.relational.mnm import MNM
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.relational.normalisation import ContextNormalisation
from steadygrad.models.relational.ntm import NTM
from steadygrad.models.relational.predinet import PrediNet
from steadygrad.models.relational.recurrent import Recurrent
from steadygrad.models.relational.rn import RelationNetwork
from steadygrad.models.relational.transformer import Transformer

MODELS: dict[str, type[RelationalModel]] = {
    "corelnet": CoRelNet,
    "corelnet-t": CoRelNetT,
    "corelnet-diff": CoRelNetDiff,
    "corelnet-mix": CoRelNetMix,
    "esbn": ESBN,
    "predinet": PrediNet,
    "transformer": Transformer,
    "ntm": NTM,
    "mnm": MNM,
    "rn": RelationNetwork,
    "lstm": RelationalLSTM,
}

__all__ = [
    "ESBN",
    "FEATURES",
    "MNM",
    "MODELS",
    "NTM",
    "CoRelNet",
    "CoRelNetDiff",
    "CoRelNetMix",
    "CoRelNetT",
    "ContextNormalisation",
    "Encoder",
    "PrediNet",
    "Recurrent",
    "RelationNetwork",
    "RelationalLSTM",
    "RelationalModel",
    "Transformer",
]
