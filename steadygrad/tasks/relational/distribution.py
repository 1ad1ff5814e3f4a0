"""Distribution of N: which shape is missing (Webb et al., 2021, with three; Kerg et al., 2022)?"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from steadygrad.tasks.relational.chance import draw_until, permutations
from steadygrad.tasks.relational.shapes import ChoiceTask

LAST = 3
"""A restricted permutation permutes this many last shapes among themselves."""


@dataclass(frozen=True)
class DistributionOfN(ChoiceTask, name="distribution-of-n"):
    """Choose the last shape of the second row, which has the ``n`` shapes of the first row in some order.

        input    A B C   C A _   B D A C       n = 3: row, row without its end, candidates
        target   0                             the place of B among the candidates

    ``restricted``: in training, the second row permutes the first n − 3 shapes among themselves and the last three
    among themselves. Tests use all other permutations. This follows the thesis. The authors' program does the
    opposite: dist10_hard7 tests on the permutations that are used for training here.
    """

    n: int = 3
    restricted: bool = False

    def __post_init__(self) -> None:
        self.check(n=2)
        self.check_flags("restricted")
        if self.restricted and self.n <= LAST:
            raise ValueError(f"DistributionOfN expects n to be at least {LAST + 1} if restricted is true; got {self.n}")
        super().__post_init__()

    @property
    def row(self) -> int:
        return self.n

    @property
    def output_size(self) -> int:
        return self.n + 1

    def two_rows(self, batch: int, generator: Generator, unseen: bool) -> Tensor:
        first = self.n - LAST
        if not self.restricted:
            second = permutations(batch, self.n, generator)
        elif unseen:
            second = draw_until(
                lambda rows: (rows[:, :first] >= first).any(1),  # one of the last three is among the first n − 3
                lambda count: permutations(count, self.n, generator),
                batch,
            )
        else:
            parts = permutations(batch, first, generator), first + permutations(batch, LAST, generator)
            second = torch.cat(parts, dim=1)
        return torch.cat([torch.arange(self.n).expand(batch, -1), second], dim=1)
