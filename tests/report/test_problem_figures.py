"""Problems in one picture: where they stand, and what stands beside them."""

import numpy as np
import pytest
from matplotlib import pyplot as plt

from steadygrad.report import problem_figures
from steadygrad.report.problem_figures import Problem


@pytest.fixture
def saved_axes(monkeypatch):
    """The axes of what would have been saved."""
    axes = []
    monkeypatch.setattr(
        problem_figures, "save", lambda figure, path: plt.close(figure) or axes.extend(figure.axes) or path
    )
    return axes


def picture(height, width, value):
    return np.full((3, height, width), value)


def test_problems_are_drawn_in_rows_with_captions_and_titles(saved_axes):
    given = [Problem(picture(2 + i, 4, i / 4), f"answer {i}", "$first$" if i == 0 else "") for i in range(5)]
    problem_figures.draw_problems(given, "x.png", columns=3)
    assert [axis.get_xlabel() for axis in saved_axes] == [*(f"answer {i}" for i in range(5)), ""]
    assert [axis.get_title("left") for axis in saved_axes] == [r"\$first\$", "", "", "", "", ""]
    for axis, (pixels, _, _) in zip(saved_axes, given, strict=False):
        np.testing.assert_array_equal(axis.images[0].get_array().transpose(2, 0, 1), pixels)
    assert not saved_axes[5].images
    upper, lower = (saved_axes[place].get_gridspec().get_height_ratios()[place // 3] for place in (0, 3))
    assert upper == pytest.approx(
        problem_figures.WIDTH * 4 / 4 + 2 * problem_figures.LINE
    )  # the highest, its caption and a title
    assert lower == pytest.approx(problem_figures.WIDTH * 6 / 4 + problem_figures.LINE)


def test_single_problem_gets_single_axis(saved_axes):
    problem_figures.draw_problems([Problem(picture(2, 2, 0.5), "one")], "x.png", columns=6)
    assert len(saved_axes) == 1


def test_problems_are_written_as_png_and_empty_list_raises_value_error(tmp_path):
    path = problem_figures.draw_problems([Problem(picture(2, 2, 0.5), "$one")], tmp_path / "new" / "one.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="draw_problems expects at least one problem; got none"):
        problem_figures.draw_problems([], tmp_path / "none.png")
    assert plt.get_fignums() == []
