"""Sizes of a relational problem, which tasks give and relational networks take."""

from typing import NamedTuple

Segments = tuple[tuple[int, int], ...]
"""Ranges [begin, end) of objects that belong together. They hold each object once, in order."""


class Problem(NamedTuple):
    """Sizes of a relational problem: its images have shape (objects, channels, image_size, image_size).

    The answer is one of ``answers`` classes. ``segments`` are the ranges of objects that belong together.
    """

    objects: int
    image_size: int
    channels: int
    answers: int
    segments: Segments
