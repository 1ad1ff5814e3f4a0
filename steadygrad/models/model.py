"""Base class of the models that tasks train."""

from torch import Tensor, nn

from steadygrad.layers.recurrent import State


class Model(nn.Module):
    """Base class of the models that tasks train: inputs (batch, …) → outputs. A recurrent model overrides `walk`."""

    def walk(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return the pair of the outputs for x and None: this model has no state, and ``state`` is ignored.

        A recurrent model overrides this method. It starts from ``state`` and returns the final state in the place of
        None.
        """
        return self(x), None

    def penalty(self) -> Tensor | float:
        """Return the regularisation term that training adds to the loss: 0.0, unless a subclass overrides this."""
        return 0.0
