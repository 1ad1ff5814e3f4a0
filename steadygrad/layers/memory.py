"""Memories of the past states that a layer attends to: all states, every k-th, or the last and most relevant ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.check import check_integers, is_integer
from steadygrad.kernels import Carried, needs_plain
from steadygrad.layers.cell import Part
from steadygrad.layers.relevance import SCORES, ReceivedAttention, Score

Contents = dict[str, Tensor]
"""the tensors of a memory by name, and the ``keys`` of its states, each with one row per sequence"""
Keys = Callable[[Tensor], Tensor]
"""states (…, units) → keys (…, ·), as `Alignment.keys`"""


class Items(NamedTuple):
    """States and keys in a memory that can be attended to, and which places are taken.

    ``states`` is (batch, places, units), ``keys`` (batch, places, key size), ``taken`` a Boolean mask (batch, places).
    ``gate`` (batch, places) is added to the logits, unless it is None.
    """

    states: Tensor
    keys: Tensor
    taken: Tensor
    gate: Tensor | None


class Memory(nn.Module):
    """Base class of memories of past states. The tensors of a memory are part of the layer's state.

    The module itself holds no states. Its methods take and return a memory as a tuple of tensors (batch, …), one for
    each of ``parts``, or as `Contents`: a dict of the same tensors by name, with the ``keys`` of the states.
    """

    parts: dict[str, Part]
    """the tensors by name; zeros are an empty memory; ``states`` is (places, units)"""
    relevant = 0
    """number of places at the end of ``states`` that belong to R, the states kept for their score"""

    def options(self) -> dict[str, Any]:
        """Return the sizes of the memory to show in `repr` of the layer, a dict by name. `Memory` returns none."""
        return {}

    @property
    def limits(self) -> tuple[int | None, int] | None:
        """Pair of the numbers of recent states (None for no limit) and relevant states that the memory holds.

        It is None if the fused attention kernel does not support the memory.
        """
        return None

    def carried(self, tensors: tuple[Tensor, ...]) -> Carried:
        """Return a `Carried`, the form in which the fused attention kernel takes and returns a memory.

        ``tensors`` is the tuple of the memory's tensors, in the order of ``parts``. The method is called only if
        `limits` is not None. `Memory` raises NotImplementedError.
        """
        raise NotImplementedError

    def from_carried(self, carried: Carried) -> tuple[Tensor, ...]:
        """Return the tuple of the memory's tensors from a `Carried` of the fused kernel.

        The method is called only if `limits` is not None. `Memory` raises NotImplementedError.
        """
        raise NotImplementedError

    def unpack(self, tensors: tuple[Tensor, ...], keys: Keys) -> Contents:
        """Return the memory's tensors as a dict by name, with an entry ``keys`` for the keys of the states.

        ``tensors`` is the tuple of them, in the order of ``parts``. The argument ``keys`` is the function that computes
        the keys from the states, such as `Alignment.keys`.
        """
        contents = dict(zip(self.parts, tensors, strict=True))
        return contents | {"keys": keys(contents["states"])}

    def pack(self, contents: Contents) -> tuple[Tensor, ...]:
        """Return the memory's tensors as a tuple, in the order of ``parts``, from their dict by name."""
        return tuple(contents[name] for name in self.parts)

    def items(self, contents: Contents) -> Items:
        """Return the `Items` to attend to. Each memory defines this method; `Memory` raises NotImplementedError."""
        raise NotImplementedError

    def latest(self, contents: Contents) -> int | None:
        """Return the place of the latest state, an index into the places of ``states``.

        Return None if the memory of any sequence does not hold the state of its last step. Each memory defines this
        method; `Memory` raises NotImplementedError.
        """
        raise NotImplementedError

    def times(self, contents: Contents) -> Tensor:
        """Return the time step of each state in memory, counted from 0: integers (batch, places).

        At an empty place the number has no meaning. Each memory defines this method; `Memory` raises
        NotImplementedError.
        """
        raise NotImplementedError

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        """Return a new dict of the memory's contents after a step; ``contents`` is not changed.

        ``weights`` (batch, places) are the attention weights of the step, ``state`` (batch, units) is its new state,
        and ``key`` (batch, key size) the key of this state. Each memory defines this method; `Memory` raises
        NotImplementedError.
        """
        raise NotImplementedError


class Everything(Memory):
    """Memory of every past state, or every ``every``-th one. The cost of attention grows with the number of steps.

    Its tensors are ``states`` (batch, places, units) and ``age`` (batch,), the number of steps so far. Places are added
    with time; the latest stored state is in the last place, and empty places are in front.
    """

    def __init__(self, units: int, every: int = 1) -> None:
        super().__init__()
        if not is_integer(every, 1):
            raise ValueError(f"a memory expects to keep each 1st, 2nd, … state; got every={every!r}")
        self.every = every
        self.parts = {"states": Part((None, units)), "age": Part((), torch.int64)}

    def options(self) -> dict[str, Any]:
        """Return {"short": None}, as for attention to all past states, or {"every": …}."""
        return {"short": None} if self.every == 1 else {"every": self.every}

    @property
    def limits(self) -> tuple[None, int] | None:
        """Pair (None, 0), all recent states and no relevant ones, if every state is stored; None if ``every`` > 1."""
        return (None, 0) if self.every == 1 else None

    def carried(self, tensors: tuple[Tensor, ...]) -> Carried:
        """Return the tuple (states, age) as the `Carried` that the fused kernel takes, with no relevant states."""
        states, age = tensors
        none = states.new_zeros(states.shape[0], 0)
        ages = age.clamp(0, states.shape[1])  # the kernel reads as many states
        return Carried(states, none, none, none.long(), ages)

    def from_carried(self, carried: Carried) -> tuple[Tensor, ...]:
        """Return the tuple (states, age) from the `Carried` that the fused kernel returned."""
        return self.pack({"states": carried.states, "age": carried.ages})

    def pack(self, contents: Contents) -> tuple[Tensor, ...]:
        """Return the tuple (states, age) of the dict, without leading places that are known to be empty."""
        states, age = contents["states"], contents["age"]
        if not needs_plain(age) and len(age):  # remove leading places that are empty in all rows
            states = states[:, states.shape[1] - int(age.max()) // self.every :]
        return states, age

    def items(self, contents: Contents) -> Items:
        """Return the `Items` of the memory: all stored states and their keys. The gate is None."""
        states = contents["states"]
        return Items(states, contents["keys"], self._numbers(contents) >= 0, None)

    def latest(self, contents: Contents) -> int | None:
        """Return the last place, or None if the last step of any sequence was not stored."""
        age = contents["age"]
        return contents["states"].shape[1] - 1 if ((age > 0) & (age % self.every == 0)).all() else None

    def times(self, contents: Contents) -> Tensor:
        """Return the time step of each stored state, counted from 0: (batch, places). Negative for an empty place."""
        return (self._numbers(contents) + 1) * self.every - 1

    def _numbers(self, contents: Contents) -> Tensor:
        """Return which of the stored states is in each place, counted from 0; negative where the place is empty."""
        age = contents["age"][:, None]
        return age // self.every - torch.arange(contents["states"].shape[1], 0, -1, device=age.device)

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        """Return a new dict of contents with ``state`` and ``key`` in a new last place, and ``age`` increased by 1.

        Only sequences whose new age is a multiple of ``every`` store the state. The others get an empty place in front.
        If no sequence stores its state, no place is added. ``weights`` is not used.
        """
        after = contents | {"age": contents["age"] + 1}
        kept = after["age"] % self.every == 0
        if self.every > 1 and not kept.any():
            return after
        for name, new in (("states", state[:, None]), ("keys", key[:, None])):
            after[name] = torch.cat([contents[name], new], dim=1)
            if (
                self.every > 1 and not kept.all()
            ):  # sequences at different steps: those that keep no state now get an empty place in front
                stay = torch.cat([torch.zeros_like(new), contents[name]], dim=1)
                after[name] = after[name].where(kept[:, None, None], stay)
        return after


class Screening(Memory):
    """Memory of S, the last ``short`` states, and R, the ``relevant`` states with the highest scores that left S.

    The score of a state is computed once, when the state leaves S. If R has room, the state enters R. Otherwise it
    replaces the state with the lowest score in R if its own score is higher (Kerg et al., 2020, algorithm 1). ``score``
    is a name in `SCORES` or a function units → `Score`; without ``bias`` a score of `SCORES` has no bias.

    Its tensors are ``states`` (batch, short + relevant, units), first the places of S with the latest state last, then
    those of R; ``received`` (batch, short), the attention received in S; ``scores`` and ``times`` (batch, relevant) of
    R; and ``age`` (batch,), the number of steps so far.
    """

    def __init__(
        self,
        units: int,
        short: int,
        relevant: int,
        score: str | Callable[[int], Score] = "received",
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_integers("a memory", short=short)
        check_integers("a memory", 0, relevant=relevant)
        if isinstance(score, str) and score not in SCORES:
            raise ValueError(f"a memory expects a score out of {', '.join(SCORES)}, or a function; got {score!r}")
        self.short, self.relevant = short, relevant
        self.score = SCORES[score](units, bias) if isinstance(score, str) else score(units)
        self.parts = {
            "states": Part((short + relevant, units)),
            "received": Part((short,)),
            "scores": Part((relevant,)),
            "times": Part((relevant,), torch.int64),
            "age": Part((), torch.int64),
        }

    def options(self) -> dict[str, Any]:
        """Return the numbers of states in S and R, {"short": …, "relevant": …}."""
        return {"short": self.short, "relevant": self.relevant}

    @property
    def limits(self) -> tuple[int, int] | None:
        """Pair (short, relevant) if the score is `ReceivedAttention`; None for other scores."""
        return (self.short, self.relevant) if isinstance(self.score, ReceivedAttention) else None

    def carried(self, tensors: tuple[Tensor, ...]) -> Carried:
        """Return the memory's five tensors as the `Carried` that the fused kernel takes, in the same order."""
        return Carried(*tensors)

    def from_carried(self, carried: Carried) -> tuple[Tensor, ...]:
        """Return the tuple of the memory's five tensors from the `Carried` that the fused kernel returned."""
        return tuple(carried)

    def unpack(self, tensors: tuple[Tensor, ...], keys: Keys) -> Contents:
        def of_both(states: Tensor) -> Tensor:  # S and R by themselves: one product would round gradients differently
            return torch.cat([keys(part) for part in states.split([self.short, self.relevant], dim=1)], dim=1)

        return super().unpack(tensors, of_both)

    def items(self, contents: Contents) -> Items:
        """Return the `Items` of all places: S, the recent states, then R, the relevant ones.

        The gate is that of the score for R and 0 for S, or None if the score has no gate.
        """
        states, age = contents["states"], contents["age"][:, None]
        places = torch.arange(self.short + self.relevant, device=age.device)
        # S is filled from its end, where the latest state is, and R from its beginning
        taken = torch.where(places < self.short, places + age >= self.short, places < age)
        gate = self.score.gate(states[:, self.short :])
        gate = None if gate is None else nn.functional.pad(gate, (self.short, 0))
        return Items(states, contents["keys"], taken, gate)

    def latest(self, contents: Contents) -> int | None:
        """Return short − 1, the last place of the recent states, or None if any sequence has not begun."""
        return self.short - 1 if (contents["age"] > 0).all() else None

    def times(self, contents: Contents) -> Tensor:
        """Return the time steps of recent, then relevant states (batch, short + relevant); meaningless where empty."""
        age = contents["age"][:, None]
        recent = age - torch.arange(self.short, 0, -1, device=age.device, dtype=age.dtype)
        return torch.cat([recent, contents["times"]], dim=1)

    def add(self, contents: Contents, weights: Tensor, state: Tensor, key: Tensor) -> Contents:
        """Return a new dict of contents after a step: ``state`` enters S, the recent states, and the oldest leaves S.

        No state leaves before S is full. The state that leaves enters R, the relevant states, if R has room or its
        score is higher than the lowest in R. ``weights`` (batch, short + relevant) are added, without gradient, to the
        attention that the states in S have received, unless ``relevant`` is 0.
        """
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
        """Return a mask of the place of R that the oldest state of S enters, and a dict of R's new scores and times.

        S holds the recent states and R the relevant ones. The mask is Boolean, (batch, relevant), and has at most one
        True for each sequence. It has none if no state leaves S yet, or if R is full and the score of the state is not
        above the lowest score in R. ``received`` (batch,) is the attention that the oldest state received while it was
        in S, on which its score may depend.
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
