"""Base classes of tasks with a hundred shapes. Tests use only held-out shapes, which training never shows."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor

from steadygrad.tasks.relational import glyphs
from steadygrad.tasks.relational.chance import permutations
from steadygrad.tasks.relational.objects import ObjectTask


@dataclass(frozen=True)
class ShapeTask(ObjectTask):
    """Base class of tasks with shapes. A problem is a pattern of letters. Each letter is replaced by a different shape.

    ``held_out`` is the number of shapes that only tests use; ``shapes_seed`` selects them. With 0, training and tests
    use all shapes. ``colour`` gives every object a random background colour, which does not depend on the answer.
    ``glyphs`` is "data" for the shapes of Webb et al. in $STEADYGRAD_DATA, "own" for those drawn by this package, or
    "auto" for "data" if available, else "own".
    """

    held_out: int = 95
    shapes_seed: int = 0
    colour: bool = False
    glyphs: str = "auto"

    def __post_init__(self) -> None:
        self.check(held_out=0)
        self.check_seed("shapes_seed")
        self.check_flags("colour")
        self.check_choice("glyphs", glyphs.SOURCES)
        who = type(self).__name__
        seen, unseen = self.letter_count(unseen=False), self.letter_count(unseen=True)
        if self.held_out > (most := glyphs.COUNT - seen):
            raise ValueError(
                f"{who} expects held_out to be at most {most}, as training needs {seen} shapes; got {self.held_out}"
            )
        if 0 < self.held_out < unseen:
            raise ValueError(f"{who} expects held_out to be 0 or at least {unseen} for tests; got {self.held_out}")
        object.__setattr__(self, "glyphs", glyphs.resolve(self.glyphs))

    def letter_count(self, unseen: bool) -> int:
        """Return the largest number of different shapes in a problem of training, or of tests if ``unseen``."""
        raise NotImplementedError

    def arrange(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        """Return random problems as letters: indices from 0 (batch, objects), and answers (batch,).

        They are problems of training, or of tests if ``unseen``. `Comparison`, which overrides `problems`, has none.
        """
        raise NotImplementedError

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return images (batch, objects, 3, 32, 32) and answers (batch,) of random problems for training."""
        return self.problems(batch, generator, unseen=False)

    def sample_unseen(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return images (batch, objects, 3, 32, 32) and answers (batch,) of random problems for tests."""
        return self.problems(batch, generator, unseen=True)

    def problems(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        """Return images (batch, objects, 3, 32, 32) and answers (batch,) of random problems.

        They are problems of training, or of tests if ``unseen``.
        """
        letters, targets = self.arrange(batch, generator, unseen)
        images = self.images[self.assign_shapes(letters, generator, unseen)]
        return self.with_channels(images, generator), targets

    def assign_shapes(self, letters: Tensor, generator: Generator, unseen: bool) -> Tensor:
        """Return the index of a random shape for each of the letters (batch, objects), drawn anew for each problem.

        Equal letters of a problem get the same shape, different letters different shapes.
        """
        shapes = self.shapes(unseen)
        return shapes[permutations(len(letters), len(shapes), generator).gather(1, letters)]

    def shapes(self, unseen: bool) -> Tensor:
        """Return the indices of the shapes of training, or of tests if ``unseen``."""
        order = torch.randperm(glyphs.COUNT, generator=Generator().manual_seed(self.shapes_seed))
        return order[: self.held_out] if unseen and self.held_out else order[self.held_out :]

    @property
    def images(self) -> Tensor:
        """Images of all shapes (100, 32, 32)."""
        return glyphs.glyphs(type(self).__name__, self.glyphs)

    def with_channels(self, images: Tensor, generator: Generator) -> Tensor:
        """Return images (batch, objects, 32, 32) with channels: (batch, objects, 3, 32, 32).

        The background is white or, if ``colour``, a random colour.
        """
        images = images.unsqueeze(2)
        if not self.colour:
            return images.expand(-1, -1, self.channels, -1, -1)  # all channels share memory
        return images * background(images.shape[:2], generator)[..., None, None]


def background(shape: torch.Size, generator: Generator) -> Tensor:
    """Return random background colours (*shape, 3)."""
    table = glyphs.colours()
    return table[torch.randint(len(table), shape, generator=generator)]


@dataclass(frozen=True)
class PatternTask(ShapeTask):
    """Base class of tasks with shapes whose patterns and answers can be listed."""

    def patterns(self, unseen: bool) -> tuple[tuple[str, int], ...]:
        """Return all pairs (pattern, answer), such as ("AB", 1), of training, or of tests if ``unseen``.

        They are equally likely.
        """
        raise NotImplementedError

    @property
    def output_size(self) -> int:
        """Number of answers, 2."""
        return 2

    def letter_count(self, unseen: bool) -> int:
        return max(len(set(pattern)) for pattern, _ in self.patterns(unseen))

    def arrange(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        patterns, answers = zip(*self.patterns(unseen), strict=True)
        which = torch.randint(len(patterns), (batch,), generator=generator)
        return letter_indices(patterns)[which], torch.tensor(answers)[which]


@dataclass(frozen=True)
class ChoiceTask(ShapeTask):
    """Base class of tasks that complete a row: a row, a second row without its last shape, and candidates for it."""

    @property
    def row(self) -> int:
        """Number of shapes in a complete row."""
        raise NotImplementedError

    @property
    def output_size(self) -> int:
        """Number of candidates: all shapes of both rows, and possibly some that are in neither row."""
        raise NotImplementedError

    def two_rows(self, batch: int, generator: Generator, unseen: bool) -> Tensor:
        """Return random problems without the candidates: both complete rows as letter indices (batch, 2 · row)."""
        raise NotImplementedError

    @property
    def rows(self) -> tuple[int, ...]:
        return self.row, self.row - 1, self.output_size

    def letter_count(self, unseen: bool) -> int:
        return self.output_size

    def arrange(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        shown, answer = self.two_rows(batch, generator, unseen).split([2 * self.row - 1, 1], dim=1)
        candidates = permutations(batch, self.output_size, generator)
        return torch.cat([shown, candidates], dim=1), (candidates == answer).int().argmax(1)


@cache
def letter_indices(patterns: tuple[str, ...]) -> Tensor:
    """Return the letters of patterns of equal length as indices from 0: (patterns, letters)."""
    return torch.tensor([[ord(letter) - ord("A") for letter in pattern] for pattern in patterns])


def join_disjoint(*patterns: str) -> str:
    """Join patterns so that no two share a letter: join_disjoint("ABA", "AA") is "ABACC"."""
    joined = ""
    for pattern in patterns:
        used = len(set(joined))
        joined += "".join(chr(ord(letter) + used) for letter in pattern)
    return joined
