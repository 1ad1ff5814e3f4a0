"""The pages that are made from files say what the files say."""

import importlib.util
import json
from pathlib import Path

import pytest

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


def test_results_come_from_runs_of_this_code():
    for path in (ROOT / "results").glob("*/*/*/seed-*/result.json"):
        result = json.loads(path.read_text("utf-8"))
        assert result["status"] in ("done", "diverged"), path
        assert result["commit"], path
        assert not result["commit"].endswith("+"), f"{path}: made from a tree with changes"
        assert (path.parent / "settings.toml").exists(), path
