"""What the README promises: its Python runs, its make targets exist, its links lead somewhere."""

import re
from pathlib import Path

import pytest

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
