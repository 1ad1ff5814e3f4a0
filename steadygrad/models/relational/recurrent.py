"""Relational network with any recurrent layer, which reads the objects in order."""

from typing import Any

from torch import Tensor

from steadygrad.layers import RecurrentLayer
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.sequence import Inside, SequenceModel
from steadygrad.problem import Problem


class Recurrent(RelationalModel):
    """y = C h_T + c,  h = layer(z): a relational network with any recurrent layer.

    The layer reads one object per step, and the last output h_T gives the logits y. z are the normalised features of
    the objects. ``layer`` takes time first: `LAYERS["nnrnn"](128, 256)`. A layer with batch_first or with an input size
    other than 128 raises ValueError.
    """

    def __init__(self, layer: RecurrentLayer, problem: Problem, **shared: Any) -> None:
        super().__init__(problem, **shared)
        if layer.input_size != FEATURES:
            raise ValueError(f"{self._name} expects a layer with input_size {FEATURES}; got {layer.input_size}")
        self.sequence = SequenceModel(layer, problem.answers, last_only=True)

    def answer(self, z: Tensor) -> Tensor:
        return self.sequence(z)

    def inside(self, x: Tensor) -> Inside:
        """Return an `Inside` for the images x: the recurrent layer, its inputs z = encode(x), and the readout.

        x is (batch, objects, channels, image_size, image_size). z is (batch, objects, 128): one object a time step.
        """
        return self.sequence.inside(self.encode(x))

    def penalty(self) -> Tensor | float:
        """Return the L1 term plus the regularisation term of the recurrent layer, which training adds to the loss."""
        return super().penalty() + self.sequence.penalty()
