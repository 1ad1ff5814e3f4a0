"""The page of a report as a browser would read it: whole, on its own, and never fooled by a name."""

import json
import math
import os
import re
import shlex
import string
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import steadygrad
from steadygrad import experiments
from steadygrad.cli.common import dotted
from steadygrad.cli.main import main
from steadygrad.diagnostics import portrait
from steadygrad.experiments import Observer, reproduce
from steadygrad.experiments.recipe import read
from steadygrad.files import finite, parse_value, value_text
from steadygrad.layers import LAYERS
from steadygrad.report import charts, html, runs, tables
from steadygrad.training import RunDirectory, Settings, Trainer, loop
from steadygrad.training.directory import differences

PAPER = """
[table]
caption = "Copy, T = 2"
task = { name = "copy", delay = 2, length = 2, symbols = 2 }
train = { steps = 6, batch = 2, evaluate_every = 3, evaluate_examples = 4, log_every = 2 }
metric = "accuracy"
attained = "max"
[table.zebra]
layer = { name = "nnrnn", hidden_size = 4 }
published = { accuracy = 0.0 }
[table.antelope]
layer = { name = "ncgru", hidden_size = 4 }
published = { accuracy = 2.0 }
[table.lion]
layer = { name = "rnn", hidden_size = 4, recurrent = { name = "longshort", short_size = 1 } }
"""
VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}
LOADS = {"src", "srcset", "srcdoc", "data", "action", "formaction", "poster", "background", "ping", "xlink:href"}


class Page(HTMLParser):
    """Tags, their attributes, and the text in them; complains of what a browser would have to repair."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.wrong, self.tags, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        self.wrong += [f"<{tag}> stays open" for tag, _, _ in self.open]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.wrong.append(f"<{tag}> has an attribute twice")
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.texts.append((tag, dict(attrs), []))
            self.open.append(self.texts[-1])

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.wrong.append(f"</{tag}> ends what was not open")
        else:
            self.open.pop()

    def handle_data(self, data):
        if self.open:
            self.open[-1][2].append(data)
        elif data.strip():
            self.wrong.append(f"{data!r} outside of everything")

    def handle_comment(self, data):
        self.wrong.append(f"a comment: {data!r}")

    def all(self, tag):
        return ["".join(parts) for name, _, parts in self.texts if name == tag]

    def attributes(self, name):
        return [found[name] for _, found in self.tags if name in found]

    @property
    def charts(self):
        """The numbers of the figures, in the order of the page."""
        (block,) = ["".join(parts) for _, found, parts in self.texts if found.get("id") == "data"]
        charts = json.loads(block)
        assert list(charts) == self.attributes("data-chart")
        return list(charts.values())

    def chart(self, title):
        return next(chart for chart in self.charts if chart["title"].startswith(title))

    @property
    def rows(self):
        """Every table's rows, a list of cells each."""
        found = []
        for tag, _, parts in self.texts:
            if tag == "tr":
                found.append([])
            elif tag in ("th", "td"):
                found[-1].append("".join(parts))
        return found

    @property
    def folds(self):
        """What stands under each run's name: the command, and settings by name."""
        found = {}
        for tag, _, parts in self.texts:
            text = "".join(parts)
            if tag == "summary":
                found[text] = last = {}
            elif tag == "dt":
                last[text] = None
            elif tag == "dd":
                last[next(reversed(last))] = text
            elif tag == "code":
                last["command"] = text
        return found


def whole(page):
    """Parsed, and nothing wrong with it."""
    parsed = Page(page)
    assert parsed.wrong == []
    ids = parsed.attributes("id")
    assert len(set(ids)) == len(ids)
    assert all(target.removeprefix("#") in ids for target in parsed.attributes("href") if target.startswith("#"))
    return parsed


def report_page_of(folder, **options):
    return html.report_page(runs.find_all([folder]), steadygrad.__version__, **options)


@pytest.fixture(autouse=True)
def one_thread(same_start):
    """Networks this small gain nothing from a second."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three small networks, two seeds each, as `reproduce` leaves them."""
    folder = tmp_path_factory.mktemp("runs")
    torch.set_num_threads(1)
    rows = reproduce(
        read("paper", PAPER).recipes, scale="paper", seeds=2, out=folder, callbacks=lambda *_: [Observer()]
    )
    assert [[run["status"] for run in row["runs"]] for row in rows] == [["done"] * 2, ["done"] * 2, ["done"] * 2]
    (folder / "paper" / "table" / "table.json").write_text(json.dumps(rows), "utf-8")
    return folder


@pytest.fixture(scope="module")
def page(trained):
    return report_page_of(trained, title="All of them")


def write_run(folder, layer="gru", task="copy", seed=0, values=(2.0, 1.0), portrait=None, observations=(), **result):
    """A run's files without a run; a layer and a task are a name or a table."""
    folder.mkdir(parents=True)
    rows = [{"step": 10 * i, "split": "valid", "loss": v, "accuracy": v / 2} for i, v in enumerate(values, 1)]
    found = {
        "layer": {"name": layer, "hidden_size": 8} if isinstance(layer, str) else layer,
        "task": {"name": task, "delay": 5} if isinstance(task, str) else task,
        "train": {"steps": 20},
        "seed": seed,
        "parameters": 100,
        "steps": 20,
        "best": {"step": 20, "loss": 0.5, "accuracy": 0.9},
        "final": {"step": 10 * len(values), "loss": 0.5, "accuracy": 0.9} if values else None,
        "score": "accuracy",
        "guessing_loss": 0.17,
        "wall_seconds": 1.5,
        "status": "done",
    }
    (folder / "result.json").write_text(json.dumps(found | result))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if portrait is not None:
        (folder / "portrait.json").write_text(json.dumps(portrait))
    if observations:
        (folder / "observations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in observations))
    return folder


def look(step, value=0.5):
    seen = {"eigenvalues": [[value], [0.0]], "radius": value, "orthogonality_error": value, "departure": 0.0}
    return {"step": step, "matrices": {"W": seen}}


def small_portrait(value=0.5):
    """As little of a portrait as shows whose it is."""
    return {"step": 20, "output_gradients": [value, 1.0]}


def paper_row(row="gru", values=(0.5,), **rest):
    found = [{"seed": i, "status": "done", "value": value, "seconds": 1.0} for i, value in enumerate(values)]
    return {
        "paper": "p",
        "table": "t",
        "row": row,
        "caption": "Copy",
        "scale": "desk",
        "reduced": "",
        "metric": "loss",
        "attained": "min",
        "counts": "best",
        "printed_parameters": "",
        "parameters": 100,
        "guessing_loss": 0.17,
        "published": 0.5,
        "runs": found,
        "note": "",
    } | rest


def write_table(folder, *rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.json").write_text(json.dumps(rows), "utf-8")


# one file that is well made and asks for nothing


def test_page_is_valid_accessible_html(page):
    parsed = whole(page)
    assert page.startswith("<!doctype html>")
    assert [found for tag, found in parsed.tags if tag == "html"] == [{"lang": "en"}]
    assert {"charset": "utf-8"} in [found for tag, found in parsed.tags if tag == "meta"]
    assert parsed.all("title") == parsed.all("h1") == ["All of them"]
    assert len(parsed.all("main")) == 1
    assert all(found.get("scope") in ("col", "row") for tag, found in parsed.tags if tag == "th")
    assert len(parsed.all("figcaption")) == len(parsed.charts) > 8
    assert f"Written by steadygrad {steadygrad.__version__}." in parsed.all("p")


def test_page_loads_no_external_resources(page):
    parsed = whole(page)
    for tag, found in parsed.tags:
        assert not LOADS & found.keys(), tag
        assert not [name for name in found if name.startswith("on")], tag
        assert tag not in ("iframe", "object", "embed", "base", "form", "img")
    targets = parsed.attributes("href")
    assert len(targets) > 5
    assert all(target.startswith("#") or target == "data:," for target in targets)
    (rules,) = [
        found["content"] for _, found in parsed.tags if found.get("http-equiv", "").lower() == "content-security-policy"
    ]
    rules = dict(rule.split(maxsplit=1) for rule in rules.split("; "))
    assert rules["default-src"] == "'none'"
    assert not any("http" in rule or "*" in rule or "'self'" in rule for rule in rules.values())
    (style,) = parsed.all("style")
    assert not re.search(r"url\(|@import|https?:", style)
    code = parsed.all("script")[-1]
    assert set(re.findall(r"https?://[^\"'` ]+", code)) <= {"http://www.w3.org/2000/svg"}  # a name, never asked for
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|eval|innerHTML)\b", code
    )


def test_page_is_written_as_single_file(trained, tmp_path):
    html.write(report_page_of(trained), tmp_path / "there" / "page.html")
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "page.html"]
    assert (tmp_path / "there" / "page.html").read_text("utf-8") == report_page_of(trained)


def test_page_lists_command_settings_and_versions_of_each_run(page, trained):
    folds = whole(page).folds
    found = runs.find([trained])
    assert len(found) == 6
    names = [f"{row} seed {seed}" for row in ("zebra", "antelope", "lion") for seed in (0, 1)]
    for run in found:
        name = f"{run.path.parent.name} seed {run.seed}"
        assert name in names
        fold = folds[name]
        assert fold["command"] == run.command
        for table in ("layer", "task", "train"):
            for key, value in run.result[table].items():
                assert fold[f"{table}.{key}"] == str(value)
        assert fold["version of torch"] == torch.__version__
        assert fold["version of steadygrad"] == steadygrad.__version__
        assert fold["version of python"].startswith("3.")
        assert fold["seed"] == str(run.seed)
        assert fold["status"] == "done"
        assert fold["directory"] == run.path.as_posix()
    assert [name for name in folds if "command" in folds[name]] == names  # as the paper has them


def test_curves_contain_every_evaluation(page, trained):
    parsed = whole(page)
    for metric in ("loss", "accuracy"):
        chart = parsed.chart(f"Validation {metric}")
        for run in runs.find([trained]):
            name = f"{run.path.parent.name} seed {run.seed}"
            (series,) = [series for series in chart["series"] if series["name"] == name]
            assert (series["x"], series["y"]) == (run.curve(metric).x, run.curve(metric).y)
            assert series["x"] == [3, 6]
    assert parsed.chart("Validation loss")["log"]
    guess = {run.result["guessing_loss"] for run in runs.find([trained])}
    assert {mark["y"] for mark in parsed.chart("Validation loss")["marks"]} == guess
    assert parsed.chart("Validation accuracy")["bounds"] == [0, 1]


def test_page_charts_contain_portrait_values(page, trained):
    parsed = whole(page)
    first = {run.path.parent.name: run for run in runs.find([trained]) if run.seed == 0}
    for key, title in (
        ("output_gradients", "Gradient of the last output"),
        ("loss_gradients", "Gradient of the loss"),
        ("exponents", "Lyapunov exponents"),
    ):
        drawn = {series["name"]: series["y"] for series in parsed.chart(title)["series"]}
        assert drawn == {name: run.portrait[key] for name, run in first.items()}
    maps = {panel["name"]: panel["rows"] for panel in parsed.chart("What the state still knows")["panels"]}
    assert list(maps) == ["zebra", "antelope", "lion, long", "lion, short"]
    assert maps["lion, long"] == first["lion"].portrait["input_maps"]["long"]
    plane = parsed.chart("Eigenvalues")["panels"]
    gates = [f"antelope: {gate}_l0" for gate in ("reset", "update", "candidate")]
    assert [panel["name"] for panel in plane] == ["zebra: recurrent_l0", *gates, "lion: recurrent_l0"]
    for panel in plane:
        name, matrix = panel["name"].split(": ")
        rows = first[name].observations
        assert [frame["step"] for frame in panel["frames"]] == [row["step"] for row in rows] == [0, 3, 6]
        assert [[frame["re"], frame["im"]] for frame in panel["frames"]] == [
            row["matrices"][matrix]["eigenvalues"] for row in rows
        ]
    (schur,) = first["zebra"].portrait["schur"].values()
    drawn = parsed.chart("|T| of zebra")
    assert drawn["panels"][0]["rows"] == [[abs(v) for v in row] for row in schur["T"]]
    assert sum(parsed.chart("Angles of the rotations: zebra")["values"]) == len(schur["angles"]) == 2
    bound = parsed.chart("Gain of one step and its bound: antelope")
    assert [series["y"] for series in bound["series"]] == [
        first["antelope"].portrait["gates"][k] for k in ("true", "bound")
    ]
    neumann = parsed.chart("Norm that the Neumann series needs")
    assert [series["name"] for series in neumann["series"]] == ["antelope"]
    assert neumann["series"][0]["y"] == first["antelope"].curve("neumann_norm").y
    findings = [finding["what"] for run in first.values() for finding in run.portrait["findings"]]
    assert findings
    assert set(findings) <= {row[1] for row in parsed.rows if len(row) == 4}


@pytest.mark.parametrize("name", LAYERS)
def test_eigenvalue_chart_contains_exactly_the_eigenvalues(name):
    """The page puts conjugates beside what is ``mirrored``, which is right for a real matrix alone."""
    layer = LAYERS[name](3, 4)
    page = html.portrait_page(name, finite(portrait(layer, torch.randn(3, 3))), "1")
    panels = whole(page).chart("Eigenvalues")["panels"]
    for panel, W in zip(panels, layer.eval().matrices().values(), strict=True):
        (frame,) = panel["frames"]
        drawn = [complex(re, im) for re, im in zip(frame["re"], frame["im"], strict=True)]
        drawn += [value.conjugate() for value in drawn if value.imag > 0] if panel["mirrored"] else []
        values = torch.linalg.eigvals(W.detach())
        assert len(drawn) == len(values)
        assert (values[:, None] - torch.tensor(drawn)).abs().min(dim=0).values.max() < 1e-4


def test_page_shows_attention_map_and_summary_per_level():
    layer = LAYERS["relrnn"](3, 4, num_layers=2, short=3, relevant=2)
    drawn = finite(portrait(layer, torch.randn(15, 3)))
    parsed = whole(html.portrait_page("mine", drawn, "1"))
    chart = parsed.chart("Attention of each step")
    assert [panel["name"] for panel in chart["panels"]] == ["mine, level 0", "mine, level 1"]
    for panel, found in zip(chart["panels"], drawn["attention"], strict=True):
        assert (panel["rows"], panel["kept"], panel["every"]) == (found["map"], found["kept"], 1)
        kept = ", ".join(map(str, found["kept_at_end"]))
        share = f"{100 * found['share_of_kept']:.3g} %"
        assert [panel["name"], f"{found['reach']:.3g}", share, kept] in parsed.rows
    assert len(drawn["attention"][0]["kept_at_end"]) == 2
    assert not [chart for chart in parsed.charts if chart["title"].startswith(("What the state", "Lyapunov"))]


def test_attention_charts_over_training_contain_observations(tmp_path):
    def seen(step, reach, share):
        level = {"reach": reach, "share_of_kept": share, "kept_at_end": []}
        return {"step": step, "matrices": {}, "attention": [level]}

    observed = [seen(0, 3.0, 0.1), seen(10, 7.0, 0.5), {"step": 20, "failed": "why"}]
    drawn = {"every": 1, "attention": [{"map": [[None]], "kept": [], "reach": None, "share_of_kept": 0.0}]}
    drawn["attention"][0]["kept_at_end"] = []
    write_run(tmp_path / "a", "relrnn", portrait=drawn, observations=observed)
    write_run(tmp_path / "b", "memrnn", portrait=drawn, observations=[seen(0, 1.0, None)])
    parsed = whole(report_page_of(tmp_path))
    reach = parsed.chart("How far back attention reaches")["series"]
    assert [(one["name"], one["x"], one["y"]) for one in reach] == [
        ("relrnn", [0, 10], [3.0, 7.0]),
        ("memrnn", [0], [1.0]),
    ]
    (share,) = parsed.chart("Attention to states kept as relevant")["series"]
    assert share["y"] == [0.1, 0.5]
    assert ["relrnn", "–", "0 %", "–"] in parsed.rows


def test_page_shows_relation_matrix(page):
    found = {"matrix": [[1.0, 0.0], [-0.006, None]], "images": [], "answer": 1, "answered": 0}
    parsed = whole(html.portrait_page("a<b", {"similarity": found}, "1"))
    assert "How it relates objects" in parsed.all("h2")
    assert parsed.all("caption") == ["a<b: answers 0, right is 1"]
    assert parsed.rows == [["object", "1", "2"], ["1", "1.00", ""], ["2", "-0.01", "–"]]
    assert "How it relates objects" not in whole(page).all("h2")


def test_page_without_attention_has_no_attention_section(page):
    assert "What it attends to" not in whole(page).all("h2")


@pytest.mark.parametrize(
    ("angles", "bins"), [([0.0], [0]), ([0.4], [1]), ([math.pi, 3.2], [8, 8]), ([6.28], [15]), ([2 * math.pi], [0])]
)
def test_angle_histogram_wraps_at_two_pi(angles, bins):
    counts = charts.angle_counts(angles)
    assert (sum(counts), len(counts)) == (len(angles), 16)
    assert all(counts[b] == bins.count(b) for b in bins)


# order and colours


def test_rows_are_in_order_of_paper(page):
    parsed = whole(page)
    names = [f"{row} seed {seed}" for row in ("zebra", "antelope", "lion") for seed in (0, 1)]
    first = [row[0] for row in parsed.rows]
    place = first.index("run")
    assert first[place + 1 : place + 7] == names
    assert [series["name"] for series in parsed.chart("Validation loss")["series"]] == names
    place = first.index("row")
    assert first[place + 1 : place + 4] == ["zebra", "antelope", "lion"]


def test_runs_are_grouped_by_task_with_unlisted_runs_last(tmp_path):
    for row in ("b", "a", "c"):
        write_run(tmp_path / "t" / row / "seed-0", row)
    write_run(tmp_path / "other", "alone")
    write_run(tmp_path / "more", "more", task="adding")
    write_table(tmp_path / "t", paper_row("b"), paper_row("a"), paper_row("c"))
    found = html.in_order(*runs.find_all([tmp_path])[:2])
    assert [(run.task, run.layer) for run in found] == [
        ("adding", "more"),
        ("copy", "b"),
        ("copy", "a"),
        ("copy", "c"),
        ("copy", "alone"),
    ]


def test_rows_of_one_table_stay_together(tmp_path):
    """Two papers that have the same task."""
    for table, rows in (("p1", ("z", "y")), ("p2", ("b", "a"))):
        for row in rows:
            write_run(tmp_path / table / row / "seed-0", row)
        write_table(tmp_path / table, *map(paper_row, rows))
    found = html.in_order(*runs.find_all([tmp_path])[:2])
    assert [run.layer for run in found] == ["z", "y", "b", "a"]


def test_seeds_share_colour_and_portrait(page):
    parsed = whole(page)
    colours = {}
    for chart in parsed.charts[:2]:
        for series in chart["series"]:
            colours.setdefault(series["name"].split(" seed ")[0], set()).add(series["colour"])
    assert colours == {"zebra": {0}, "antelope": {1}, "lion": {2}}
    inside = parsed.chart("Gradient of the loss")["series"]
    assert [(series["name"], series["colour"]) for series in inside] == [("zebra", 0), ("antelope", 1), ("lion", 2)]


def test_portrait_is_from_first_seed_that_has_one(tmp_path):
    for seed, drawn in enumerate([None, small_portrait(0.25), small_portrait(0.75)]):
        write_run(tmp_path / f"{seed}", seed=seed, portrait=drawn)
    (series,) = whole(report_page_of(tmp_path)).chart("Gradient of the last output")["series"]
    assert (series["name"], series["y"]) == ("gru", [0.25, 1.0])


def test_observations_of_one_seed_are_shown(tmp_path):
    """Its portrait is not there yet; the other seed has only just begun."""
    write_run(tmp_path / "0", seed=0, observations=[look(0), look(10)])
    write_run(tmp_path / "1", seed=1)
    assert whole(report_page_of(tmp_path)).chart("Distance from orthogonal")["series"][0]["x"] == [0, 10]


def test_runs_with_different_settings_are_separate_groups(tmp_path):
    """Colours, names and portraits of their own; the seeds of each still share theirs."""
    for seed, (delay, lr) in enumerate([(5, 0.1), (9, 0.1), (9, 0.2), (9, 0.2)]):
        task = {"name": "copy", "delay": delay, "shapes_seed": seed}
        write_run(
            tmp_path / str(seed), task=task, seed=seed, train={"steps": 20, "lr": lr}, portrait=small_portrait(seed)
        )
    names = ["gru, delay 5", "gru, delay 9, lr 0.1", "gru, delay 9, lr 0.2"]
    parsed = whole(report_page_of(tmp_path))
    curves = [(one["name"], one["colour"]) for one in parsed.chart("Validation loss")["series"]]
    seeds = [f"{names[group]} seed {seed}" for seed, group in enumerate((0, 1, 2, 2))]
    assert curves == list(zip(seeds, (0, 1, 2, 2), strict=True))
    inside = parsed.chart("Gradient of the last output")["series"]
    assert [(one["name"], one["colour"], one["y"][0]) for one in inside] == [(n, i, i) for i, n in enumerate(names)]


def test_missing_setting_of_older_version_does_not_split_group(tmp_path):
    write_run(tmp_path / "old", train={"steps": 20})
    write_run(tmp_path / "new", seed=1, train={"steps": 20, "frames": None})
    assert sorted(runs.labels(runs.find([tmp_path]))) == ["gru seed 0", "gru seed 1"]


def test_labels_distinguish_same_row_name_in_two_tables(tmp_path):
    for table, delay in (("short", 5), ("long", 9)):
        for seed in (0, 1):
            write_run(tmp_path / table / "ours" / f"seed-{seed}", task={"name": "copy", "delay": delay}, seed=seed)
    names = {f"ours, delay {delay} seed {seed}" for delay in (5, 9) for seed in (0, 1)}
    assert set(runs.labels(runs.find([tmp_path]))) == names
    write_run(tmp_path / "other" / "ours" / "seed-0", "lstm")
    assert "ours lstm seed 0" in runs.labels(runs.find([tmp_path]))


def test_group_of_strips_only_numeric_seed_suffix():
    assert runs.group_of("gru copy seed 12") == "gru copy"
    assert runs.group_of("gru") == "gru"
    for folder in ("a seed is sown", "with seed a/run", "my seed 3 runs/b"):
        assert runs.group_of(folder) == folder


def test_run_found_twice_is_listed_once(tmp_path):
    write_run(tmp_path / "a")
    assert [run.path for run in runs.find([tmp_path, tmp_path / "a"])] == [tmp_path / "a"]


def test_part_name_formats_state_block():
    assert runs.part_name("enrnn", "state") == "enrnn"
    assert runs.part_name("enrnn", "long") == "enrnn, long"


def test_level_name_formats_level_index():
    assert runs.level_name("relrnn", 0, ["one"]) == "relrnn"
    assert runs.level_name("relrnn", 1, ["one", "two"]) == "relrnn, level 1"


def test_distinct_paths_returns_shortest_unique_paths(tmp_path):
    found = [runs.read(write_run(tmp_path / name)) for name in ("x/a", "x/b/c")]
    assert runs.distinct_paths(found) == [Path("a"), Path("b/c")]


# runs with little to show


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"portrait": {}},
        {"portrait": {"step": 3, "failed": "one direction only"}},
        {"observations": [look(0), {"step": 10, "failed": "NaN"}]},
        {"observations": [{"step": 0, "failed": "NaN"}]},
        {"portrait": small_portrait(), "observations": [look(0)]},
        {"values": ()},
        {"status": "diverged", "why": "at update 3", "best": None, "values": ()},
        {"portrait": {"step": 0, "output_gradients": [None, 0.0], "every": 1, "input_maps": {"state": [[None]]}}},
    ],
)
def test_page_of_incomplete_run_is_valid(tmp_path, parts):
    write_run(tmp_path / "run", **parts)
    parsed = whole(report_page_of(tmp_path))
    assert "gru" in parsed.folds
    texts = " ".join(parsed.all("p"))
    assert ("gru could not be measured: one direction only" in texts) == ("failed" in parts.get("portrait", {}))
    assert parsed.folds["gru"].get("why") == parts.get("why")


@pytest.mark.parametrize("content", ["", "{", "[1]", "3", '"x"'])
def test_find_names_an_invalid_portrait(tmp_path, content):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "portrait.json").write_text(content)
    with pytest.raises(ValueError, match=r"run/portrait\.json is not a portrait: "):
        runs.find([tmp_path])


# files that cannot be read


PARTS = {
    "portrait.json": ('{"output_gradients": 3}', "is not a portrait: output_gradients expects a list; got 3"),
    "observations.jsonl": ('{"matrices": {}}\n', "is not a run's observations: line 1: a row has no step"),
    "metrics.jsonl": ('{"step": 1}\n', "is not a run's metrics: line 1: a row has no split"),
}


@pytest.mark.parametrize("name", PARTS)
def test_page_shows_run_without_its_invalid_part(tmp_path, name):
    content, reason = PARTS[name]
    for layer in ("gru", "lstm"):
        write_run(tmp_path / layer, layer, portrait=small_portrait(), observations=[look(0), look(10)])
    (tmp_path / "lstm" / name).write_text(content)
    parsed = whole(report_page_of(tmp_path))
    line = f"{tmp_path / 'lstm' / name} {reason}; the run is shown without it"
    assert line in parsed.all("p")
    assert parsed.folds["lstm"]["problem"] == line
    assert "problem" not in parsed.folds["gru"]
    drawn = {
        "metrics.jsonl": "Validation loss",
        "portrait.json": "Gradient of the last output",
        "observations.jsonl": "Distance from orthogonal",
    }
    for part, title in drawn.items():
        names = {series["name"].split(":")[0] for series in parsed.chart(title)["series"]}
        assert names == ({"gru"} if part == name else {"gru", "lstm"})


@pytest.mark.parametrize("content", ["", "[]", '{"layer": 3}', "[" * 100_000, '{"seed": NaN}', "\udcff"])
def test_page_names_unreadable_run_and_shows_others(tmp_path, content):
    for layer in ("gru", "lstm"):
        write_run(tmp_path / layer, layer)
    (tmp_path / "lstm" / "result.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    parsed = whole(report_page_of(tmp_path))
    assert list(parsed.folds) == ["gru"]
    (line,) = [text for text in parsed.all("p") if "lstm" in text]
    assert line.startswith(f"{tmp_path}/lstm/result.json is not a run's result: ")
    assert parsed.all("h2")[0] == "Problems"


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "observations.jsonl", "portrait.json", "table.json"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_page_names_folder_or_pipe_in_place_of_file(tmp_path, name, make):
    for layer in ("gru", "lstm"):
        write_run(tmp_path / layer, layer, portrait=small_portrait(), observations=[look(0)])
    path = tmp_path / "lstm" / name
    path.unlink(missing_ok=True)
    make(path)
    parsed = whole(report_page_of(tmp_path))
    assert "gru" in parsed.folds
    assert any(text.startswith(f"{path} is not ") and "got a folder, a pipe" in text for text in parsed.all("p"))


def test_metrics_that_end_before_the_last_evaluation_are_named(tmp_path):
    folder = write_run(tmp_path / "run", values=(3.0, 2.0, 1.0))
    path = folder / "metrics.jsonl"
    assert runs.find_all([tmp_path]).problems == []
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    end = "the last evaluation in result.json is at update 30"
    assert runs.find_all([tmp_path]).problems == [f"{path} ends at update 20; {end}"]
    path.write_text("")
    assert runs.find_all([tmp_path]).problems == [f"{path} has no evaluation; {end}"]


def test_folder_name_that_is_not_utf8_is_shown_escaped(tmp_path):
    for name in (b"a\xff", b"b"):
        write_run(tmp_path / os.fsdecode(name))
    html.write(report_page_of(tmp_path), tmp_path / "page.html")
    assert r"a\udcff" in whole((tmp_path / "page.html").read_text("utf-8")).folds


def test_measurements_of_many_networks_are_left_out_by_name(tmp_path, monkeypatch):
    for layer in ("gru", "lstm", "rnn"):
        write_run(tmp_path / layer, layer, portrait=small_portrait())
    monkeypatch.setattr(html, "MEASURED", 2 * len(json.dumps([small_portrait(), []])))
    parsed = whole(report_page_of(tmp_path))
    assert [one["name"] for one in parsed.chart("Gradient of the last output")["series"]] == ["gru", "lstm"]
    (line,) = [text for text in parsed.all("p") if text.startswith("Measurements are left out")]
    assert line.endswith(": rnn.")


def test_portrait_page_of_single_network():
    parsed = whole(html.portrait_page("LSTM", small_portrait(), "1.2"))
    assert parsed.all("h1") == ["Diagnosis: LSTM"]
    assert parsed.chart("Gradient of the last output")["series"][0]["name"] == "LSTM"
    assert "steadygrad 1.2" in parsed.attributes("content")


# names that look like markup

MARKUP_TEXTS = [
    "<script>alert(1)</script>",
    "\"&'",
    "</script>",
    "a\u2028b\u2029c",
    "<!--",
    "]]>",
    "&lt;",
    "{{ 7 * 7 }}",
    "é☃",
]
ALL_MARKUP_TEXTS = " ".join(MARKUP_TEXTS)


@pytest.fixture
def nasty(tmp_path):
    """Every text that a file can bring in is nasty; what names a folder has no slash in it, but two folders have."""
    folder, name = tmp_path / "<x>\"&'", "<script>alert(1)<"
    matrix = look(0)["matrices"]["W"] | {"powers": [1.0, 0.5]}
    portrait = {
        "step": 0,
        "every": 1,
        "input_maps": {ALL_MARKUP_TEXTS: [[0.0], [0.0, 0.0]]},
        "output_gradients": [1.0],
        "numbers": {ALL_MARKUP_TEXTS: 1.0},
        "findings": [{"what": ALL_MARKUP_TEXTS, "advice": ALL_MARKUP_TEXTS, "sure": ALL_MARKUP_TEXTS}],
        "matrices": {ALL_MARKUP_TEXTS: matrix},
    }
    schur = {"T": [[0.5]], "angles": [1.0], "moduli": [1.0], "transient_share": 0.5, "mean_by_subdiagonal": []}
    observations = [{"step": step, "matrices": {ALL_MARKUP_TEXTS: matrix}} for step in (0, 10)]
    result = {
        "layer": {"name": ALL_MARKUP_TEXTS, "hidden_size": 8, ALL_MARKUP_TEXTS: ALL_MARKUP_TEXTS},
        "task": {"name": ALL_MARKUP_TEXTS, "delay": ALL_MARKUP_TEXTS},
        "train": {"steps": [ALL_MARKUP_TEXTS, {ALL_MARKUP_TEXTS: ALL_MARKUP_TEXTS}]},
        "why": ALL_MARKUP_TEXTS,
        "status": ALL_MARKUP_TEXTS,
        "versions": {ALL_MARKUP_TEXTS: ALL_MARKUP_TEXTS},
        "commit": ALL_MARKUP_TEXTS,
    }
    for end in ("script>one", "script>two"):
        write_run(folder / name / end, portrait=portrait, observations=observations, **result)
    write_run(folder / "a\u2028b" / "seed-0", portrait={"step": 0, "failed": ALL_MARKUP_TEXTS}, **result)
    write_run(folder / "c" / "seed-0", portrait={"step": 0, "schur": {ALL_MARKUP_TEXTS: schur, "W": schur}}, **result)
    runs_of_row = [{"seed": 0, "status": ALL_MARKUP_TEXTS, "why": ALL_MARKUP_TEXTS, "value": 1.0, "seconds": 1.0}]
    keys = ("paper", "table", "caption", "metric", "scale", "reduced", "note", "printed_parameters")
    texts = dict.fromkeys(keys, ALL_MARKUP_TEXTS)
    rows = [paper_row(ALL_MARKUP_TEXTS, **texts, runs=runs_of_row)]
    write_table(folder, *rows)
    return folder


def strings(value):
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


def test_texts_are_escaped_and_add_no_markup(nasty, page):
    text = report_page_of(nasty, title=ALL_MARKUP_TEXTS)
    parsed, plain = whole(text), whole(page)
    assert {tag for tag, _ in parsed.tags} <= {tag for tag, _ in plain.tags}
    assert {name for _, found in parsed.tags for name in found} <= {name for _, found in plain.tags for name in found}
    assert len(parsed.all("script")) == 2
    assert parsed.all("script")[1] == plain.all("script")[1]
    assert parsed.all("style") == plain.all("style")
    assert "alert(1)" in text
    assert "<script>alert" not in text
    block = text[text.index('id="data">') : text.rindex("<script>")]
    assert "\u2028" not in block
    assert "\u2029" not in block
    assert block.count("<") == 1  # its own end
    assert "49" not in parsed.all("h1")[0]


def test_escaped_texts_are_displayed_unchanged(nasty):
    parsed = whole(report_page_of(nasty, title=ALL_MARKUP_TEXTS))
    assert parsed.all("h1") == parsed.all("title") == [ALL_MARKUP_TEXTS]
    assert f"Runs: {ALL_MARKUP_TEXTS}" in parsed.all("h2")
    assert f"{ALL_MARKUP_TEXTS}/{ALL_MARKUP_TEXTS}: {ALL_MARKUP_TEXTS}" in parsed.all("caption")
    assert f"{ALL_MARKUP_TEXTS}/{ALL_MARKUP_TEXTS}: {ALL_MARKUP_TEXTS}" in parsed.attributes("aria-label")
    notes = parsed.all("p")
    assert f"- {ALL_MARKUP_TEXTS}: {ALL_MARKUP_TEXTS}" in notes
    assert f"- {ALL_MARKUP_TEXTS}, seed 0: {ALL_MARKUP_TEXTS}: {ALL_MARKUP_TEXTS}" in notes
    assert f"Scale {ALL_MARKUP_TEXTS}: {ALL_MARKUP_TEXTS}." in notes
    assert f"a\u2028b/seed-0 could not be measured: {ALL_MARKUP_TEXTS}" in notes
    names = ["<script>alert(1)</script>one", "<script>alert(1)</script>two", "a\u2028b/seed-0", "c/seed-0"]
    folds = parsed.folds
    assert set(names) < folds.keys()
    for name in names:
        assert (
            folds[name]["why"] == folds[name]["commit"] == folds[name][f"layer.{ALL_MARKUP_TEXTS}"] == ALL_MARKUP_TEXTS
        )
        assert folds[name][f"version of {ALL_MARKUP_TEXTS}"] == ALL_MARKUP_TEXTS
        assert shlex.split(folds[name]["command"])[2:4] == [ALL_MARKUP_TEXTS, ALL_MARKUP_TEXTS]
    assert [names[0], ALL_MARKUP_TEXTS, ALL_MARKUP_TEXTS, ALL_MARKUP_TEXTS] in parsed.rows  # a finding


def test_chart_names_with_markup_are_unchanged(nasty):
    parsed = whole(report_page_of(nasty))
    found = strings({chart["id"]: chart for chart in parsed.charts})
    one, two = "<script>alert(1)</script>one", "<script>alert(1)</script>two"
    for text in (
        one,
        two,
        f"{one}, {ALL_MARKUP_TEXTS}",
        f"{one}: {ALL_MARKUP_TEXTS}",
        "a\u2028b/seed-0",
        f"Angles of the rotations: c/seed-0: {ALL_MARKUP_TEXTS}",
    ):
        assert text in found
    assert {series["name"] for series in parsed.chart("Validation loss")["series"]} == {
        one,
        two,
        "a\u2028b/seed-0",
        "c/seed-0",
    }
    assert f"|T| of c/seed-0: {ALL_MARKUP_TEXTS}: 50 % of the Schur form's norm" in [
        caption.split(" Non-zero")[0].strip() for caption in parsed.all("figcaption")
    ]


TEXTS = st.text() | st.text("<>&'\"/!-\u2028\u2029script\\")


@given(
    st.recursive(
        TEXTS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        max_leaves=8,
    )
)
def test_script_json_round_trips_and_contains_no_markup(value):
    text = html.script_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)
    (block,) = Page(f"<script>{text}</script>").all("script")
    assert block == text


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf]])
def test_script_json_rejects_nan_and_infinity(value):
    with pytest.raises(ValueError, match="JSON"):
        html.script_json(value)


# papers


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"values": (0.5,)}, "pass"),  # as good
        ({"values": (0.4,)}, "pass"),
        ({"values": (0.6,)}, "miss"),
        ({"values": (0.1, 0.4, 9.0)}, "pass"),  # the median
        ({"values": (0.1, 0.6, 9.0)}, "miss"),
        ({"values": (0.4, None)}, "pass"),
        ({"values": (0.6,), "attained": "max"}, "pass"),
        ({"values": (0.5,), "attained": "max"}, "pass"),
        ({"values": (0.4,), "attained": "max"}, "miss"),
        ({"values": (0.0,), "published": 0.0}, "pass"),
        ({"values": (0.1,), "published": 0.0}, "miss"),
        ({"values": (0.4,), "scale": "smoke"}, "–"),
        ({"values": (0.4,), "scale": "paper"}, "pass"),
        ({"values": ()}, "–"),  # not run
        ({"values": (None,)}, "–"),
        ({"values": (0.4,), "published": None}, "–"),
    ],
)
def test_verdict_compares_median_with_published_value(tmp_path, changes, expected):
    row = paper_row(**changes)
    assert tables.verdict(row) == expected
    write_run(tmp_path / "run")
    write_table(tmp_path, row, paper_row("other"))  # so that somebody has a printed number
    parsed = whole(report_page_of(tmp_path))
    header, first, _ = parsed.rows[:3]
    assert (header[-1], first[-1]) == ("verdict", expected)
    assert [found.get("class") for tag, found in parsed.tags if tag == "td"][len(header) - 2] == {"–": None}.get(
        expected, expected
    )


def test_table_without_published_values_has_no_verdict_column(tmp_path):
    write_run(tmp_path / "run")
    write_table(tmp_path, paper_row(published=None))
    assert "verdict" not in whole(report_page_of(tmp_path)).rows[0]


def test_page_contains_paper_table_with_verdicts(page):
    parsed = whole(page)
    assert "paper/table: Copy, T = 2" in parsed.all("caption")
    verdicts = {row[0]: row[-1] for row in parsed.rows[1:4]}
    assert verdicts == {"zebra": "pass", "antelope": "miss", "lion": "–"}


def test_page_contains_transfer_table(tmp_path):
    write_run(tmp_path / "run")
    tests = {"trained_on": "delay 5", "transfer": [{"name": "delay 9", "published": 0.75}]}
    row = paper_row(**tests)
    row["runs"][0]["transfer"] = [{"name": "delay 9", "value": 0.25, "examples": 20}]
    write_table(tmp_path, row)
    parsed = whole(report_page_of(tmp_path))
    assert parsed.all("caption")[:2] == ["p/t: Copy", "p/t: on other settings"]
    assert parsed.rows[2:4] == [
        ["loss: paper / ours", "trained: delay 5", "delay 9"],
        ["gru", "0.5 / 0.5", "0.75 / 0.25"],
    ]
    assert any("20 sequences a number" in text for text in parsed.all("p"))


def invalid_table_contents():
    """What a table may hold after somebody had it in an editor."""
    row = paper_row()
    (run,) = row["runs"]
    found = {content: content for content in ("", "{", "3", "null", "[3]", '{"a": 1}')}
    for key in row.keys() - {"guessing_loss"}:
        found[f"no {key}"] = json.dumps([{k: v for k, v in row.items() if k != key}])
    for key in ("status", "value", "seconds"):
        found[f"a run without {key}"] = json.dumps([row | {"runs": [{k: v for k, v in run.items() if k != key}]}])
    for value in (None, 3, "x", [3]):
        found[f"runs {value}"] = json.dumps([row | {"runs": value}])
    found["published a word"] = json.dumps([row | {"published": "high"}])
    test, done = {"name": "delay 9", "published": 0.5}, {"name": "delay 9", "value": 0.5, "examples": 20}
    for key in test:
        found[f"a test without {key}"] = json.dumps(
            [row | {"trained_on": "x", "transfer": [{k: v for k, v in test.items() if k != key}]}]
        )
    found["tests of what was trained on nothing"] = json.dumps([row | {"transfer": [test]}])
    for key in done:
        cut = {k: v for k, v in done.items() if k != key}
        found[f"a done test without {key}"] = json.dumps([row | {"runs": [run | {"transfer": [cut]}]}])
    found["tests 3"] = json.dumps([row | {"transfer": 3}])
    found["value a word"] = json.dumps([row | {"runs": [run | {"value": "high"}]}])
    return dict(sorted(found.items()))


@pytest.mark.parametrize("content", invalid_table_contents().values(), ids=invalid_table_contents())
def test_page_names_invalid_table_and_shows_runs(tmp_path, content):
    write_run(tmp_path / "run")
    (tmp_path / "table.json").write_text(content)
    parsed = whole(report_page_of(tmp_path))
    assert parsed.all("h2")[:2] == ["Problems", "Runs: copy"]
    assert any(text.startswith(f"{tmp_path}/table.json is not a table of reproduce: ") for text in parsed.all("p"))
    assert "gru" in parsed.folds


def test_empty_table_file_is_ignored(tmp_path):
    write_run(tmp_path / "run")
    write_table(tmp_path)
    assert runs.find_all([tmp_path]).papers == []
    assert "verdict" not in report_page_of(tmp_path).split("<main")[1].split("<script")[0]


# the command that makes a run again


NESTED_MATRICES = {
    "gates": ("gru", {"candidate": "neumann", "reset": {"name": "schur", "in_block": True}, "update": "free"}),
    "a table": ("rnn", {"name": "longshort", "short_size": 2, "epsilon": 1e-05, "coupling": False}),
    "a word": ("lstm", "cayley"),
}


def command_and_result(settings):
    """As a run with these settings would leave them."""
    trainer = Trainer(settings, RunDirectory("nowhere"), (), "cpu")
    result = json.loads(json.dumps(trainer.result("done", None)))
    return shlex.split(runs.Run(Path("run"), result).command), result


def said(table):
    return {key: value for key, value in table.items() if value is not None and key != "name"}


@pytest.mark.parametrize(("layer", "recurrent"), NESTED_MATRICES.values(), ids=NESTED_MATRICES)
def test_command_contains_every_setting(layer, recurrent):
    table = {"name": layer, "hidden_size": 5, "recurrent": recurrent}
    train = {"lr": 1e-05, "clip": 1.0, "optimizer": "rmsprop-tf"}
    settings = {"layer": table, "task": {"name": "copy", "delay": 7}, "train": train, "seed": 12}
    words, result = command_and_result(Settings.from_tables(settings))
    assert (words[:4], words[-2:]) == (["steadygrad", "train", layer, "copy"], ["--seed", "12"])
    found = dotted(words[4:-2])
    for key in ("layer", "task", "train"):
        assert said(found[key]) == said(result[key])
    assert found["layer"]["recurrent"] == recurrent


RECIPES_WITH_UNSET_OPTIONS = [
    "enrnn-2020/copying/lstm-68",
    "ncgru-2022/copying/lstm-1000",
    "ncgru-2022/copying/scornn-1000",
    "demo/copy/rnn",
]


@pytest.mark.parametrize("name", RECIPES_WITH_UNSET_OPTIONS)
def test_command_of_recipe_reproduces_its_settings(name, monkeypatch):
    """`train` takes what is not said from the nearest paper, so that what is not set has to be said too."""
    monkeypatch.setattr(loop, "commit", lambda: None)
    (recipe,) = experiments.select(name)
    words, _ = command_and_result(recipe.settings("smoke"))
    given, near = dotted(words[4:-2]), experiments.nearest(*words[2:4])
    tables = {key: near.tables[key] | given.get(key, {}) for key in ("layer", "task", "train")}
    again = Settings.from_tables({**tables, "seed": int(words[-1])})
    assert differences(recipe.settings("smoke").resolved(), again.resolved()) == []


def test_command_reproduces_run_on_command_line(trained, tmp_path, monkeypatch):
    """By the real command line: the same settings, the same numbers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "commit", lambda: None)
    (first,) = [run for run in runs.find([trained]) if (run.path.parent.name, run.seed) == ("lion", 1)]
    assert main([*shlex.split(first.command)[1:], "--out", "again"]) == 0
    again = runs.read(tmp_path / "again")
    for key in ("layer", "task", "train", "seed", "best", "final"):
        assert again.result[key] == first.result[key]
    assert (again.observations, again.portrait) == (first.observations, first.portrait)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -3, 64, 1e-05, 1e22, -0.5, 1e30, True, False, None),
        *("tanh", "rmsprop-tf", "a b", "it's", "ü", "True"),
        *([], [1, 2.5, "a", True], [[1], ["b c"]]),
        *({}, {"name": "schur", "in_block": True}, {"a": {"b": {"c": [1, {"d": 'x"y\\z\n'}]}}}, {"e": 1e-07}),
    ],
)
def test_spelled_value_parses_to_same_value(value):
    found = parse_value(value_text(value))
    assert found == value
    assert type(found) is type(value)


def test_ambiguous_strings_are_quoted():
    words = ["none", "true", "64", "1e-3", '"x"', "[1]", ""]
    assert [parse_value(value_text(word)) for word in words] == words


BARE = st.text(string.ascii_letters + string.digits + "_-", min_size=1)
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]))


@given(
    st.dictionaries(
        BARE,
        st.recursive(PLAIN | WORDS, lambda inner: st.lists(inner) | st.dictionaries(BARE, inner), max_leaves=5),
    )
)
def test_nested_settings_round_trip_through_command(table):
    result = {"layer": {"name": "rnn", "recurrent": table}, "task": {"name": "copy"}, "train": {}, "seed": 0}
    run = runs.Run(Path("run"), result)
    assert dotted(shlex.split(run.command)[4:-2]) == {"layer": {"recurrent": table}}


# writing


def test_partially_written_page_is_removed(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        html.write("good " * 10_000 + "\ud800", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match="page"):
        html.write("new", tmp_path / "page.html")
    assert [path.name for path in tmp_path.rglob("*")] == ["page.html"]


def test_page_is_deterministic(trained):
    assert report_page_of(trained) == report_page_of(trained)
