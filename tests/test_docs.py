"""The pages that are made from files say what the files say."""

import importlib.util
import json
from pathlib import Path

import pytest

from steadygrad import experiments
from steadygrad.report import tables

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def results():
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_results_is_up_to_date(results):
    """When this fails: make results."""
    assert results.PAGE.read_text("utf-8") == results.render()


def test_tests_on_other_settings_are_collected_and_shown(results, tmp_path, monkeypatch):
    rows = experiments.reproduce(
        experiments.select("relrnn-2020/transfer-copy/lstm"), scale="smoke", out=tmp_path / "runs"
    )
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    results.collect(tmp_path / "runs")
    (found,) = (tmp_path / "results").glob("**/transfer.json")
    assert found.parent.relative_to(tmp_path).as_posix() == "results/relrnn-2020/transfer-copy/lstm/seed-0"
    lines = results.render().splitlines()
    header = next(line for line in lines if line.startswith("| accuracy: paper / ours |"))
    place = header.strip("| ").split(" | ").index("delay 12")
    line = next(line for line in lines[lines.index(header) :] if line.startswith("| lstm |"))
    cells = line.strip("| ").split(" | ")
    assert cells[place] == f"– / {tables.number(rows[0]['runs'][0]['transfer'][0]['value'])}"


def test_results_come_from_runs_of_this_code():
    for path in (ROOT / "results").glob("*/*/*/seed-*/result.json"):
        result = json.loads(path.read_text("utf-8"))
        assert result["status"] in ("done", "diverged"), path
        assert result["commit"], path
        assert not result["commit"].endswith("+"), f"{path}: made from a tree with changes"
        assert (path.parent / "settings.toml").exists(), path
