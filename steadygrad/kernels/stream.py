"""One time step a call, in C: a chain of levels whose weights are packed once, and its recurrent state."""

import ctypes
import struct
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from steadygrad.kernels import native
from steadygrad.kernels.activations import C_ENUM
from steadygrad.kernels.arguments import Shape, addresses, biases, fields
from steadygrad.kernels.attention import check_ages
from steadygrad.kernels.attention_types import Attention
from steadygrad.kernels.backend import choose

GATES = {"elman": 1, "henaff": 1, "lstm": 4, "gru-before": 3, "gru-after": 3, "linear": 1}
"""number of rows of W for each unit, by the kind of a level; the kinds are in the order of C's ``enum stream_kind``"""
LEVEL = struct.Struct("6qd17q")
"""layout of ``stream_level_t`` in c/stream.h"""
LONG_STEP = 1_000_000
"""multiplications of a step from which on it releases Python's lock (GIL); a shorter step would lose time by that"""

States = tuple[Tensor, ...]
"""state of one level: h, or (h, c) of an LSTM, each (batch, units); then, with attention, s and the memory"""


class StreamLevel(NamedTuple):
    """One level of a `Chain`: a recurrent cell of the C kernels, or a linear map y = W x + b.

    ``kind`` is a name in `GATES`. W multiplies the input and U, None for a linear map, the state. Their rows are those
    of `ElmanInputs`, `LSTMInputs` or `GRUInputs`. ``bias`` is added before the activations. ``modulus`` is the bias of
    modReLU and ``bias_hn`` that of U_c h in a GRU with the reset after the product. ``activation`` is a name in
    `C_ENUM`; an LSTM ignores it. With ``attention``, to a limited number of past states, the cell uses s in the place
    of h.
    """

    kind: str
    W: Tensor
    U: Tensor | None = None
    bias: Tensor | None = None
    modulus: Tensor | None = None
    bias_hn: Tensor | None = None
    activation: str = "identity"
    attention: Attention | None = None


def streams_in_c(like: Tensor) -> bool:
    """Return whether the C kernel runs streams with the dtype and device of ``like``, under the present settings."""
    return like.dtype in native.TAGS and choose(like) == "c"


class Chain:
    """A chain of levels in C: the output of each is the input of the next. It holds packed weights and the state.

    ``step(handle, x, y)`` computes one time step, from the address of inputs to that of outputs, both contiguous and
    with one row for each sequence. ``initial`` is the state of each level before the first step, which is copied.
    Linear maps have no state and come last.
    """

    def __init__(self, levels: Sequence[StreamLevel], initial: Sequence[States], batch: int) -> None:
        dtype = levels[0].W.dtype
        levels = [dense_level(level) for level in levels]
        self.shorts = [0 if level.attention is None else level.attention.short or 0 for level in levels]
        initial = [*initial, *[()] * (len(levels) - len(initial))]
        with torch.inference_mode(False), torch.no_grad():  # tensors of that mode could not be written outside it
            self.states = [tuple(part.clone(memory_format=torch.contiguous_format) for part in own) for own in initial]
            self.oldest = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in levels]
        self.vectors = [(*level[3:6], level.attention and level.attention.v) for level in levels]
        """biases and v of attention, which C reads at every step beside the packed weights"""
        parts = zip(levels, self.states, self.oldest, strict=True)
        described = b"".join(describe_level(level, own, oldest, batch, dtype) for level, own, oldest in parts)
        found = ctypes.c_void_p()
        native.run("stream_open", dtype, described, len(levels), batch, ctypes.addressof(found))
        self.handle = found.value
        weakref.finalize(self, untyped("close"), self.handle).atexit = False
        self.step = step_function(batch * sum(map(multiplications, levels)) >= LONG_STEP)

    def read(self) -> list[States]:
        """Return a copy of the state of each level, with the recent states of a memory in the order of time."""
        return [
            tuple(part.clone() for part in own) if not short else in_order(own, short, int(oldest))
            for own, short, oldest in zip(self.states, self.shorts, self.oldest, strict=True)
            if own
        ]

    @torch.no_grad()
    def write(self, states: Sequence[States]) -> None:
        """Replace the state of each level. The shapes and dtypes must be those of `read`.

        Raise ValueError, before anything is changed, if the age of a memory is negative or too large.
        """
        for given, short in zip(states, self.shorts, strict=False):
            if short:
                check_ages(given[-1], short, short)
        for own, given, oldest in zip(self.states, states, self.oldest, strict=False):
            for part, value in zip(own, given, strict=True):
                part.copy_(value)
            oldest.zero_()
        untyped("renew")(self.handle)


def dense_level(level: StreamLevel) -> StreamLevel:
    """Return the level with all its tensors contiguous, without graph."""

    def dense(value: object) -> object:
        return native.dense(value.detach()) if isinstance(value, Tensor) else value

    if level.attention is not None:
        level = level._replace(attention=Attention(*map(dense, level.attention)))  # type: ignore[arg-type]
    return StreamLevel(*map(dense, level))  # type: ignore[arg-type]


def multiplications(level: StreamLevel) -> int:
    """Return the number of multiplications of a row by the matrices of a level."""
    own = level.W.numel() + (0 if level.U is None else level.U.numel())
    if level.attention is None:
        return own
    _, _, v, _, short, relevant = level.attention
    return own + (2 * len(level.attention.A) + 2 * ((short or 0) + relevant)) * len(level.attention.A)


def describe_level(level: StreamLevel, states: States, oldest: Tensor, batch: int, dtype: torch.dtype) -> bytes:
    """Return a level as ``stream_level_t`` of c/stream.h. Raise ValueError if a tensor does not fit.

    ``states`` and ``oldest``, the place of the oldest recent state in memory, are tensors that C writes.
    """
    kind, W, U, bias, modulus, bias_hn, activation, attention = level
    rows, inputs = W.shape
    N, code = rows // GATES[kind], C_ENUM.index(activation)
    A, B, v, factor, most, relevant = attention or (None, None, None, 0.0, 0, 0)
    short, square, here = most or 0, (N, N), (batch, N)
    weights: dict[str, Shape] = {"W": (GATES[kind] * N, inputs), "U": None if U is None else (rows, N), "bias": (rows,)}
    others: dict[str, Shape] = {"modulus": (biases(N, code),), "bias_hn": (N,), "A": square, "B": square, "v": (N,)}
    own: dict[str, Shape] = {"h": None if U is None else here, "c": here if kind == "lstm" else None}
    past: dict[str, Shape] = {"s": here, "states": (batch, short + relevant, N), "received": (batch, short)}
    past |= {"scores": (batch, relevant), "times": (batch, relevant), "ages": (batch,)}
    if attention is None:
        others |= dict.fromkeys("ABv")
        past = dict.fromkeys(past)
    wanted = fields("bias modulus bias_hn v", **weights, **others, **own, **past, oldest=(1,))
    rest = iter(states)
    present = [None if shape is None else next(rest) for shape in (own | past).values()]
    found = addresses("stream", wanted, (W, U, bias, modulus, bias_hn, A, B, v, *present, oldest), dtype)
    return LEVEL.pack(list(GATES).index(kind), N, inputs, code, short, relevant, factor, *found)


def in_order(states: States, short: int, oldest: int) -> States:
    """Return a copy of the state of a level with attention, with its last ``short`` states in the order of time.

    C keeps these states in a ring; ``oldest`` is the place of the oldest one.
    """
    *own, memory, received, scores, times, ages = states
    ring = (torch.arange(short, device="cpu") + oldest) % short
    ordered = torch.cat([memory.index_select(1, ring), memory[:, short:]], dim=1)
    return (
        *(part.clone() for part in own),
        ordered,
        received.index_select(1, ring),
        *(part.clone() for part in (scores, times, ages)),
    )


def untyped(name: str) -> Callable[[int | None], None]:
    """Return the C function ``steadygrad_stream_<name>``, which takes a handle."""
    loaded = native.library()
    if isinstance(loaded, str):
        raise RuntimeError(f"steadygrad has no C kernel: {loaded}")
    found = getattr(loaded, f"steadygrad_stream_{name}")
    found.argtypes, found.restype = [ctypes.c_void_p], None
    return found


@cache
def step_function(releases: bool) -> Callable[[int | None, int, int], None]:
    """Return the C function of a step. If it ``releases`` Python's lock, other threads run in the meantime."""
    loaded = native.library()
    assert not isinstance(loaded, str)
    functions = loaded if releases else ctypes.PyDLL(None, handle=loaded._handle)
    found = functions.steadygrad_stream_step
    found.argtypes, found.restype = [ctypes.c_void_p] * 3, None
    return found
