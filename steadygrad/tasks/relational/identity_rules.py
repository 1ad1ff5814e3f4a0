"""Identity rules: complete a row so that it follows the pattern of another (Marcus et al., 1999; Webb et al., 2021)."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from steadygrad.tasks.relational.shapes import ChoiceTask, join_disjoint, letter_indices

PATTERNS_OF_TWO = ("AAAA", "ABAA", "AABA", "ABBB", "ABBA", "ABAB", "AABB")
PATTERNS_OF_THREE = ("ABCA", "ABCB", "ABCC")
"""`PATTERNS_OF_TWO` and `PATTERNS_OF_THREE` are all patterns of four whose last letter occurs before."""


@dataclass(frozen=True)
class IdentityRules(ChoiceTask, name="identity-rules"):
    """Choose the last shape of the second row. Both rows have the same pattern with different shapes.

    input    A B A   C D _   B D A C       the patterns are AAA, ABA and ABB
    target   3                             the place of C among the candidates
    """

    @property
    def row(self) -> int:
        return 3

    @property
    def output_size(self) -> int:
        return 4

    def rules(self, unseen: bool) -> tuple[str, ...]:
        """Return the patterns that rows can have in training, or in tests if ``unseen``."""
        return "AAA", "ABA", "ABB"

    def two_rows(self, batch: int, generator: Generator, unseen: bool) -> Tensor:
        patterns = tuple(join_disjoint(rule, rule) for rule in self.rules(unseen))
        return letter_indices(patterns)[torch.randint(len(patterns), (batch,), generator=generator)]


@dataclass(frozen=True)
class IdentityRules4(IdentityRules, name="identity-rules-4"):
    """Like identity-rules, with rows of four and six candidates. Tests use patterns that training never shows.

        input    A B A B   C D C _   E D F C A B
        target   1                               the place of D among the candidates

    Training uses patterns of one or two shapes. Tests use those of three: ABCA, ABCB and ABCC. ``flipped`` swaps
    training and tests. ``missing`` removes ABAA and ABAB from training or, if flipped, ABCA.
    """

    held_out: int = 94
    missing: bool = False
    flipped: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_flags("missing", "flipped")

    @property
    def row(self) -> int:
        return 4

    @property
    def output_size(self) -> int:
        return 6

    def rules(self, unseen: bool) -> tuple[str, ...]:
        rules = PATTERNS_OF_THREE if unseen != self.flipped else PATTERNS_OF_TWO
        excluded = {"ABAA", "ABAB", "ABCA"} if self.missing and not unseen else set()
        return tuple(rule for rule in rules if rule not in excluded)
