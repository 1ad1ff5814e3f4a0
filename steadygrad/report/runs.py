"""Read the files that runs and `reproduce` have written. Nothing here needs torch."""

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from steadygrad import files, records
from steadygrad.files import RunError, value_text
from steadygrad.manifest import verify
from steadygrad.records import Result, TableRow, settings_tables
from steadygrad.report.measurements import read_observations, read_portrait
from steadygrad.report.thinning import MOST, Curve, Thinner, points_per_curve
from steadygrad.scores import SoundScores, StoredTest, StoredTests, read_listen, read_transfer, tested_update

T = TypeVar("T")
FEW = 10
"""number of unreadable files that an error message lists"""


@dataclass(frozen=True)
class Run:
    """The files of one run: its result, the curves of its metrics, its observations and its portrait.

    Observations are measurements of the network during training. The portrait has those after training.
    """

    path: Path
    result: Result
    curves: dict[str, Curve] = field(default_factory=dict)
    """validation metrics by name, against updates"""
    observations: list[dict[str, Any]] = field(default_factory=list)
    portrait: dict[str, Any] | None = None
    tests: list[StoredTest] = field(default_factory=list)
    """tests of the weights on other settings of the task"""
    sound: SoundScores | None = None
    """scores of the sound that a network predicts"""
    notes: tuple[str, ...] = ()
    """what is wrong with the files of the run"""

    @property
    def layer(self) -> str:
        """Name of the run's layer."""
        return str(self.result["layer"]["name"])

    @property
    def task(self) -> str:
        """Name of the run's task."""
        return str(self.result["task"]["name"])

    @property
    def seed(self) -> int:
        """Random seed of the run."""
        return int(self.result["seed"])

    @property
    def command(self) -> str:
        """Shell command, a string, that repeats the run. It gives every setting, also those that are the default."""
        words = ["steadygrad", "train", self.layer, self.task]
        for table, settings in settings_tables(self.result).items():
            given = {key: value for key, value in settings.items() if key != "name"}
            words += [word for key, value in given.items() for word in (f"--{table}.{key}", value_text(value))]
        return shlex.join([*words, "--seed", str(self.seed)])

    def curve(self, metric: str) -> Curve:
        """Return the validation values of a metric against updates. The curve is empty if there are none."""
        return self.curves.get(metric, Curve())


@dataclass(frozen=True)
class PaperTable:
    """Path and rows of a ``table.json`` that `reproduce` wrote for a paper's table."""

    path: Path
    rows: list[TableRow]


class Found(NamedTuple):
    """Runs and papers' tables in folders, and a line for each file that could not be read."""

    runs: list[Run]
    papers: list[PaperTable]
    unreadable: list[str]

    @property
    def problems(self) -> list[str]:
        """List of messages on all unreadable files, including those without which a run is still shown."""
        return [*self.unreadable, *(note for run in self.runs for note in run.notes)]


def find_all(folders: Sequence[str | Path]) -> Found:
    """Return the runs and papers' tables in these folders, at any depth, and what could not be read.

    A folder with a result.json is a run, finished or stopped. Raise ValueError if there is no readable run.
    """
    for folder in folders:
        if not Path(folder).is_dir():
            raise ValueError(f"report expects folders with runs; {folder} is not a folder")
    results, tables = (files_named(folders, name) for name in (files.RESULT, files.TABLE))
    most = points_per_curve(len(results))
    found = Found([], [], [])
    for path in results:
        run = with_reason(partial(read, path.parent, most), found.unreadable)
        found.runs.extend([run] if run else [])
    for path in tables:
        rows = with_reason(partial(records.read_table, path), found.unreadable)
        found.papers.extend([PaperTable(path, rows)] if rows else [])
    if not results:
        raise ValueError(f"no runs in {', '.join(map(str, folders))}: a run has a result.json")
    if not found.runs:
        more = f"; and {len(found.unreadable) - FEW} more" if len(found.unreadable) > FEW else ""
        raise ValueError(f"no run could be read: {'; '.join(found.unreadable[:FEW])}{more}")
    return found


def find(folders: Sequence[str | Path]) -> list[Run]:
    """Return every run in these folders, at any depth. Raise ValueError if a file is unreadable or there is no run."""
    found = find_all(folders)
    for problem in found.problems:
        raise RunError(problem)
    return found.runs


def files_named(folders: Sequence[str | Path], name: str) -> list[Path]:
    """Return a list of the files of this name in the folders, at any depth. Each file is listed once."""
    found: dict[Path, Path] = {}
    for path in [path for folder in folders for path in sorted(Path(folder).glob(f"**/{name}"))]:
        found.setdefault(path.parent.resolve(), path)
    return list(found.values())


def with_reason(read: Callable[[], T], reasons: list[str]) -> T | None:
    """Return ``read()``. If it raises RunError, append the reason to ``reasons`` and return None."""
    try:
        return read()
    except RunError as error:
        reasons.append(printable(str(error)))
        return None


def read(folder: Path, most: int = MOST) -> Run:
    """Return the run in this folder, with curves of about ``most`` points. Raise RunError if it has no valid result.

    If another file is invalid, the run lacks that part, and its notes have the reason.
    """
    result = records.read_result(folder / files.RESULT)
    notes: list[str] = []
    metrics = {"loss", result["score"], "accuracy", "neumann_norm"}
    curves = with_reason(lambda: thinned(records.metrics_rows(folder / files.METRICS), metrics, most), notes)
    observations = with_reason(lambda: read_observations(folder / files.OBSERVATIONS), notes)
    drawn = read_if_there(read_portrait, folder / files.PORTRAIT, notes)
    stored = read_if_there(read_transfer, folder / files.TRANSFER, notes)
    sound = read_if_there(read_listen, folder / files.LISTEN, notes)
    notes = [f"{note}; the run is shown without it" for note in notes]
    notes += missing_rows(folder / files.METRICS, result, curves)
    notes += other_weights(folder / files.TRANSFER, result, stored)
    notes += verify(folder)
    tests = [] if stored is None or other_weights(folder, result, stored) else stored["tests"]
    return Run(folder, result, curves or {}, observations or [], drawn, tests, sound, tuple(notes))


def read_if_there(read: Callable[[Path], T], path: Path, notes: list[str]) -> T | None:
    """Return ``read(path)``, or None if there is no such file. If it is invalid, append the reason to ``notes``."""
    return with_reason(partial(read, path), notes) if os.path.lexists(path) else None


def other_weights(path: Path, result: Result, stored: StoredTests | None) -> list[str]:
    """Return a list of one message if the transfer tests of a run used other weights than the run has now, else [].

    ``path`` is the file of the tests, and ``stored`` its content, None without such a file. The weights differ if a run
    is extended after its tests. Such tests are not shown.
    """
    if stored is None or stored["step"] == (own := tested_update(result, stored["weights"])):
        return []
    weights = f"the {stored['weights']} weights"
    are = "the run has no evaluation" if own is None else f"{weights} are of update {own}"
    return [f"{printable(str(path))} has tests of {weights} of update {stored['step']}, but {are}; they are not shown"]


def thinned(rows: Iterable[dict[str, Any]], metrics: AbstractSet[str], most: int = MOST) -> dict[str, Curve]:
    """Return a dict with a curve of about ``most`` points for each of these metrics, from the validation rows.

    A metric without values is left out.
    """
    found = {metric: Thinner(most) for metric in sorted(metrics)}
    for row in rows:
        if row["split"] == "valid":
            for metric, thinner in found.items():
                if (value := row.get(metric)) is not None:
                    thinner.add(row["step"], value)
    return {metric: thinner.curve() for metric, thinner in found.items() if thinner.y}


def missing_rows(path: Path, result: Result, curves: dict[str, Curve] | None) -> list[str]:
    """Return a list of one message if the metrics end before the last evaluation in the result, else [].

    ``path`` is the file of the metrics, ``curves`` its content.
    """
    final = result["final"] or {}
    if curves is None or final.get("step") is None or final.get("loss") is None:
        return []
    last = curves["loss"].x[-1] if "loss" in curves else None
    if last is not None and last >= final["step"]:
        return []
    end = "has no evaluation" if last is None else f"ends at update {last}"
    return [f"{printable(str(path))} {end}; the last evaluation in result.json is at update {final['step']}"]


def printable(text: str) -> str:
    """Return text with the bytes of a file name that are not UTF-8 as backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def labels(runs: Sequence[Run]) -> list[str]:
    """Return short names that distinguish the runs, as a list.

    A name is that of the paper's row or of the layer. It is followed as far as needed by the layer, the task, the
    hidden size, other settings that differ and the seed. If names are still equal, the runs' paths are returned
    instead.
    """
    named = [row_or_layer(run) for run in runs]
    for words in (
        [run.layer for run in runs],
        [run.task for run in runs],
        [str(run.result["layer"].get("hidden_size", "")) for run in runs],
    ):
        named = longer_if_needed(named, words)
    for table in ("layer", "task", "train"):
        tables = [settings_tables(run.result)[table] | {"name": name} for run, name in zip(runs, named, strict=True)]
        named = distinct_names(tables, but={key for one in tables for key in one if key.endswith("seed")})
    named = longer_if_needed(named, [f"seed {run.seed}" for run in runs])
    return named if len(set(named)) == len(runs) else [printable(path.as_posix()) for path in distinct_paths(runs)]


def longer_if_needed(names: list[str], words: Sequence[str]) -> list[str]:
    """Return the names, each with its own word of ``words`` appended if that distinguishes more of them."""
    longer = [f"{name} {word}" for name, word in zip(names, words, strict=True)]
    return longer if len(set(longer)) > len(set(names)) else names


def distinct_names(tables: Sequence[dict[str, Any]], but: Iterable[str] = ()) -> list[str]:
    """Return a label for each table of settings, such as "RNN, hidden_size 64".

    A label is the table's name and the settings in which tables of that name differ. Settings in ``but`` are left out.
    """
    but = frozenset(but)
    values: dict[tuple[str, str], set[str]] = {}
    for table in tables:
        for key, value in table.items():
            values.setdefault((table["name"], key), set()).add(value_text(value))
    return [
        ", ".join(
            [table["name"]]
            + [
                f"{key} {value_text(value)}"
                for key, value in table.items()
                if key not in but and len(values[table["name"], key]) > 1
            ]
        )
        for table in tables
    ]


def distinct_paths(runs: Sequence[Run]) -> list[Path]:
    """Return the runs' folders relative to their common parent."""
    paths = [run.path.resolve() for run in runs]
    common = Path(os.path.commonpath(paths))
    return [path.relative_to(common) for path in paths]


def group_of(label: str) -> str:
    """Return the label of a run without the seed at its end, which is the name of the run's group."""
    return re.sub(r" seed \d+$", "", label)


def part_name(name: str, part: str) -> str:
    """Return the name in a chart of a part of a network's state: "NAME, PART", such as "LSTM, c".

    ``name`` is the name of the network. If ``part`` is "state", the whole state, the result is ``name`` alone.
    """
    return name if part == "state" else f"{name}, {part}"


def level_name(name: str, number: int, levels: Sequence[Any]) -> str:
    """Return the name in a chart of one of a network's ``levels``, its stacked layers: "NAME, level NUMBER".

    ``name`` is the name of the network. If there is a single level, the result is ``name`` alone.
    """
    return name if len(levels) == 1 else f"{name}, level {number}"


def row_or_layer(run: Run) -> str:
    """Return the name of the paper's row that a run belongs to, or else the name of its layer.

    `reproduce` names a folder after the row and creates a folder seed-N in it for each seed.
    """
    return printable(run.path.parent.name) if re.fullmatch(r"seed-\d+", run.path.name) else run.layer
