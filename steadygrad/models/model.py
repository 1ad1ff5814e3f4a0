"""Base class of the models that tasks train."""

from torch import Tensor, nn

from steadygrad.layers.recurrent import State


class Model(nn.Module):
    """Base class: inputs (batch, …) → outputs. A model with a recurrent layer overrides `walk`."""

    def walk(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return the outputs and the final state. The state is None if the model is not recurrent."""
        return self(x), None

    def penalty(self) -> Tensor | float:
        """Return the regularisation term that training adds to the loss."""
        return 0.0
