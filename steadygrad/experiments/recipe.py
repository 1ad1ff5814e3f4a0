"""One row of a paper's table, as data: which layer, which task, how trained, what was printed."""

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from steadygrad.tasks import TASKS, DataTask
from steadygrad.training import Settings, check_sizes
from steadygrad.training.settings import check_type, networks, refuse_unknown

PAPERS = Path(__file__).parent / "papers"
SCALES = ("smoke", "desk", "paper")

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
"""what a row may say, and a table for all its rows"""
OF_TABLE = {"caption", "figures"}
CHOICES = {"attained": ("min", "max"), "counts": ("best", "last", "test", "extreme")}
OF_SCALE = {
    "desk": ("layer", "task", "train", "transfer"),
    "smoke": ("layer", "task", "train", "transfer"),
    "defaults": ("layer", "task", "train"),
}

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Paper:
    name: str
    header: dict[str, Any]
    recipes: tuple["Recipe", ...]

    @property
    def title(self) -> str:
        return str(self.header.get("title", self.name))


@dataclass(frozen=True)
class Recipe:
    """``published`` are numbers by metric, as printed; ``metric`` is the one that the table compares.

    Numbers of validation data that a table has beside those of the test are there as valid_….

    ``transfer`` is a key of the task with values on which the trained weights are tested too. Numbers printed of such a
    test have the value behind the metric: {"accuracy": 1.0, "accuracy@200": 0.99}.

    ``scales`` holds what differs from the paper's setting on a desk, for a smoke test, and under ``defaults`` what
    somebody who trains without a paper in mind wants instead of it.
    """

    paper: str
    table: str
    row: str
    layer: dict[str, Any]
    task: dict[str, Any]
    train: dict[str, Any]
    transfer: dict[str, list[Any]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    seeded: tuple[str, ...] = ()
    """keys of the task that take the seed of the run: what each run draws anew"""
    metric: str = "loss"
    attained: str = "min"
    """whether small or large values are good"""
    counts: str = "best"
    """which evaluation has the number of a run: ``best``, that of the lowest validation loss; ``last``; ``test``, the
    best weights on the test split of a data set; ``extreme``, the one with the largest or smallest value"""
    parameters: str | None = None
    published: dict[str, float] = field(default_factory=dict)
    caption: str = ""
    note: str = ""
    figures: tuple[str, ...] = ()
    """what to draw of each row's portrait, or of all rows together, where the paper has figures and no numbers"""
    ablation: bool = False
    """whether the row shows what a network lacks without a part of it: never a default"""
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.table}/{self.row}"

    @property
    def weights(self) -> str:
        """Whose number counts, and which are tested on other settings."""
        return "last" if self.counts == "last" else "best"

    def reduced(self, scale: str) -> str:
        """What ``scale`` changes, in words; empty if nothing."""
        changes = self.scales.get(scale, {})
        words = [f"{k} {v}" for table in ("layer", "task", "train") for k, v in changes.get(table, {}).items()]
        tests = [f"tested on {k} {', '.join(map(str, v))}" for k, v in changes.get("transfer", {}).items()]
        return ", ".join(words + tests)

    def settings(self, scale: str = "paper", seed: int | None = None) -> Settings:
        if scale not in SCALES:
            raise ValueError(f"{self.name} expects a scale out of {', '.join(SCALES)}; got {scale!r}")
        changes = self.scales.get(scale, {})
        seed = self.seeds[0] if seed is None else seed
        tables = {
            "layer": self.layer | changes.get("layer", {}),
            "task": self.task | changes.get("task", {}) | dict.fromkeys(self.seeded, seed),
            "train": train_with(self.train, changes.get("train", {})),
            "seed": seed,
        }
        who = self.name if scale == "paper" else f"{self.name}, {scale} scale"
        settings = Settings.from_tables(tables, who)
        for change in self.transfers(scale):
            check_transfer(f"{who}, transfer", settings, change)
        return settings

    def transfers(self, scale: str = "paper") -> list[dict[str, Any]]:
        """What to change of the task for each test of the trained weights."""
        tests = self.scales.get(scale, {}).get("transfer", self.transfer)
        return [{key: value} for key, values in tests.items() for value in values]

    def trained_on(self, scale: str = "paper") -> dict[str, Any]:
        """What the tests of `transfers` change, as it was in training."""
        task = self.task | self.scales.get(scale, {}).get("task", {})
        return {key: task[key] for change in self.transfers(scale) for key in change}


def check_transfer(who: str, settings: Settings, change: dict[str, Any]) -> None:
    try:
        other = replace(settings, task=settings.task | change).build_task()
        check_sizes("the network", settings.build_task(), other)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None


def names() -> list[str]:
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


@cache
def load(paper: str) -> Paper:
    if paper not in names():
        raise ValueError(f"no paper {paper!r}; known: {', '.join(names())}")
    return read(paper, (PAPERS / f"{paper}.toml").read_text("utf-8"))


def read(paper: str, text: str) -> Paper:
    """A paper's tables. A row inherits its table's settings and may override them key by key."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{paper}.toml: {error}") from None
    header = document.pop("paper", {})
    need_table(f"{paper}.toml [paper]", header)
    refuse_unknown(f"{paper}.toml [paper]", header, sorted(HEADER))
    recipes = []
    for table, content in document.items():
        need_table(f"{paper}.toml [{table}]", content)
        shared = {key: value for key, value in content.items() if key in SHARED | OF_TABLE}
        rows = {key: value for key, value in content.items() if key not in shared}
        if not rows:
            raise ValueError(f"{paper}.toml [{table}]: no rows")
        for row, own in rows.items():
            who = f"{paper}.toml [{table}.{row}]"
            if not isinstance(own, dict):
                raise ValueError(
                    f"{paper}.toml [{table}]: unknown key {row!r}; known: {', '.join(sorted(SHARED | OF_TABLE))}"
                )
            refuse_unknown(who, own, sorted(SHARED))
            recipes.append(assemble(who, paper, table, row, shared, own))
    return Paper(paper, header, tuple(recipes))


def assemble(who: str, paper: str, table: str, row: str, shared: Table, own: Table) -> Recipe:
    merged = merge(shared, own)
    scales = {scale: merged.pop(scale, {}) for scale in ("desk", "smoke", "defaults")}
    for scale, changes in scales.items():
        need_table(f"{who} {scale}", changes)
        refuse_unknown(f"{who} {scale}", changes, OF_SCALE[scale])
        for key, change in changes.items():
            need_table(f"{who} {scale}.{key}", change)
    for key in ("layer", "task", "train", "published"):
        need_table(f"{who} {key}", merged.setdefault(key, {}))
    for key in ("metric", "parameters", "note", "caption"):
        if key in merged:
            check_type(who, key, merged[key], str)
    check_type(who, "ablation", merged.get("ablation", False), bool)
    for key in ("layer", "task"):
        if "name" not in merged[key]:
            raise ValueError(f"{who} expects a {key} with a name")
    for where, content in [(who, merged), *((f"{who} {scale}", changes) for scale, changes in scales.items())]:
        if "transfer" in content:
            need_tests(f"{where} transfer", content["transfer"], merged["task"])
    tested = [str(value) for values in merged.get("transfer", {}).values() for value in values]
    for metric, value in merged["published"].items():
        merged["published"][metric] = number = check_type(f"{who} published", metric, value, float)
        if not math.isfinite(number):
            raise ValueError(f"{who} published expects {metric} to be finite; got {number}")
        _, at, test = metric.partition("@")
        if at and test not in tested:
            known = ", ".join(tested) or "none"
            raise ValueError(f"{who} published expects a value of transfer behind @, out of {known}; got {metric!r}")
    for key, (*others, last) in CHOICES.items():
        if key in merged and merged[key] not in (*others, last):
            raise ValueError(f"{who} expects {key} to be {', '.join(others)} or {last}; got {merged[key]!r}")
    task, layer = merged["task"]["name"], merged["layer"]["name"]
    for kind, name, registry in (("task", task, TASKS), ("layer", layer, networks(task) if task in TASKS else {})):
        if name not in registry:
            raise ValueError(f"{who}: no {kind} {name!r}; known: {', '.join(registry)}")
    if merged.get("counts") == "test" and not issubclass(TASKS[task], DataTask):
        raise ValueError(f"{who} expects a task with a data set if its test counts; got {task}")
    seeds = merged.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise ValueError(f"{who} expects seeds to be a list of whole numbers; got {seeds!r}")
    merged["seeds"] = tuple(seeds)
    for key in ("figures", "seeded"):
        listed = merged.get(key, [])
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise ValueError(f"{who} expects {key} to be a list of names; got {listed!r}")
        merged[key] = tuple(listed)
    return Recipe(paper, table, row, scales=scales, **merged)


def need_table(who: str, value: object) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{who} expects a table; got {value!r}")


def need_tests(who: str, tests: Any, task: Table) -> None:
    need_table(who, tests)
    known = [key for key in task if key != "name"]
    if len(tests) != 1 or not set(tests) <= set(known):
        got = ", ".join(tests) or "none"
        raise ValueError(f"{who} expects one key that the task gives, out of {', '.join(known)}; got {got}")
    for key, values in tests.items():
        if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
            raise ValueError(f"{who} expects {key} to be a list of different values; got {values!r}")


def merge(shared: Table, own: Table) -> dict[str, Any]:
    """Tables in tables are merged too."""
    both = dict(shared)
    for key, value in own.items():
        both[key] = merge(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def layer_with(layer: Table, changes: Table) -> dict[str, Any]:
    """``layer`` with ``changes``; units layer by layer take the place of one size for all, and it theirs."""
    pairs = (("hidden_size", "sizes"), ("sizes", "hidden_size"))
    replaced = [other for given, other in pairs if changes.get(given) is not None]
    return {key: value for key, value in layer.items() if key not in replaced} | dict(changes)


def train_with(train: Table, changes: Table) -> dict[str, Any]:
    """``train`` with ``changes``; a length in updates takes the place of one in epochs or frames."""
    kept = {key: value for key, value in train.items() if key not in ("epochs", "frames") or "steps" not in changes}
    return kept | dict(changes)


def select(pattern: str) -> list[Recipe]:
    """Return the rows that PAPER, PAPER/TABLE, PAPER/TABLE/ROW or ``all`` names; TABLE and ROW may have * and ?."""
    if pattern == "all":
        return list(every())
    paper, *rest = pattern.split("/")
    if len(rest) > 2:
        raise ValueError(f"expected PAPER[/TABLE[/ROW]]; got {pattern!r}")
    table, row = [*rest, "*", "*"][:2]
    recipes = load(paper).recipes
    tables = list(dict.fromkeys(recipe.table for recipe in recipes if fnmatchcase(recipe.table, table)))
    if not tables:
        known = ", ".join(dict.fromkeys(recipe.table for recipe in recipes))
        raise ValueError(f"no table {table!r} in {paper}; known: {known}")
    found = [recipe for recipe in recipes if recipe.table in tables and fnmatchcase(recipe.row, row)]
    if not found:
        known = ", ".join(recipe.row for recipe in recipes if recipe.table in tables)
        raise ValueError(f"no row {row!r} in {paper}/{table}; known: {known}")
    return found


def every() -> Iterator[Recipe]:
    for name in names():
        yield from load(name).recipes
