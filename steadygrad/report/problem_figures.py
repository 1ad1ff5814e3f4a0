"""Figures of problems of relational tasks: pictures with their answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import ArrayLike

from steadygrad.report.figures import STYLE, plain, save

WIDTH, LINE = 1.8, 0.25
"""width of a picture and height of a line of text, in inches"""


class Problem(NamedTuple):
    """Picture of one problem of a relational task, with a caption and a title."""

    picture: ArrayLike
    """(3, height, width) in [0, 1]"""
    caption: str
    """text below the picture"""
    title: str = ""
    """text above the picture"""


def draw_problems(problems: Sequence[Problem], path: str | Path, columns: int = 4) -> Path:
    """Draw the pictures of problems, each with its title and caption, ``columns`` to a row, to the file ``path``.

    Return the path. Raise ValueError if there is no problem.
    """
    if not problems:
        raise ValueError("draw_problems expects at least one problem; got none")
    rows = [problems[start : start + columns] for start in range(0, len(problems), columns)]
    heights = [WIDTH * max(map(proportion, row)) + LINE * (1 + any(one.title for one in row)) for row in rows]
    columns = min(columns, len(problems))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(rows),
            columns,
            figsize=(WIDTH * columns, sum(heights)),
            height_ratios=heights,
            squeeze=False,
            layout="constrained",
        )
        for axis, (picture, caption, title) in zip(axes.flat, problems, strict=False):
            axis.imshow(np.asarray(picture).transpose(1, 2, 0), interpolation="nearest")
            axis.set_anchor("N")
            axis.set_title(plain(title), fontsize=9, loc="left")
            axis.set_xlabel(plain(caption), fontsize=8)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        return save(figure, path)


def proportion(one: Problem) -> float:
    """Return the height of a problem's picture divided by its width."""
    _, height, width = np.shape(one.picture)
    return height / width
