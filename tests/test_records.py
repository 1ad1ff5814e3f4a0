"""Records of runs: what their readers accept, and what they say about the rest."""

import json
import re
from pathlib import Path

import pytest

from steadygrad import files, records
from steadygrad.files import RunError
from steadygrad.report import measurements
from tests.stored import RESULT

STORED = Path(files.__file__).parent.parent / "results"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        *(({key: ...}, f"result has no {key}") for key in RESULT),
        ({"steps": True}, "steps expects an integer of at most 64 bits; got True"),
        ({"steps": 1.0}, "steps expects an integer of at most 64 bits; got 1.0"),
        ({"steps": 10**30}, "steps expects an integer of at most 64 bits; got 1000000000000000000000000000000"),
        ({"guessing_loss": None}, "guessing_loss expects a finite number; got None"),
        ({"guessing_loss": 1e301}, "guessing_loss expects a finite number; got 1e+301"),
        ({"wall_seconds": "1"}, "wall_seconds expects a finite number; got '1'"),
        ({"best": 3}, "best expects a dict; got 3"),
        ({"best": {"loss": "low"}}, "best expects a finite number or null for each metric; got a dict of 1"),
        ({"layer": "gru"}, "layer expects a dict; got 'gru'"),
        ({"task": {}}, "task has no name"),
        ({"task": {"name": 3}}, "task.name expects a string of valid characters; got 3"),
        ({"task": {"name": "rmts", "held_out": "x"}}, "task.held_out expects an integer of at most 64 bits; got 'x'"),
        ({"layer": {"name": "a\ud800"}}, "layer.name expects valid strings and at most 16 levels; got 'a\\ud800'"),
        ({"why": 3}, "why expects a string of valid characters; got 3"),
    ],
)
def test_read_result_rejects_missing_or_mistyped_fields(tmp_path, change, fault):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT | {"frames": 3, "test": {"loss": 1.0}}))
    assert records.read_result(path)["status"] == "done"
    path.write_text(json.dumps({key: value for key, value in (RESULT | change).items() if value is not ...}))
    with pytest.raises(RunError, match=rf"result.json is not a run's result: {re.escape(fault)}$"):
        records.read_result(path)


@pytest.mark.parametrize("depth", [14, 500, 100_000])
def test_nested_settings_have_a_limit(tmp_path, depth):
    path = tmp_path / "result.json"
    nested = "[" * depth + "]" * depth
    path.write_text(json.dumps(RESULT | {"layer": {"name": "gru", "x": 0}}).replace('"x": 0', f'"x": {nested}'))
    if depth < records.DEPTH:
        records.read_result(path)
    else:
        with pytest.raises(RunError, match=r"result.json is not a run's result: (layer.x expects|maximum recursion)"):
            records.read_result(path)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity"])
def test_tokens_that_are_no_json_are_rejected(tmp_path, token):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT | {"versions": {"a": 0}}).replace('"a": 0', f'"a": {token}'))
    with pytest.raises(RunError, match=f"result.json is not a run's result: {token} is no JSON"):
        records.read_result(path)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ('{"step": 2}', "a row has no split"),
        ('{"step": "2", "split": "valid"}', "step expects an integer of at most 64 bits; got '2'"),
        ('{"step": 2, "split": "valid", "loss": "low"}', "a row expects a finite number or null for each metric; got "),
        ('{"step": 2, "split": "valid", "loss": 1e999}', "a row expects a finite number or null for each metric; got "),
        ('{"step": 2, "split": "valid", "loss": NaN}', "NaN is no JSON"),
        ('{"step": 0, "split": "train"}', "step expects at least 1, that of an earlier row; got 0"),
        ("[1]", "a row expects a dict; got a list of 1"),
        ('{"step"', "Expecting ':' delimiter"),
        ("\udcff", "'utf-8' codec can't decode byte"),
    ],
)
def test_read_metrics_names_the_first_invalid_line(tmp_path, wrong, fault):
    path = tmp_path / "metrics.jsonl"
    assert records.read_metrics(path) == []
    rows = [{"step": 1, "split": "train", "loss": 0.5}, {"step": 1, "split": "valid", "loss": None}]
    path.write_text(files.json_lines(rows) + '{"step"')  # a killed run may leave such an end
    assert records.read_metrics(path) == rows
    path.write_bytes((files.json_lines(rows) + f"{wrong}\n").encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=rf"metrics.jsonl is not a run's metrics: line 3: {re.escape(fault)}"):
        records.read_metrics(path)


def test_every_stored_file_is_readable():
    stored = list(STORED.rglob("result.json"))
    assert len(stored) > 100
    for path in stored:
        records.read_result(path)
        records.read_metrics(path.with_name("metrics.jsonl"))
        measurements.read_observations(path.with_name("observations.jsonl"))
        if (portrait := path.with_name("portrait.json")).exists():
            measurements.read_portrait(portrait)


MATRIX = {"eigenvalues": [[1.0], [0.0]], "powers": [1.0, 0.5]}
SCHUR = {"T": [[0.5]], "angles": [1.0], "moduli": [1.0], "transient_share": 0.5, "mean_by_subdiagonal": []}
LEVEL = {"reach": 1.0, "share_of_kept": None, "kept_at_end": [], "map": [[0.0]], "kept": [[0, 0, 1]]}
IMAGES = [[["0f", "a1"]], [["0f", "a1"]] * 3]
SIMILARITY = {"matrix": [[1.0, 0.0], [0.0, None]], "images": IMAGES, "answer": 1, "answered": 0}
PORTRAIT = {
    "every": 1,
    "input_maps": {"state": [[0.0], [None, -1.5]]},
    "attention": [LEVEL],
    "output_gradients": [1.0, None],
    "matrices": {"W": MATRIX},
    "schur": {"W": SCHUR},
    "gates": {"true": [1.0], "bound": [2.0]},
    "numbers": {"half_life": None},
    "findings": [{"what": "a", "advice": "", "sure": "certain"}],
    "similarity": SIMILARITY,
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"every": 0}, "every expects a positive integer; got 0"),
        ({"every": ...}, "portrait has no every"),
        ({"input_maps": {}}, "input_maps expects at least one map; got {}"),
        (
            {"input_maps": {"state": [[0.0, 0.0]]}},
            "input_maps.state expects rows of 1, 2, 3, … numbers; got",
        ),
        ({"input_maps": {"state": [[400.0]]}}, "input_maps.state expects logarithms to base 10 of doubles; got"),
        ({"attention": []}, "attention expects at least one level; got []"),
        ({"attention": [LEVEL | {"kept": [[1, 2]]}]}, "kept expects lists of 3 integers; got a list of 1"),
        ({"output_gradients": []}, "output_gradients expects at least one number; got []"),
        ({"output_gradients": ["a"]}, "output_gradients[0] expects a finite number or null; got 'a'"),
        (
            {"matrices": {"W": MATRIX | {"eigenvalues": [[1.0], []]}}},
            "eigenvalues expects two lists of the same len",
        ),
        ({"schur": {"W": SCHUR | {"moduli": []}}}, "moduli expects at least one number; got []"),
        ({"gates": {"true": [1.0], "bound": [2.0, 2.0]}}, "gates expects as many gains as bounds; got a dict of 2"),
        ({"findings": [{"what": "a"}]}, "findings[0] has no advice"),
        (
            {"similarity": PORTRAIT["similarity"] | {"matrix": [[1.0, 2.0]]}},
            "matrix expects the rows of a square matrix;",
        ),
        (
            {"similarity": PORTRAIT["similarity"] | {"images": [[["0g"]]]}},
            "images expects images as lines of hexadecimal",
        ),
        ({"similarity": SIMILARITY | {"images": [[[]]]}}, "images expects images as lines of hexadecimal"),
        ({"similarity": SIMILARITY | {"images": [[["0"]] * 2]}}, "images expects images as lines of hexad"),
    ],
)
def test_read_portrait_rejects_what_cannot_be_drawn(tmp_path, change, fault):
    path = tmp_path / "portrait.json"
    path.write_text(json.dumps(PORTRAIT))
    assert measurements.read_portrait(path) == PORTRAIT
    path.write_text(json.dumps({key: value for key, value in (PORTRAIT | change).items() if value is not ...}))
    with pytest.raises(RunError, match=rf"portrait.json is not a portrait: {re.escape(fault)}"):
        measurements.read_portrait(path)


SEEN = {"eigenvalues": [[1.0], [0.0]], "orthogonality_error": 0.0, "departure": None}


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"matrices": {}}, "line 2: a row has no step"),
        ({"step": -1}, "line 2: step expects at least 0, that of an earlier row; got -1"),
        ({"step": 9, "matrices": {"V": SEEN}}, "matrices at update 9 are others than in the first row"),
        ({"step": 9, "attention": []}, "attention at update 9 are others than in the first row"),
        ({"step": 9, "gates": {"steps": 1, "holds": 1, "largest": 1.0, "largest_bound": 1.0}}, "line 2: holds expects"),
    ],
)
def test_read_observations_rejects_rows_that_do_not_fit(tmp_path, row, fault):
    path = tmp_path / "observations.jsonl"
    first = {"step": 0, "matrices": {"W": SEEN}, "attention": [LEVEL]}
    path.write_text(files.json_lines([first, {"step": 9, "failed": "why"}]))
    assert len(measurements.read_observations(path)) == 2
    path.write_text(files.json_lines([first, row]))
    with pytest.raises(RunError, match=rf"observations.jsonl is not a run's observations: {re.escape(fault)}"):
        measurements.read_observations(path)
