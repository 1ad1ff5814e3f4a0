"""Write docs/results.md and its images from the runs under results/, and a picture of the relational tasks.

python docs/results.py                        write the page
python docs/results.py --collect runs/paper   copy the small files of these runs to results/ first
python docs/results.py --collect              the same for runs/desk and runs/paper, where `reproduce` puts them
"""

import argparse
from functools import partial
from pathlib import Path

from torch import Generator

from steadygrad.experiments import StoredResults, every, load
from steadygrad.report import figures, paper, runs
from steadygrad.report.problem_figures import Problem, draw_problems
from steadygrad.tasks import TASKS, ObjectTask
from steadygrad.tasks.relational.games import GAMES
from steadygrad.tasks.relational.shapes import ShapeTask

ROOT = Path(__file__).parent.parent
OF_ALL_ROWS = {"gradients": "gradients along time", "held-out": "accuracy by the number of shapes held out"}

HEAD = """# Results

The papers' numbers and ours. `make results` writes this page from the files under [results/](../results), which
`steadygrad reproduce` made; every run's settings, seed, versions and commit are there. Times are of one thread
(of two for TIMIT's lstm-468 and nnRNN on characters) on a machine that did other work too.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs="*", metavar="DIR", help="folders that `reproduce --out` was given")
    given = parser.parse_args().collect
    usual = [folder for folder in ("runs/desk", "runs/paper") if Path(folder).is_dir()]
    stored, docs = StoredResults(ROOT / "results"), ROOT / "docs"
    for folder in usual if given == [] else given or []:
        for line in stored.collect(Path(folder)):
            print(line)
    for name, table in stored.tables():
        found = runs.find([stored.folder / name / table])
        figures.curves(found, image(docs, name, table), f"{name}/{table}")
        kinds = load(name).rows(table)[0].figures
        paper.draw_figures(found, kinds, partial(image, docs, name, table), f"{name}/{table}")
    draw_tasks(docs / "images" / "relational-tasks.png")
    (docs / "results.md").write_text(render(stored, docs), "utf-8")
    print("written to docs/results.md")


def render(stored: StoredResults, docs: Path) -> str:
    """Return the page: a list of all tables, and a section for each table with stored runs."""
    parts = [HEAD, contents(stored)]
    for name, table in stored.tables():
        recipes = load(name).rows(table)
        remarks = stored.folder / name / table / "remarks.md"
        texts = [stored.superseded(recipes), remarks.read_text("utf-8") if remarks.exists() else ""]
        images = {f"Curves of {name}/{table}": image(docs, name, table)}
        images |= {f"{name}/{table}: {words}": image(docs, name, table, kind) for kind, words in OF_ALL_ROWS.items()}
        images |= {
            f"{recipe.name}: {kind}": image(docs, name, table, f"{recipe.row}-{kind}")
            for recipe in recipes
            for kind in recipe.figures
        }
        drawn = {text: f"images/{file.name}" for text, file in images.items() if file.exists()}
        parts.append(paper.table_section(stored.rows(recipes), load(name).title, [t for t in texts if t], drawn))
    return "\n".join(parts)


def contents(stored: StoredResults) -> str:
    """Return a list of all tables with the number of rows that were run."""
    lines = ["| table | rows run | what it shows |", "| --- | ---: | --- |"]
    for name, table in dict.fromkeys((recipe.paper, recipe.table) for recipe in every()):
        recipes = load(name).rows(table)
        run = sum(bool(stored.seeds(recipe)) for recipe in recipes)
        link = f"[{name}/{table}](#{name}{table})" if run else f"{name}/{table}"
        lines.append(f"| {link} | {run} of {len(recipes)} | {recipes[0].caption} |")
    return "\n".join([*lines, ""])


def image(docs: Path, name: str, table: str, kind: str = "") -> Path:
    return docs / "images" / f"{name}-{table}{kind and f'-{kind}'}.png"


def draw_tasks(path: Path) -> None:
    """Draw two problems of every relational task, with different answers."""
    problems = []
    for name, task in relational_tasks().items():
        generator = Generator().manual_seed(0)
        found = {answer: picture for picture, answer in (task.example(generator) for _ in range(20))}
        for number, answer in enumerate(sorted(found)[:2]):
            problems.append(Problem(found[answer], f"answer {answer}", "" if number else name))
    draw_problems(problems, path, columns=6)


def relational_tasks() -> dict[str, ObjectTask]:
    """Return each relational task and game, with shapes that the package draws without data files."""
    own = {"held_out": 0, "glyphs": "own"}
    tasks = {name: task(**own) for name, task in TASKS.items() if issubclass(task, ShapeTask)}
    colours = {
        f"same-different, {key}": TASKS["same-different"](**own, **{key: True}) for key in ("colour", "separated")
    }
    return tasks | colours | {f"relational-game, {game}": TASKS["relational-game"](game=game) for game in GAMES}


if __name__ == "__main__":
    main()
