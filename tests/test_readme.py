"""What the README promises: its Python runs, its make targets exist, its links lead somewhere."""

import re
from itertools import takewhile
from pathlib import Path

import pytest

from steadygrad.experiments import select, summary
from steadygrad.experiments.reproduce import seeds_of
from steadygrad.layers import LAYERS
from steadygrad.matrices import COMPLEX, MATRICES, build
from steadygrad.models import MODELS
from steadygrad.report import tables
from steadygrad.tasks import TASKS

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md"]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
TARGET = re.compile(r"^([a-z][\w-]*)\s*:(?!=)", re.MULTILINE)


def test_python_blocks_run():
    """In order, in one namespace, as a reader would paste them."""
    text = (ROOT / "README.md").read_text("utf-8")
    blocks = [match for match in FENCE.finditer(text) if match[1] == "python"]
    assert blocks
    namespace = {"__name__": "readme"}
    for block in blocks:
        above = text.count("\n", 0, block.start(2))  # so that a traceback names the line of README.md
        exec(compile("\n" * above + block[2], str(ROOT / "README.md"), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page):
    text = (ROOT / page).read_text("utf-8")
    code = [match[2] for match in FENCE.finditer(text)] + INLINE.findall(FENCE.sub("", text))
    named = {target for snippet in code for target in re.findall(r"\bmake ([a-z][\w-]*)", snippet)}
    assert named
    assert named <= set(TARGET.findall((ROOT / "Makefile").read_text("utf-8")))


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_local_links_lead_somewhere(page):
    links = LINK.findall((ROOT / page).read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def rows(text, header):
    """The cells of each row of the table that begins with ``header``."""
    lines = text[text.index(header) :].splitlines()
    table = list(takewhile(lambda line: line.startswith("|"), lines))[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


MAPS = {name: type(build(name, 4, complex=name in COMPLEX).map) for name in MATRICES | COMPLEX}


def names_in(cell):
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(
    ("header", "registry"),
    [
        ("| name | class | recurrence |", LAYERS),
        (
            "| name | class | W |",
            {name: type(build(name, 4, complex=name in COMPLEX).map) for name in MATRICES | COMPLEX},
        ),
        ("| name | class | what answers |", MODELS),
        ("| name | what | from |", TASKS),
    ],
    ids=["layers", "matrices", "models", "tasks"],
)
def test_tables_list_what_the_registries_have(header, registry):
    found = rows((ROOT / "README.md").read_text("utf-8"), header)
    assert sorted(name for row in found for name in names_in(row[0])) == sorted(registry)
    if "class" in header:
        for row in found:
            assert {registry[name].__name__ for name in names_in(row[0])} == set(names_in(row[1]))


def test_readme_results_match_stored_runs():
    found = rows((ROOT / "README.md").read_text("utf-8"), "| network | recall")
    recipes = [f"nnrnn-2019/copy/{row}" for row in ("nnrnn", "exprnn-128", "rnn-orth", "lstm-128")]
    for (_, cell), name in zip(found, recipes, strict=True):
        (recipe,) = select(name)
        row = summary(recipe, "paper", seeds_of(recipe, 5), ROOT / "results")
        scores = [run["score"]["value"] for run in row["runs"]]
        assert len(scores) == 5
        assert cell == tables.spread(scores, tables.number)


def test_the_readme_is_short():
    text = FENCE.sub("", (ROOT / "README.md").read_text("utf-8"))
    prose = [line for line in text.splitlines() if not line.startswith(("|", "<!--"))]
    assert len(" ".join(prose).split()) <= 900
