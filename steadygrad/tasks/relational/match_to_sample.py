"""Relational match-to-sample: which group has the relation of the first (Webb et al., 2021; Kerg et al., 2022)?"""

from dataclasses import dataclass
from itertools import permutations as ordered
from typing import ClassVar

from steadygrad.problem import Segments
from steadygrad.tasks.relational.shapes import PatternTask, join_disjoint


@dataclass(frozen=True)
class RMTS(PatternTask, name="rmts"):
    """Choose which of two pairs has the relation of the first pair. No two pairs share a shape.

    input    A A   B B   C D    A B   C C   D E
    target   0                  1
    """

    group: ClassVar[int] = 2

    @property
    def rows(self) -> tuple[int, ...]:
        return self.group, 2 * self.group

    @property
    def segments(self) -> Segments:
        """Range (begin, end) of each group of objects, end excluded: a tuple of three pairs.

        Webb et al. normalise each group by itself, Kerg et al. do not.
        """
        return tuple((begin, begin + self.group) for begin in range(0, self.objects, self.group))

    def relations(self, unseen: bool) -> tuple[str, ...]:
        """Return the patterns that a group can have in training, or in tests if ``unseen``."""
        return "AA", "AB"

    def patterns(self, unseen: bool) -> tuple[tuple[str, int], ...]:
        pairs = list(ordered(self.relations(unseen), 2))
        first = [(join_disjoint(source, source, other), 0) for source, other in pairs]
        return (*first, *((join_disjoint(source, other, source), 1) for source, other in pairs))


@dataclass(frozen=True)
class RMTS3(RMTS, name="rmts-3"):
    """Choose which of two triples has the pattern of the first triple. No two triples share a shape.

        input    A B A   C D C   E E E    A A A   B C C   D D D
        target   0                        1

    Training uses the patterns AAA, ABA and ABB (the same as BAA). Tests use ABC and AAB.
    """

    held_out: int = 94
    group: ClassVar[int] = 3

    def relations(self, unseen: bool) -> tuple[str, ...]:
        return ("ABC", "AAB") if unseen else ("AAA", "ABA", "ABB")
