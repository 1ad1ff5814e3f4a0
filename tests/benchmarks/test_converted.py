"""A layer of torch.nn is timed against itself after the conversion, and only if both compute the same."""

import json

import pytest
import torch

from benchmarks import converted
from benchmarks.contenders import Size, TrainingStep
from steadygrad.layers import GRU


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(converted, "SIZES", (Size(2, 5, 8, 3),))


def test_command_prints_table_and_writes_json(tmp_path, capsys):
    file = tmp_path / "converted.json"
    converted.main(["--layers", "GRU,LSTM,RNN", "--sizes", "0", "--seconds", "0", "--rounds", "3", "--json", str(file)])
    found = json.loads(file.read_text("utf-8"))
    assert [row["layer"] for row in found["rows"]] == ["GRU", "LSTM", "RNN"]
    for row in found["rows"]:
        assert row["ratio"]["rounds"] == 3
        assert 0 < row["ratio"]["least"] <= row["ratio"]["median"]
        assert row["difference"] < converted.TOLERANCE
        assert f"| 2, 5, 8, 3 | {row['layer']} |" in capsys.readouterr().out or row["layer"] != "GRU"
    assert found["clock"] == "wall"
    assert found["machine"]["cpu"]


def test_layers_that_differ_are_not_timed(monkeypatch):
    monkeypatch.setattr(converted, "TOLERANCE", 0.0)
    size = converted.SIZES[0]
    with pytest.raises(RuntimeError, match="expects outputs and gradients within"):
        converted.compared(TrainingStep(torch.nn.GRU(3, 8), size), TrainingStep(GRU(3, 8, reset="after"), size))
