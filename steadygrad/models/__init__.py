"""Models that tasks train: a layer with a readout, a language model, an agent, and relational networks."""

from steadygrad.models.language import LanguageModel
from steadygrad.models.model import Model
from steadygrad.models.policy import PolicyModel
from steadygrad.models.relational import MODELS, RelationalModel
from steadygrad.models.sequence import Inside, SequenceModel
from steadygrad.models.stream import TokenStream

__all__ = [
    "MODELS",
    "Inside",
    "LanguageModel",
    "Model",
    "PolicyModel",
    "RelationalModel",
    "SequenceModel",
    "TokenStream",
]
