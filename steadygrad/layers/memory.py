"""Memories of the past states that a layer attends to: all states, every k-th, or the last and most relevant ones."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.check import check_integers, is_integer
from steadygrad.kernels import Carried
from steadygrad.layers.cell import Part

Contents = dict[str, Tensor]
"""the tensors of a memory by name, and the ``keys`` of its states, each with one row per sequence"""
Keys = Callable[[Tensor], Tensor]
"""states (…, units) → keys (…, ·), as `Alignment.keys`"""


class Items(NamedTuple):
    """States and keys (batch, places, ·) in a memory that can be attended to, and which places are taken.

    ``gate`` (batch, places) is added to the logits, unless it is None.
    """

    states: Tensor
    keys: Tensor
    taken: Tensor
    gate: Tensor | None


class Memory(nn.Module):
    """Base class of memories: stores past states of each sequence. Its tensors are part of the layer's state."""

    parts: dict[str, Part]
    """the tensors by name; zeros are an empty memory; ``states`` is (places, units)"""
    relevant = 0
    """number of places at the end of ``states`` that belong to R, the states kept for their score"""

    @property
    def limits(self) -> tuple[int | None, int] | None:
        """Numbers of recent states (S; None for all) and relevant states (R) stored, for the fused kernel.

        None if the fused kernel does not support the memory.
        """
        return None

    def carried(self, tensors: tuple[Tensor, ...]) -> Carried:
        """Return the memory's tensors in the form that the fused kernel takes. Needed only if `limits` is not None."""
        raise NotImplementedError

    def from_carried(self, carried: Carried) -> tuple[Tensor, ...]:
        """Return the memory's tensors from what the fused kernel returned."""
        raise NotImplementedError

    def unpack(self, tensors: tuple[Tensor, ...], keys: Keys) -> Contents:
        """Return the memory's tensors by name, with ``keys``, which are computed from the states."""
        contents = dict(zip(self.parts, tensors, strict=True))
        return contents | {"keys": keys(contents["states"])}

    def pack(self, contents: Contents) -> tuple[Tensor, ...]:
        """Return the memory's tensors as a tuple, in the order of ``parts``, from their dict by name."""
        return tuple(contents[name] for name in self.parts)

    def items(self, contents: Contents) -> Items:
        """Return the states and keys in memory that can be attended to."""
        raise NotImplementedError

    def latest(self, contents: Contents) -> int | None:
        """Return the place of the latest state in memory, or None if a sequence has not stored it."""
        raise NotImplementedError

    def times(self, contents: Contents) -> Tensor:
        """Return the time step of each state in memory, (batch, places). At an empty place it has no meaning."""
        raise NotImplementedError

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        """Return the memory's contents after a step with attention ``weights`` (batch, places) and a new ``state``."""
        raise NotImplementedError


class Everything(Memory):
    """Memory of every past state, or every ``every``-th one. The cost of attention grows with the number of steps.

    The latest stored state is in the last place. ``age`` is the number of steps so far.
    """

    def __init__(self, units: int, every: int = 1) -> None:
        super().__init__()
        if not is_integer(every, 1):
            raise ValueError(f"a memory expects to keep each 1st, 2nd, … state; got every={every!r}")
        self.every = every
        self.parts = {"states": Part((None, units)), "age": Part((), torch.int64)}

    @property
    def limits(self) -> tuple[None, int] | None:
        return (None, 0) if self.every == 1 else None

    def carried(self, tensors: tuple[Tensor, ...]) -> Carried:
        states, age = tensors
        none = states.new_zeros(len(states), 0)
        return Carried(
            states, none, none, none.long(), age.clamp(0, states.shape[1])
        )  # the kernel reads as many states

    def from_carried(self, carried: Carried) -> tuple[Tensor, ...]:
        return self.pack({"states": carried.states, "age": carried.ages})

    def pack(self, contents: Contents) -> tuple[Tensor, ...]:
        """Return the states and the age, without leading places that are empty in all sequences."""
        states, age = contents["states"], contents["age"]
        if len(age):  # remove leading places that are empty in all rows
            states = states[:, states.shape[1] - int(age.max()) // self.every :]
        return states, age

    def items(self, contents: Contents) -> Items:
        states = contents["states"]
        return Items(states, contents["keys"], self._numbers(contents) >= 0, None)

    def latest(self, contents: Contents) -> int | None:
        age = contents["age"]
        return contents["states"].shape[1] - 1 if ((age > 0) & (age % self.every == 0)).all() else None

    def times(self, contents: Contents) -> Tensor:
        return (self._numbers(contents) + 1) * self.every - 1

    def _numbers(self, contents: Contents) -> Tensor:
        """Return which of the stored states is in each place, counted from 0; negative where the place is empty."""
        age = contents["age"][:, None]
        return age // self.every - torch.arange(contents["states"].shape[1], 0, -1, device=age.device)

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        after = contents | {"age": contents["age"] + 1}
        kept = after["age"] % self.every == 0
        if not kept.any():
            return after
        for name, new in (("states", state[:, None]), ("keys", key[:, None])):
            after[name] = torch.cat([contents[name], new], dim=1)
            if not kept.all():  # sequences at different steps: those that keep no state now get an empty place in front
                stay = torch.cat([torch.zeros_like(new), contents[name]], dim=1)
                after[name] = after[name].where(kept[:, None, None], stay)
        return after


class Score(nn.Module):
    """Base class of scores, which predict how relevant a past state will be."""

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        """Return scores (batch) from the states (batch, units) and the attention that each received (batch)."""
        raise NotImplementedError

    def gate(self, states: Tensor) -> Tensor | None:
        """Return a term for the attention logits of the relevant states (batch, places, units), or None.

        The selection of states has no gradient, so a learned score is trained through this term.
        """
        return None


class ReceivedAttention(Score):
    """Score of a state: β(i) = Σ α_{i,t}, the attention that h_i received while it was among the recent states S."""

    def __init__(self, units: int) -> None:
        super().__init__()

    def forward(self, states: Tensor, received: Tensor) -> Tensor:
        return received


class LearnedScore(Score):
    """Learned score of a state: β(i) = w · h_i + b + Σ α_{i,t},  and σ(w · h_i + b) multiplies e^{logit} of h_i in R.

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
        """Return log σ(w · h + b) of the relevant states, a term for their attention logits that trains w and b."""
        return nn.functional.logsigmoid(states @ self.w + self.b)


SCORES: dict[str, Callable[[int], Score]] = {"received": ReceivedAttention, "learned": LearnedScore}


class Screening(Memory):
    """Memory of S, the last ``short`` states, and R, the ``relevant`` states with the highest scores that left S.

    The score of a state is computed once, when the state leaves S. If R has room, the state enters R. Otherwise it
    replaces the state with the lowest score in R if its own score is higher (Kerg et al., 2020, algorithm 1).
    """

    def __init__(self, units: int, short: int, relevant: int, score: str | Callable[[int], Score] = "received") -> None:
        super().__init__()
        check_integers("a memory", short=short)
        check_integers("a memory", 0, relevant=relevant)
        if isinstance(score, str) and score not in SCORES:
            raise ValueError(f"a memory expects a score out of {', '.join(SCORES)}, or a function; got {score!r}")
        self.short, self.relevant = short, relevant
        self.score = (SCORES[score] if isinstance(score, str) else score)(units)
        self.parts = {
            "states": Part((short + relevant, units)),
            "received": Part((short,)),
            "scores": Part((relevant,)),
            "times": Part((relevant,), torch.int64),
            "age": Part((), torch.int64),
        }

    @property
    def limits(self) -> tuple[int, int] | None:
        return (self.short, self.relevant) if isinstance(self.score, ReceivedAttention) else None

    def carried(self, tensors: tuple[Tensor, ...]) -> Carried:
        return Carried(*tensors)

    def from_carried(self, carried: Carried) -> tuple[Tensor, ...]:
        return tuple(carried)

    def unpack(self, tensors: tuple[Tensor, ...], keys: Keys) -> Contents:
        def of_both(states: Tensor) -> Tensor:  # S and R by themselves: one product would round gradients differently
            return torch.cat([keys(part) for part in states.split([self.short, self.relevant], dim=1)], dim=1)

        return super().unpack(tensors, of_both)

    def items(self, contents: Contents) -> Items:
        states, age = contents["states"], contents["age"][:, None]
        places = torch.arange(self.short + self.relevant, device=age.device)
        # S is filled from its end, where the latest state is, and R from its beginning
        taken = torch.where(places < self.short, places + age >= self.short, places < age)
        gate = self.score.gate(states[:, self.short :])
        gate = None if gate is None else nn.functional.pad(gate, (self.short, 0))
        return Items(states, contents["keys"], taken, gate)

    def latest(self, contents: Contents) -> int | None:
        return self.short - 1 if (contents["age"] > 0).all() else None

    def times(self, contents: Contents) -> Tensor:
        age = contents["age"][:, None]
        recent = age - torch.arange(self.short, 0, -1, device=age.device, dtype=age.dtype)
        return torch.cat([recent, contents["times"]], dim=1)

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        received = contents["received"].detach()
        if self.relevant:  # only R depends on the received attention
            received = received + weights[:, : self.short].detach()
        after = contents | {
            "received": nn.functional.pad(received[:, 1:], (0, 1)),
            "age": contents["age"] + 1,
        }
        here = None
        if self.relevant:
            here, changed = self._screened(contents, received[:, 0])
            after |= changed
        for name, new in (("states", state), ("keys", key)):
            short, kept = contents[name].split([self.short, self.relevant], dim=1)
            if here is not None:
                kept = torch.where(here[:, :, None], short[:, :1], kept)
            after[name] = torch.cat([short[:, 1:], new[:, None], kept], dim=1)
        return after

    def _screened(self, contents: Contents, received: Tensor) -> tuple[Tensor, Contents]:
        """Return which place of R the oldest state of S enters, (batch, relevant), and the new scores and times of R.

        The state has ``received`` so much attention. It enters no place if its score is too low.
        """
        scores, age = contents["scores"].detach(), contents["age"]
        score = self.score(contents["states"][:, 0], received).detach()
        lowest, place = scores.min(dim=1)
        left = age - self.short  # number of states that have left S before
        has_room = left < self.relevant
        place = place.where(~has_room, left)
        enters = (left >= 0) & (has_room | (score > lowest))
        here = enters[:, None] & (torch.arange(self.relevant, device=place.device) == place[:, None])
        scores = torch.where(here, score[:, None], scores)
        return here, {"scores": scores, "times": torch.where(here, left[:, None], contents["times"])}
