"""What a task trains."""

from steadygrad.models.sequence import SequenceModel

__all__ = ["SequenceModel"]
