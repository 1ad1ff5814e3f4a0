"""Cells with the call of torch.nn.GRUCell: one time step of a layer. Each layer in `LAYERS` has one.

    from steadygrad.layers.cells import LSTMCell, NCGRUCell

The name is that of the layer's class followed by ``Cell``. The classes are made when they are first asked for.
"""

from functools import cache
from inspect import Parameter, signature
from typing import Any, cast

from torch import Tensor

from steadygrad.layers.inputs import check_state
from steadygrad.layers.recurrent import LAYERS, RecurrentLayer, State

OF_LAYERS = ("num_layers", "batch_first", "dropout", "bidirectional")
"""arguments of layers that cells do not have"""

BY_POSITION = ("input_size", "hidden_size", "bias", "nonlinearity")
"""arguments that a cell takes by position, as torch.nn.RNNCell does, if its layer has them"""


class OneStepLayer(RecurrentLayer):
    """Base class of cells: a layer of one level and one direction that is called for one time step.

    The constructor takes ``input_size``, ``hidden_size`` and the keyword arguments of the layer. ``bias`` may be the
    third argument and ``nonlinearity`` the fourth, as in torch.nn.RNNCell. The parameters have torch's names, such as
    ``weight_ih``. Other methods are those of the layer, such as `cached`, `baked` and `penalty`.
    """

    suffixed = False

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool | None = None,
        nonlinearity: str | None = None,
        **options: Any,
    ) -> None:
        if wrong := [name for name in OF_LAYERS if name in options]:
            name = type(self).__name__
            raise TypeError(
                f"{name} has no option {', '.join(wrong)}: it is one step of one level and one direction; use "
                f"{name.removesuffix('Cell')}"
            )
        build: Any = super().__init__  # the layer's, whose arguments differ from those of RecurrentLayer
        given = {"bias": bias, "nonlinearity": nonlinearity}
        build(input_size, hidden_size, **options, **{key: value for key, value in given.items() if value is not None})

    def forward(self, input: Tensor, state: State | None = None) -> State:  # type: ignore[override]  # of one step
        """Return the state after one time step.

        ``input`` is (batch, input_size), or (input_size,) without a batch. A state is h of shape (batch, hidden), or
        the tuple of the layer, such as (h, c) of an LSTM, each without the dimension of levels. By default it is the
        layer's initial state. Raise ValueError for a wrong shape, dtype or device.
        """
        if not isinstance(input, Tensor):
            raise TypeError(f"{self._name} expects a tensor; got {type(input).__name__}")
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{self._name} expects input of shape (batch, {self.input_size}) or ({self.input_size},); got "
                f"{tuple(input.shape)}"
            )
        final = super().forward(input.unsqueeze(0), state, output=False)[1]
        return tuple(part.squeeze(0) for part in final) if isinstance(final, tuple) else final.squeeze(0)

    def _initial(self, h_0: State | None, batch: int | None, like: Tensor) -> tuple[Tensor, ...]:
        """Return the initial states (1, batch, …): h_0, which has no dimension of levels, after checks; or the default.

        ``batch`` may be None.
        """
        if h_0 is None:
            return self.default_states(1 if batch is None else batch, like)
        given = check_state(self._name, h_0, self.state_parts, () if batch is None else (batch,), like)
        return tuple([part[None, None] if batch is None else part.unsqueeze(0) for part in given])


@cache
def cell_class(layer: Any) -> type[OneStepLayer]:
    """Return the cell of a layer's class, such as ``NCGRUCell`` for `NCGRU`.

    It works for a layer of your own, too, if its constructor begins with ``input_size`` and ``hidden_size``.
    """
    name, doc = f"{layer.__name__}Cell", f"One time step of `{layer.__name__}`:  {layer.__doc__}"
    made = type(name, (OneStepLayer, layer), {"__doc__": doc, "__module__": __name__})
    known = {key: one for key, one in signature(layer).parameters.items() if key not in OF_LAYERS}
    if any("bias" in signature(base).parameters for base in layer.__mro__ if issubclass(base, RecurrentLayer)):
        known.setdefault("bias", Parameter("bias", Parameter.KEYWORD_ONLY, default=True, annotation=bool))
    leading = [known.pop(key).replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for key in BY_POSITION if key in known]
    options = [
        one if one.kind is Parameter.VAR_KEYWORD else one.replace(kind=Parameter.KEYWORD_ONLY) for one in known.values()
    ]
    options.sort(key=lambda one: one.kind is Parameter.VAR_KEYWORD)
    made.__signature__ = signature(layer).replace(parameters=[*leading, *options])  # type: ignore[attr-defined]
    made.positional = layer.positional  # type: ignore[attr-defined]
    return cast(type[OneStepLayer], made)


def __getattr__(name: str) -> Any:
    """Return the cell class of this name. Raise AttributeError if no layer in `LAYERS` has it."""
    for layer in LAYERS.values():
        if name == f"{layer.__name__}Cell":
            return cell_class(cast(Any, layer))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of this module, with those of all cells."""
    return sorted([*globals(), *(f"{layer.__name__}Cell" for layer in LAYERS.values())])
