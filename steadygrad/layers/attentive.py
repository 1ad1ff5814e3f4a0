"""Attention over past states, for any recurrent layer (Bahdanau et al., 2015; Kerg et al., 2020)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice
from steadygrad.kernels import Attention, Steps, attentive_unroll, runs_in_c
from steadygrad.layers.cell import Cell, Part
from steadygrad.layers.memory import Contents, Everything, Memory, Screening
from steadygrad.layers.naming import Owned

COMBINATIONS = {"average": 0.5, "add": 1.0, "concatenate": None}
"""factor f of s_t = f · (h_{t−1} + Σ α_m m); None for a learned matrix C in its place"""


class Alignment(nn.Module):
    """Base class of attention scores, which give the logits of queries and keys.

    The keys are computed once from the past states (`keys`), and `forward` compares them with the query of each step.
    """

    in_kernel = False
    """whether the fused kernel supports this alignment; it takes A, B and v: additive with v, scaled product without"""
    weight_query = Owned()
    weight_key = Owned()
    weight_score = Owned()

    def keys(self, states: Tensor) -> Tensor:
        """Return the keys (…, key size) of states (…, units): the part of the score that does not depend on the query.

        Each score defines this method; `Alignment` raises NotImplementedError.
        """
        raise NotImplementedError

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the attention logits (batch, places) from queries (batch, units) and keys (batch, places, key size).

        The keys are those that `keys` returns, not the states. Each score defines this method; `Alignment` raises
        NotImplementedError.
        """
        raise NotImplementedError


class Projected(Alignment):
    """Base class of attention scores that compare A s with B m: s is the query, m a past state.

    A and B are the parameters ``weight_query`` and ``weight_key``, (units, units). The key of m is B m.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(units)
        self.weight_query = nn.Parameter(torch.empty(units, units).uniform_(-bound, bound))  # W_a in the thesis
        self.weight_key = nn.Parameter(torch.empty(units, units).uniform_(-bound, bound))  # U_a
        self.weight_score = None

    def keys(self, states: Tensor) -> Tensor:
        """Return the keys B m (…, units) of states m (…, units)."""
        return states @ self.weight_key.mT


class Additive(Projected):
    """Additive attention score a(s, m) = v · tanh(A s + B m) of a query s and a past state m.

    A, B and v are the parameters ``weight_query`` and ``weight_key``, (units, units), and ``weight_score``, (1, units).
    ``forward`` takes the queries s and the keys B m, which `keys` computes from the states m.
    """

    in_kernel = True

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.weight_score = nn.Parameter(torch.empty(1, units).normal_(std=math.sqrt(2 / (1 + units))))  # Xavier

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return v · tanh(A s + k), (batch, places), from queries s (batch, N) and keys k = B m (batch, places, N)."""
        return ((query @ self.weight_query.mT)[:, None] + keys).tanh() @ self.weight_score[0]


class ScaledDot(Projected):
    """Scaled dot-product attention score a(s, m) = (A s) · (B m) / √N of a query s and a past state m, N units.

    A and B are the parameters ``weight_query`` and ``weight_key``, (N, N). ``forward`` takes the queries s and the keys
    B m, which `keys` computes from the states m.
    """

    in_kernel = True

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return (A s) · k / √N, (batch, places), from queries s (batch, N) and keys k = B m (batch, places, N)."""
        return (keys @ (query @ self.weight_query.mT)[:, :, None])[:, :, 0] / math.sqrt(keys.shape[2])


ALIGNMENTS: dict[str, type[Alignment]] = {"additive": Additive, "dot": ScaledDot}
"""attention scores by name; each class is called with the number of units"""


def softmax(logits: Tensor, taken: Tensor) -> Tensor:
    """Return the softmax of logits (batch, places) over the places where the Boolean mask ``taken`` is True.

    Other places have weight 0. If no place of a sequence is taken, all its weights are 0.
    """
    return logits.masked_fill(~taken, torch.finfo(logits.dtype).min).softmax(dim=1) * taken


@dataclass(frozen=True)
class Trace:
    """Attention of one time step: weights (batch, places) and the time step of each place, −1 where it is empty."""

    weights: Tensor
    times: Tensor


class AttentiveCell(Cell):
    """h_t = cell(x_t, s_t),  s_t = ½ (h_{t−1} + Σ α_m m),  α = softmax over the memory's states m of a(s_{t−1}, m).

    The cell receives s_t in the place of h_{t−1}; while the memory is empty, s_t = h_{t−1}. The state consists of the
    cell's state, then s_t, then the tensors of the memory.

    ``memory`` is a function units → `Memory`. ``alignment`` gives the score a: a name in `ALIGNMENTS` or a function
    units → `Alignment`. ``combine`` is a name in `COMBINATIONS`; the equation shows ``"average"``. ``normalise`` is a
    function (logits, taken) → α, each (batch, places). Unknown names raise ValueError.
    """

    weight_combine = Owned()

    def __init__(
        self,
        cell: Cell,
        memory: Callable[[int], Memory],
        *,
        alignment: str | Callable[[int], Alignment] = "additive",
        combine: str = "average",
        normalise: Callable[[Tensor, Tensor], Tensor] = softmax,
    ) -> None:
        super().__init__()
        named = "additive" if callable(alignment) else alignment
        for name, value, known in (("alignment", named, ALIGNMENTS), ("combine", combine, COMBINATIONS)):
            check_choice("attention", name, value, known)
        units = cell.output_size
        self.cell, self.memory = cell, memory(units)
        self.alignment = (ALIGNMENTS[alignment] if isinstance(alignment, str) else alignment)(units)
        self.combine, self.normalise = combine, normalise
        self.weight_combine = (
            nn.Parameter(torch.eye(units).repeat(1, 2) / 2) if combine == "concatenate" else None
        )  # starts as the mean of h and the attended state
        self.output_size = units
        self.state_sizes = (*cell.state_sizes, units)

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """Tuple of a `Part` for each tensor of the state: those of the cell, s, then those of the memory."""
        return (*super().state_parts, *self.memory.parts.values())

    def initial_states(self, batch: int, like: Tensor) -> tuple[Tensor, ...]:
        """Return the initial states of the cell, then zeros for s and for the tensors of the memory, all (batch, …).

        They have the device of ``like``, and its dtype except for integers of the memory.
        """
        own = self.cell.initial_states(batch, like)
        return (*own, *(part.zeros((batch,), like) for part in self.state_parts[len(own) :]))

    def weights(self) -> Any:
        """Return what `weights` of the inner cell returns."""
        return self.cell.weights()

    def inputs(self, x: Tensor) -> Tensor:
        """Return what `inputs` of the inner cell returns: the rows of x, possibly with appended features."""
        return self.cell.inputs(x)

    def fold(self, weights: Any, rows: Tensor, table: Tensor) -> tuple[Any, Tensor]:
        """Return the pair (weights, x) that `fold` of the inner cell returns, from one-hot rows and a table."""
        return self.cell.fold(weights, rows, table)

    def walk(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps, in C if possible. Return outputs (rows, output_size) and a tuple of final states.

        x is in the form that `inputs` or `fold` returns. The C kernel is used on the CPU for supported cells, memories
        and alignments with softmax; otherwise `step_by_step` is called.
        """
        recurrence, limits, factor = self.cell.recurrence(weights), self.memory.limits, COMBINATIONS[self.combine]
        unknown = recurrence is None or limits is None or factor is None
        if unknown or not self.alignment.in_kernel or self.normalise is not softmax or not runs_in_c(x):
            return self.step_by_step(weights, x, steps, state)
        assert recurrence is not None
        assert limits is not None
        assert factor is not None
        own = len(self.state_sizes)
        scores, v = self.alignment, self.alignment.weight_score
        attention = Attention(scores.weight_query, scores.weight_key, None if v is None else v[0], factor, *limits)
        outputs, final, carried = attentive_unroll(
            x, recurrence, attention, state[:own], self.memory.carried(state[own:]), steps
        )
        return outputs, (*final, *self.memory.from_carried(carried))

    def step_by_step(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...], trace: list[Trace] | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs (rows, output_size) and the final states, as `walk` does, by a Python loop over the steps.

        This is the definition, for any cell, any kind of memory and any device. A `Trace` of each step is appended to
        the list ``trace``, if one is given.
        """
        own = [str(i) for i in range(len(self.state_sizes))]
        start = dict(zip(own, state, strict=False)) | self.memory.unpack(state[len(own) :], self.alignment.keys)
        inputs, outputs = x.split(steps.sizes), {}
        here, ended = rows_of(start, 0, 0), rows_of(start, 0, 0)
        for t in steps.order():
            size, present = steps.sizes[t], len(here["0"])
            if present > size:
                ended = joined(rows_of(here, size, present), ended)
                here = rows_of(here, 0, size)
            elif present < size:
                here = joined(here, rows_of(start, present, size))
            parts = tuple(here.pop(name) for name in own)
            outputs[t], parts, here = self.step(weights, inputs[t], parts, here, trace)
            here |= dict(zip(own, parts, strict=True))
        here = joined(here, ended)
        final = (*(here[name] for name in own), *self.memory.pack(here))
        return torch.cat([outputs[t] for t in range(len(steps.sizes))]), final

    def step(
        self, weights: Any, x: Tensor, state: tuple[Tensor, ...], contents: Contents, trace: list[Trace] | None
    ) -> tuple[Tensor, tuple[Tensor, ...], Contents]:
        """Return the tuple (output, state, contents) after one time step, for inputs x (batch, features).

        The output h is (batch, units). ``state`` is a flat tuple (h, …, s): the tensors of the cell's state, then s,
        which the cell received in place of the previous h and which is the query of the next step. ``contents`` is the
        memory as a dict; the returned one is a new dict with h added. A `Trace` is appended to the list ``trace``,
        unless it is None.
        """
        h, *rest, s = state
        attended, alpha, taken = self.attend(s, contents, trace)
        s = torch.where(taken.any(dim=1, keepdim=True), self.combined(h, attended), h)
        h, (_, *rest) = self.cell.walk(weights, x, Steps((len(x),)), (s, *rest))
        return h, (h, *rest, s), self.memory.add(contents, alpha, h, self.alignment.keys(h))

    def attend(
        self, query: Tensor, contents: Contents, trace: list[Trace] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tuple (Σ α_m m, α, taken): the attended state (batch, units), the weights, and the taken places.

        α and the Boolean mask ``taken`` are (batch, places). ``query`` is (batch, units), ``contents`` the memory as a
        dict. A `Trace` is appended to the list ``trace``, if one is given.
        """
        states, keys, taken, gate = self.memory.items(contents)
        logits = self.alignment(query, keys)
        alpha = self.normalise(logits if gate is None else logits + gate, taken)
        self.note(alpha, taken, contents, trace)
        return (alpha[:, None] @ states)[:, 0], alpha, taken

    def note(self, alpha: Tensor, taken: Tensor, contents: Contents, trace: list[Trace] | None) -> None:
        """Append a `Trace` of the weights ``alpha`` (batch, places) to the list ``trace``, unless it is None."""
        if trace is not None:
            trace.append(Trace(alpha.detach(), self.memory.times(contents).masked_fill(~taken, -1)))

    def combined(self, h: Tensor, attended: Tensor) -> Tensor:
        """Return s_t, which the cell receives in place of h_{t−1}, from h_{t−1} and the attended Σ α_m m.

        All three are (batch, units).
        """
        if self.weight_combine is not None:
            return torch.cat([h, attended], dim=1) @ self.weight_combine.mT
        return (h + attended) * cast(float, COMBINATIONS[self.combine])

    def matrices(self) -> dict[str, Tensor]:
        """Return the dict of the inner cell's recurrent matrices by name, without those of attention."""
        return self.cell.matrices()

    def penalty(self) -> Tensor | float:
        """Return the regularisation term of the inner cell."""
        return self.cell.penalty()


def rows_of(contents: Contents, begin: int, end: int) -> Contents:
    """Return a dict of the rows ``begin`` to ``end`` (sequences, ``end`` excluded) of every tensor of ``contents``."""
    return {name: values[begin:end] for name, values in contents.items()}


def joined(first: Contents, second: Contents) -> Contents:
    """Return a dict of the tensors of two contents, concatenated along the batch.

    If the numbers of places differ, zeros in front, which are empty places, pad the smaller one.
    """

    def widened(values: Tensor, places: int) -> Tensor:
        return nn.functional.pad(values, (0, 0) * (values.dim() - 2) + (places - values.shape[1], 0))

    both = {}
    for name, values in first.items():
        other = second[name]
        if values.dim() > 1 and values.shape[1] != other.shape[1]:
            places = max(values.shape[1], other.shape[1])
            values, other = widened(values, places), widened(other, places)
        both[name] = torch.cat([values, other])
    return both


AttentionSpec = Mapping[str, Any] | Callable[[Cell], Cell]


def attentive(cell: Cell, attention: AttentionSpec) -> Cell:
    """Return the cell with attention, specified by a dict of options or a function cell → cell.

    A dict gives an `AttentiveCell` around the cell. A function is called with the cell, and its result is returned. The
    options are:

    - ``short``: size of S, the last states; 10 by default, None for all past states. With None, ``relevant`` and
      ``score`` must not be given;
    - ``relevant``: size of R, the states with the highest score among those that left S; 10 by default. With limited S
      and R every step costs the same;
    - ``score``: ``"received"`` (default), the attention that a state received while in S, ``"learned"``, or a function
      units → `Score`;
    - ``alignment``: ``"additive"`` (default), a = v · tanh(A s + B m), or ``"dot"``, a = (A s) · (B m)/√N, for a query
      s and a past state m, or a function units → `Alignment`;
    - ``combine``: how s_t is computed from h_{t−1} and the attended Σ α_m m. ``"average"``, half of their sum, is the
      default. With ``"add"``, their sum, states can grow, and what was learned may not hold for longer sequences.
      ``"concatenate"`` is a learned C [h, attended].

    Raise ValueError for other options or values.
    """
    if callable(attention):
        return attention(cell)
    if not isinstance(attention, Mapping):
        raise ValueError(f"attention expects a table of options or a function cell → cell; got {attention!r}")
    known: dict[str, Any] = {
        "short": 10,
        "relevant": 10,
        "score": "received",
        "alignment": "additive",
        "combine": "average",
    }
    if unknown := attention.keys() - known.keys():
        raise ValueError(f"attention has the options {', '.join(known)}; got {', '.join(sorted(unknown))}")
    short, relevant, score, alignment, combine = (known | dict(attention)).values()
    if short is None and (surplus := [name for name in ("relevant", "score") if name in attention]):
        raise ValueError(f"attention to all past states (short=None) keeps no others; got {' and '.join(surplus)}")

    def memory(units: int) -> Memory:
        return Everything(units) if short is None else Screening(units, short, relevant, score)

    return AttentiveCell(cell, memory, alignment=alignment, combine=combine)
