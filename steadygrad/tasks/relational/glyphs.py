"""The hundred shapes: drawn by this package, or those of Webb et al. (2021) if the files are available."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from steadygrad.tasks.data import data_set, needed_data_set, whole_file

COUNT, SIZE = 100, 32
SOURCES = ("auto", "own", "data")
FOLDER = "glyphs"
APART = 0.1
"""Smallest distance between two of our glyphs, mean over pixels. Two of Webb et al. are only 0.03 apart."""


def resolve(source: str) -> str:
    """Return the source of glyphs with "auto" resolved: "data" if their files are there, else "own".

    So the settings of a run name its glyphs.
    """
    if source == "auto":
        return "data" if data_set(FOLDER) else "own"
    return source


def glyphs(who: str, source: str) -> Tensor:
    """Return the images of the glyphs (100, 32, 32): drawn if ``source`` is "own", else read from files.

    Ink is 0, paper is 1. Raise a ValueError that names ``who`` if there are no files.
    """
    return draw_glyphs() if source == "own" else read_glyphs(needed_data_set(who, FOLDER))


@cache
def colours() -> Tensor:
    """Return the 100 background colours (100, 3), as the program of Kerg et al. (2022) draws them."""
    return torch.from_numpy(np.random.RandomState(0).uniform(size=(COUNT, 3))).float()


@cache
def read_glyphs(folder: Path) -> Tensor:
    """Return the glyphs (100, 32, 32) in the files 0.png to 99.png of a folder.

    Raise ValueError if a file is damaged or has a wrong size.
    """
    from matplotlib.image import imread  # slow to import
    from PIL import Image

    images = []
    for number in range(COUNT):
        path = folder / f"{number}.png"
        with whole_file("glyphs", path, "a whole PNG file"):
            with Image.open(path, formats=["PNG"]) as image:
                image.verify()  # imread decodes a file that ends before its checksum
            images.append(imread(path, format="png"))
        if images[-1].shape != (SIZE, SIZE):
            raise ValueError(f"glyphs expects {path} to be grey, {SIZE} × {SIZE}; got {images[-1].shape}")
    return torch.from_numpy(np.stack(images)).float()


@cache
def draw_glyphs(seed: int = 0) -> Tensor:
    """Return 100 random glyphs (100, 32, 32), each by `draw_glyph`. Any two are more than `APART` apart."""
    generator = Generator().manual_seed(seed)
    drawn: list[Tensor] = []
    while len(drawn) < COUNT:
        glyph = draw_glyph(generator)
        if all((glyph - other).abs().mean() > APART for other in drawn):
            drawn.append(glyph)
    return torch.stack(drawn)


def draw_glyph(generator: Generator) -> Tensor:
    """Return a random glyph (32, 32): one to three strokes, at most one ring and one disc. Ink is 0, paper 1."""
    strokes, rings, discs = (torch.rand(3, generator=generator) * torch.tensor([3, 2, 2])).int() + torch.tensor(
        [1, 0, 0]
    )
    pen = 1 + 1.5 * torch.rand((), generator=generator)
    ink = [pen - distance_to_segment(*random_point(4, generator), *random_point(4, generator)) for _ in range(strokes)]
    ink += [
        pen - (distance_to_point(*random_point(9, generator)) - random_radius(generator)).abs() for _ in range(rings)
    ]
    ink += [random_radius(generator) - distance_to_point(*random_point(9, generator)) for _ in range(discs)]
    return 1 - (torch.stack(ink).amax(0) + 0.5).clamp(0, 1)  # smooth edges, one pixel wide


def random_point(margin: int, generator: Generator) -> Tensor:
    """Return a random point (x, y) of a glyph, at least ``margin`` pixels from the border."""
    return margin + (SIZE - 2 * margin) * torch.rand(2, generator=generator)


def random_radius(generator: Generator) -> Tensor:
    """Return a random radius from 3 to 9 pixels."""
    return 3 + 6 * torch.rand((), generator=generator)


def distance_to_point(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance of every pixel of a glyph to the point (x, y), as a tensor (32, 32)."""
    pixels = torch.arange(SIZE) + 0.5
    return torch.hypot(pixels - x, pixels[:, None] - y)


def distance_to_segment(x: Tensor, y: Tensor, x_end: Tensor, y_end: Tensor) -> Tensor:
    """Return the distance (32, 32) of every pixel of a glyph to the line segment from (x, y) to (x_end, y_end)."""
    pixels = torch.arange(SIZE) + 0.5
    dx, dy = x_end - x, y_end - y
    along = (((pixels - x) * dx + (pixels[:, None] - y) * dy) / (dx**2 + dy**2)).clamp(0, 1)
    return torch.hypot(pixels - x - along * dx, pixels[:, None] - y - along * dy)
