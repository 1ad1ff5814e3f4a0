"""Base class of the models that tasks train."""

from torch import Tensor, nn

from steadygrad.layers.recurrent import State


class Model(nn.Module):
    """Base class of the models that tasks train: inputs (batch, …) → outputs. A recurrent model overrides `walk`."""

    def walk(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return the outputs for x and the final state, starting from ``state``; the state is None if not recurrent."""
        return self(x), None

    def penalty(self) -> Tensor | float:
        """Return the regularisation term that training adds to the loss."""
        return 0.0
