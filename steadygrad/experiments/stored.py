"""Stored results: the small files of runs of papers' rows, such as those under results/ in the source tree."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from steadygrad.experiments.fingerprint import result_scale
from steadygrad.experiments.recipe import Recipe, every
from steadygrad.experiments.reproduce import run_directory, seeds_with_result, summary
from steadygrad.files import METRICS, OBSERVATIONS, PORTRAIT, RESULT, SETTINGS, TRANSFER, json_lines, write_all
from steadygrad.records import TableRow
from steadygrad.training import RunDirectory
from steadygrad.training.directory import length

LARGEST = 64_000  # bytes; of longer metrics only the evaluations are stored


class StoredResults:
    """The results of papers' rows that are stored under ``folder``, each in PAPER/TABLE/ROW/seed-N.

    A run is valid if it has ended and its settings are still those of the row's recipe at some scale (smoke, desk or
    paper). Of a row's valid runs, those at the scale of the run with the lowest seed count.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._scales: dict[str, dict[int, str | None]] = {}

    def tables(self) -> list[tuple[str, str]]:
        """Return a list of pairs (paper, table), names, of all tables with a stored run, valid or not."""
        return list(dict.fromkeys((recipe.paper, recipe.table) for recipe in every() if self.scales(recipe)))

    def rows(self, recipes: Iterable[Recipe]) -> list[TableRow]:
        """Return a `TableRow` for each recipe, from its stored runs that count, as defined in `StoredResults`."""
        return [summary(recipe, self.scale(recipe), self.seeds(recipe), self.folder) for recipe in recipes]

    def scales(self, recipe: Recipe) -> dict[int, str | None]:
        """Return the scale of each stored run of a row, a dict by seed; None for a run that is not valid."""
        if recipe.name not in self._scales:
            self._scales[recipe.name] = {
                seed: result_scale(recipe, seed, RunDirectory(run_directory(recipe, seed, self.folder)))
                for seed in seeds_with_result(recipe, self.folder)
            }
        return self._scales[recipe.name]

    def scale(self, recipe: Recipe) -> str:
        """Return the scale of a row's stored runs that count, or "paper" if there are none."""
        return next((scale for scale in self.scales(recipe).values() if scale is not None), "paper")

    def seeds(self, recipe: Recipe) -> list[int]:
        """Return the list of seeds of a row's stored runs that count."""
        return [seed for seed, scale in self.scales(recipe).items() if scale == self.scale(recipe)]

    def superseded(self, recipes: Iterable[Recipe]) -> str:
        """Return a sentence on rows that have only runs with outdated settings, and their numbers; empty if none."""
        rows = [recipe for recipe in recipes if self.scales(recipe) and not self.seeds(recipe)]
        if not rows:
            return ""
        numbers = [
            (recipe.row, summary(recipe, "paper", list(self.scales(recipe)), self.folder)["ours"]) for recipe in rows
        ]
        words = ", ".join(f"{row} {'no number' if value is None else format(value, '.3g')}" for row, value in numbers)
        return f"Run with earlier settings or starts, and to be run again ({rows[0].metric}): {words}.\n"

    def collect(self, out: Path) -> Iterator[str]:
        """Copy the small files of ended runs from ``out``, the folder of `reproduce`; yield a line for each run.

        It is a generator: runs are copied while it is iterated over. Interrupted runs are skipped without a line. A
        stored run that was longer is kept. A run with an invalid file is not copied. The lines say so.
        """
        self._scales.clear()
        for recipe in every():
            for seed in seeds_with_result(recipe, out):
                run, target = (RunDirectory(run_directory(recipe, seed, folder)) for folder in (out, self.folder))
                name = target.path.relative_to(self.folder.parent)
                portraits = (PORTRAIT, OBSERVATIONS) if recipe.draws_portraits else ()
                try:
                    result, known = run.result(), target.result()
                    if result is None or result["status"] == "interrupted":
                        continue
                    if known and length(known["train"]) > length(result["train"]):
                        yield f"{name} is kept: the stored run is longer"
                        continue
                    store(run, target.path, (*portraits, TRANSFER))
                except ValueError as error:
                    yield f"{name} is not stored: {error}"
                else:
                    yield str(name)


def store(run: RunDirectory, target: Path, others: Sequence[str]) -> None:
    """Copy a run's settings, result and metrics, and those of the ``others`` that exist, to the folder ``target``.

    Of long metrics, above `LARGEST` characters, only the evaluations are copied. Raise ValueError if a file of the run
    is invalid. No file is replaced before all are read and checked, and complete on the disk.
    """
    run.verify()
    run.settings()
    rows = run.metrics()
    text = json_lines(rows)
    if len(text) > LARGEST:
        text = json_lines(row for row in rows if row["split"] == "valid")
    contents: dict[Path, str | bytes] = {target / METRICS: text}
    for name in (*(name for name in others if run.file(name).exists()), SETTINGS, RESULT):  # the result comes last
        with run.reading(name) as path:
            contents[target / name] = path.read_bytes()
    target.mkdir(parents=True, exist_ok=True)
    write_all(contents)
