"""Relational games: does a relation hold among the objects on a grid (Shanahan et al., 2020)?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, product
from itertools import permutations as ordered
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from steadygrad.tasks.data import needed_data_set, read_npz
from steadygrad.tasks.relational.chance import all_differ, draw_until, permutations
from steadygrad.tasks.relational.objects import ObjectTask
from steadygrad.tasks.relational.pieces import (
    CELL,
    COLOURS,
    HEXOMINOES,
    PENTOMINOES,
    Pieces,
    luminance,
    polyominoes,
    stripes,
)

CELLS = 9
TEST_SHAPES: dict[str, Callable[[], Pieces]] = {"hexominoes": partial(polyominoes, HEXOMINOES), "stripes": stripes}
ONLY_HEXOMINOES = ("colour-shape", "left-of")
"""Games without stripes: a striped square has neither a form of its own nor one luminance."""
REAL_FILES = {
    ("between", "hexominoes"): "mini_between_hexos.npz",
    ("between", "stripes"): "mini_between_stripes.npz",
}
"""Files with images of the authors, by game and shapes."""

Boards = list[tuple[str, int, float]]
"""Boards with answer and probability. A board is nine cells, row by row, a letter for an object and . for none."""


@dataclass(frozen=True)
class RelationalGame(ObjectTask, name="relational-game"):
    """Decide whether the relation of the ``game`` holds (1) or not (0) among the objects on a grid of nine cells.

        input    A . .   . B .   . . A       between: three in a line, the outer two the same
        target   1

    same           the only two objects are the same in form, orientation and colour
    between        as drawn
    occurs         the object of the upper row is one of the three of the lower row
    xoccurs        as occurs, and the other two of the lower row are different
    row-matching   upper and lower row have the same pattern, out of AAA, AAB, ABA, ABB and ABC
    colour-shape   four answers: the two objects have colour and form in common (0), colour (1), form (2), nothing (3)
    left-of        the darker of two objects is further left or, in the same column, further down

    Training uses pentominoes. Tests use ``test_shapes``, "hexominoes" or "stripes". With ``real``, tests use the
    authors' images from $STEADYGRAD_DATA, which exist for between only.
    """

    game: str = "same"
    test_shapes: str = "hexominoes"
    real: bool = False

    image_size: ClassVar[int] = CELL
    training: ClassVar[Mapping[str, Any]] = {**ObjectTask.training, "steps": 2500}

    def __post_init__(self) -> None:
        self.check_choice("game", GAMES)
        self.check_choice("test_shapes", TEST_SHAPES)
        self.check_flags("real")
        if self.game in ONLY_HEXOMINOES and self.test_shapes != "hexominoes":
            raise ValueError(
                f"RelationalGame expects test_shapes to be hexominoes for {self.game}; got {self.test_shapes!r}"
            )
        if self.real and (self.game, self.test_shapes) not in REAL_FILES:
            known = ", ".join(dict.fromkeys(game for game, _ in REAL_FILES))
            raise ValueError(f"RelationalGame expects game to be one of {known} if real is true; got {self.game!r}")
        if self.real:
            needed_data_set("RelationalGame", "relational_games")

    @property
    def rows(self) -> tuple[int, ...]:
        return 3, 3, 3

    @property
    def output_size(self) -> int:
        """Number of answers: 4 for colour-shape, 2 for the other games."""
        return 4 if self.game == "colour-shape" else 2

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return images (batch, 9, 3, 12, 12) and answers (batch,) of random problems with pentominoes."""
        return self.problems(polyominoes(PENTOMINOES), batch, generator)

    def sample_unseen(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return images (batch, 9, 3, 12, 12) and answers (batch,) of problems with ``test_shapes``.

        With ``real`` they are drawn from the authors' images, with replacement.
        """
        if not self.real:
            return self.problems(TEST_SHAPES[self.test_shapes](), batch, generator)
        folder = needed_data_set("RelationalGame", "relational_games")
        images, labels = read_images(folder / REAL_FILES[self.game, self.test_shapes])
        which = torch.randint(len(labels), (batch,), generator=generator)
        return images[which] / 255, labels[which]

    def problems(self, pieces: Pieces, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return images (batch, 9, 3, 12, 12) and answers (batch,) of random problems of the game with these pieces."""
        objects, targets = GAMES[self.game](pieces, batch, generator)
        return pieces.images[objects], targets


# Games whose answer depends on which objects are the same. Each game is a list of boards.


def same() -> Boards:
    """Return the boards of the game same: a list of (board, answer, probability).

    In half of them, by probability, the two objects are the same (answer 1).
    """
    return [*equally_likely(anywhere("AA"), 1, 1 / 2), *equally_likely(anywhere("AB"), 0, 1 / 2)]


def between() -> Boards:
    """Return the boards of the game between: a list of (board, answer, probability).

    The relation holds with probability 1/2. In half of the other boards, the three objects may be anywhere, as in the
    authors' images of stripes. In their images of hexominoes, this share is a quarter.
    """
    in_line = [*equally_likely(lines("ABA"), 1, 1 / 2), *equally_likely(lines("ABC"), 0, 1 / 4)]
    return [*in_line, *equally_likely(anywhere("ABC"), 0, 1 / 4)]


def occurs() -> Boards:
    """Return the boards of the game occurs: a list of (board, answer, probability).

    With probability 1/2 the upper object is in the lower row (answer 1).
    """
    return [
        *equally_likely(under_one("A", "ABC", "BAC", "BCA"), 1, 1 / 2),
        *equally_likely(under_one("A", "BCD"), 0, 1 / 2),
    ]


def xoccurs() -> Boards:
    """Return the boards of the game xoccurs: a list of (board, answer, probability).

    The relation holds with probability 1/2. In half of the other cases, the upper object is not in the lower row. In
    the other half it is, beside two objects that are the same.
    """
    return [
        *equally_likely(under_one("A", "ABC", "BAC", "BCA"), 1, 1 / 2),
        *equally_likely(under_one("A", "ABB", "BAB", "BBA"), 0, 1 / 4),
        *equally_likely(under_one("A", "BCD"), 0, 1 / 8),
        *equally_likely(under_one("A", "BBC", "BCB", "CBB"), 0, 1 / 8),
    ]


def row_matching() -> Boards:
    """Return the boards of the game row-matching: a list of (board, answer, probability).

    With probability 1/2 both rows have the same pattern (answer 1).
    """
    rows = ("AAA", "AAB", "ABA", "ABB", "ABC")
    lower = str.maketrans("ABC", "DEF")
    matching = (row + "..." + row.translate(lower) for row in rows)
    others = (row + "..." + other.translate(lower) for row, other in ordered(rows, 2))
    return [*equally_likely(matching, 1, 1 / 2), *equally_likely(others, 0, 1 / 2)]


def equally_likely(cells: Iterator[str], answer: int, share: float) -> Boards:
    """Return a list of (board, answer, probability) for the boards ``cells``, all with this answer.

    The boards share the probability ``share`` equally.
    """
    boards = list(cells)
    return [(board, answer, share / len(boards)) for board in boards]


def board_with(objects: str, places: tuple[int, ...]) -> str:
    """Return a board: a string of nine cells, row by row, with the letters of ``objects`` and . for an empty cell.

    ``places`` has the number of the cell, 0 to 8, of each letter.
    """
    board = ["."] * CELLS
    for letter, place in zip(objects, places, strict=True):
        board[place] = letter
    return "".join(board)


def anywhere(objects: str) -> Iterator[str]:
    """Return an iterator over the boards with the letters of ``objects``, such as "AB", in any cells of the grid.

    There is one board, a string of nine cells, for each choice of cells. The letters keep their order: A always comes
    before B, row by row. The other order is not needed, because a letter stands for a random object.
    """
    return (board_with(objects, places) for places in combinations(range(CELLS), len(objects)))


def lines(objects: str) -> Iterator[str]:
    """Return an iterator over boards with the three letters of ``objects`` in a row, column or diagonal.

    The middle row occurs twice, because it is twice as likely in the authors' images.
    """
    places = [(0, 1, 2), (3, 4, 5), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    return (board_with(objects, line) for line in places)


def under_one(above: str, *rows: str) -> Iterator[str]:
    """Return an iterator over boards with one object in the upper row and three in the lower row.

    There is a board for each of the three places of the letter ``above``, with each of the strings ``rows`` as the
    lower row.
    """
    return (board_with(above + row, (place, 6, 7, 8)) for place, row in product(range(3), rows))


@cache
def tables(boards: Callable[[], Boards]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the boards of a game as three tensors: cells, answers and probabilities.

    Cells (boards, 9) are letter indices, −1 for none. ``boards`` is the function that lists the boards.
    """
    cells, answers, shares = zip(*boards(), strict=True)
    numbers = [[-1 if mark == "." else ord(mark) - ord("A") for mark in board] for board in cells]
    return torch.tensor(numbers), torch.tensor(answers), torch.tensor(shares)


def from_boards(
    boards: Callable[[], Boards], pieces: Pieces, batch: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Return random problems from a game's boards: indices of the objects in the cells (batch, 9), answers (batch,).

    ``boards`` is the function that lists the boards. Equal letters of a board become the same object, different
    letters different objects.
    """
    cells, answers, shares = tables(boards)
    which = torch.multinomial(shares, batch, replacement=True, generator=generator)
    letters = int(cells.max()) + 1
    objects = draw_until(all_differ, lambda count: pieces.draw(count, letters, generator), batch)
    blank = torch.full((batch, 1), pieces.blank)
    return torch.cat([objects, blank], dim=1).gather(1, cells[which] % (letters + 1)), answers[which]


# Games whose answer depends on the colours.


def colour_shape(pieces: Pieces, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return random problems of colour-shape: indices of the objects in the cells (batch, 9), and answers (batch,).

    Different forms always belong to different pieces, never to one piece in two orientations.
    """
    targets = torch.randint(4, (batch,), generator=generator)
    kinds, orientations = permutations(batch, len(pieces.forms), generator), pieces.forms.shape[1]
    forms = pieces.forms[kinds[:, :2], torch.randint(orientations, (batch, 2), generator=generator)]
    colours = permutations(batch, len(COLOURS), generator)
    first = torch.zeros_like(targets)
    form, colour = torch.stack([first, targets % 2], dim=1), torch.stack([first, targets // 2], dim=1)
    objects = forms.gather(1, form) * len(COLOURS) + colours.gather(1, colour)
    return at_random_cells(objects, pieces, generator)[0], targets


def left_of(pieces: Pieces, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return random problems of left-of: indices of the objects in the cells (batch, 9), and answers (batch,).

    In the same column, the lower object counts as left. This follows the program of Kerg et al. (2022), which makes
    this game from the images of ``same``.
    """
    objects = draw_until(
        lambda pairs: all_differ(pairs % len(COLOURS)), lambda count: pieces.draw(count, 2, generator), batch
    )
    cells, places = at_random_cells(objects, pieces, generator)
    position = places % 3 * 3 - places // 3
    brightness = luminance()[objects % len(COLOURS)]
    first_is_left, first_is_darker = (values[:, 0] < values[:, 1] for values in (position, brightness))
    return cells, (first_is_left == first_is_darker).long()


def at_random_cells(objects: Tensor, pieces: Pieces, generator: Generator) -> tuple[Tensor, Tensor]:
    """Put two objects (batch, 2) into random cells. Return the cells (batch, 9) and the places (batch, 2).

    Each cell holds the index of an object or of the blank image. The places are the numbers of the cells of both
    objects.
    """
    places = permutations(len(objects), CELLS, generator)[:, :2]
    return torch.full((len(objects), CELLS), pieces.blank).scatter_(1, places, objects), places


GAMES: dict[str, Callable[[Pieces, int, Generator], tuple[Tensor, Tensor]]] = {
    "same": partial(from_boards, same),
    "between": partial(from_boards, between),
    "occurs": partial(from_boards, occurs),
    "xoccurs": partial(from_boards, xoccurs),
    "row-matching": partial(from_boards, row_matching),
    "colour-shape": colour_shape,
    "left-of": left_of,
}


@cache
def read_images(path: Path) -> tuple[Tensor, Tensor]:
    """Return images (count, 9, 3, 12, 12) in 0 … 255 and labels (count,) from a file of the authors.

    Raise ValueError if shapes or values are not as expected.
    """
    images, labels = read_npz("RelationalGame", path, ("images", "labels")).values()
    count, side = len(labels) if labels.ndim else 0, 3 * CELL
    if not count or images.shape != (count, side, side, 3) or labels.shape != (count, 1):
        raise ValueError(
            f"RelationalGame expects images (count, {side}, {side}, 3) and labels (count, 1) in {path}; "
            f"got {images.shape} and {labels.shape}"
        )
    for name, values, most in (("images", images, 255), ("labels", labels, 1)):
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > most:
            raise ValueError(f"RelationalGame expects {name} of integers from 0 to {most} in {path}; got others")
    images, labels = images.astype(np.uint8), labels[:, 0].astype(np.int64)
    cells = images.reshape(-1, 3, CELL, 3, CELL, 3).transpose(0, 1, 3, 5, 2, 4)
    return torch.from_numpy(np.ascontiguousarray(cells.reshape(-1, CELLS, 3, CELL, CELL))), torch.from_numpy(labels)
