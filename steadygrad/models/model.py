"""Base class of the models that tasks train."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from steadygrad.layers import RecurrentLayer, Stack
from steadygrad.layers.baked import Bakeable
from steadygrad.layers.caching import Cacheable
from steadygrad.layers.recurrent import State


class Streamed(NamedTuple):
    """What `steadygrad.export` needs of a model: a function ``run`` of inputs and state, and an example of its inputs.

    ``run`` maps (inputs, state) to (outputs, final state). ``layer`` is the part that has the state.
    """

    run: Callable[[Any, State | None], tuple[Tensor, State]]
    layer: RecurrentLayer | Stack
    example: Tensor
    """inputs of several sequences and steps, such as zeros (batch, time, features)"""
    axes: tuple[str, str]
    """names of the first two dimensions of the inputs, "batch" and "time" in the model's order"""


class Model(Bakeable, Cacheable, nn.Module):
    """Base class of the models that tasks train: inputs (batch, …) → outputs. A recurrent model overrides `walk`."""

    def walk(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return the pair of the outputs for x and None: this model has no state, and ``state`` is ignored.

        A recurrent model overrides this method. It starts from ``state`` and returns the final state in the place of
        None.
        """
        return self(x), None

    def streamed(self) -> Streamed:
        """Return a `Streamed` for export: a function of inputs and state, its layer, and an example of its inputs.

        `Model` raises ValueError. A model that can be exported overrides this method.
        """
        raise ValueError(f"{type(self).__name__} cannot be exported: its graph depends on the data")

    def penalty(self) -> Tensor | float:
        """Return the regularisation term that training adds to the loss: 0.0, unless a subclass overrides this."""
        return 0.0
