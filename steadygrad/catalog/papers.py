"""Papers as TOML files: header, tables and rows. Which settings a row may have is checked in experiments/recipe.py."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from steadygrad.catalog.source import ROOT
from steadygrad.check import check_name, did_you_mean, refuse_unknown
from steadygrad.files import parse_toml

PAPERS = ROOT / "experiments" / "papers"

HEADER = {"title", "authors", "venue", "year", "url", "code", "bibtex"}
SHARED = {
    "ablation",
    "defaults",
    "layer",
    "task",
    "train",
    "transfer",
    "seeds",
    "seeded",
    "metric",
    "attained",
    "counts",
    "parameters",
    "published",
    "note",
    "desk",
    "smoke",
}
"""keys that a row may have, and that a table may give for all its rows"""
OF_TABLE = {"caption", "figures"}
"""keys that only a table may have"""

Table = Mapping[str, Any]


class Rows(NamedTuple):
    """A table of a paper: the settings that its rows share, and the settings of each row, by name."""

    shared: dict[str, Any]
    rows: dict[str, dict[str, Any]]

    @property
    def caption(self) -> str:
        """Caption of the table; an empty string if it has none."""
        return str(self.shared.get("caption", ""))

    def published(self, row: str) -> dict[str, float]:
        """Return the published numbers of a row, a dict by metric."""
        return merge(self.shared, self.rows[row]).get("published", {})


class PaperFile(NamedTuple):
    """The file of a paper: its bibliographic header and its tables, by name."""

    header: dict[str, Any]
    tables: dict[str, Rows]


def names() -> list[str]:
    """Return the names of all papers that the package reproduces."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


@cache
def load(paper: str) -> PaperFile:
    """Return the file of the paper of this name. Raise ValueError if there is none."""
    check_name("paper", paper, names())
    return read(paper, (PAPERS / f"{paper}.toml").read_text("utf-8"))


def read(paper: str, text: str) -> PaperFile:
    """Return the paper in a TOML text. ``paper`` is its name. Raise ValueError if the text is no TOML or has no rows.

    Raise ValueError also for an unknown key of the header or of a row.
    """
    document = parse_toml(f"{paper}.toml", text)
    header = document.pop("paper", {})
    need_table(f"{paper}.toml [paper]", header)
    refuse_unknown(f"{paper}.toml [paper]", header, sorted(HEADER))
    tables = {}
    for table, content in document.items():
        need_table(f"{paper}.toml [{table}]", content)
        shared = {key: value for key, value in content.items() if key in SHARED | OF_TABLE}
        rows = {key: value for key, value in content.items() if key not in shared}
        if not rows:
            raise ValueError(f"{paper}.toml [{table}]: no rows")
        for row, own in rows.items():
            if not isinstance(own, dict):
                refuse_unknown(f"{paper}.toml [{table}]", [row], sorted(SHARED | OF_TABLE))
            refuse_unknown(f"{paper}.toml [{table}.{row}]", own, sorted(SHARED))
        tables[table] = Rows(shared, rows)
    return PaperFile(header, tables)


def need_table(who: str, value: object) -> None:
    """Raise ValueError unless the value is a TOML table, that is a dict."""
    if not isinstance(value, dict):
        raise ValueError(f"{who} expects a table; got {value!r}")


def merge(shared: Table, own: Table) -> dict[str, Any]:
    """Return the settings ``shared`` updated with ``own``. Nested tables are merged too."""
    both = dict(shared)
    for key, value in own.items():
        both[key] = merge(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def bibtex(name: str | None) -> str:
    """Return the BibTeX entry of a paper or of a layer's paper, as text, by name. Raise ValueError if there is none."""
    found = {paper: load(paper).header["bibtex"] for paper in names() if "bibtex" in load(paper).header}
    for paper, entry in found.items():
        if name in (paper, paper.rpartition("-")[0]):
            return str(entry).strip()
    hint = did_you_mean(name, found)
    raise ValueError(f"bibtex expects one of {', '.join(found)}, or a layer; got {name}{hint}")


def select(pattern: str) -> list[tuple[str, str, str]]:
    """Return (paper, table, row) of every row that PAPER, PAPER/TABLE, PAPER/TABLE/ROW or ``all`` names, a list.

    TABLE and ROW may have * and ?. Raise ValueError if there are none.
    """
    if pattern == "all":
        return [row for paper in names() for row in select(paper)]
    paper, *rest = pattern.split("/")
    if len(rest) > 2:
        raise ValueError(f"expected PAPER[/TABLE[/ROW]]; got {pattern!r}")
    table, row = [*rest, "*", "*"][:2]
    tables = load(paper).tables
    chosen = {name: content for name, content in tables.items() if fnmatchcase(name, table)}
    if not chosen:
        raise ValueError(f"no table {table!r} in {paper}; known: {', '.join(tables)}{did_you_mean(table, tables)}")
    found = [(paper, name, own) for name, content in chosen.items() for own in content.rows if fnmatchcase(own, row)]
    if not found:
        known = [own for content in chosen.values() for own in content.rows]
        hint = did_you_mean(row, known)
        raise ValueError(f"no row {row!r} in {paper}/{table}; known: {', '.join(known)}{hint}")
    return found
