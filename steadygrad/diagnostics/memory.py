"""Which past states a layer attends to, and which of them it keeps in memory (Kerg et al., 2020)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.diagnostics.flow import attends, attentive_cells, check, initial_states, looking_at
from steadygrad.kernels import Steps
from steadygrad.layers.attentive import AttentiveCell, Trace


@dataclass(frozen=True)
class AttentionMap:
    """Attention ``weights`` α_{t,i} along a sequence, (time, time): row t is the step that attends, column i the state.

    The weight is 0 for a state that is not attended to. Attention is measured by |α|, because SAB's weights may be
    negative.

    R is the set of states that a memory keeps as relevant, ρ its number of places. ``kept`` (time, ρ) are the time
    steps of the states in R when step t attends, and ``kept_at_end`` (ρ,) those after the last step. An empty place is
    −1. ρ is 0 for a memory without R.
    """

    weights: Tensor
    kept: Tensor
    kept_at_end: Tensor

    @property
    def reach(self) -> float:
        """Mean number of steps from a state to the step that attends to it, weighted by |α|; 0.0 without attention."""
        steps = torch.arange(len(self.weights), device=self.weights.device)
        return self._share_of_attention((self.weights.abs() * (steps[:, None] - steps)).sum())

    @property
    def share_of_kept(self) -> float | None:
        """Share, from 0 to 1, of all attention |α| that goes to R, the states kept as relevant; None without R."""
        if not self.kept.shape[1]:
            return None
        to_kept = self.weights.abs().gather(1, self.kept.clamp_min(0)) * (self.kept >= 0)
        return self._share_of_attention(to_kept.sum())

    def _share_of_attention(self, part: Tensor) -> float:
        """Return ``part`` divided by the sum of all |α|."""
        return float(part / self.weights.abs().sum().clamp_min(torch.finfo(self.weights.dtype).tiny))

    def summary(self) -> dict[str, Any]:
        """Return a dict for JSON: ``reach``, ``share_of_kept`` and ``kept_at_end``.

        ``reach`` is the mean number of steps that attention goes back, ``share_of_kept`` its share that goes to R, the
        states kept as relevant, or None without R. ``kept_at_end`` is the sorted list of the time steps of the states
        in R after the last step. Empty places are left out.
        """
        kept = sorted(self.kept_at_end[self.kept_at_end >= 0].tolist())
        return {"reach": self.reach, "share_of_kept": self.share_of_kept, "kept_at_end": kept}


@torch.no_grad()
def attention_map(layer: nn.Module, x: Tensor) -> list[AttentionMap]:
    """Return a list of one `AttentionMap` per level (stacked layer) of ``layer``, along one sequence x (time, inputs).

    The maps are those of RelRNN's figure 1 and of the heat maps in B.4. ``layer`` is a unidirectional layer, or a
    `Stack` of layers, that attends to its past states. Otherwise ValueError is raised.
    """
    check(layer, x)
    if not attends(layer):
        raise ValueError(
            "attention_map expects a layer that attends to its past states, such as relrnn or any with attention={…}; "
            f"got {type(layer).__name__}"
        )
    found = []
    with looking_at(layer):
        for cell, start in zip(attentive_cells(layer), initial_states(layer, x), strict=True):
            trace: list[Trace] = []
            x, end = cell.step_by_step(cell.weights(), cell.inputs(x), Steps.padded(len(x), 1), start, trace)
            found.append(map_of(cell, trace, end[len(cell.state_sizes) :]))
    return found


def map_of(cell: AttentiveCell, trace: list[Trace], at_end: tuple[Tensor, ...]) -> AttentionMap:
    """Return the `AttentionMap` of one cell from the trace of one sequence and the tensors of its memory at the end.

    ``trace`` is a list of one `Trace` per step, for a batch of one. ``at_end`` is a tuple in the order of
    ``memory.parts``.
    """
    memory, time = cell.memory, len(trace)
    contents = memory.unpack(at_end, cell.alignment.keys)
    last = memory.times(contents).masked_fill(~memory.items(contents).taken, -1)
    weights = trace[0].weights.new_zeros(time, time + 1)  # the last column is for empty places, −1
    for row, step in zip(weights, trace, strict=True):
        row.index_add_(0, step.times[0] % (time + 1), step.weights[0])
    kept = [times[0, times.shape[1] - memory.relevant :] for times in (*(step.times for step in trace), last)]
    return AttentionMap(weights[:, :time], torch.stack(kept[:-1]), kept[-1])
