"""What a task trains: a layer and its readout, a language model, an agent, or a network that relates objects."""

from steadygrad.models.language import LanguageModel
from steadygrad.models.policy import PolicyModel
from steadygrad.models.relational import MODELS, RelationalModel
from steadygrad.models.sequence import Inside, SequenceModel

__all__ = ["MODELS", "Inside", "LanguageModel", "PolicyModel", "RelationalModel", "SequenceModel"]
