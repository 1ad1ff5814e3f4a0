"""The pages that are made from files say what the files say."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from steadygrad import experiments
from steadygrad.experiments import StoredResults
from steadygrad.experiments.recipe import OF_ALL_ROWS
from steadygrad.layers import LAYERS
from steadygrad.report import comparison_figures, tables
from steadygrad.tasks import TASKS, ObjectTask
from steadygrad.tasks.relational.games import GAMES
from tests.stored import RESULT

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_page_matches_rendered_results(results):
    """When this fails: make results."""
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert page == results.render(StoredResults(ROOT / "results"), ROOT / "docs")


def test_transfer_results_are_collected_and_shown(results, tmp_path):
    rows = experiments.reproduce(
        experiments.select("relrnn-2020/transfer-copy/lstm"), scale="smoke", out=tmp_path / "runs"
    )
    stored = StoredResults(tmp_path / "results")
    assert list(stored.collect(tmp_path / "runs")) == ["results/relrnn-2020/transfer-copy/lstm/seed-0"]
    (found,) = (tmp_path / "results").glob("**/transfer.json")
    assert found.parent.relative_to(tmp_path).as_posix() == "results/relrnn-2020/transfer-copy/lstm/seed-0"
    lines = results.render(stored, tmp_path).splitlines()
    header = next(line for line in lines if line.startswith("| accuracy: paper / ours |"))
    place = header.strip("| ").split(" | ").index("delay 12")
    line = next(line for line in lines[lines.index(header) :] if line.startswith("| lstm |"))
    cells = line.strip("| ").split(" | ")
    assert cells[place] == f"– / {tables.number(rows[0]['runs'][0]['transfer'][0]['value'])}"


def test_collect_keeps_longer_finished_run(tmp_path):
    place = Path("nnrnn-2019/copy/rnn/seed-0")
    assert experiments.select("nnrnn-2019/copy/rnn")

    def run(folder, steps, status):
        (folder / place).mkdir(parents=True)
        result = RESULT | {"status": status, "steps": steps, "train": {"steps": steps}}
        (folder / place / "result.json").write_text(json.dumps(result), "utf-8")
        settings = f"[layer]\nname = 'rnn'\n[task]\nname = 'copy'\n[train]\nsteps = {steps}\n"
        (folder / place / "settings.toml").write_text(settings, "utf-8")

    said = []
    for folder, steps, status in (("long", 30, "done"), ("short", 20, "done"), ("stopped", 40, "interrupted")):
        run(tmp_path / folder, steps, status)
        said += StoredResults(tmp_path / "results").collect(tmp_path / folder)
    assert json.loads((tmp_path / "results" / place / "result.json").read_text("utf-8"))["steps"] == 30
    assert said == [f"results/{place}", f"results/{place} is kept: the stored run is longer"]


@pytest.mark.parametrize(
    ("words", "collected"),
    [([], []), (["--collect"], ["runs/desk"]), (["--collect", "mine", "yours"], ["mine", "yours"])],
)
def test_collect_option_selects_run_folders(results, tmp_path, monkeypatch, words, collected):
    found = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "desk").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(StoredResults, "collect", lambda self, folder: found.append(folder.as_posix()) or [])
    monkeypatch.setattr(results, "draw_tasks", lambda path: None)
    monkeypatch.setattr(sys, "argv", ["results.py", *words])
    results.main()
    assert found == collected


def results_page_of_smoke_runs(results, patterns, folder, monkeypatch):
    """The page of results of these rows, run as a smoke test with two seeds."""
    monkeypatch.setattr(results, "ROOT", folder)
    monkeypatch.setattr(sys, "argv", ["results.py", "--collect", str(folder / "runs")])
    recipes = [recipe for pattern in patterns for recipe in experiments.select(pattern)]
    callbacks = [experiments.Observer()]
    experiments.reproduce(recipes, scale="smoke", seeds=2, out=folder / "runs", callbacks=lambda *_: callbacks)
    results.main()
    return (folder / "docs" / "results.md").read_text("utf-8")


def test_held_out_figure_is_drawn_from_last_evaluations(results, tmp_path, monkeypatch):
    """Also of some rows of the table alone."""
    draw, drawn = comparison_figures.held_out_accuracy, []
    monkeypatch.setattr(
        comparison_figures, "held_out_accuracy", lambda found, *options: drawn.append(found) or draw(found, *options)
    )
    rows = [f"corelnet-2022/hold-out/same-different-corelnet-{count}" for count in (50, 98)]
    page = results_page_of_smoke_runs(results, rows, tmp_path, monkeypatch)
    assert "(images/corelnet-2022-hold-out-held-out.png)" in page
    assert (tmp_path / "docs" / "images" / "corelnet-2022-hold-out-held-out.png").exists()
    (found,) = drawn
    last = [
        json.loads(path.read_text("utf-8"))["final"]["accuracy"]
        for row in rows
        for path in sorted((tmp_path / "results" / row).glob("*/result.json"))
    ]
    expected = zip((50, 50, 98, 98), last, strict=True)
    assert found == [("same-different", "corelnet", count, value, pytest.approx(0.5)) for count, value in expected]
    assert not list((tmp_path / "results").glob("**/portrait.json"))  # nothing is drawn of it


def test_similarity_figure_is_drawn_only_for_networks_with_relations(results, tmp_path, monkeypatch):
    rows = [f"corelnet-2022/basic/same-different-{network}" for network in ("corelnet", "transformer")]
    page = results_page_of_smoke_runs(results, rows, tmp_path, monkeypatch)
    pictures = [line.split("(images/")[1].rstrip(")") for line in page.splitlines() if "similarity" in line]
    assert pictures == ["corelnet-2022-basic-same-different-corelnet-similarity.png"]
    assert (tmp_path / "docs" / "images" / pictures[0]).exists()
    assert len(list((tmp_path / "results").glob("**/same-different-corelnet/seed-*/portrait.json"))) == 2


def test_task_picture_shows_every_relational_task(results):
    shown = results.relational_tasks()
    assert {type(task) for task in shown.values()} == {task for task in TASKS.values() if issubclass(task, ObjectTask)}
    assert {task.game for task in shown.values() if hasattr(task, "game")} == set(GAMES)
    assert not any(getattr(task, "glyphs", "own") == "data" for task in shown.values())


KINDS = {"reach", "gradients", "attention", "eigenvalues", "schur", "gates", "drift", "similarity"}


def test_data_page_reference_scores_match_measured_values():
    """When this fails: python docs/speech.py."""
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    for name, found in json.loads((ROOT / "results/enrnn-2020/timit/references.json").read_text("utf-8")).items():
        (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", page, re.MULTILINE)
        numbers = [float(cell) for cell in row.split(" | ")]
        assert numbers == pytest.approx([found[key] for key in ("mse", "segsnr", "stoi", "pesq")], abs=0.005, rel=5e-3)


def test_figures_of_recipes_are_known_kinds():
    asked = {kind for recipe in experiments.every() for kind in recipe.figures}
    assert asked <= KINDS | set(OF_ALL_ROWS)


@pytest.mark.parametrize("page", ["acting.md", "relations.md", "layers.md", "speed.md", "seeing.md", "export.md"])
def test_docs_code_blocks_run_and_links_exist(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    namespace = {"__name__": page}
    for block in CODE.findall(text):
        if "module" not in block:  # the reader's own
            exec(block, namespace)
    links = [link for link in re.findall(r"\]\(([^)#]+)", CODE.sub("", text)) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []


def test_stored_results_have_status_commit_and_settings():
    for path in (ROOT / "results").glob("*/*/*/seed-*/result.json"):
        result = json.loads(path.read_text("utf-8"))
        assert result["status"] in ("done", "diverged"), path
        assert result["commit"], path
        assert not result["commit"].endswith("+"), f"{path}: made from a tree with changes"
        assert (path.parent / "settings.toml").exists(), path


VERDICTS = r"(Reproduced(\.| for [^.:]+[.,:])|Partly reproduced: |Not reproduced: |Not comparable: )"


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*/*/remarks.md")), ids=lambda path: path.parent.name)
def test_remarks_begin_with_a_verdict_and_are_short(path):
    text = path.read_text("utf-8")
    assert re.match(VERDICTS, text)
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= 80


def test_learning_rates_page_matches_recipes_and_results():
    """Each row of the table trains the layer with the rates shown, and its table of results shows the number."""
    page = (ROOT / "docs" / "layers.md").read_text("utf-8")
    table = page.split("| layer | optimizer | lr | lr_constrained | row | result |\n")[1].split("\n\n")[0]
    results = (ROOT / "docs" / "results.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]
    assert len(rows) == 10
    for layer, _, lr, constrained, row, result in rows:
        (recipe,) = experiments.select(row)
        settings = recipe.settings()
        assert settings.layer["name"] == layer.strip("`")
        assert settings.train.lr == float(lr)
        if constrained != "–":
            assert float(constrained) == (settings.train.lr_constrained or settings.train.lr)
        section = results.split(f"\n## {row.rsplit('/', 1)[0]}\n")[1].split("\n## ")[0]
        line = next(line for line in section.splitlines() if line.startswith(f"| {row.rsplit('/', 1)[1]} |"))
        value = result.split()[-1]
        shown = [float(number) for number in re.findall(r"\d+\.\d+(?:e-\d+)?", line)]
        assert any(number == pytest.approx(float(value), rel=0.05 if "e-" in value else 1e-3) for number in shown), row


def test_scales_page_has_a_row_for_each_layer():
    page = (ROOT / "docs" / "scales.md").read_text("utf-8")
    assert re.findall(r"^\| `([^`]+)`", page, re.MULTILINE) == list(LAYERS)
