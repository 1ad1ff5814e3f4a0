"""Memories of past states that a network attends to: all of them, every few, or those that proved relevant."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.kernels import Carried

Contents = dict[str, Tensor]
"""by name, a row for each sequence; names that end in ``states`` hold (batch, places, units), ``keys`` alike"""
Keys = Callable[[Tensor], Tensor]


class Items(NamedTuple):
    """What can be attended to: states and keys (batch, places, ·), which places are taken (batch, places).

    ``gate`` is added to the logits, or None.
    """

    states: Tensor
    keys: Tensor
    taken: Tensor
    gate: Tensor | None


DIGIT = 256
"""whole numbers up to this one are exact in every type of floating point"""


def written(counts: Tensor, kind: torch.dtype) -> Tensor:
    """Whole numbers (batch, n) as (batch, 2 n) digits, so that 16 bits a number are enough for 65,000 steps."""
    return torch.cat([counts // DIGIT, counts % DIGIT], dim=1).to(kind)


def read(digits: Tensor) -> Tensor:
    high, low = digits.detach().long().chunk(2, dim=1)
    return high * DIGIT + low


class Memory(nn.Module):
    """What is kept of the past of each sequence.

    Between two walks it is one row of numbers: first the states, then what is noted about them, which has no gradient.
    """

    growth = 0
    """by how many numbers a row grows with each state that is kept; 0 if it has one size"""
    size: int
    """of a row, or of an empty one"""

    def places(self, row: int) -> int:
        """How many states a row of so many numbers holds, empty places counted."""
        raise NotImplementedError

    @property
    def limits(self) -> tuple[int | None, int] | None:
        """The sizes of S, None for all states, and R, if that and the attention received is all there is to know."""
        return None

    def carried(self, contents: Contents) -> Carried:
        """For the kernel, where there are `limits`."""
        raise NotImplementedError

    def from_carried(self, carried: Carried) -> Contents:
        raise NotImplementedError

    def unpack(self, rows: Tensor, keys: Keys) -> Contents:
        raise NotImplementedError

    def pack(self, contents: Contents) -> Tensor:
        raise NotImplementedError

    def items(self, contents: Contents) -> Items:
        raise NotImplementedError

    def ends_with_latest(self, contents: Contents) -> Tensor:
        """Whether the last place of "states" has the latest state, (batch)."""
        raise NotImplementedError

    def times(self, contents: Contents) -> Tensor:
        """At which step each of the items was a state, (batch, places); anything where a place is empty."""
        raise NotImplementedError

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        """After a step that attended with ``weights`` (batch, places) and ended in ``state`` (batch, units)."""
        raise NotImplementedError


class Everything(Memory):
    """Every state, or each ``every``-th: attention costs more with every step."""

    def __init__(self, units: int, every: int = 1) -> None:
        super().__init__()
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
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
        empty = taken.shape[1] - int(taken.sum(dim=1).max()) if len(taken) else 0  # in front, of all sequences
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
        age, since = contents["age"], contents["since"] + 1  # since the last that was kept
        kept = since == self.every
        older = {name: contents[name] for name in ("states", "keys", "taken", "times")}
        clocks = {"age": age + 1, "since": since.masked_fill(kept, 0)}
        if not kept.any():
            return older | clocks
        new = {"states": state[:, None], "keys": key[:, None], "taken": kept[:, None], "times": age[:, None]}
        joined = {name: torch.cat([older[name], new[name]], dim=1) for name in older}
        if not kept.all():  # sequences that are not at the same step: the others get an empty place in front
            for name, values in joined.items():
                stay = torch.cat([torch.zeros_like(new[name]), older[name]], dim=1)
                joined[name] = values.where(kept.view(-1, *[1] * (values.dim() - 1)), stay)
        return joined | clocks


class Score(nn.Module):
    """How relevant a state will be: (batch) numbers from the states (batch, units) and the attention each received."""

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        raise NotImplementedError

    def gate(self, states: Tensor) -> Tensor | None:
        """Added to the logits of the states kept (batch, places, units): a choice has no gradient, this has one."""
        return None


class ReceivedAttention(Score):
    """β(i) = Σ α_{i,t} over the ν steps for which h_i stood in the short-term buffer."""

    def __init__(self, units: int) -> None:
        super().__init__()

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        return received


class LearnedScore(Score):
    """β(i) = w · h_i + b + Σ α_{i,t},  and a state that is kept gets σ(w · h_i + b) times the weight it would.

    So w and b learn by what attending to it is worth (thesis, section 7.5). At the start w = b = 0, which ranks states
    as `ReceivedAttention` does.
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
    """S, the last ``short`` states, and R, the ``relevant`` states with the highest scores of those that left S.

    A state that leaves S enters R while there is room; then it takes the place of the lowest score if its own is
    higher. Scores are those of that moment (Kerg et al., 2020, algorithm 1).
    """

    def __init__(self, units: int, short: int, relevant: int, score: str | Callable[[int], Score] = "received") -> None:
        super().__init__()
        for name, value, least in (("short", short, 1), ("relevant", relevant, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"a memory expects {name} to be a whole number of at least {least}; got {value!r}")
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
        # S fills from its end, which is the present; R from its beginning
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
        if self.relevant:  # nothing else asks for it
            received = received + weights[:, : self.short].detach()
        after = {
            "states": torch.cat([contents["states"][:, 1:], state[:, None]], dim=1),
            "keys": torch.cat([contents["keys"][:, 1:], key[:, None]], dim=1),
            "received": nn.functional.pad(received[:, 1:], (0, 1)),
            "age": contents["age"] + 1,
        }
        return contents | after | (self._screened(contents, received[:, 0]) if self.relevant else {})

    def _screened(self, contents: Contents, received: Tensor) -> Contents:
        """R after the oldest state of S has left it, having received so much attention."""
        scores, age = contents["scores"], contents["age"]
        leaving, key = contents["states"][:, 0], contents["keys"][:, 0]
        score = self.score(leaving, received).detach()
        lowest, place = scores.min(dim=1)
        left = age - self.short  # how many have left S before
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
