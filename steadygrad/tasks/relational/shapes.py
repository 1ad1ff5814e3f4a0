"""Tasks of a hundred shapes, of which many are held out: training has the others, tests have these alone."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor

from steadygrad.tasks.relational import glyphs
from steadygrad.tasks.relational.chance import permutations
from steadygrad.tasks.relational.objects import ObjectTask


@dataclass(frozen=True)
class ShapeTask(ObjectTask):
    """Base class. A problem is a pattern of letters, and each letter becomes a shape that no other letter has.

    ``held_out`` of the shapes (which ones: ``shapes_seed``) are kept for tests; with 0 all are in both. ``colour``
    gives every object a background colour at random, which says nothing about the answer. ``glyphs`` "data" are the
    shapes of Webb et al. in $STEADYGRAD_DATA, "own" those drawn by this package, "auto" takes the first if there.
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
        seen, unseen = self.letters(unseen=False), self.letters(unseen=True)
        if self.held_out > (most := glyphs.COUNT - seen):
            raise ValueError(f"{who} expects held_out of at most {most}, as it trains on {seen}; got {self.held_out}")
        if 0 < self.held_out < unseen:
            raise ValueError(f"{who} expects held_out to be 0 or at least {unseen}, for a test; got {self.held_out}")
        object.__setattr__(self, "glyphs", glyphs.resolved(self.glyphs))

    def letters(self, unseen: bool) -> int:
        """How many different shapes a problem may need."""
        raise NotImplementedError

    def arrange(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        """Letters (batch, objects), as numbers from 0, and answers (batch,)."""
        raise NotImplementedError

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        return self.problems(batch, generator, unseen=False)

    def sample_unseen(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        return self.problems(batch, generator, unseen=True)

    def problems(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        letters, targets = self.arrange(batch, generator, unseen)
        images = self.images[self.cast(letters, generator, unseen)]
        return self.dressed(images, generator), targets

    def cast(self, letters: Tensor, generator: Generator, unseen: bool) -> Tensor:
        """The shape of each letter, drawn anew for each problem."""
        shapes = self.shapes(unseen)
        return shapes[permutations(len(letters), len(shapes), generator).gather(1, letters)]

    def shapes(self, unseen: bool) -> Tensor:
        """Numbers of the shapes that problems are made of."""
        order = torch.randperm(glyphs.COUNT, generator=Generator().manual_seed(self.shapes_seed))
        return order[: self.held_out] if unseen and self.held_out else order[self.held_out :]

    @property
    def images(self) -> Tensor:
        """Of all shapes (100, 32, 32)."""
        return glyphs.glyphs(type(self).__name__, self.glyphs)

    def dressed(self, images: Tensor, generator: Generator) -> Tensor:
        """Images (batch, objects, 32, 32) with channels, black on white or on a colour of their own."""
        images = images.unsqueeze(2)
        if not self.colour:
            return images.expand(-1, -1, self.channels, -1, -1)  # one memory: they are the same
        return images * background(images.shape[:2], generator)[..., None, None]


def background(shape: torch.Size, generator: Generator) -> Tensor:
    """Colours (*shape, 3)."""
    table = glyphs.colours()
    return table[torch.randint(len(table), shape, generator=generator)]


@dataclass(frozen=True)
class PatternTask(ShapeTask):
    """Base class: the patterns of all problems and their answers can be listed."""

    def puzzles(self, unseen: bool) -> tuple[tuple[str, int], ...]:
        """Pattern and answer, all lines equally likely."""
        raise NotImplementedError

    @property
    def output_size(self) -> int:
        return 2

    def letters(self, unseen: bool) -> int:
        return max(len(set(pattern)) for pattern, _ in self.puzzles(unseen))

    def arrange(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        patterns, answers = zip(*self.puzzles(unseen), strict=True)
        which = torch.randint(len(patterns), (batch,), generator=generator)
        return as_numbers(patterns)[which], torch.tensor(answers)[which]


@dataclass(frozen=True)
class ChoiceTask(ShapeTask):
    """Base class: a row, a second row without its last shape, and the candidates for that."""

    @property
    def row(self) -> int:
        """How many shapes a whole row has."""
        raise NotImplementedError

    @property
    def output_size(self) -> int:
        """How many candidates there are: every shape of the problem, and some that are in neither row."""
        raise NotImplementedError

    def two_rows(self, batch: int, generator: Generator, unseen: bool) -> Tensor:
        """Both rows whole, as letters (batch, 2 · row)."""
        raise NotImplementedError

    @property
    def rows(self) -> tuple[int, ...]:
        return self.row, self.row - 1, self.output_size

    def letters(self, unseen: bool) -> int:
        return self.output_size

    def arrange(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        shown, answer = self.two_rows(batch, generator, unseen).split([2 * self.row - 1, 1], dim=1)
        candidates = permutations(batch, self.output_size, generator)
        return torch.cat([shown, candidates], dim=1), (candidates == answer).int().argmax(1)


@cache
def as_numbers(patterns: tuple[str, ...]) -> Tensor:
    return torch.tensor([[ord(letter) - ord("A") for letter in pattern] for pattern in patterns])


def apart(*patterns: str) -> str:
    """Patterns in a row that share no letter: apart("ABA", "AA") is "ABACC"."""
    together = ""
    for pattern in patterns:
        used = len(set(together))
        together += "".join(chr(ord(letter) + used) for letter in pattern)
    return together
