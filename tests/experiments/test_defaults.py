"""Settings for any layer and task: loadable, from a row that is named, and from that of the pair if there is one."""

from dataclasses import replace

import pytest
import torch
from torch import Generator

from steadygrad.experiments import every, nearest, settings_for
from steadygrad.experiments.defaults import OF_THE_LAYER
from steadygrad.experiments.recipe import layer_with, read
from steadygrad.layers import LAYERS
from steadygrad.models import MODELS, LanguageModel
from steadygrad.tasks import TASKS, DataTask
from steadygrad.training import Settings, Train
from steadygrad.training.kinds import kind_of, networks_for
from tests import cached

OBJECT_TASKS = [name for name in TASKS if kind_of(name).networks]
LAYER_TASK_PAIRS = [(layer, task) for layer in LAYERS for task in TASKS if task not in OBJECT_TASKS]
every_pair = pytest.mark.parametrize(("layer", "task"), LAYER_TASK_PAIRS, ids=map("-".join, LAYER_TASK_PAIRS))

RECIPE_ROWS = """
[table.first]
layer = { name = "lstm", hidden_size = 4 }
task = { name = "copy", delay = 3 }
train = { lr = 0.1, steps = 5, optimizer = "sgd", clip = 1.0 }
desk = { task = { delay = 2 }, train = { steps = 4 } }
[table.second]
layer = { name = "gru", hidden_size = 5, bias = false }
task = { name = "adding", length = 9 }
train = { lr = 0.2, steps = 6, batch = 7 }
"""


@pytest.fixture
def shipped(monkeypatch):
    """Compute the work of each shipped row once, not for each pair."""
    monkeypatch.setattr("steadygrad.experiments.defaults.work", cached.work)


@pytest.fixture
def instead(monkeypatch):
    """Other rows instead of those of the papers."""

    def put(**papers):
        recipes = [recipe for name, text in papers.items() for recipe in read(name, text).recipes]
        monkeypatch.setattr("steadygrad.experiments.defaults.every", lambda: iter(recipes))

    return put


@pytest.fixture
def rows(instead):
    instead(paper=RECIPE_ROWS)


@every_pair
@pytest.mark.usefixtures("shipped")
def test_nearest_settings_build_for_every_layer_and_task(layer, task):
    found = nearest(layer, task)
    settings = Settings.from_tables(found.tables)
    built = settings.build_task()
    model = settings.build_model(built)
    assert type(built) is TASKS[task]
    layers = model.layers if isinstance(model, LanguageModel) else [model.layer]
    assert {type(one) for one in layers} == {LAYERS[layer]}
    of_data = isinstance(built, DataTask) and found.source.startswith("the task with its own settings")
    assert of_data or any(recipe.name in found.source for recipe in every())


@every_pair
@pytest.mark.usefixtures("shipped")
def test_nearest_prefers_recipe_of_same_layer_and_task(layer, task):
    rows = {recipe.name: recipe for recipe in every() if (recipe.layer["name"], recipe.task["name"]) == (layer, task)}
    found = nearest(layer, task)
    name = found.source.removesuffix(", at desk scale")
    assert (name in rows) == bool(rows)
    if rows:
        row = rows[name]
        wanted, own = row.settings("desk"), row.scales["defaults"]
        assert Settings.from_tables(found.tables) == replace(wanted, task=wanted.task | own.get("task", {}))


def test_nearest_returns_desk_settings_of_matching_recipe(rows):
    found = nearest("lstm", "copy")
    assert found.source == "paper/table/first, at desk scale"
    assert found.tables == {
        "layer": {"name": "lstm", "hidden_size": 4},
        "task": {"name": "copy", "delay": 2},
        "train": {"lr": 0.1, "steps": 4, "optimizer": "sgd", "clip": 1.0},
    }


def test_nearest_combines_task_and_layer_of_two_recipes(rows):
    """How long to train goes with the task; optimizer, rates and clipping go with the layer."""
    found = nearest("gru", "copy")
    assert found.source == "the task as in paper/table/first, the layer as in paper/table/second, at desk scale"
    assert found.tables == {
        "layer": {"name": "gru", "hidden_size": 5, "bias": False},
        "task": {"name": "copy", "delay": 2},
        "train": {"steps": 4, "lr": 0.2},
    }
    train = {"steps": 6, "batch": 7, "lr": 0.1, "optimizer": "sgd", "clip": 1.0}
    assert nearest("lstm", "adding").tables["train"] == train


def test_nearest_prefers_recipe_with_least_work_and_papers_over_demo(instead):
    """Time steps of all sequences of all updates; the demo has its turn when no paper has a row."""
    table = '[table]\nlayer = { name = "lstm", hidden_size = 4 }\ntask = { name = "adding" }\n'
    work = "[table.{}]\ntask = {{ length = {} }}\ntrain = {{ steps = {}, batch = {} }}\n"
    light = work.format("light", 10, 90, 10)
    heavy = work.format("heavy", 100, 10, 10) + work.format("heavier", 9, 9, 900)
    reduced = work.format("reduced", 10, 900, 10) + "desk = { train = { steps = 80 } }\n"
    demo = work.format("tiny", 5, 5, 5)
    for paper, row in ((heavy, "heavy"), (heavy + light, "light"), (heavy + light + reduced, "reduced")):
        instead(demo=table + demo, paper=table + paper)
        assert nearest("lstm", "adding").source == f"paper/table/{row}, at desk scale"
        assert nearest("gru", "adding").source.startswith(f"the task as in paper/table/{row},")
    instead(demo=table + demo)
    assert nearest("lstm", "adding").source == "demo/table/tiny, at desk scale"


def test_nearest_ignores_ablation_recipes(instead):
    whole = RECIPE_ROWS.replace("[table.second]", "ablation = true\n[table.second]")
    instead(paper=whole)
    assert nearest("lstm", "copy").source == "the defaults"
    assert nearest("lstm", "adding").source == "the task as in paper/table/second, at desk scale; lstm with 128 units"


@pytest.mark.parametrize("task", ["char-ptb", "word-ptb"])
def test_nearest_nnrnn_recipe_does_not_fix_modulus(task):
    """Of A.6 of its paper, where they are fixed, it takes nothing."""
    found = nearest("nnrnn", task)
    assert "gamma" not in found.source
    assert "nnrnn-2019/char-ptb/nnrnn-" in found.source
    assert "modulus" not in found.tables["layer"]


def test_nearest_for_layer_without_recipe_uses_128_units(rows):
    found = nearest("irnn", "adding")
    assert found.tables["layer"] == {"name": "irnn", "hidden_size": 128}
    assert found.tables["task"] == {"name": "adding", "length": 9}
    assert found.source == "the task as in paper/table/second, at desk scale; irnn with 128 units"
    assert not found.tables["train"].keys() & set(OF_THE_LAYER)


def test_nearest_for_task_without_recipe_uses_defaults(rows):
    """A row whose layer is missing is none."""
    found = nearest("lstm", "denoise")
    assert found.source == "the defaults"
    assert found.tables == {"layer": {"name": "lstm", "hidden_size": 128}, "task": {"name": "denoise"}, "train": {}}


def test_unknown_names_are_refused(rows):
    with pytest.raises(ValueError, match=r"no layer 'lstn'; known: rnn, .*lstm"):
        nearest("lstn", "copy")
    with pytest.raises(ValueError, match="no task 'copying'; known: copy, adding"):
        nearest("lstm", "copying")


# data sets

DATA_ROWS = """
[table.short]
layer = { name = "lstm", hidden_size = 4, embedding_size = 5 }
task = { name = "char-ptb" }
train = { epochs = 9, batch = 3, window = 7, lr = 0.3, clip = 2.0 }
desk = { train = { epochs = 4 } }
[table.wide]
layer = { name = "lstm", sizes = [9, 9] }
task = { name = "char-ptb" }
train = { epochs = 1, window = 7 }
[table.speech]
layer = { name = "gru", hidden_size = 6 }
task = { name = "timit", corpus = "full" }
train = { epochs = 300, lr = 0.4 }
desk = { task = { corpus = "sample" }, train = { steps = 12 } }
defaults = { task = { corpus = "auto" } }
"""


@pytest.fixture
def data_rows(instead):
    instead(paper=RECIPE_ROWS + DATA_ROWS)


def test_work_on_data_sets_counts_squared_units(data_rows):
    """4 epochs of 4 units, 1 of 9 + 9."""
    assert nearest("lstm", "char-ptb").source == "paper/table/short, at desk scale"
    assert nearest("lstm", "char-ptb").tables["train"]["epochs"] == 4


def test_nearest_recipe_with_updates_has_no_epochs(data_rows):
    found = nearest("gru", "timit").tables
    assert found["train"] == {"steps": 12, "lr": 0.4}
    assert found["task"] == {"name": "timit", "corpus": "auto"}


def test_nearest_text_task_takes_layer_from_text_recipe(data_rows):
    found = nearest("lstm", "word-ptb")
    assert found.source == "the task with its own settings, the layer as in paper/table/short, at desk scale"
    assert found.tables == {
        "layer": {"name": "lstm", "hidden_size": 4, "embedding_size": 5},
        "task": {"name": "word-ptb"},
        "train": dict(TASKS["word-ptb"].training) | {"lr": 0.3, "clip": 2.0},
    }


@pytest.mark.parametrize(("layer", "task", "units"), [("gru", "char-ptb", 256), ("lstm", "pixel-mnist", 128)])
def test_nearest_data_set_ignores_recipes_of_other_task_kinds(data_rows, layer, task, units):
    """Rows have both layers, on adding and speech, on copy and texts."""
    found = nearest(layer, task)
    assert found.source == f"the task with its own settings; {layer} with {units} units"
    assert found.tables == {
        "layer": {"name": layer, "hidden_size": units},
        "task": {"name": task},
        "train": dict(TASKS[task].training) | {"clip": 1.0},
    }


def test_nearest_synthetic_task_ignores_data_set_recipes(data_rows):
    assert nearest("lstm", "adding").tables["layer"] == {"name": "lstm", "hidden_size": 4}
    assert nearest("gru", "copy").tables["layer"] == {"name": "gru", "hidden_size": 5, "bias": False}


# objects

RELATIONAL_ROWS = """
[table.first]
layer = { name = "corelnet", hidden_size = 4, full = true }
task = { name = "rmts", held_out = 50 }
train = { lr = 0.1, steps = 5, clip = 1.0 }
[table.second]
layer = { name = "esbn" }
task = { name = "same-different" }
train = { lr = 0.2, steps = 6, batch = 7 }
"""
RELATIONAL = [*((model, "rmts") for model in MODELS), *(("corelnet", task) for task in OBJECT_TASKS), ("nnrnn", "rmts")]


@pytest.mark.parametrize(("layer", "task"), RELATIONAL, ids=map("-".join, RELATIONAL))
@pytest.mark.usefixtures("shipped")
def test_nearest_relational_settings_build_with_finite_loss(layer, task):
    settings = Settings.from_tables(nearest(layer, task).tables)
    built = settings.build_task()
    images, targets = built.sample(2, Generator().manual_seed(0))
    assert built.loss(settings.build_model(built)(images), targets).isfinite()


@pytest.mark.parametrize(("task", "steps"), [("rmts", 5000), ("relational-game", 2500)])
def test_nearest_object_task_without_recipe_uses_task_training_defaults(rows, task, steps):
    found = nearest("corelnet", task)
    assert found.source == "the defaults"
    assert found.tables["layer"] == {"name": "corelnet"}
    train = Settings.from_tables(found.tables).train
    assert (train.steps, train.batch, train.optimizer, train.lr) == (steps, 32, "adam", 5e-4)
    assert (train.evaluate_every, train.evaluate_examples) == (250, 1000)


def test_nearest_object_task_ignores_sequence_recipe_of_same_name(rows):
    """The rows have an lstm with 4 units, trained by gradient descent on copy."""
    found = nearest("lstm", "rmts").tables
    assert found["layer"] == {"name": "lstm"}
    assert found["train"]["optimizer"] == "adam"
    assert nearest("gru", "rmts").tables["layer"] == {"name": "gru", "hidden_size": 128}


def test_nearest_combines_relational_recipes(instead):
    instead(paper=RELATIONAL_ROWS)
    assert nearest("corelnet", "rmts").tables["train"] == {"lr": 0.1, "steps": 5, "clip": 1.0}
    found = nearest("esbn", "rmts")
    assert found.source == "the task as in paper/table/first, the layer as in paper/table/second, at desk scale"
    assert found.tables["layer"] == {"name": "esbn"}
    assert found.tables["task"] == {"name": "rmts", "held_out": 50}
    assert (found.tables["train"]["steps"], found.tables["train"]["lr"]) == (5, 0.2)
    assert found.tables["train"]["evaluate_every"] == 250  # nobody says otherwise
    alone = nearest("transformer", "rmts")
    assert alone.source == "the task as in paper/table/first, at desk scale; transformer with its own sizes"
    assert alone.tables["layer"] == {"name": "transformer"}
    assert (alone.tables["train"]["steps"], alone.tables["train"]["lr"]) == (5, 5e-4)


def test_nearest_rejects_relational_network_on_sequence_task(rows):
    with pytest.raises(ValueError, match="layer esbn expects a task out of same-different, "):
        nearest("esbn", "copy")


# changes


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.usefixtures("shipped")
def test_every_layer_builds_with_five_hidden_sizes(task):
    """A size never fails because of a setting that a row lends. `settings_for` builds the model, here on meta."""
    for layer in networks_for(task):
        if "hidden_size" not in Settings({"name": layer}, {"name": task}, Train()).known_options():
            continue
        for size in (1, 2, 7, 16, 48):
            with torch.device("meta"):
                settings, _ = settings_for(layer, task, {"layer": {"hidden_size": size}})
            assert settings.layer["hidden_size"] == size


@pytest.mark.parametrize(
    ("layer", "task", "changes", "left_out"),
    [
        ("ncgru", "copy", {"layer": {"hidden_size": 16}}, "layer.reflections = 80"),
        ("ncgru", "copy", {"layer": {"hidden_size": 90}}, ""),
        ("ncgru", "copy", {"layer": {"hidden_size": 16, "reflections": 5}}, ""),
        ("ncgru", "copy", {"train": {"lr": 0.1}}, ""),
        ("lstm", "word-ptb", {"layer": {"hidden_size": 16}}, "layer.tied = true"),
        ("lstm", "minigrid", {"train": {"schedule": "cosine"}}, "train.frames = 1500000"),
    ],
)
@pytest.mark.usefixtures("shipped")
def test_lent_setting_that_does_not_fit_changes_is_left_out(layer, task, changes, left_out):
    near = nearest(layer, task)
    settings, source = settings_for(layer, task, changes, seed=3)
    assert settings.seed == 3
    words = f", without {left_out}, which does not fit" if left_out else ""
    assert source == f"{near.source}, with your changes{words}"
    table, _, key = left_out.partition(" ")[0].partition(".")
    tables = {name: {k: v for k, v in near.tables[name].items() if (name, k) != (table, key)} for name in near.tables}
    expected = {name: tables[name] | changes.get(name, {}) for name in tables}
    expected["layer"] = layer_with(tables["layer"], changes.get("layer", {}))
    assert settings == Settings.from_tables({**expected, "seed": 3})


def test_two_lent_settings_that_do_not_fit_are_left_out(instead):
    """reflections counts −1s of the long-term units, those beyond short_size."""
    instead(
        paper='[t.r]\nlayer = { name = "enrnn", hidden_size = 90, short_size = 20, reflections = 60 }\n'
        'task = { name = "copy" }\n'
    )
    settings, source = settings_for("enrnn", "copy", {"layer": {"hidden_size": 10}})
    assert settings.layer == {"name": "enrnn", "hidden_size": 10}
    assert source.endswith(", without layer.short_size = 20 and layer.reflections = 60, which does not fit")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer": {"hidden_size": 0}}, "expects hidden_size to be an integer of at least 1; got 0"),
        ({"layer": {"hidden_size": 16, "reflections": 80}}, "so 0 … 16; got 80"),
        ({"train": {"lr": -1}}, "Train expects lr above 0; got -1"),
        ({"task": {"dealy": 3}}, "unknown key 'dealy'"),
    ],
)
@pytest.mark.usefixtures("shipped")
def test_wrong_changes_raise_value_error(changes, words):
    with pytest.raises(ValueError, match=words):
        settings_for("ncgru", "copy", changes)


def test_trial_build_uses_no_random_numbers(rows):
    before = torch.get_rng_state()
    settings_for("lstm", "copy", {"layer": {"hidden_size": 3}})
    assert torch.equal(torch.get_rng_state(), before)


def test_settings_without_changes_are_those_of_nearest(rows):
    near = nearest("lstm", "copy")
    assert settings_for("lstm", "copy") == (Settings.from_tables(near.tables), near.source)
    assert settings_for("lstm", "copy", {"layer": {}}) == (Settings.from_tables(near.tables), near.source)
