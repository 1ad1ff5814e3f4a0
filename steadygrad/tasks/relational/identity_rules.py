"""Identity rules: complete a row so that it follows the pattern of another (Marcus et al., 1999; Webb et al., 2021)."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from steadygrad.tasks.relational.shapes import ChoiceTask, apart, as_numbers

OF_TWO = ("AAAA", "ABAA", "AABA", "ABBB", "ABBA", "ABAB", "AABB")
OF_THREE = ("ABCA", "ABCB", "ABCC")
"""with those of two: every pattern of four whose end is known from what stands before it"""


@dataclass(frozen=True)
class IdentityRules(ChoiceTask):
    """Both rows have one pattern, of other shapes; which candidate ends the second?

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
        return "AAA", "ABA", "ABB"

    def two_rows(self, batch: int, generator: Generator, unseen: bool) -> Tensor:
        patterns = tuple(apart(rule, rule) for rule in self.rules(unseen))
        return as_numbers(patterns)[torch.randint(len(patterns), (batch,), generator=generator)]


@dataclass(frozen=True)
class IdentityRules4(IdentityRules):
    """The same with rows of four and six candidates; tests have patterns that training lacks.

        input    A B A B   C D C _   E D F C A B
        target   1                               the place of D among the candidates

    Training has patterns of one or two shapes, tests those of three, ABCA, ABCB and ABCC; if ``flipped`` the other way
    round. If ``missing``, training lacks ABAA and ABAB too, or if flipped ABCA.
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
        rules = OF_THREE if unseen != self.flipped else OF_TWO
        lacking = {"ABAA", "ABAB", "ABCA"} if self.missing and not unseen else set()
        return tuple(rule for rule in rules if rule not in lacking)
