"""Results as pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only; no window is ever opened
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from steadygrad.report.files import whole
from steadygrad.report.runs import Run, group_of, labels

# Okabe & Ito's colours, which everybody can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
FORMATS: dict[str, dict[str, Any]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""and what each must not say, so that the same numbers give the same file"""
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "figure.dpi": 120,
    "savefig.dpi": 160,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "steadygrad",
}


def curves(runs: Sequence[Run], path: str | Path, title: str = "") -> Path:
    """Loss on a logarithmic scale, and beside it the task's score, against updates; validation data."""
    score = runs[0].result["score"]
    with plt.rc_context(STYLE):
        metrics = ["loss"] if score in ("loss", "mse") else ["loss", score]
        figure, axes = plt.subplots(
            1, len(metrics), figsize=(4.9 * len(metrics) + 1.2, 3.6), squeeze=False, layout="constrained"
        )
        groups: dict[str, str] = {}
        for axis, metric in zip(axes[0], metrics, strict=True):
            for run, label in zip(runs, labels(runs), strict=True):
                name = plain(group_of(label))
                colour = groups.setdefault(name, COLOURS[len(groups) % len(COLOURS)])
                steps, values = run.curve(metric)
                first = name not in axis.get_legend_handles_labels()[1]
                axis.plot(steps, values, color=colour, label=name if first else None, linewidth=1.6, alpha=0.9)
            finish(axis, metric, runs)
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center")
        if title:
            figure.suptitle(plain(title))
        return save(figure, path)


def plain(text: str) -> str:
    """Not a formula, whatever stands in it."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: str | Path) -> Path:
    """As PNG, SVG or PDF, whichever the name ends in; whole or not at all. The figure is closed."""
    target = Path(path)
    try:
        if target.suffix not in FORMATS:
            raise ValueError(f"a figure expects a file name that ends in {', '.join(FORMATS)}; got {target.name}")
        with whole(target) as partial:
            figure.savefig(partial, metadata=FORMATS[target.suffix])
    finally:
        plt.close(figure)
    return target


def finish(axis: Axes, metric: str, runs: Sequence[Run]) -> None:
    axis.set_xlabel("updates")
    axis.set_ylabel(f"validation {metric}")
    if metric == "loss":
        axis.set_yscale("log")
        guesses = {run.result["guessing_loss"] for run in runs}
        for guess in guesses:
            axis.axhline(
                guess, color="0.45", linestyle="--", linewidth=1, label="guessing" if len(guesses) == 1 else None
            )
    else:
        axis.set_ylim(-0.03, 1.03)
