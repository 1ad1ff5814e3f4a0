"""Writes docs/results.md from what lies under results/, and brings new runs there. Draws the relational tasks too.

python docs/results.py                        write the page
python docs/results.py --collect runs/paper   copy the small files of these runs to results/ first
python docs/results.py --collect              the same of runs/desk and runs/paper, where `reproduce` puts them
"""

import argparse
import shutil
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

from torch import Generator

from steadygrad.experiments import Recipe, every, load, select, summary
from steadygrad.experiments.fingerprint import result_scale
from steadygrad.experiments.transfer import TRANSFER
from steadygrad.files import METRICS, OBSERVATIONS, PORTRAIT, RESULT, SETTINGS, json_lines
from steadygrad.report import compare, figures, portraits, runs, tables
from steadygrad.report.problems import Problem, problems
from steadygrad.tasks import TASKS, ObjectTask
from steadygrad.tasks.relational.games import GAMES
from steadygrad.tasks.relational.shapes import ShapeTask
from steadygrad.training import RunDirectory
from steadygrad.training.start import length

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "results.md"
OF_ALL_ROWS = {"gradients": "gradients along time", "held-out": "accuracy by the number of shapes held out"}
LARGEST = 64_000  # bytes; of longer metrics only the evaluations are kept

HEAD = """# Results

The papers' numbers and ours. `make results` writes this page from the files under [results/](../results), which
`steadygrad reproduce` made; every run's settings, seed, versions and commit are there. Times are of one thread
(of two for TIMIT's lstm-468 and nnRNN on characters) on a machine that did other work too.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs="*", metavar="DIR", help="what `reproduce --out` was given")
    given = parser.parse_args().collect
    usual = [folder for folder in ("runs/desk", "runs/paper") if Path(folder).is_dir()]
    for folder in usual if given == [] else given or []:
        collect(Path(folder))
    for paper, table in tables_with_runs():
        found = runs.find([RESULTS / paper / table])
        figures.curves(found, picture(paper, table), f"{paper}/{table}")
        for recipe in rows_of(paper, table):
            for run in [run for run in found if run.path.parent.name == recipe.row and recipe.figures][:1]:
                portraits.draw(run, recipe.row, stem(recipe), "png", recipe.figures)
        kinds, place = rows_of(paper, table)[0].figures, partial(picture, paper, table)
        portraits.draw_table(found, kinds, place, f"{paper}/{table}")
    draw_tasks(PAGE.parent / "images" / "relational-tasks.png")
    PAGE.write_text(render(), "utf-8")
    print(f"written to {PAGE.relative_to(ROOT)}")


def collect(folder: Path) -> None:
    for recipe in every():
        for run in sorted((folder / recipe.paper / recipe.table / recipe.row).glob("seed-*")):
            result = RunDirectory(run).result()
            if result is None or result["status"] == "interrupted":
                continue
            target = RESULTS / run.relative_to(folder)
            if (known := RunDirectory(target).result()) and length(known["train"]) > length(result["train"]):
                print(f"{target.relative_to(RESULTS.parent)} stays as it is: that run was longer")
                continue
            target.mkdir(parents=True, exist_ok=True)
            for name in (SETTINGS, RESULT):
                shutil.copy(run / name, target / name)
            rows = RunDirectory(run).metrics()
            text = json_lines(rows)
            if len(text) > LARGEST:
                text = json_lines(row for row in rows if row["split"] == "valid")
            (target / METRICS).write_text(text, "utf-8")
            looked = (PORTRAIT, OBSERVATIONS) if set(recipe.figures) - set(compare.OF_TABLES) else ()
            for name in (*looked, TRANSFER):
                if (run / name).exists():
                    shutil.copy(run / name, target / name)
            print(target.relative_to(RESULTS.parent))


def picture(paper: str, table: str, kind: str = "") -> Path:
    return PAGE.parent / "images" / f"{paper}-{table}{kind and f'-{kind}'}.png"


def stem(recipe: Recipe) -> Path:
    return PAGE.parent / "images" / recipe.name.replace("/", "-")


def rows_of(paper: str, table: str) -> list[Recipe]:
    return [recipe for recipe in load(paper).recipes if recipe.table == table]


def tables_with_runs() -> list[tuple[str, str]]:
    return list(dict.fromkeys((recipe.paper, recipe.table) for recipe in every() if stored(recipe)))


def render() -> str:
    parts = [HEAD, contents()]
    for paper, table in tables_with_runs():
        recipes = rows_of(paper, table)
        rows = [summary(recipe, scale(recipe), seeds(recipe), RESULTS) for recipe in recipes]
        parts += [f"## {paper}/{table}\n", f"*{load(paper).title}*\n", tables.paper_table(rows)]
        if sentence := superseded(recipes):
            parts.append(sentence)
        remarks = RESULTS / paper / table / "remarks.md"
        if remarks.exists():
            parts.append(remarks.read_text("utf-8"))
        parts.append(f"![Curves of {paper}/{table}](images/{picture(paper, table).name})\n")
        parts += [
            f"![{paper}/{table}: {words}](images/{picture(paper, table, kind).name})\n"
            for kind, words in OF_ALL_ROWS.items()
            if picture(paper, table, kind).exists()
        ]
        parts += [
            f"![{recipe.name}: {kind}](images/{stem(recipe).name}-{kind}.png)\n"
            for recipe in recipes
            for kind in recipe.figures
            if stem(recipe).with_name(f"{stem(recipe).name}-{kind}.png").exists()  # not every network has every kind
        ]
    return "\n".join(parts)


def contents() -> str:
    """Every table there is, and how many of its rows were run."""
    lines = ["| table | rows run | what it shows |", "| --- | ---: | --- |"]
    for paper, table in dict.fromkeys((recipe.paper, recipe.table) for recipe in every()):
        recipes = rows_of(paper, table)
        run = sum(bool(seeds(recipe)) for recipe in recipes)
        name = f"[{paper}/{table}](#{paper}{table})" if run else f"{paper}/{table}"
        lines.append(f"| {name} | {run} of {len(recipes)} | {recipes[0].caption} |")
    return "\n".join([*lines, ""])


def draw_tasks(path: Path) -> None:
    """Two problems of every relational task, with different answers."""
    shown = []
    for name, task in shown_tasks().items():
        generator = Generator().manual_seed(0)
        found = {answer: picture for picture, answer in (task.example(generator) for _ in range(20))}
        for number, answer in enumerate(sorted(found)[:2]):
            shown.append(Problem(found[answer], f"answer {answer}", "" if number else name))
    problems(shown, path, columns=6)


def shown_tasks() -> dict[str, ObjectTask]:
    """Each relational task and game, with what is drawn by the package and needs no data."""
    own = {"held_out": 0, "glyphs": "own"}
    tasks = {name: task(**own) for name, task in TASKS.items() if issubclass(task, ShapeTask)}
    colours = {
        f"same-different, {key}": TASKS["same-different"](**own, **{key: True}) for key in ("colour", "separated")
    }
    return tasks | colours | {f"relational-game, {game}": TASKS["relational-game"](game=game) for game in GAMES}


def stored(recipe: Recipe) -> list[int]:
    """Return the seeds of all stored runs of a row, whatever their settings are."""
    found = (RESULTS / recipe.paper / recipe.table / recipe.row).glob("seed-*/result.json")
    return sorted(int(path.parent.name.removeprefix("seed-")) for path in found)


@cache
def scales_of(results: Path, name: str) -> dict[int, str | None]:
    """Return, for each stored run of a row, the scale at which it was run, or None if the row has changed since."""
    (recipe,) = select(name)
    return {seed: result_scale(recipe, seed, RunDirectory(results / name / f"seed-{seed}")) for seed in stored(recipe)}


def seeds(recipe: Recipe) -> list[int]:
    """Return the seeds of runs with the settings that the recipe has now, all at one scale."""
    known = scales_of(RESULTS, recipe.name)
    return [seed for seed, found in known.items() if found == scale(recipe)]


def scale(recipe: Recipe) -> str:
    """Return the scale at which the row was run, by its first seed."""
    return next((found for found in scales_of(RESULTS, recipe.name).values() if found is not None), "paper")


def superseded(recipes: Iterable[Recipe]) -> str:
    """Return a sentence with the numbers of stored runs whose row has changed since, empty if there are none."""
    rows = [recipe for recipe in recipes if stored(recipe) and not seeds(recipe)]
    if not rows:
        return ""
    numbers = [(recipe.row, summary(recipe, "paper", stored(recipe), RESULTS)["ours"]) for recipe in rows]
    words = ", ".join(f"{row} {'no number' if value is None else format(value, '.3g')}" for row, value in numbers)
    return f"Run with earlier settings or starts, and to be run again ({rows[0].metric}): {words}.\n"


if __name__ == "__main__":
    main()
