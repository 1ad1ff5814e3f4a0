"""What a task trains: a layer and its readout, or a network that relates objects."""

from steadygrad.models.relational import MODELS, RelationalModel
from steadygrad.models.sequence import SequenceModel

__all__ = ["MODELS", "RelationalModel", "SequenceModel"]
