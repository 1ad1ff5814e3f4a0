"""The objects of the relational games: coloured pentominoes, hexominoes and striped squares (Shanahan et al., 2020).

The sizes are measured on the images that the authors published. A cell of 12 × 12 pixels holds 3 × 3 squares of 3 × 3
pixels, one pixel from its upper left corner. There are 25 colours. A piece is drawn first, then one of its 8
orientations.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from torch import Generator, Tensor

CELL, SQUARE, MARGIN = 12, 3, 1
LEVELS = (64, 144, 192)
COLOURS = tuple(colour for colour in product(LEVELS, repeat=3) if colour not in ((64, 64, 64), (192, 192, 192)))
LUMINANCE = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue, as in the program of Kerg et al. (2022)."""

PENTOMINOES = (  # those that fit into 3 × 3 squares; they have 37 orientations, as the authors say
    ".##/##./.#.",
    "##./##./#..",
    "###/.#./.#.",
    "#.#/###/...",
    "#../#../###",
    "#../##./.##",
    ".#./###/.#.",
    "##./.#./.##",
)
HEXOMINOES = (  # those in the published images
    ".#./###/.##",
    "..#/#.#/###",
    ".../###/###",
    "..#/###/##.",
    "..#/###/#.#",
    "..#/###/.##",
    "..#/.##/###",
    ".#./###/#.#",
)


@dataclass(frozen=True)
class Pieces:
    """Objects for relational games. An object is a form in one of 25 colours; its index is form · 25 + colour."""

    images: Tensor
    """Images (objects + 1, 3, 12, 12). The last one is blank."""
    forms: Tensor
    """Form of each piece in each orientation (pieces, orientations). Orientations that look the same are one form."""

    @property
    def blank(self) -> int:
        """Index of the blank image."""
        return len(self.images) - 1

    def draw(self, batch: int, count: int, generator: Generator) -> Tensor:
        """Return random indices of objects (batch, count), drawn with replacement."""
        orientations = self.forms.flatten()
        forms = orientations[torch.randint(len(orientations), (batch, count), generator=generator)]
        return forms * len(COLOURS) + torch.randint(len(COLOURS), (batch, count), generator=generator)


@cache
def polyominoes(drawings: tuple[str, ...]) -> Pieces:
    """Return the drawn pieces in all orientations and colours, as `Pieces`. A drawing is text such as ".##/##./.#."."""
    drawn = [np.array([[mark == "#" for mark in line] for line in text.split("/")]) for text in drawings]
    turned = [[np.rot90(side, turns) for side in (piece, piece.T) for turns in range(4)] for piece in drawn]
    masks, forms = np.unique(np.array(turned).reshape(-1, 3, 3), axis=0, return_inverse=True)
    squares = masks[:, None, None] * np.array(COLOURS)[:, :, None, None]  # (forms, colours, 3, 3, 3)
    return Pieces(images_of(squares.reshape(-1, 3, 3, 3)), torch.from_numpy(forms.reshape(-1, 8)))


@cache
def stripes() -> Pieces:
    """Return striped squares as pieces: three vertical stripes with outer colour (the form), inner, outer colour."""
    colours = np.array(COLOURS)
    stripes = np.array([[outer, inner, outer] for outer in colours for inner in colours])  # (objects, stripes, 3)
    squares = stripes.swapaxes(1, 2)[:, :, None].repeat(3, axis=2)
    return Pieces(images_of(squares), torch.arange(len(colours))[:, None])


def images_of(squares: np.ndarray) -> Tensor:
    """Return images (objects + 1, 3, 12, 12) in [0, 1] of squares (objects, 3, 3, 3) in 0 … 255.

    The last image is blank.
    """
    images = np.zeros((len(squares) + 1, 3, CELL, CELL), np.float32)
    inside = slice(MARGIN, MARGIN + 3 * SQUARE)
    images[:-1, :, inside, inside] = squares.repeat(SQUARE, axis=2).repeat(SQUARE, axis=3) / 255
    return torch.from_numpy(images)


@cache
def luminance() -> Tensor:
    """Return the luminance, in 0 … 255, of each of the 25 colours, as a tensor (25,)."""
    return torch.tensor(COLOURS).float() @ torch.tensor(LUMINANCE)
