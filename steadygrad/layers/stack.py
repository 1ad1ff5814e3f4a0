"""A stack of recurrent layers, which may differ in kind and size."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import cast

from torch import Tensor, nn

from steadygrad.check import InputError
from steadygrad.layers.baked import Bakeable
from steadygrad.layers.caching import Cacheable
from steadygrad.layers.cell import Lookup
from steadygrad.layers.recurrent import RecurrentLayer, State, as_tuple
from steadygrad.layers.stream import Stages, Streamable


class Stack(Streamable, Bakeable, Cacheable, nn.ModuleList):
    """h = L_k(… L_1(x)),  L_1 … L_k recurrent layers, called as one layer.

    Example: `Stack([NCGRU(43, 100), LSTM(100, 43)])`. The state is the tuple of the tensors of all layers' states, in
    order. Raise ValueError for an empty list, for a layer that is bidirectional or batch_first, and for a layer whose
    input_size is not the output_size of the layer before it.
    """

    def __init__(self, layers: Sequence[RecurrentLayer]) -> None:
        super().__init__(layers)
        if not len(self):
            raise ValueError("Stack expects at least one layer; got none")
        for level, layer in enumerate(self.layers()):
            if layer.batch_first or layer.bidirectional:
                raise ValueError(
                    "Stack expects unidirectional layers that take time first; got "
                    f"bidirectional={layer.bidirectional} and batch_first={layer.batch_first} in layer {level}"
                )
        for below, above in pairwise(self.layers()):
            if above.input_size != below.output_size:
                raise ValueError(
                    f"Stack expects a layer that takes the {below.output_size} features of the one before it; "
                    f"got one of {above.input_size}"
                )

    def forward(
        self,
        x: Tensor | Lookup,
        state: State | list[Tensor] | None = None,
        between: Callable[[Tensor], Tensor] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Return the pair of the last layer's outputs (time, batch, features) and the final states of all layers.

        x is (time, batch, features), or a `Lookup`. ``state`` and the final states are a tuple of the tensors of all
        layers in order, or a single tensor if there is only one. ``between`` is a function such as dropout that is
        applied to the output of each layer but the last. ``reset`` (time, batch) is a Boolean mask of the steps before
        which the state of every layer is reset, as in `RecurrentLayer.forward`.
        """
        ends: list[Tensor] = []
        for level, (layer, own) in enumerate(zip(self.layers(), self.parts(state), strict=True)):
            if level and between is not None:
                x = between(cast(Tensor, x))
            x, end = layer(x, own or None, reset=reset)
            ends += as_tuple(end)
        return cast(Tensor, x), ends[0] if len(ends) == 1 else tuple(ends)

    def without_memory(self, state: State) -> State:
        """Return the state, in the same form, with the layers' memories of past states emptied."""
        both = zip(self.layers(), self.parts(state), strict=True)
        ends = [part for layer, own in both for part in as_tuple(layer.without_memory(own))]
        return ends[0] if len(ends) == 1 else tuple(ends)

    def parts(self, state: State | list[Tensor] | None) -> list[tuple[Tensor, ...]]:
        """Split a state into a list with one tuple of tensors for each layer. For None the tuples are empty.

        Raise InputError if the number of tensors is wrong.
        """
        given = tuple(state) if isinstance(state, list) else as_tuple(state)
        needed = sum(len(layer.state_parts) for layer in self.layers())
        if state is not None and len(given) != needed:
            raise InputError(
                f"Stack expects a state of {needed} tensors, those of all layers in a row; got {len(given)}"
            )
        rest = iter(given)
        return [tuple(islice(rest, len(layer.state_parts))) for layer in self.layers()]

    def layers(self) -> Iterator[RecurrentLayer]:
        """Return an iterator over the layers, in order."""
        return cast(Iterator[RecurrentLayer], iter(self))

    def stages(self) -> Stages:
        """Return the `Stages` of a stream: the layers, in order."""
        return Stages(list(self.layers()))

    @property
    def input_size(self) -> int:
        """Number of features that the first layer takes."""
        return next(self.layers()).input_size

    @property
    def output_size(self) -> int:
        """Number of features that the last layer returns."""
        return list(self.layers())[-1].output_size

    def matrices(self) -> dict[str, Tensor]:
        """Return a dict of the recurrent matrices of all layers: ``{"0.recurrent_l0": W, "1.recurrent_l0": …}``."""
        return {
            f"{level}.{name}": W for level, layer in enumerate(self.layers()) for name, W in layer.matrices().items()
        }

    def penalty(self) -> Tensor | float:
        """Return the sum of the layers' regularisation terms."""
        return sum(layer.penalty() for layer in self.layers())

    @property
    def blocks(self) -> dict[str, slice]:
        """Slice of each layer in the flat state, as a dict ``{"layer 0": slice(0, …), "layer 1": …}``.

        The flat state is all states concatenated (`steadygrad.diagnostics.flow.flatten`), without memories of past
        states.
        """
        found, end = {}, 0
        for level, layer in enumerate(self.layers()):
            size = layer.num_layers * sum(layer.state_sizes)
            found[f"layer {level}"] = slice(end, end + size)
            end += size
        return found
