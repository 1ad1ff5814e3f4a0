"""Figures of learning curves, and the style and file formats of all figures."""

from collections.abc import Sequence
from io import BytesIO
from itertools import cycle, product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only; no window is ever opened
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from steadygrad import files
from steadygrad.report.runs import Run, distinct_names, group_of, labels

# Okabe & Ito's colours, which colour-blind readers can distinguish too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
LINES = ("-", "--", ":")
FORMATS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""file formats, and the metadata that each must leave out so that the same numbers give the same file"""
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "figure.dpi": 120,
    "savefig.dpi": 160,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text is saved as text, not as paths
    "svg.hashsalt": "steadygrad",
}


def curves(runs: Sequence[Run], path: str | Path, title: str = "") -> Path:
    """Draw the validation loss, on a logarithmic scale, and the task's score of runs against updates, to a file.

    Return the path of the file.

    Runs that differ only in their seed form a group and share a colour. If there are more groups than colours, every
    task has its own row of panels.
    """
    score = runs[0].result["score"]
    metrics = ["loss"] if score in ("loss", "mse") else ["loss", score]
    names = [plain(group_of(label)) for label in labels(runs)]
    tasks = tasks_of(runs) if len(set(names)) > len(COLOURS) else [""] * len(runs)
    rows = list(dict.fromkeys(tasks))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(rows),
            len(metrics),
            figsize=(4.9 * len(metrics) + 1.2, 3.6 * len(rows)),
            squeeze=False,
            layout="constrained",
        )
        for row, task in zip(axes, rows, strict=True):
            here = [(run, name) for run, name, of in zip(runs, names, tasks, strict=True) if of == task]
            looks = dict(zip(dict.fromkeys(name for _, name in here), cycle(product(LINES, COLOURS)), strict=False))
            for axis, metric in zip(row, metrics, strict=True):
                for run, name in here:
                    first = name not in axis.get_legend_handles_labels()[1]
                    line, colour = looks[name]
                    look: Any = {"color": colour, "linestyle": line, "linewidth": 1.6, "alpha": 0.9}
                    curve = run.curve(metric)
                    alone = "o" if len(curve.x) == 1 else ""  # a line of one point is invisible
                    axis.plot(curve.x, curve.y, **look, marker=alone, label=name if first else None)
                finish(axis, metric, [run for run, _ in here])
                axis.set_title(plain(task), fontsize=10)
            row[-1].legend(*row[0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1.02, 0.5))
        if title:
            figure.suptitle(plain(title))
        return save(figure, path)


def tasks_of(runs: Sequence[Run]) -> list[str]:
    """Return the name of each run's task, with the settings in which these tasks differ.

    Settings that choose the held-out shapes are left out.
    """
    return distinct_names([run.result["task"] for run in runs], but=("held_out", "shapes_seed"))


def plain(text: str) -> str:
    """Return text with $ escaped, so that matplotlib does not read it as a formula."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: str | Path) -> Path:
    """Save the figure as PNG, SVG or PDF by the suffix of ``path``, close the figure, and return the path.

    The file is written completely or not at all. Raise ValueError for another suffix.
    """
    target = Path(path)
    try:
        if target.suffix not in FORMATS:
            raise ValueError(f"a figure expects a file name that ends in {', '.join(FORMATS)}; got {target.name}")
        content = BytesIO()
        figure.savefig(content, format=target.suffix[1:], metadata=FORMATS[target.suffix])
        target.parent.mkdir(parents=True, exist_ok=True)
        files.write(target, content.getvalue())
    finally:
        plt.close(figure)
    return target


def finish(axis: Axes, metric: str, runs: Sequence[Run]) -> None:
    """Label the axes of a learning curve, set their scales and, for a loss, draw the loss of guessing."""
    axis.set_xlabel("updates")
    axis.set_ylabel(f"validation {metric}")
    if metric == "loss":
        axis.set_yscale("log")
        guesses = {run.result["guessing_loss"] for run in runs}
        for guess in guesses:
            axis.axhline(
                guess, color="0.45", linestyle="--", linewidth=1, label="guessing" if len(guesses) == 1 else None
            )
    elif all(0 <= value <= 1 for run in runs for value in run.curve(metric).y):  # a fraction, not bits or perplexity
        axis.set_ylim(-0.03, 1.03)
