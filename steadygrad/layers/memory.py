"""Memories of the past states that a layer attends to: all states, every k-th, or the last and most relevant ones."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.check import check_integers, is_integer
from steadygrad.kernels import Carried

Contents = dict[str, Tensor]
"""tensors by name, with one row per sequence; those whose name ends in ``states`` or ``keys`` are (batch, places, ·)"""
Keys = Callable[[Tensor], Tensor]
"""states (…, units) → keys (…, ·), as `Alignment.keys`"""


class Items(NamedTuple):
    """The states and keys (batch, places, ·) that can be attended to, and which places are taken (batch, places).

    ``gate`` (batch, places) is added to the logits, unless it is None.
    """

    states: Tensor
    keys: Tensor
    taken: Tensor
    gate: Tensor | None


DIGIT = 256
"""integers up to this one are exact in every floating-point dtype"""


def written(counts: Tensor, kind: torch.dtype) -> Tensor:
    """Return integers (batch, n) as base-256 digits (batch, 2n), so that a 16-bit dtype can count 65,000 steps."""
    return torch.cat([counts // DIGIT, counts % DIGIT], dim=1).to(kind)


def read(digits: Tensor) -> Tensor:
    """Return the integers (batch, n) from the digits that `written` returned."""
    high, low = digits.detach().long().chunk(2, dim=1)
    return high * DIGIT + low


class Memory(nn.Module):
    """Base class of memories: stores past states of each sequence.

    Between two forward passes a memory is packed into one row of numbers per sequence. The states come first, then
    counters and scores, which have no gradient.
    """

    growth = 0
    """amount by which the length of a row increases with each stored state; 0 if the length is constant"""
    size: int
    """length of a row, or of an empty row if rows grow"""

    def places(self, row: int) -> int:
        """Return the number of places for states, including empty ones, in a row of length ``row``."""
        raise NotImplementedError

    @property
    def limits(self) -> tuple[int | None, int] | None:
        """The sizes of S (None for all states) and R, if the fused kernel supports the memory; otherwise None."""
        return None

    def carried(self, contents: Contents) -> Carried:
        """Return the contents in the form that the fused kernel takes. Needed only if `limits` is not None."""
        raise NotImplementedError

    def from_carried(self, carried: Carried) -> Contents:
        """Return the contents, without keys, from what the fused kernel returned."""
        raise NotImplementedError

    def unpack(self, rows: Tensor, keys: Keys) -> Contents:
        """Return the contents of packed rows; ``keys`` computes the keys from the states."""
        raise NotImplementedError

    def pack(self, contents: Contents) -> Tensor:
        """Return the contents as one row of numbers per sequence."""
        raise NotImplementedError

    def items(self, contents: Contents) -> Items:
        """Return the states and keys that can be attended to."""
        raise NotImplementedError

    def ends_with_latest(self, contents: Contents) -> Tensor:
        """Return whether the last place of "states" holds the latest state, (batch)."""
        raise NotImplementedError

    def times(self, contents: Contents) -> Tensor:
        """Return the time step of each item, (batch, places). The value at an empty place has no meaning."""
        raise NotImplementedError

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        """Return the contents after a time step with attention ``weights`` (batch, places) and new ``state``."""
        raise NotImplementedError


class Everything(Memory):
    """Stores every state, or every ``every``-th one. The cost of attention grows with the number of steps."""

    def __init__(self, units: int, every: int = 1) -> None:
        super().__init__()
        if not is_integer(every, 1):
            raise ValueError(f"a memory expects to keep each 1st, 2nd, … state; got every={every!r}")
        self.units, self.every = units, every
        self.growth, self.size = units + 3, 4

    def unpack(self, rows: Tensor, keys: Keys) -> Contents:
        places = self.places(rows.shape[1])
        states, taken, times, age, since = rows.split([places * self.units, places, 2 * places, 2, 2], dim=1)
        states = states.unflatten(1, (places, self.units))
        return {
            "states": states,
            "keys": keys(states),
            "taken": taken > 0,
            "times": read(times),
            "age": read(age)[:, 0],
            "since": read(since)[:, 0],
        }

    def pack(self, contents: Contents) -> Tensor:
        taken = contents["taken"]
        empty = taken.shape[1] - int(taken.sum(dim=1).max()) if len(taken) else 0  # leading places empty in all rows
        states, taken, times = (contents[name][:, empty:] for name in ("states", "taken", "times"))
        counts = (times, contents["age"][:, None], contents["since"][:, None])
        digits = (written(count, states.dtype) for count in counts)
        return torch.cat([states.flatten(1), taken.to(states.dtype), *digits], dim=1)

    def places(self, row: int) -> int:
        return (row - self.size) // self.growth

    @property
    def limits(self) -> tuple[None, int] | None:
        return (None, 0) if self.every == 1 else None

    def carried(self, contents: Contents) -> Carried:
        states, none = contents["states"], contents["states"].new_zeros(len(contents["states"]), 0)
        return Carried(states, none, none, none, contents["taken"].sum(dim=1))

    def from_carried(self, carried: Carried) -> Contents:
        places, ages = carried.states.shape[1], carried.ages[:, None]
        before = torch.arange(places, 0, -1, device=ages.device)
        taken = before <= ages
        times, age = (ages - before).where(taken, 0), carried.ages
        return {"states": carried.states, "taken": taken, "times": times, "age": age, "since": torch.zeros_like(age)}

    def items(self, contents: Contents) -> Items:
        return Items(contents["states"], contents["keys"], contents["taken"], None)

    def ends_with_latest(self, contents: Contents) -> Tensor:
        return contents["taken"][:, -1:].any(dim=1) & (contents["since"] == 0)

    def times(self, contents: Contents) -> Tensor:
        return contents["times"]

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        age, since = contents["age"], contents["since"] + 1  # steps since a state was kept
        kept = since == self.every
        older = {name: contents[name] for name in ("states", "keys", "taken", "times")}
        clocks = {"age": age + 1, "since": since.masked_fill(kept, 0)}
        if not kept.any():
            return older | clocks
        new = {"states": state[:, None], "keys": key[:, None], "taken": kept[:, None], "times": age[:, None]}
        joined = {name: torch.cat([older[name], new[name]], dim=1) for name in older}
        if not kept.all():  # sequences at different steps: those that keep no state now get an empty place in front
            for name, values in joined.items():
                stay = torch.cat([torch.zeros_like(new[name]), older[name]], dim=1)
                joined[name] = values.where(kept.view(-1, *[1] * (values.dim() - 1)), stay)
        return joined | clocks


class Score(nn.Module):
    """Base class of scores, which predict how relevant a state will be."""

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        """Return scores (batch) from the states (batch, units) and the attention that each received (batch)."""
        raise NotImplementedError

    def gate(self, states: Tensor) -> Tensor | None:
        """Return what to add to the logits of the states in R (batch, places, units), or None.

        The selection of states has no gradient, so a learned score is trained through this term.
        """
        return None


class ReceivedAttention(Score):
    """β(i) = Σ α_{i,t} over the ν steps for which h_i was in the short-term buffer S."""

    def __init__(self, units: int) -> None:
        super().__init__()

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        return received


class LearnedScore(Score):
    """β(i) = w · h_i + b + Σ α_{i,t},  and σ(w · h_i + b) multiplies the e^{logit} of a state h_i in R.

    The factor gives w and b a gradient from the value of attending to h_i (thesis, section 7.5). At the start
    w = b = 0, which ranks states as `ReceivedAttention` does.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(units))
        self.b = nn.Parameter(torch.zeros(()))

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        return states @ self.w + self.b + received

    def gate(self, states: Tensor) -> Tensor:
        return nn.functional.logsigmoid(states @ self.w + self.b)


SCORES: dict[str, Callable[[int], Score]] = {"received": ReceivedAttention, "learned": LearnedScore}


class Screening(Memory):
    """Stores S, the last ``short`` states, and R, the ``relevant`` states with the highest scores of those that left S.

    The score of a state is computed once, when the state leaves S. If R has room, the state enters R. Otherwise it
    replaces the state with the lowest score in R if its own score is higher (Kerg et al., 2020, algorithm 1).
    """

    def __init__(self, units: int, short: int, relevant: int, score: str | Callable[[int], Score] = "received") -> None:
        super().__init__()
        check_integers("a memory", short=short)
        check_integers("a memory", 0, relevant=relevant)
        if isinstance(score, str) and score not in SCORES:
            raise ValueError(f"a memory expects a score out of {', '.join(SCORES)}, or a function; got {score!r}")
        self.units, self.short, self.relevant = units, short, relevant
        self.score = (SCORES[score] if isinstance(score, str) else score)(units)
        self.size = short * (units + 1) + relevant * (units + 3) + 2

    def unpack(self, rows: Tensor, keys: Keys) -> Contents:
        short, relevant = self.short, self.relevant
        parts = rows.split([(short + relevant) * self.units, short, relevant, 2 * relevant, 2], dim=1)
        both, received, scores, times, age = parts
        states, kept_states = both.unflatten(1, (short + relevant, self.units)).split([short, relevant], dim=1)
        return {
            "states": states,
            "keys": keys(states),
            "received": received.detach(),
            "kept states": kept_states,
            "kept keys": keys(kept_states),
            "scores": scores.detach(),
            "times": read(times),
            "age": read(age)[:, 0],
        }

    def pack(self, contents: Contents) -> Tensor:
        values = [contents[name].flatten(1) for name in ("states", "kept states", "received", "scores")]
        digits = [written(count, values[0].dtype) for count in (contents["times"], contents["age"][:, None])]
        return torch.cat(values + digits, dim=1)

    def places(self, row: int) -> int:
        return self.short + self.relevant

    @property
    def limits(self) -> tuple[int, int] | None:
        return (self.short, self.relevant) if isinstance(self.score, ReceivedAttention) else None

    def carried(self, contents: Contents) -> Carried:
        states = torch.cat([contents["states"], contents["kept states"]], dim=1)
        return Carried(states, *(contents[name] for name in ("received", "scores", "times", "age")))

    def from_carried(self, carried: Carried) -> Contents:
        states, kept_states = carried.states.split([self.short, self.relevant], dim=1)
        return {
            "states": states,
            "received": carried.received,
            "kept states": kept_states,
            "scores": carried.scores,
            "times": carried.times,
            "age": carried.ages,
        }

    def items(self, contents: Contents) -> Items:
        age = contents["age"][:, None]
        places = torch.arange(self.short + self.relevant, device=age.device)
        # S is filled from its end, where the latest state is, and R from its beginning
        taken = torch.where(places < self.short, places + age >= self.short, places < age)
        gate = self.score.gate(contents["kept states"])
        gate = None if gate is None else nn.functional.pad(gate, (self.short, 0))
        states = torch.cat([contents["states"], contents["kept states"]], dim=1)
        return Items(states, torch.cat([contents["keys"], contents["kept keys"]], dim=1), taken, gate)

    def ends_with_latest(self, contents: Contents) -> Tensor:
        return contents["age"] > 0

    def times(self, contents: Contents) -> Tensor:
        age = contents["age"][:, None]
        recent = age - torch.arange(self.short, 0, -1, device=age.device, dtype=age.dtype)
        return torch.cat([recent, contents["times"]], dim=1)

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        received = contents["received"]
        if self.relevant:  # only R depends on the received attention
            received = received + weights[:, : self.short].detach()
        after = {
            "states": torch.cat([contents["states"][:, 1:], state[:, None]], dim=1),
            "keys": torch.cat([contents["keys"][:, 1:], key[:, None]], dim=1),
            "received": nn.functional.pad(received[:, 1:], (0, 1)),
            "age": contents["age"] + 1,
        }
        return contents | after | (self._screened(contents, received[:, 0]) if self.relevant else {})

    def _screened(self, contents: Contents, received: Tensor) -> Contents:
        """Return R after the oldest state of S, which ``received`` so much attention, has left S."""
        scores, age = contents["scores"], contents["age"]
        leaving, key = contents["states"][:, 0], contents["keys"][:, 0]
        score = self.score(leaving, received).detach()
        lowest, place = scores.min(dim=1)
        left = age - self.short  # number of states that have left S before
        has_room = left < self.relevant
        place = place.where(~has_room, left)
        enters = (left >= 0) & (has_room | (score > lowest))
        here = enters[:, None] & (torch.arange(self.relevant, device=place.device) == place[:, None])
        return {
            "kept states": torch.where(here[:, :, None], leaving[:, None], contents["kept states"]),
            "kept keys": torch.where(here[:, :, None], key[:, None], contents["kept keys"]),
            "scores": torch.where(here, score[:, None], scores),
            "times": torch.where(here, left[:, None], contents["times"]),
        }
