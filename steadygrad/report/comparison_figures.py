"""Figures that compare several networks."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle, groupby, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib.ticker import NullLocator

from steadygrad.report.figures import COLOURS, LINES, STYLE, plain, save, tasks_of
from steadygrad.report.runs import Run, distinct_names, group_of, labels

Numbers = Sequence[float | None]
MARKERS = "os^Dv<>P"


class HeldOutResult(NamedTuple):
    """Accuracy of one run on shapes that were held out of training, with its task, network and chance level."""

    task: str
    network: str
    held_out: int
    """number of shapes that are held out of training"""
    accuracy: float
    chance: float
    """accuracy of guessing"""


def loss_gradients(runs: Sequence[Run]) -> dict[str, list[float | None]]:
    """Return the gradient norms ‖∂L/∂s_t‖ along time by name, of the first run of each group that has them.

    Runs that differ only in their seed form a group. L is the loss, s_t the state. The dict is empty without such runs.

    The norms are averages over a batch if all these runs have them, otherwise those of one sequence.
    """
    portraits: dict[str, dict[str, Any]] = {}
    for name, run in zip(map(group_of, labels(runs)), runs, strict=True):
        if run.portrait and run.portrait.get("loss_gradients"):
            portraits.setdefault(name, run.portrait)
    averaged = all("batch_gradients" in portrait for portrait in portraits.values())
    return {name: portrait["batch_gradients" if averaged else "loss_gradients"] for name, portrait in portraits.items()}


def held_out_results(runs: Sequence[Run]) -> list[HeldOutResult]:
    """Return a list of `HeldOutResult` with the last validation accuracy of each run on a task with held-out shapes.

    Runs without an accuracy are left out.
    """
    tested = [run for run in runs if "held_out" in run.result["task"] and run.curve("accuracy").y]
    tasks = tasks_of(tested)
    networks = distinct_names([run.result["layer"] for run in tested])
    return [
        HeldOutResult(
            task,
            network,
            run.result["task"]["held_out"],
            run.curve("accuracy").y[-1],
            math.exp(-max(0.0, run.result["guessing_loss"])),  # all answers are equally likely
        )
        for task, network, run in zip(tasks, networks, tested, strict=True)
    ]


def gradients_along_time(norms: Mapping[str, Numbers], path: str | Path, title: str = "") -> Path:
    """Draw ‖∂L/∂state‖ against steps back from the end to the file ``path``, and return the path.

    ``norms`` are the norms along time by network. See the left of figure 2 of Kerg et al. (2020).
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.6, 3.6), layout="constrained")
        for (line, colour), (name, values) in zip(cycle(product(LINES, COLOURS)), norms.items(), strict=False):
            look: Any = {"color": colour, "linestyle": line, "linewidth": 1.4}
            axis.semilogy(range(len(values), 0, -1), [v or math.nan for v in values], label=plain(name), **look)
        axis.set(xlabel="steps back from the end", ylabel="‖∂L / ∂state‖", title=plain(title))
        figure.legend(loc="outside right center")
        return save(figure, path)


def held_out_accuracy(results: Sequence[HeldOutResult], path: str | Path, title: str = "") -> Path:
    """Draw accuracy against the number of held-out shapes to the file ``path``, and return the path.

    There is a panel for each task and a line for each network. Raise ValueError without results.

    A line is the median of runs that differ only in their seeds. The band around it extends from the worst to the best
    run. The dashed line is guessing. The figure follows Kerg et al. (2022).
    """
    if not results:
        raise ValueError("held_out_accuracy expects at least one result; got none")
    tasks, networks = (list(dict.fromkeys(names)) for names in list(zip(*results, strict=True))[:2])
    columns = math.ceil(math.sqrt(len(tasks)))
    rows = math.ceil(len(tasks) / columns)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows,
            columns,
            figsize=(3.1 * columns + 1.4, 2.5 * rows + 0.4),
            squeeze=False,
            sharey=True,
            layout="constrained",
        )
        for axis, task in zip(axes.flat, tasks, strict=False):
            for colour, marker, network in zip(cycle(COLOURS), cycle(MARKERS), networks, strict=False):
                found = sorted((one.held_out, one.accuracy) for one in results if one[:2] == (task, network))
                seeds = {x: [y for _, y in same] for x, same in groupby(found, key=itemgetter(0))}
                axis.fill_between(
                    list(seeds),
                    [min(y) for y in seeds.values()],
                    [max(y) for y in seeds.values()],
                    color=colour,
                    alpha=0.15,
                )
                axis.plot(
                    list(seeds),
                    [statistics.median(y) for y in seeds.values()],
                    color=colour,
                    marker=marker,
                    markersize=4,
                    label=plain(network),
                    linewidth=1.4,
                )
            here = [one for one in results if one.task == task]
            axis.axhline(here[0].chance, color="0.45", linestyle="--", linewidth=0.8, label="guessing")
            axis.set_xticks(sorted({one.held_out for one in here}))
            axis.set_title(plain(task), fontsize=10)
            axis.set(xlabel="shapes held out", xlim=(-4, 102), ylim=(-0.03, 1.03))
        for axis in axes.flat[len(tasks) :]:
            axis.remove()
        for axis in axes[:, 0]:
            axis.set_ylabel("accuracy on unseen shapes")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center")
        figure.suptitle(plain(title), fontsize=11)
        return save(figure, path)


def growth_with_length(
    lengths: Sequence[int], values: Mapping[str, Numbers], path: str | Path, label: str, title: str = ""
) -> Path:
    """Draw a value of each network against the length T to the file ``path``, and return the path.

    ``values`` are by network, None where not measured.

    Both axes are logarithmic: a slope of 1 means proportional to the length, a slope of 2 to its square. See the centre
    of figure 2 of Kerg et al. (2020).
    """
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(6.2, 3.8), layout="constrained")
        looks = zip(cycle(COLOURS), cycle(MARKERS), values.items(), strict=False)
        for colour, marker, (name, measured) in looks:
            y = [v or math.nan for v in measured]
            axis.loglog(lengths, y, color=colour, marker=marker, markersize=4, label=plain(name), linewidth=1.4)
        crowded = [n < 1.5 * before for before, n in pairwise([0, *lengths])]
        axis.set_xticks(lengths, ["" if close else str(n) for n, close in zip(lengths, crowded, strict=True)])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel="length T", ylabel=label, title=plain(title))
        figure.legend(loc="outside right center")
        return save(figure, path)
