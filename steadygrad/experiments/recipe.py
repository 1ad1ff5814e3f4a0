"""Rows of papers' tables as data: layer, task, training settings and published numbers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from steadygrad.catalog import papers
from steadygrad.catalog.papers import Table, merge, names, need_table
from steadygrad.check import did_you_mean, refuse_unknown
from steadygrad.tasks import TASKS
from steadygrad.training import Settings, check_sizes
from steadygrad.training.kinds import networks_for
from steadygrad.training.options import SMOOTHED, Train
from steadygrad.training.typed import build, check_type

SCALES = ("smoke", "desk", "paper")
OF_ALL_ROWS = ("held-out",)
"""kinds of figure that are drawn from the results of all rows together"""
OF_SCALE = {
    "desk": ("layer", "task", "train", "transfer"),
    "smoke": ("layer", "task", "train", "transfer"),
    "defaults": ("layer", "task", "train"),
}
"""tables that each scale, and ``defaults``, may change"""


@dataclass(frozen=True)
class Paper:
    """A paper: its bibliographic header and the rows of its tables."""

    name: str
    header: dict[str, Any]
    recipes: tuple["Recipe", ...]

    @property
    def title(self) -> str:
        """Title of the paper; its short name if the header has none."""
        return str(self.header.get("title", self.name))

    def rows(self, table: str) -> list["Recipe"]:
        """Return the recipes of the rows of one of the paper's tables."""
        return [recipe for recipe in self.recipes if recipe.table == table]


@dataclass(frozen=True)
class Recipe:
    """One row of a paper's table: layer, task, training settings, seeds and published numbers.

    ``published`` maps metrics to numbers as printed. ``metric`` is the metric that the table compares. If a paper has
    validation numbers in addition to test numbers, their metrics are called valid_….

    ``transfer`` maps a key of the task to values on which the trained weights are also tested. The published number of
    such a test has the value after the metric: {"accuracy": 1.0, "accuracy@200": 0.99}.

    ``scales`` holds changes to the paper's settings: under ``desk`` and ``smoke`` for smaller runs, and under
    ``defaults`` for training that does not reproduce the paper.
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
    """keys of the task that are set to the seed of the run, so that each run draws them anew"""
    metric: str = "loss"
    attained: Literal["min", "max"] = "min"
    """whether small (min) or large (max) values are good"""
    counts: Literal["best", "last", "test", "extreme"] = "best"
    """evaluation that gives the number of a run: ``best``, that of the lowest validation loss; ``last``; ``test``, that
    of the best weights on the test split of a data set; ``extreme``, that with the best value of ``metric``"""
    parameters: str | None = None
    published: dict[str, float] = field(default_factory=dict)
    caption: str = ""
    note: str = ""
    figures: tuple[str, ...] = ()
    """figures to draw of each row's portrait, or of all rows together, where the paper has figures and no numbers"""
    ablation: bool = False
    """whether the row is an ablation, a network without one of its parts; such a row is never a default"""
    scales: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Full name of the row: PAPER/TABLE/ROW."""
        return f"{self.paper}/{self.table}/{self.row}"

    @property
    def weights(self) -> str:
        """Which weights give the number of the row and are used in transfer tests: "best" or "last"."""
        return "last" if self.counts == "last" else "best"

    @property
    def draws_portraits(self) -> bool:
        """Whether a figure of the table is drawn from portraits (measurements of trained networks) of its rows."""
        return bool(set(self.figures) - set(OF_ALL_ROWS))

    def reduced(self, scale: str) -> str:
        """Return the changes of ``scale`` to the paper's settings as text; an empty string if there are none."""
        changes = self.scales.get(scale, {})
        words = [f"{k} {v}" for table in ("layer", "task", "train") for k, v in changes.get(table, {}).items()]
        tests = [f"tested on {k} {', '.join(map(str, v))}" for k, v in changes.get("transfer", {}).items()]
        return ", ".join(words + tests)

    def settings(self, scale: str = "paper", seed: int | None = None) -> Settings:
        """Return the row's settings at a scale, by default with its first seed. Raise ValueError if invalid."""
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
        """Return the changes of task options in each transfer test at a scale, as a list of dicts {key: value}."""
        tests = self.scales.get(scale, {}).get("transfer", self.transfer)
        return [{key: value} for key, values in tests.items() for value in values]

    def trained_on(self, scale: str = "paper") -> dict[str, Any]:
        """Return the values in training of the task options that `transfers` changes, as a dict."""
        task = self.task | self.scales.get(scale, {}).get("task", {})
        return {key: task[key] for change in self.transfers(scale) for key in change}


def check_transfer(who: str, settings: Settings, change: dict[str, Any]) -> None:
    """Raise ValueError if a network for ``settings`` cannot be tested on its task with other options.

    ``change`` is a dict of these options. The changed task must be valid and must need a network of the same sizes.
    ``who`` is the name in the message.
    """
    try:
        other = replace(settings, task=settings.task | change).build_task()
        check_sizes("the network", settings.build_task(), other)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None


@cache
def load(paper: str) -> Paper:
    """Return the `Paper` of this name: header and rows. Raise ValueError if there is none."""
    return complete(paper, papers.load(paper))


def read(paper: str, text: str) -> Paper:
    """Return the `Paper` in a TOML text. A row inherits the settings of its table and may override single keys.

    Raise ValueError if the text is no TOML or a key or value is wrong. ``paper`` is the paper's name.
    """
    return complete(paper, papers.read(paper, text))


def complete(paper: str, file: papers.PaperFile) -> Paper:
    """Return the `Paper` in a file, of which only the keys have been checked. Raise ValueError if a value is wrong."""
    recipes = [
        assemble(f"{paper}.toml [{table}.{row}]", paper, table, row, content.shared, own)
        for table, content in file.tables.items()
        for row, own in content.rows.items()
    ]
    return Paper(paper, file.header, tuple(recipes))


def assemble(who: str, paper: str, table: str, row: str, shared: Table, own: Table) -> Recipe:
    """Return the recipe of a row from the settings of its table and its own. Raise ValueError if one is wrong."""
    merged = merge(shared, own)
    scales = {scale: merged.pop(scale, {}) for scale in ("desk", "smoke", "defaults")}
    for scale, changes in scales.items():
        need_table(f"{who} {scale}", changes)
        refuse_unknown(f"{who} {scale}", changes, OF_SCALE[scale])
        for key, change in changes.items():
            need_table(f"{who} {scale}.{key}", change)
    for key in ("layer", "task", "train", "published"):
        need_table(f"{who} {key}", merged.setdefault(key, {}))
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
    task, layer = merged["task"]["name"], merged["layer"]["name"]
    for kind, name, registry in (("task", task, TASKS), ("layer", layer, networks_for(task) if task in TASKS else {})):
        if name not in registry:
            hint = did_you_mean(name, registry)
            raise ValueError(f"{who}: no {kind} {name!r}; known: {', '.join(registry)}{hint}")
    recipe = build(Recipe, {"paper": paper, "table": table, "row": row, "scales": scales, **merged}, who)
    if recipe.counts == "test" and not TASKS[task].has_splits:
        raise ValueError(f"{who} expects a task with a data set if its test counts; got {task}")
    if not recipe.seeds:
        raise ValueError(f"{who} expects at least one seed; got none")
    return recipe


def need_tests(who: str, tests: Any, task: Table) -> None:
    """Raise ValueError unless ``tests`` maps one option of the task to a list of different values."""
    need_table(who, tests)
    known = [key for key in task if key != "name"]
    if len(tests) != 1 or not set(tests) <= set(known):
        got = ", ".join(tests) or "none"
        raise ValueError(f"{who} expects one key that the task gives, out of {', '.join(known)}; got {got}")
    for key, values in tests.items():
        if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
            raise ValueError(f"{who} expects {key} to be a list of different values; got {values!r}")


def layer_with(layer: Table, changes: Table) -> dict[str, Any]:
    """Return layer settings with ``changes``. ``sizes`` in the changes replaces ``hidden_size``, and the reverse."""
    pairs = (("hidden_size", "sizes"), ("sizes", "hidden_size"))
    replaced = [other for given, other in pairs if changes.get(given) is not None]
    return {key: value for key, value in layer.items() if key not in replaced} | dict(changes)


def train_with(train: Table, changes: Table) -> dict[str, Any]:
    """Return training settings with ``changes``. ``steps`` in the changes replaces ``epochs`` and ``frames``.

    A ``smoothing`` is left out if the changes name optimizers that have none, such as sgd.
    """
    dropped = ["epochs", "frames"] if "steps" in changes else []
    both = {"optimizer": Train.optimizer, **train, **changes}
    optimizers = [key for key in ("optimizer", "optimizer_constrained") if key in both]
    if changes.keys() & set(optimizers) and all(both[key] not in [*SMOOTHED] for key in optimizers):
        dropped.append("smoothing")
    return {key: value for key, value in train.items() if key not in dropped} | dict(changes)


def select(pattern: str) -> list[Recipe]:
    """Return the recipes that PAPER, PAPER/TABLE, PAPER/TABLE/ROW or ``all`` names; TABLE and ROW may have * and ?.

    Raise ValueError if there are none.
    """
    chosen = papers.select(pattern)
    recipes = (recipe for paper in dict.fromkeys(paper for paper, _, _ in chosen) for recipe in load(paper).recipes)
    return [recipe for recipe in recipes if (recipe.paper, recipe.table, recipe.row) in chosen]


def every() -> Iterator[Recipe]:
    """Yield the recipes of all papers' rows."""
    for name in names():
        yield from load(name).recipes
