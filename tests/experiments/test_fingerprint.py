"""Fingerprints of rows: equal for the same settings under whatever names, different for anything else."""

import inspect
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from steadygrad.experiments import every
from steadygrad.experiments.fingerprint import (
    canonical,
    fingerprint,
    plain,
    recipe_fingerprint,
    result_scale,
    why_not,
)
from steadygrad.experiments.recipe import read
from steadygrad.experiments.reproduce import has_ended, reproduce, run_directory
from steadygrad.layers import LAYERS
from steadygrad.models import SequenceModel
from steadygrad.tasks import TASKS
from steadygrad.training import RunDirectory, RunError, Settings, train
from steadygrad.training import settings as settings_module

RESULTS = Path(__file__).parents[2] / "results"
PAPER = """
[table]
task = { name = "copy", delay = 3, length = 2, symbols = 2 }
train = { steps = 6, batch = 2, evaluate_every = 3, evaluate_examples = 4 }
transfer = { delay = [4, 9] }
[table.rnn]
layer = { name = "rnn", hidden_size = 3, recurrent = { name = "free", init = "identity" } }
"""
(RNN,) = read("paper", PAPER).recipes


def settings(**changes):
    tables = RNN.settings().resolved()
    for place, value in changes.items():
        table, _, key = place.partition("__")
        tables |= {table: tables[table] | {key: value}} if key else {table: value}
    return Settings.from_tables(tables)


def test_canonical_form_lists_non_default_settings():
    """When this fails, every stored fingerprint changes."""
    assert canonical(RNN.settings(), RNN.transfers()) == [
        "layer.hidden_size=3",
        'layer.name="rnn"',
        'layer.recurrent.init="identity"',
        'layer.recurrent.name="free"',
        "seed=0",
        "task.delay=3",
        "task.length=2",
        'task.name="copy"',
        "task.symbols=2",
        "train.batch=2",
        "train.evaluate_every=3",
        "train.evaluate_examples=4",
        "train.steps=6",
        "transfer.task.delay=4",
        "transfer.task.delay=9",
    ]
    assert recipe_fingerprint(RNN, "paper", 0) == "135a4e6cbf4f2b108d5d54611d470d932d93f923def1c8de98fb75463fc175ac"


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"train__lr": 0.5},
        {"train__steps": 7},
        {"task__delay": 4},
        {"layer__name": "gru"},
        {"layer__hidden_size": 4},
        {"layer__recurrent": {"name": "free", "init": "orthogonal"}},
        {"layer__bias": False},
    ],
)
def test_different_setting_changes_fingerprint(changes):
    assert fingerprint(settings(**changes)) != fingerprint(settings())


def test_different_transfer_evaluations_change_fingerprint():
    tests = RNN.transfers()
    assert fingerprint(settings(), tests) == fingerprint(settings(), tests[::-1])
    assert len({fingerprint(settings(), some) for some in ([], tests[:1], tests[1:], tests)}) == 4


def test_explicit_default_does_not_change_fingerprint():
    tables = {"layer": dict(RNN.layer), "task": dict(RNN.task), "train": dict(RNN.train)}
    assert fingerprint(Settings.from_tables(tables)) == fingerprint(settings())
    assert fingerprint(settings(train__lr=1e-3, layer__num_layers=1)) == fingerprint(settings())


def test_int_and_float_of_same_value_have_same_fingerprint():
    assert (plain(2.0), plain([1.0, (0.5,)]), plain(True), plain("1.0")) == (2, [1, [0.5]], True, "1.0")
    assert fingerprint(settings(layer__dropout=0)) == fingerprint(settings(layer__dropout=0.0))


def test_new_option_with_default_does_not_change_fingerprint(monkeypatch):
    before = fingerprint(settings())
    known, complete = Settings.known_options, Settings.complete
    option = inspect.Parameter("twist", inspect.Parameter.KEYWORD_ONLY, default=0.1, annotation=float)
    monkeypatch.setattr(Settings, "known_options", lambda self: known(self) | {"twist": option})
    assert "twist" in complete(settings())["layer"]
    assert fingerprint(settings()) == before
    assert fingerprint(settings(layer__twist=0.2)) != before


def test_a_renamed_key_does_not_change_it(monkeypatch):
    before, resolved = fingerprint(settings(), RNN.transfers()), Settings.resolved

    def with_later_name(self):
        tables = resolved(self)
        return tables | {"task": {"wait" if key == "delay" else key: value for key, value in tables["task"].items()}}

    monkeypatch.setattr(Settings, "resolved", with_later_name)
    tests = [{"wait": 4}, {"wait": 9}]
    assert fingerprint(RNN.settings(), tests) != before
    monkeypatch.setitem(settings_module.FIRST_NAMES, "task.wait", "task.delay")
    assert fingerprint(RNN.settings(), tests) == before


def test_renamed_layer_does_not_change_fingerprint(monkeypatch):
    before = fingerprint(settings())
    monkeypatch.setitem(LAYERS, "simple", LAYERS["rnn"])
    assert fingerprint(settings(layer__name="simple")) != before
    monkeypatch.setitem(settings_module.FIRST_NAMES, "layer.name=simple", "layer.name=rnn")
    assert fingerprint(settings(layer__name="simple")) == before


def test_settings_names_convert_between_first_and_current(monkeypatch):
    names = {"train.steps2": "train.steps", "train.updates": "train.steps", "layer.name=b": "layer.name=a"}
    monkeypatch.setattr(settings_module, "FIRST_NAMES", names)
    first = {"seed": 0, "layer": {"name": "a", "recurrent": {"name": "a"}}, "train": {"steps": 3}}
    now = {"seed": 0, "layer": {"name": "b", "recurrent": {"name": "a"}}, "train": {"updates": 3}}
    assert settings_module.with_current_names(first) == now
    assert settings_module.with_current_names(now) == now
    assert settings_module.with_first_names(now) == settings_module.with_first_names(first) == first


def test_run_directory_with_old_names_is_readable(monkeypatch, tmp_path):
    reproduce([RNN], scale="paper", out=tmp_path)
    directory = RunDirectory(run_directory(RNN, 0, tmp_path))
    monkeypatch.setitem(LAYERS, "simple", LAYERS["rnn"])
    monkeypatch.setitem(settings_module.FIRST_NAMES, "layer.name=simple", "layer.name=rnn")
    assert directory.settings().layer["name"] == "simple"
    row = replace(RNN, layer=RNN.layer | {"name": "simple"})
    assert result_scale(row, 0, directory) == "paper"


@pytest.mark.parametrize("cls", [LAYERS["rnn"], TASKS["copy"], SequenceModel])
def test_new_revision_changes_fingerprint_and_invalidates_runs(monkeypatch, cls, tmp_path):
    """And a run of the old one neither counts nor goes on."""
    before = fingerprint(settings())
    reproduce([RNN], scale="paper", out=tmp_path)
    directory = RunDirectory(run_directory(RNN, 0, tmp_path))
    assert directory.revisions() == {}
    monkeypatch.setattr(cls, "revision", 1, raising=False)
    assert fingerprint(settings()) == before
    assert has_ended(RNN, "paper", 0, tmp_path)
    monkeypatch.setattr(cls, "revision", 2)
    assert fingerprint(settings()) != before
    assert fingerprint(settings(), revisions={}) == before
    assert result_scale(RNN, 0, directory) is None
    assert not has_ended(RNN, "paper", 0, tmp_path)
    assert "revision." in why_not(RNN, 0, directory, "paper")
    with pytest.raises(RunError, match=r"belongs to other settings: revisions\.\w+ 'not given', asked 2"):
        train(RNN.settings(), directory.path, resume=True)
    (row,) = reproduce([RNN], scale="paper", out=tmp_path / "new")
    new = RunDirectory(run_directory(RNN, 0, tmp_path / "new"))
    assert list(new.revisions().values()) == [2]
    assert result_scale(RNN, 0, new) == "paper"
    assert train(RNN.settings(), new.path, resume=True)["status"] == row["runs"][0]["status"] == "done"


def test_run_without_transfer_evaluations_has_no_result_scale(tmp_path):
    reproduce([RNN], scale="paper", out=tmp_path)
    directory = RunDirectory(run_directory(RNN, 0, tmp_path))
    assert result_scale(RNN, 0, directory, ["paper"]) == "paper"
    written = json.loads(directory.file("transfer.json").read_text("utf-8"))
    written["tests"] = written["tests"][:1]
    directory.write("transfer.json", json.dumps(written))
    assert result_scale(RNN, 0, directory) is None
    assert why_not(RNN, 0, directory, "paper") == "transfer tests are missing"
    assert result_scale(replace(RNN, transfer={"delay": [4]}), 0, directory) == "paper"


def test_why_not_names_differing_settings(tmp_path):
    reproduce([RNN], scale="paper", out=tmp_path)
    directory = RunDirectory(run_directory(RNN, 0, tmp_path))
    longer = replace(RNN, train=RNN.train | {"steps": 8, "lr": 0.5})
    assert result_scale(longer, 0, directory) is None
    words = "the run has train.steps=6; the recipe has train.lr=0.5, train.steps=8"
    assert why_not(longer, 0, directory, "paper") == words
    directory.file("result.json").unlink()
    assert why_not(longer, 0, directory, "paper") == "the run has not ended"


def test_every_stored_result_is_recognised():
    """When this fails, a recipe has changed since its results were made, or a setting was renamed without a note.

    Rows that were changed on purpose are in superseded.txt until they have been run again.
    """
    superseded = Path(__file__).with_name("superseded.txt").read_text("utf-8").split()
    found, unknown = Counter(), {}
    for recipe in every():
        for path in (RESULTS / recipe.paper / recipe.table / recipe.row).glob("seed-*"):
            seed, directory = int(path.name.removeprefix("seed-")), RunDirectory(path)
            scale = result_scale(recipe, seed, directory)
            found[scale] += 1
            if scale is None and recipe.name not in superseded:
                unknown[f"{recipe.name} {seed}"] = why_not(recipe, seed, directory, "desk")
    assert not unknown
    assert found.total() == len(list(RESULTS.glob("*/*/*/seed-*/result.json")))
