"""Two source trees are measured in turns, each with its own package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.versions import SIZES, Tree, chosen

ROOT = Path(__file__).resolve().parents[2]


def test_a_tree_is_compared_with_itself(tmp_path):
    file = tmp_path / "ratios.json"
    command = [sys.executable, "benchmarks/versions.py", ".", ".", "--layers", "rnn,gru", "--uses", "step"]
    done = subprocess.run(
        [*command, "--sizes", "0", "--rounds", "2", "--threads", "1", "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "| rnn | step | 1, 1, 64, 10 |" in done.stdout
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [row["layer"] for row in rows] == ["rnn", "gru"]
    for row in rows:
        low, ratio, high = row["ratio"]
        assert 0 < low <= ratio <= high
        assert row["first"] > 0


def test_a_process_must_import_its_own_tree(tmp_path):
    with pytest.raises(ValueError, match="imports steadygrad from"):
        Tree(tmp_path, 1)


def test_uses_and_sizes_are_chosen_by_name_and_number():
    assert list(chosen("step,infer", "1")) == [("step", SIZES["step"][1]), ("infer", SIZES["infer"][1])]
