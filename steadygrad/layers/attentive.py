"""Attention over past states, for any recurrent layer (Bahdanau et al., 2015; Kerg et al., 2020)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice
from steadygrad.kernels import (
    Attention,
    Steps,
    StreamLevel,
    TracedSteps,
    attentive_traced,
    attentive_unroll,
    has_c,
    has_operator,
    padded_steps,
    runs_in_c,
    scanned,
    traced,
)
from steadygrad.layers.alignment import ALIGNMENTS, Alignment
from steadygrad.layers.cell import Cell, Part
from steadygrad.layers.contents import joined, rows_of
from steadygrad.layers.memory import Contents, Everything, Memory, Screening
from steadygrad.layers.naming import Owned
from steadygrad.layers.resets import in_segments

COMBINATIONS = {"average": 0.5, "add": 1.0, "concatenate": None}
"""factor f of s_t = f · (h_{t−1} + Σ α_m m); None for a learned matrix C in its place"""


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
    units → `Alignment`. ``combine`` is a name in `COMBINATIONS`; the equation shows ``"average"``. Unknown names raise
    ValueError. A subclass may override `normalise`, which computes α from the scores.
    """

    weight_combine = Owned()

    def __init__(
        self,
        cell: Cell,
        memory: Callable[[int], Memory],
        *,
        alignment: str | Callable[[int], Alignment] = "additive",
        combine: str = "average",
    ) -> None:
        super().__init__()
        named = "additive" if callable(alignment) else alignment
        for name, value, known in (("alignment", named, ALIGNMENTS), ("combine", combine, COMBINATIONS)):
            check_choice("attention", name, value, known)
        units = cell.output_size
        self.cell, self.memory = cell, memory(units)
        self.alignment = (ALIGNMENTS[alignment] if isinstance(alignment, str) else alignment)(units)
        self.combine = combine
        self.weight_combine = (
            nn.Parameter(torch.eye(units).repeat(1, 2) / 2) if combine == "concatenate" else None
        )  # starts as the mean of h and the attended state
        self.output_size = units
        self.state_sizes = (*cell.state_sizes, units)

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """Tuple of a `Part` for each tensor of the state: those of the cell, s, then those of the memory."""
        own = (Part((size,)) for size in self.state_sizes)  # not super(): torch.compile cannot read its property
        return (*own, *self.memory.parts.values())

    @property
    def resets_inside(self) -> bool:  # type: ignore[override]  # computed here, an attribute elsewhere
        """Whether `walk` resets the state to zeros: it does if the inner cell does."""
        return self.cell.resets_inside

    @property
    def state_names(self) -> tuple[str, ...]:
        """Name of each tensor of the state, as a tuple: those of the cell, "s", then those of the memory."""
        return (*(*self.cell.state_names, "s")[: len(self.state_sizes)], *self.memory.parts)

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

    @property
    def in_kernel(self) -> bool:
        """Whether the C kernel supports the alignment and the normalisation."""
        return self.alignment.in_kernel and type(self).normalise is AttentiveCell.normalise

    def normalise(self, logits: Tensor, taken: Tensor) -> Tensor:
        """Return the weights α of the places from their scores a; here their `softmax`. All are (batch, places)."""
        return softmax(logits, taken)

    @property
    def traceable(self) -> bool:
        """Whether the loop can be traced: by a kernel or, to export it, step by step with a memory of fixed size.

        The backward pass that Inductor of torch 2.13 makes of such steps has wrong gradients, so torch.compile leaves
        them out of its graphs.
        """
        known = type(self.cell).recurrence is not Cell.recurrence and COMBINATIONS[self.combine] is not None
        if known and self.in_kernel and self.memory.limits is not None and has_c():
            return True
        fixed = all(None not in part.shape for part in self.memory.parts.values())
        return fixed and torch.compiler.is_exporting()

    def walk(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps, in C if possible. Return outputs (rows, output_size) and a tuple of final states.

        x is in the form that `inputs` or `fold` returns. The C kernel is used on the CPU for supported cells, memories
        and alignments with softmax; otherwise `step_by_step` is called.
        """
        recurrence, limits, factor = self.cell.recurrence(weights), self.memory.limits, COMBINATIONS[self.combine]
        in_c = has_c() and x.is_cpu and x.itemsize > 2 if has_operator("attention", steps.time) else runs_in_c(x)
        if recurrence is None or limits is None or factor is None or not (in_c and self.in_kernel):
            if traced():
                return self.scanned(weights, x, steps, state)
            if steps.resets is None:
                return self.step_by_step(weights, x, steps, state)
            fresh = self.initial_states(1, x)
            return in_segments(partial(self.step_by_step, weights), x, steps, state, fresh, dim=0)
        own, attention = len(self.state_sizes), self._attention(factor, limits)
        unroll = attentive_traced if traced() else attentive_unroll
        outputs, final, carried = unroll(x, recurrence, attention, state[:own], self.memory.carried(state[own:]), steps)
        return outputs, (*final, *self.memory.from_carried(carried))

    def _attention(self, factor: float, limits: tuple[int | None, int]) -> Attention:
        """Return the weights of attention for the C kernel, with the factor f and the limits of the memory."""
        scores, v = self.alignment, self.alignment.weight_score
        return Attention(scores.weight_query, scores.weight_key, None if v is None else v[0], factor, *limits)

    def stream_level(self, weights: Any) -> StreamLevel | None:
        """Return the cell as a `StreamLevel`; None unless the C kernel supports its parts and the memory is limited."""
        factor, limits, level = COMBINATIONS[self.combine], self.memory.limits, self.cell.stream_level(weights)
        supported = self.in_kernel and self.cell.recurrence(weights) is not None
        if level is None or not supported or factor is None or limits is None or limits[0] is None:
            return None
        return level._replace(attention=self._attention(factor, limits))

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

    def scanned(
        self, weights: Any, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what `step_by_step` returns, while it is traced. The memory must have a fixed size."""
        own = len(self.state_sizes)
        start = self.memory.unpack(state[own:], self.alignment.keys)

        def step(row: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            contents = dict(zip(start, parts[own:], strict=True))
            output, after, contents = self.step(weights, row, parts[:own], contents, None)
            return (*after, *(contents[name] for name in start), output)

        layout = cast(TracedSteps, steps)
        final, results = scanned(step, x, (*state[:own], *start.values()), layout)
        contents = dict(zip(start, final[own:], strict=True))
        return layout.packed(results[-1]), (*final[:own], *self.memory.pack(contents))

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
        h, (_, *rest) = self.cell.walk(weights, x, padded_steps(1, x.shape[0]), (s, *rest))
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

    def options(self) -> dict[str, Any]:
        """Return the options of the inner cell to show in `repr` of the layer, then those of the memory."""
        return self.cell.options() | self.memory.options()

    def matrices(self) -> dict[str, Tensor]:
        """Return the dict of the inner cell's recurrent matrices by name, without those of attention."""
        return self.cell.matrices()

    def penalty(self) -> Tensor | float:
        """Return the regularisation term of the inner cell."""
        return self.cell.penalty()


AttentionSpec = Mapping[str, Any] | Callable[[Cell], Cell]


def attentive(cell: Cell, attention: AttentionSpec, bias: bool = True) -> Cell:
    """Return the cell with attention, specified by a dict of options or a function cell → cell.

    A dict gives an `AttentiveCell` around the cell. A function is called with the cell, and its result is returned.
    Without ``bias`` a learned score has no bias. The options are:

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
        return Everything(units) if short is None else Screening(units, short, relevant, score, bias)

    return AttentiveCell(cell, memory, alignment=alignment, combine=combine)
