"""Base class of recurrent layers: a cell for each of num_layers levels and each direction, called as torch.nn.GRU."""

import warnings
from collections.abc import Callable, Iterator
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from steadygrad.check import InputError, check_flags, check_integers, check_share, enter
from steadygrad.kernels import autocasts, own_precision, padded_steps, traced, untraced
from steadygrad.layers.attentive import AttentionSpec, attentive
from steadygrad.layers.baked import Bakeable
from steadygrad.layers.caching import Cacheable, forget
from steadygrad.layers.cell import MOST_LAYERS, Cell, Lookup
from steadygrad.layers.checkpointing import check_chunk
from steadygrad.layers.constructor import TORCH_ORDER, in_torch_order
from steadygrad.layers.constructor import Common as Common
from steadygrad.layers.constructor import with_attention as with_attention
from steadygrad.layers.gates import FreeWeights
from steadygrad.layers.inputs import check_input, check_state, check_table, in_dtype, packed_steps, rows_of_input
from steadygrad.layers.levels import walk
from steadygrad.layers.naming import suffix
from steadygrad.layers.parameters import ParameterOwner
from steadygrad.layers.resets import rows_of_reset
from steadygrad.layers.stream import Streamable
from steadygrad.layers.torch_names import TorchNames
from steadygrad.matrices import Matrix
from steadygrad.matrices.parameters import whole

State = Tensor | tuple[Tensor, ...]


def as_tuple(state: State | None) -> tuple[Tensor, ...]:
    """Return the tensors of a state as a tuple; an empty tuple for None."""
    if state is None:
        return ()
    return state if isinstance(state, tuple) else (state,)


class LayerClass(Protocol):
    """Protocol of a class in `LAYERS`: called with input size, hidden size and options, it returns a layer."""

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> "RecurrentLayer": ...


LAYERS: dict[str, LayerClass] = {}
"""layer classes by name; a class enters itself, see `RecurrentLayer`"""


class RecurrentLayer(Streamable, Bakeable, Cacheable, TorchNames, ParameterOwner):
    """Base class of recurrent layers, called as torch.nn.GRU: ``num_layers`` levels, one or two directions, dropout.

    A subclass with a name, ``class CoRNN(RecurrentLayer, name="cornn")``, enters itself into `LAYERS`.

    The input is (time, batch, input_size), or (batch, time, input_size) with ``batch_first``, or (time, input_size),
    or a PackedSequence. The output has the same form with ``output_size`` features. The states h_0 and h_n are
    (num_layers · directions, batch, size), without the batch for an input (time, input_size). A state of more than
    one tensor is a tuple, such as (h, c) of an LSTM. Attention appends tensors, such as those of its memory, each
    (num_layers · directions, batch, …). Convention: states are columns, h_t = φ(W h_{t−1} + …); on rows of a batch that
    is h @ W.T. A language model passes a `Lookup` as input. ``make_cell`` is a function input size → `Cell`.

    ``attention`` makes any layer attend to its past states (`steadygrad.layers.attentive`). It is a dict of options
    such as {"short": 10, "relevant": 10}, or a function cell → cell.

    ``trained_state`` makes the initial state trainable: ``initial_state`` is an nn.ParameterList of one tensor
    (num_layers · directions, size) for h_0 and, in an LSTM, one for c_0. Every sequence starts from it unless the
    caller passes a state. The tensors that attention appends have no such parameter; a memory starts empty.
    """

    initial_state: nn.ParameterList | None
    suffixed = True
    """whether the names of parameters end with the level and the direction, as ``_l0`` and ``_l0_reverse``"""

    def __init_subclass__(
        cls, name: str | None = None, positional: tuple[str, ...] = TORCH_ORDER, **options: object
    ) -> None:
        """Enter the class into `LAYERS` if it has a ``name``. Let its constructor take arguments by position.

        ``positional`` names those that follow the constructor's own, see `in_torch_order`.

        Raise ValueError if another class has the name. The same class may be defined again, as in a notebook.
        """
        super().__init_subclass__(**options)
        if name is not None:
            enter(LAYERS, name, cls)
            cls.registered = name
        if "__init__" in cls.__dict__:
            cls.positional = positional
            cls.__init__ = in_torch_order(vars(cls)["__init__"], positional, signature(RecurrentLayer))  # type: ignore[method-assign]

    def __init__(
        self,
        make_cell: Callable[[int], Cell],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        attention: AttentionSpec | None = None,
        trained_state: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unknown: object,
    ) -> None:
        super().__init__()
        if unknown:
            known = ", ".join(signature(type(self)).parameters)
            raise TypeError(f"{self._name} has no option {', '.join(unknown)}; it has {known}")
        check_integers(self._name, input_size=input_size, hidden_size=hidden_size)
        check_integers(self._name, most=MOST_LAYERS, num_layers=num_layers)
        check_flags(self._name, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        check_share(self._name, "dropout", dropout)
        if dtype is not None and not dtype.is_floating_point:
            raise ValueError(f"{self._name} expects a floating-point dtype; got {dtype}")
        if dropout and num_layers == 1:
            warnings.warn(
                f"{self._name}: dropout acts between layers, so with num_layers=1 it does nothing", stacklevel=4
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        self.dropout, self.bidirectional = float(dropout), bidirectional
        cells: list[Cell] = []
        for level in range(num_layers):
            width = input_size if level == 0 else cells[0].output_size * self.directions
            made = [make_cell(width) for _ in range(self.directions)]
            own_sizes = made[0].state_sizes  # without the tensors that attention adds
            cells.extend(made if attention is None else [attentive(cell, attention, bias) for cell in made])
        self.cells = nn.ModuleList(cells)
        self.state_sizes, self.state_parts = cells[0].state_sizes, cells[0].state_parts
        self.output_size = cells[0].output_size * self.directions
        self.initial_state = None
        self.take_over()
        if not bias:
            self.check_no_bias()
        if trained_state:
            self.initial_state = nn.ParameterList(nn.Parameter(torch.empty(len(cells), size)) for size in own_sizes)
            for start in self.initial_state:
                self.reset_initial_state(start)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    @property
    def _name(self) -> str:
        """Name of the class, for error messages."""
        return type(self).__name__

    def matrices(self) -> dict[str, Tensor]:
        """Return a dict of the recurrent matrices of all cells, with torch's suffixes: ``{"recurrent_l0": W, …}``."""
        return {
            name + suffix(self, index): whole(W)
            for index, cell in enumerate(self._cells())
            for name, W in cell.matrices().items()
        }

    def penalty(self) -> Tensor | float:
        """Return the sum of the cells' regularisation terms, which training adds to the loss; by default 0.0."""
        return sum(cell.penalty() for cell in self._cells())

    def reset_initial_state(self, start: Tensor) -> None:
        """Fill one tensor of the trained initial state in place with zeros; a subclass may start from other values."""
        nn.init.zeros_(start)

    def without_memory(self, state: State) -> State:
        """Return the state, in the same form, with its memory of past states emptied, if the layer has one."""
        own = as_tuple(state)[: len(self.state_sizes)]
        memory = (part.zeros(own[0].shape[:-1], own[0]) for part in self.state_parts[len(own) :])
        return self._joined((*own, *memory))

    def drop_weights(self, share: float) -> None:
        """Set the dropout probability of the entries of the recurrent matrices in training to ``share``.

        The zero entries are drawn anew in each forward pass in training mode.
        """
        for part in self.modules():
            if isinstance(part, Matrix | FreeWeights):
                part.dropout = share

    def refresh(self) -> None:
        """Clear the cached recurrent matrices. Needed after some in-place edits through ``.data``, see `Matrix`."""
        for matrix in self._maps():
            matrix.refresh()
        forget(self)

    def _maps(self) -> Iterator[Matrix]:
        """Return an iterator over every `Matrix` of the layer."""
        return (module for module in self.modules() if isinstance(module, Matrix))

    if TYPE_CHECKING:  # nn.Module types its call as Any

        @overload
        def __call__(self, input: Tensor | Lookup, h_0: State | None = None, **rest: Any) -> tuple[Tensor, Any]: ...
        @overload
        def __call__(
            self, input: PackedSequence, h_0: State | None = None, **rest: Any
        ) -> tuple[PackedSequence, Any]: ...
        def __call__(self, *arguments: Any, **options: Any) -> Any: ...

    def forward(
        self,
        input: Tensor | PackedSequence | Lookup,
        h_0: State | None = None,
        *,
        hx: State | None = None,
        reset: Tensor | PackedSequence | None = None,
        checkpoint: int | bool = False,
        output: bool = True,
    ) -> tuple[Tensor | PackedSequence | None, State]:
        """Run over all time steps and return the pair of the outputs, in the form of ``input``, and the final state.

        A state is a tensor, or a tuple if there are several. h_0, or ``hx``, torch's name for it, is the initial state;
        by default the layer's own. Raise ValueError if both are given, or for a wrong shape, dtype or device.

        ``reset`` is a Boolean mask of the input's shape without features. Before each step where it is True the state
        becomes the layer's own initial state, and a memory of past states becomes empty, as if a new sequence began
        there. In a bidirectional layer this holds for both directions.

        ``checkpoint`` trades compute for memory: the forward pass stores one state for each chunk of that many steps
        (True: about √time), and the backward pass runs the chunk again. With ``output=False`` the outputs, which may be
        the largest tensor of all, are None.
        """
        if hx is not None:
            if h_0 is not None:
                raise ValueError(f"{self._name} expects either h_0 or hx, which are the same; got both")
            h_0 = hx
        plain = reset is None and not checkpoint
        if traced() and not (plain and all(cell.traceable for cell in self._cells())):
            return untraced(
                self._name, RecurrentLayer.forward, self, input, h_0, reset=reset, checkpoint=checkpoint, output=output
            )
        rows = rows_of_input(self._name, input)
        kind = "cpu" if rows.is_cpu else rows.device.type  # the name of a device takes longer
        if autocasts(kind):  # not used here: rounding errors would add up over the steps
            with own_precision(kind):
                given = in_dtype(input, h_0, self._first_parameter().dtype)
                return RecurrentLayer.forward(self, *given, reset=reset, checkpoint=checkpoint, output=output)
        input, table = input if isinstance(input, Lookup) else (input, None)
        parameter = self._first_parameter()
        options: dict[str, Any] = {"checkpoint": check_chunk(self._name, checkpoint), "output": output}
        if reset is not None:
            options["reset"] = rows_of_reset(self._name, reset, input, self.batch_first)
        if isinstance(input, PackedSequence):
            check_input(self._name, input.data, self.input_size, (2,), parameter)
            steps = packed_steps(self._name, input, h_0)
            state = self._initial(h_0, steps.batch, input.data)
            if input.sorted_indices is not None and h_0 is not None:
                state = tuple(s.index_select(1, input.sorted_indices) for s in state)
            found, final = walk(self, input.data, steps, state, **options)
            if input.unsorted_indices is not None:
                final = tuple(s.index_select(1, input.unsorted_indices) for s in final)
            if found is None:
                return None, self._joined(final)
            if traced():  # torch.compile makes an empty PackedSequence of _replace
                return PackedSequence(found, *input[1:]), self._joined(final)
            return input._replace(data=found), self._joined(final)
        if table is not None:
            check_table(self._name, table, input.shape[-1], self.input_size, parameter)
        size = self.input_size if table is None else len(table)
        check_input(self._name, input, size, (2, 3), parameter)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        time, batch, _ = x.shape
        if time == 0:
            raise InputError(f"{self._name} expects at least one time step; got input of shape {tuple(input.shape)}")
        state = self._initial(h_0, batch if batched else None, x)
        found, final = walk(self, x.flatten(0, 1), padded_steps(time, batch), state, table, **options)
        if not batched:
            final = tuple(s.squeeze(1) for s in final)
        if found is None:
            return None, self._joined(final)
        found = found.view(time, batch, self.output_size)
        if not batched:
            return found.squeeze(1), self._joined(final)
        return found.transpose(0, 1) if self.batch_first else found, self._joined(final)

    def _first_parameter(self) -> Tensor:
        """Return the layer's first parameter, which has its dtype and device."""
        for parameter in self._parameters.values():  # parameters() would take longer than a call of one step
            if parameter is not None:
                return parameter
        for parameter in self.parameters():
            return parameter
        raise ValueError(f"{self._name} has no parameters left to take its type from")

    def _initial(self, h_0: State | None, batch: int | None, like: Tensor) -> tuple[Tensor, ...]:
        """Return the initial states (cells, batch, size): h_0 after checks, or the default. ``batch`` may be None."""
        if h_0 is None:
            return self.default_states(1 if batch is None else batch, like)
        leading = (len(self.cells),) if batch is None else (len(self.cells), batch)
        given = check_state(self._name, h_0, self.state_parts, leading, like)
        return tuple(tensor.unsqueeze(1) if batch is None else tensor for tensor in given)

    def default_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return the state from which the layer starts when the caller passes none: a tuple of tensors.

        Each is (num_layers · directions, batch, …), with the device of ``like`` unless it is trained.
        """
        trained = [] if self.initial_state is None else [s[:, None].expand(-1, batch, -1) for s in self.initial_state]
        own = zip(*(cell.initial_states(batch, like) for cell in self._cells()), strict=True)
        return (*trained, *(torch.stack(parts) for parts in list(own)[len(trained) :]))

    def _joined(self, states: tuple[Tensor, ...]) -> State:
        """Return the states as the caller sees them: a single tensor by itself, several as a tuple."""
        return states[0] if len(states) == 1 else states
