"""Problems of relational tasks as one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import ArrayLike

from steadygrad.report.figures import STYLE, plain, save

WIDTH, LINE = 1.8, 0.25
"""inches of a picture, and of a line of text"""


class Problem(NamedTuple):
    picture: ArrayLike
    """(3, height, width) in [0, 1]"""
    caption: str
    """stands below"""
    title: str = ""
    """stands above"""


def problems(shown: Sequence[Problem], path: str | Path, columns: int = 4) -> Path:
    """Row after row, each as high as it needs to be."""
    if not shown:
        raise ValueError("problems expects at least one; got none")
    rows = [shown[start : start + columns] for start in range(0, len(shown), columns)]
    heights = [WIDTH * max(map(proportion, row)) + LINE * (1 + any(one.title for one in row)) for row in rows]
    columns = min(columns, len(shown))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(rows),
            columns,
            figsize=(WIDTH * columns, sum(heights)),
            height_ratios=heights,
            squeeze=False,
            layout="constrained",
        )
        for axis, (picture, caption, title) in zip(axes.flat, shown, strict=False):
            axis.imshow(np.asarray(picture).transpose(1, 2, 0), interpolation="nearest")
            axis.set_anchor("N")
            axis.set_title(plain(title), fontsize=9, loc="left")
            axis.set_xlabel(plain(caption), fontsize=8)
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        return save(figure, path)


def proportion(one: Problem) -> float:
    """Height in widths."""
    _, height, width = np.shape(one.picture)
    return height / width
