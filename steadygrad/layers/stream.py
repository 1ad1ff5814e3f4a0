"""Streams: one time step a call, with the recurrent state inside, for audio, control and other live data."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, NoReturn, cast

import torch
from torch import Tensor, empty_like, nn

from steadygrad.check import check_integers
from steadygrad.kernels import (
    Chain,
    States,
    StreamLevel,
    needs_plain,
    own_precision,
    padded_steps,
    streams_in_c,
    traced,
    untraced,
)
from steadygrad.layers.baked import baked
from steadygrad.layers.inputs import check_like, check_state
from steadygrad.layers.levels import walk

if TYPE_CHECKING:
    from steadygrad.layers.recurrent import RecurrentLayer, State


class Stages(NamedTuple):
    """What a stream computes, one after the other: recurrent layers, then a linear ``readout`` unless it is None.

    With a ``table`` (symbols, features), as of an embedding, the inputs are tokens, and each selects a row of it.
    """

    layers: "Sequence[RecurrentLayer]"
    readout: nn.Linear | None = None
    table: Tensor | None = None


class Stream:
    """Runs a layer or model one time step a call. The recurrent state is inside.

    ``y = stream(x)`` computes one step from x (batch, input_size), or (input_size,) for a batch of one, and returns the
    output (batch, output_size), or (output_size,). The output has no graph. Each call returns a new tensor, or writes
    to the tensor ``out`` and returns it.

    A stream is a snapshot: it computes what the layer computed in evaluation mode when the stream was made. `refresh`
    takes over new weights. `state` is the recurrent state in the form of the layer's, and can be set. `reset` goes back
    to the initial state.

    If the layer's loop over time runs in C, a step does too, and takes microseconds: ``backend`` is "c". Otherwise
    ``backend`` is "python", and a step takes as long as a call of the layer.

    A stream runs one call at a time; a call from another thread meanwhile raises RuntimeError. A forked process has its
    own copy. A stream cannot be copied or pickled. Raise ValueError for a bidirectional layer.
    """

    def __init__(self, module: "Streamable", batch: int = 1) -> None:
        self._who = f"a stream of {type(module).__name__}"
        check_integers(self._who, batch=batch)
        self.batch, self._module = batch, module
        lock = threading.Lock()
        self._enter, self._leave = lock.acquire, lock.release
        self._open()

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the output of one time step, (batch, output_size), or (output_size,) for x (input_size,).

        x is (batch, input_size), or (input_size,) for a batch of one, contiguous, with the dtype and device of the
        parameters. With ``out``, a contiguous tensor like the output, the output is written to it. Raise ValueError for
        other tensors.
        """
        if not self._enter(False):
            raise self._in_use()
        try:
            if (
                type(x) is not Tensor
                or (like := self._likes.get(x.shape)) is None
                or x.dtype is not self._dtype
                or not x.is_cpu
                or not x.is_contiguous()
                or x.is_neg()
            ):
                return self._checked_call(x, out)
            y = empty_like(like) if out is None else self._checked_out(out, like)
            self._step(self._handle, x.data_ptr(), y.data_ptr())
            return y
        except RuntimeError as error:  # of data_ptr, because torch.func's tensors have none
            if needs_plain(x):
                raise self._without_data() from error
            raise
        finally:
            self._leave()

    @property
    def state(self) -> "State":
        """The recurrent state, a copy: a tensor or a tuple of tensors, in the form of the layer's own.

        Each tensor is (num_layers, batch, …). To continue from such a state, assign it. Raise ValueError if a state
        that is assigned has another shape, dtype or device.
        """
        with self._exclusive():
            flat = tuple(part.clone() for own in self._read() for part in own)
            return flat[0] if len(flat) == 1 else flat

    @state.setter
    def state(self, state: "State") -> None:
        given = self._checked_state(state)
        with self._exclusive():
            self._write(given)

    def reset(self) -> None:
        """Go back to the initial state, which is the layer's own. A memory of past states becomes empty."""
        with self._exclusive():
            self._write(self._initial)

    def refresh(self) -> None:
        """Take over the present weights of the layer, in their present dtype and device. The state is kept."""
        with self._exclusive():
            fresh = type(self)(self._module, self.batch)
            pairs = zip(self._read(), fresh._initial, strict=True)
            fresh._write([tuple(a.to(b) for a, b in zip(old, new, strict=True)) for old, new in pairs])
            own = {"_enter": self._enter, "_leave": self._leave}  # the lock, which is held
            self.__dict__.update(fresh.__dict__ | own)

    def _open(self) -> None:
        """Copy the weights of the module, and start from its initial state."""
        stages = cast(Streamable, baked(cast(nn.Module, self._module))).stages()
        layers, readout, self._table = stages
        for number, layer in enumerate(layers):
            if layer.bidirectional:
                raise ValueError(
                    f"{self._who} expects unidirectional layers, because the second direction begins at the end of a "
                    f"sequence; got bidirectional=True in layer {number}. Use bidirectional=False"
                )
        parameter = layers[0]._first_parameter()
        self._forms = [(layer.state_parts, len(layer.cells)) for layer in layers]
        with torch.inference_mode(False), torch.no_grad():
            self._initial = [
                tuple(part.clone() for part in layer.default_states(self.batch, parameter)) for layer in layers
            ]
            levels = chain_levels(stages) if streams_in_c(parameter) else None
        self.input_size = layers[0].input_size
        self.output_size = layers[-1].output_size if readout is None else readout.out_features
        like = parameter.new_empty(self.batch, self.output_size)
        self._outputs: dict[tuple[int, ...], Tensor] = {(self.batch, self.input_size): like}
        if self.batch == 1:
            self._outputs[(self.input_size,)] = like[0]
        self._chain = None if levels is None else Chain(levels, by_level(self._initial), self.batch)
        self._steps = None if levels is not None else LayerSteps(stages, self._initial)
        self._likes = {} if self._chain is None else self._outputs
        if self._chain is not None:
            self._step, self._handle, self._dtype = self._chain.step, self._chain.handle, parameter.dtype

    @property
    def backend(self) -> str:
        """Name of what runs the steps: "c" or "python"."""
        return "python" if self._chain is None else "c"

    def _checked_call(self, x: Tensor, out: Tensor | None) -> Tensor:
        """Return what a call returns, after all checks, with clear errors. It stays outside of compiled graphs."""
        if traced():
            return untraced(self._who, self._checked_call, x, out)
        like = self._outputs.get(x.shape) if isinstance(x, Tensor) else None
        if like is None:
            shapes = " or ".join(map(str, self._outputs))
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{self._who} expects x, a tensor of shape {shapes}; got {got}")
        if needs_plain(x):
            raise self._without_data()
        check_like(self._who, "x", x, like)
        if not x.is_contiguous():
            raise ValueError(f"{self._who} expects x to be contiguous; got strides {x.stride()}. Pass x.contiguous()")
        y = empty_like(like) if out is None else self._checked_out(out, like)
        if self._steps is None:
            x = x.resolve_neg()
            self._step(self._handle, x.data_ptr(), y.data_ptr())
        else:
            with torch.no_grad(), own_precision(x.device.type):
                y.copy_(self._steps.step(x.reshape(self.batch, -1)).reshape(like.shape))
        return y

    def _checked_out(self, out: Tensor, like: Tensor) -> Tensor:
        """Return ``out`` if it can hold the output, or raise ValueError. Tell autograd that it is overwritten."""
        if (
            type(out) is not Tensor
            or out.shape != like.shape
            or out.dtype is not like.dtype
            or out.requires_grad
            or not out.is_cpu
            or not out.is_contiguous()
            or out.is_neg()
        ):
            self._check_out(out, like)
        torch.autograd.graph.increment_version(out)
        return out

    def _check_out(self, out: Tensor, like: Tensor) -> None:
        """Raise ValueError unless ``out`` can hold the output."""
        if not isinstance(out, Tensor) or out.shape != like.shape or out.requires_grad or out.is_neg():
            got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            flags = " that requires a gradient" if isinstance(out, Tensor) and out.requires_grad else ""
            raise ValueError(
                f"{self._who} expects out, a tensor of shape {tuple(like.shape)} without gradient; got {got}{flags}"
            )
        check_like(self._who, "out", out, like)
        if not out.is_contiguous():
            raise ValueError(f"{self._who} expects out to be contiguous; got strides {out.stride()}")

    def _checked_state(self, state: "State") -> list[States]:
        """Return the tensors of a state for each layer. Raise ValueError if they do not fit."""
        flat = tuple(state) if isinstance(state, tuple | list) else (state,)
        needed = sum(len(parts) for parts, _ in self._forms)
        if len(flat) != needed:
            raise ValueError(f"{self._who} expects a state of {needed} tensors; got {len(flat)}")
        found, like = [], next(iter(self._outputs.values()))
        for parts, levels in self._forms:
            own, flat = flat[: len(parts)], flat[len(parts) :]
            found.append(check_state(self._who, own, parts, (levels, self.batch), like))
        return found

    def _read(self) -> list[States]:
        """Return the tensors of the state of each layer."""
        if self._steps is not None:
            return self._steps.states
        levels = iter(cast(Chain, self._chain).read())
        own = [[next(levels) for _ in range(count)] for _, count in self._forms]
        return [tuple(map(torch.stack, zip(*states, strict=True))) for states in own]

    def _write(self, states: list[States]) -> None:
        """Replace the tensors of the state of each layer."""
        if self._chain is not None:
            self._chain.write(by_level(states))
        else:
            cast(LayerSteps, self._steps).states = [tuple(part.detach().clone() for part in own) for own in states]

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Context manager in which no other thread uses the stream. Raise RuntimeError if one does."""
        if not self._enter(False):
            raise self._in_use()
        try:
            yield
        finally:
            self._leave()

    def _in_use(self) -> RuntimeError:
        """Return the error for a stream that another thread uses."""
        return RuntimeError(
            f"{self._who} expects one call at a time; got a second one from another thread. Make one for each"
        )

    def _without_data(self) -> ValueError:
        """Return the error for an input without data in memory."""
        return ValueError(
            f"{self._who} expects x to hold data in memory; got x under torch.func, tracing or on the meta device. "
            "Call the layer instead"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self._who} cannot be copied or pickled; make another one with stream() and assign it the state"
        )


class LayerSteps:
    """Runs layers and a readout one time step at a time. ``states`` holds the state of each layer."""

    def __init__(self, stages: Stages, initial: list[States]) -> None:
        self.layers, self.readout, self.states = stages.layers, stages.readout, initial

    def step(self, x: Tensor) -> Tensor:
        """Return the output (batch, output_size) of one step for x (batch, input_size). The states are replaced."""
        after, x, steps = [], x.detach(), padded_steps(1, len(x))
        for layer, state in zip(self.layers, self.states, strict=True):
            x, final = walk(layer, x, steps, state)
            after.append(final)
        self.states = after
        return x if self.readout is None else self.readout(x)


def chain_levels(stages: Stages) -> list[StreamLevel] | None:
    """Return the levels of all layers, and the readout, for the C kernel. Return None if it does not have one of them.

    The layers must have been evaluated by `baked`.
    """
    levels = []
    for layer in stages.layers:
        for cell in layer._cells():
            level = cell.stream_level(cell.weights())
            if level is None:
                return None
            levels.append(level)
    if stages.readout is not None:
        levels.append(StreamLevel("linear", stages.readout.weight, bias=stages.readout.bias))
    return levels


def by_level(states: Sequence[States]) -> list[States]:
    """Return the states of all levels, from those of the layers, whose tensors are (num_layers, batch, …)."""
    return [tuple(parts) for own in states for parts in zip(*(part.unbind(0) for part in own), strict=True)]


class Streamable:
    """Base class of layers and models, beside nn.Module, with the method `stream`."""

    def stages(self) -> Stages:
        """Return the `Stages` of a stream: by default this layer alone."""
        return Stages([cast("RecurrentLayer", self)])

    def stream(self, batch: int = 1) -> Stream:
        """Return a `Stream` of ``batch`` sequences, which runs one time step a call: ``y = stream(x)``.

        It has a copy of the present weights. Raise ValueError for a bidirectional layer.
        """
        return Stream(self, batch)
