"""Same or different: two shapes, or two triples of shapes (Webb et al., 2021; Kerg et al., 2022)."""

from dataclasses import dataclass
from itertools import permutations as ordered

import torch
from torch import Generator, Tensor

from steadygrad.tasks.relational.shapes import PatternTask, background

SAME, DIFFERENT = 0, 1


@dataclass(frozen=True)
class SameDifferent(PatternTask, name="same-different"):
    """Decide whether two shapes are the same (0) or different (1).

        input    A A    A B
        target   0      1

    ``separated`` shows a random colour, which is irrelevant, after each shape as an image of its own: A red A blue.
    """

    held_out: int = 98
    separated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_flags("separated")
        if self.colour and self.separated:
            raise ValueError("SameDifferent expects colour or separated to be false; got true for both")

    @property
    def rows(self) -> tuple[int, ...]:
        return (4,) if self.separated else (2,)

    def patterns(self, unseen: bool) -> tuple[tuple[str, int], ...]:
        return ("AA", SAME), ("AB", DIFFERENT)

    def with_channels(self, images: Tensor, generator: Generator) -> Tensor:
        """Return images (batch, 2, 32, 32) with channels, as `ShapeTask` does: (batch, 2, 3, 32, 32).

        If ``separated``, a plain colour follows each image: (batch, 4, 3, 32, 32).
        """
        shapes = super().with_channels(images, generator)
        if not self.separated:
            return shapes
        colours = background(images.shape[:2], generator)[..., None, None].expand_as(shapes)
        return torch.stack([shapes, colours], dim=2).flatten(1, 2)


@dataclass(frozen=True)
class SameDifferent6(PatternTask, name="same-different-6"):
    """Decide whether two triples of at most two shapes are the same (0) or different (1).

        input    A B A  A B A    A A A  B A A
        target   0               1

    Training uses the triples AAA, ABA and BAA. In tests, one or both triples are AAB.
    """

    held_out: int = 98

    @property
    def rows(self) -> tuple[int, ...]:
        return 3, 3

    def patterns(self, unseen: bool) -> tuple[tuple[str, int], ...]:
        """Return the pairs (pattern, answer) of training, or of tests if ``unseen``.

        Pairs with the answer `SAME` are repeated until they are half of all pairs. As in the authors'
        program, triples that are different still use the same two shapes.
        """
        triples, new = ("AAA", "ABA", "BAA"), ("AAB",)
        pairs = ordered(triples + new if unseen else triples, 2)
        different = [(one + other, DIFFERENT) for one, other in pairs if not unseen or {one, other} & set(new)]
        same = [(triple * 2, SAME) for triple in (new if unseen else triples)]
        return (*different, *same * (len(different) // len(same)))
