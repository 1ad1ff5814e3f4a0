"""Settings: what is refused and in which words, and the way to a file and back."""

import math
import re
import tomllib

import pytest
import torch

from steadygrad.files import toml_text
from steadygrad.layers import LAYERS
from steadygrad.models import MODELS, SequenceModel
from steadygrad.models.relational import Recurrent
from steadygrad.tasks import TASKS, ObjectTask
from steadygrad.training import Settings, Train
from steadygrad.training.kinds import kind_of
from steadygrad.training.options import OPTIMIZERS, SCHEDULES
from steadygrad.training.typed import keyword_options, layer_options

SMALL = {
    "copy": {"delay": 4, "length": 2, "symbols": 3},
    "adding": {"length": 6},
    "denoise": {"delay": 4, "length": 2, "symbols": 3},
    "parenthesis": {"length": 5, "types": 2},
}
OBJECT_TASKS = [name for name in TASKS if kind_of(name).networks]
every_layer = pytest.mark.parametrize("layer", LAYERS)
every_sequence = pytest.mark.parametrize("task", [task for task in TASKS if task not in OBJECT_TASKS])
every_relational = pytest.mark.parametrize("task", OBJECT_TASKS)
every_model = pytest.mark.parametrize("model", MODELS)


def settings(layer=None, task=None, train=None, **rest):
    tables = {
        "layer": {"name": "lstm", "hidden_size": 4} | (layer or {}),
        "task": {"name": "copy", "delay": 5} | (task or {}),
        "train": train or {},
        **rest,
    }
    return Settings.from_tables(tables, "mine.toml")


def build(given):
    torch.manual_seed(0)
    return given.build_model(given.build_task())


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"sed": 1}, r"^mine.toml: unknown key 'sed'; known: layer, task, train, seed; did you mean seed\?$"),
        (
            {"train": {"learning_rate": 1}},
            r"^mine.toml, train: unknown key 'learning_rate'; known: steps, epochs, batch, ",
        ),
        ({"task": {"T": 3, "u": 4}}, r"^task copy: unknown key 'T', 'u'; known: delay, length, symbols, recall$"),
        ({"layer": {"hidden": 3}}, r"^layer lstm: unknown key 'hidden'; known: hidden_size, num_layers, "),
    ],
)
def test_unknown_keys_raise_value_error_listing_known_keys(tables, words):
    with pytest.raises(ValueError, match=words):
        build(settings(**tables))


@pytest.mark.parametrize("key", ["input_size", "batch_first", "device", "dtype", "common"])
@every_layer
def test_reserved_layer_arguments_are_rejected_as_settings(layer, key):
    with pytest.raises(ValueError, match=f"layer {layer}: unknown key '{key}'"):
        build(settings(layer={"name": layer, key: 1}))


@pytest.mark.parametrize(
    ("table", "key", "value", "kind"),
    [
        ("train", "steps", True, "an integer"),
        ("train", "steps", 20.0, "an integer"),
        ("train", "steps", "20", "an integer"),
        ("train", "steps", None, "an integer"),
        ("train", "window", 2.5, "an integer"),
        ("train", "lr", "fast", "a number"),
        ("train", "lr", True, "a number"),
        ("train", "lr", [1e-3], "a number"),
        ("train", "clip", "none", "a number"),
        ("train", "optimizer", 3, "a string"),
        ("task", "delay", 5.0, "an integer"),
        ("task", "delay", True, "an integer"),
        ("task", "recall", 1, "a string"),
        ("layer", "hidden_size", 4.0, "an integer"),
        ("layer", "hidden_size", True, "an integer"),
        ("layer", "hidden_size", None, "an integer"),
        ("layer", "dropout", "much", "a number"),
        ("layer", "bidirectional", 1, "true or false"),
    ],
)
def test_wrong_types_raise_value_error_with_given_value(table, key, value, kind):
    who = {"train": "mine.toml, train", "task": "task copy", "layer": "layer lstm"}[table]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        build(settings(**{table: {key: value}}))
    assert str(caught.value) == f"{who} expects {key} to be {kind}; got {value!r}"


@pytest.mark.parametrize("seed", [1.5, True, "1", None])
def test_non_integer_seed_raises_value_error(seed):
    with pytest.raises(ValueError, match=r"^mine.toml expects seed to be an integer; got "):
        settings(seed=seed)


@pytest.mark.parametrize("name", ["layer", "task", "train"])
def test_non_table_section_raises_value_error(name):
    with pytest.raises(ValueError, match=f"mine.toml expects {name} to be a table; got 'lstm'"):
        Settings.from_tables({name: "lstm"}, "mine.toml")


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        *((key, 0, "of at least 1") for key in ("steps", "batch", "evaluate_every", "evaluate_examples", "log_every")),
        *((key, -1, "of at least 1") for key in ("evaluate_batch", "lr_every", "examples", "window")),
        *((key, 0.0, "above 0") for key in ("lr", "lr_constrained", "clip", "max_loss", "lr_factor")),
        *(("lr", value, "above 0") for value in (-1e-3, math.nan)),
        *((key, value, "at most 1e[+]30") for key in ("lr", "clip") for value in (2e300, math.inf)),
        *((key, value, "at least 0") for key in ("weight_decay", "decay_transients") for value in (-1.0, math.inf)),
        ("weight_decay", math.nan, "at least 0"),
        *(("smoothing", value, "above 0 and below 1") for value in (0.0, 1.0, -0.5, math.nan)),
        *(("beta1", value, "at least 0 and below 1") for value in (1.0, -0.5, math.nan)),
    ],
)
def test_values_out_of_range_are_refused(key, value, wanted):
    with pytest.raises(ValueError, match=rf"^Train expects {key} .*{wanted}; got {re.escape(str(value))}$"):
        settings(train={key: value})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"train": {"optimizer": "adamw"}}, f"Train expects optimizer to be one of {', '.join(OPTIMIZERS)}; got 'ad"),
        (
            {"train": {"optimizer_constrained": "adamw"}},
            f"Train expects optimizer_constrained to be one of {', '.join(OPTIMIZERS)}; got 'adamw'",
        ),
        (
            {"train": {"optimizer": "rmsprop", "beta1": 0.5}},
            "Train expects beta1 with the optimizer adam only; got 'rmsprop'",
        ),
        (
            {"train": {"optimizer": "sgd", "smoothing": 0.5}},
            "Train expects smoothing with the optimizers adam, rmsprop, rmsprop-tf, rmsprop-theano only; got 'sgd'",
        ),
        (
            {"train": {"optimizer": "sgd", "optimizer_constrained": "adagrad", "smoothing": 0.5}},
            "Train expects smoothing with the optimizers .* only; got 'sgd'",
        ),
        (
            {"train": {"schedule": "cosine", "frames": 9}},
            "Train expects steps or epochs for schedule cosine; got 9 frames",
        ),
        ({"train": {"schedule": "linear"}}, f"Train expects schedule to be one of {', '.join(SCHEDULES)}; got 'linea"),
        ({"layer": {"name": "lstmm"}}, f"no layer 'lstmm'; known: {', '.join(LAYERS)}"),
        ({"task": {"name": "copying"}}, f"no task 'copying'; known: {', '.join(TASKS)}"),
        ({"task": {"delay": 0}}, "Copy expects delay to be an integer of at least 1; got 0"),
        ({"task": {"recall": "never"}}, "Copy expects recall to be one of after, at; got 'never'"),
    ],
)
def test_unknown_names_and_invalid_values_raise_value_error(tables, words):
    with pytest.raises(ValueError, match=words):
        settings(**tables)


def test_missing_layer_or_task_name_raises_value_error():
    with pytest.raises(ValueError, match="no layer None; known: rnn"):
        Settings.from_tables({"task": {"name": "copy"}})
    with pytest.raises(ValueError, match="no task None; known: copy"):
        Settings.from_tables({"layer": {"name": "lstm"}})


@pytest.mark.parametrize("table", ["layer", "task"])
def test_non_string_name_raises_value_error(table):
    with pytest.raises(ValueError, match=f"no {table}"):
        settings(**{table: {"name": ["lstm"]}})


@every_layer
def test_missing_hidden_size_raises_value_error(layer):
    given = Settings({"name": layer, "num_layers": 2}, {"name": "copy"}, Train())
    with pytest.raises(ValueError, match=f"^layer {layer} expects hidden_size; got num_layers$"):
        build(given)


def test_value_error_of_layer_is_passed_on():
    with pytest.raises(ValueError, match="expects hidden_size to be an integer of at least 1; got 0"):
        build(settings(layer={"hidden_size": 0}))
    with pytest.raises(ValueError, match="no matrix 'shur'; choose from cayley"):
        build(settings(layer={"name": "rnn", "recurrent": "shur"}))
    with pytest.raises(ValueError, match="GRU has the gates reset, update, candidate; got a matrix for input"):
        build(settings(layer={"name": "gru", "recurrent": {"input": "cayley"}}))


def test_integers_are_accepted_for_float_settings():
    train = settings(train={"lr": 1, "clip": 2, "weight_decay": 0}).train
    assert (train.lr, train.clip, train.weight_decay) == (1.0, 2.0, 0.0)
    assert {type(value) for value in (train.lr, train.clip, train.weight_decay)} == {float}
    assert build(settings(layer={"dropout": 0, "num_layers": 2})).layer.dropout == 0.0


def test_optional_train_settings_accept_none():
    train = settings(train={"clip": None, "window": None, "stop_at": None}).train
    assert (train.clip, train.window, train.stop_at) == (None, None, None)


@pytest.mark.parametrize("layer", [{"name": "corelnet"}, {"name": "gru", "hidden_size": 4}])
def test_none_is_read_as_string_for_string_options(layer):
    """As `--layer.normalisation none` gives it."""
    table = {**layer, "normalisation": None}
    found = Settings.from_tables({"layer": table, "task": {"name": "rmts", "glyphs": "own"}})
    assert build(found).normalisation is None
    tables = found.resolved()
    assert tables["layer"]["normalisation"] == found.complete()["layer"]["normalisation"] == "none"
    assert Settings.from_tables(tables).resolved() == tables


def test_none_optimizer_raises_value_error():
    with pytest.raises(ValueError, match=r"Train expects optimizer to be one of adam, .*; got 'none'"):
        settings(train={"optimizer": None})


def test_resolved_has_every_default():
    tables = settings(seed=3).resolved()
    assert list(tables) == ["seed", "layer", "task", "train"]
    assert tables["seed"] == 3
    assert tables["task"] == {"name": "copy", "delay": 5, "length": 10, "symbols": 8, "recall": "after"}
    assert tables["layer"].keys() >= {"name", "hidden_size", "num_layers", "dropout", "bidirectional"}
    assert tables["layer"]["num_layers"] == 1
    assert tables["train"]["steps"] == Train().steps
    assert "clip" not in tables["train"]  # TOML has no None


@every_layer
@every_sequence
def test_settings_round_trip_through_toml(layer, task):
    train = {"lr": 1e-5, "lr_constrained": 1e-6, "optimizer": "rmsprop-tf", "stop_at": 1}
    before = settings({"name": layer, "hidden_size": 5, "num_layers": 2}, None, train, seed=7)
    assert_toml_round_trip(Settings(before.layer, {"name": task, **SMALL.get(task, {})}, before.train, before.seed))


def assert_toml_round_trip(before):
    text = toml_text(before.resolved())
    after = Settings.from_tables(tomllib.loads(text))
    assert after.resolved() == before.resolved()
    assert toml_text(after.resolved()) == text
    assert (after.seed, after.train) == (before.seed, before.train)
    one, other = build(before).state_dict(), build(after).state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("layer", "recurrent"),
    [
        ("gru", {"candidate": {"name": "cayley", "reflections": 2}}),
        ("gru", {"candidate": {"name": "neumann", "order": 3}, "reset": "cayley"}),
        ("lstm", {"name": "exponential"}),
        ("rnn", "schur"),
    ],
)
def test_nested_settings_round_trip_through_toml(layer, recurrent):
    before = settings(layer={"name": layer, "recurrent": recurrent})
    after = Settings.from_tables(tomllib.loads(toml_text(before.resolved())))
    assert after.layer["recurrent"] == recurrent
    assert after.resolved() == before.resolved()
    one, other = build(before).state_dict(), build(after).state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


@every_layer
def test_every_option_of_a_layer_has_a_default_but_its_size(layer):
    options = layer_options(LAYERS[layer])
    needed = [key for key, option in options.items() if option.default is option.empty]
    assert needed == ["hidden_size"]
    assert options.keys() >= {"num_layers", "dropout", "bidirectional"}


@pytest.mark.parametrize("task", ["char-ptb", "word-ptb", "timit"])
def test_next_input_tasks_reject_bidirectional_layers(task):
    table = {"name": "gru", "hidden_size": 3, "bidirectional": True}
    given = Settings.from_tables({"layer": table, "task": {"name": task}})
    words = "predicts the next input and expects a unidirectional layer; got bidirectional=True$"
    with pytest.raises(ValueError, match=f"^{TASKS[task].__name__} {words}"):
        build(given)
    assert build(settings(layer={"bidirectional": True})).layer.bidirectional  # what is said later may be seen


# objects


def object_settings(layer, task="rmts", **options):
    return Settings.from_tables({"layer": {"name": layer, **options}, "task": {"name": task}, "seed": 7})


@every_model
@pytest.mark.parametrize("task", ["same-different", "relational-game"])
def test_relational_settings_round_trip_through_toml(model, task):
    assert_toml_round_trip(object_settings(model, task))


@every_relational
def test_every_relational_task_accepts_networks_and_layers(task):
    assert_toml_round_trip(object_settings("corelnet", task, hidden_size=5, encoder="random"))
    assert_toml_round_trip(object_settings("gru", task, hidden_size=5, normalisation="none", recurrent="cayley"))


@every_model
def test_object_task_builds_relational_network_of_that_name(model):
    """Also where a layer has the name."""
    built = build(object_settings(model))
    assert type(built) is MODELS[model]
    images, targets = build_object_task(object_settings(model)).sample(2, torch.Generator().manual_seed(0))
    assert built.eval()(images).shape == (2, 2)


def build_object_task(settings):
    task = settings.build_task()
    assert isinstance(task, ObjectTask)
    return task


def test_sequence_task_builds_layer_of_shared_name():
    model = build(settings(layer={"name": "lstm"}))
    assert type(model) is SequenceModel
    assert type(model.layer) is LAYERS["lstm"]


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer not in MODELS])
def test_object_task_wraps_other_layers_in_recurrent_model(layer):
    model = build(object_settings(layer, hidden_size=6, encoder="random"))
    assert type(model) is Recurrent
    assert type(model.sequence.layer) is LAYERS[layer]
    assert not any(parameter.requires_grad for parameter in model.encoder.parameters())


@every_model
def test_every_option_of_a_relational_network_has_a_default(model):
    options = keyword_options(MODELS[model])
    assert options
    assert all(option.default is not option.empty for option in options.values())
    assert object_settings(model).resolved()["layer"].keys() >= {k for k, o in options.items() if o.default is not None}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"name": "corelnet", "size": 3},
            r"^layer corelnet: unknown key 'size'; known: hidden_size, full, .*l1; did you",
        ),
        ({"name": "corelnet", "objects": 3}, r"^layer corelnet: unknown key 'objects'; known: hidden_size, "),
        (
            {"name": "corelnet", "hidden_size": 3.5},
            r"^layer corelnet expects hidden_size to be an integer; got 3.5$",
        ),
        ({"name": "corelnet", "full": 1}, r"^layer corelnet expects full to be true or false; got 1$"),
        (
            {"name": "corelnet", "encoder": "blind"},
            r"CoRelNet expects encoder to be one of learned, random; got 'blind'",
        ),
        (
            {"name": "gru", "units": 3},
            r"^layer gru: unknown key 'units'; known: hidden_size, .*encoder, normalisation, l1$",
        ),
        ({"name": "gru", "encoder": "random"}, r"^layer gru expects hidden_size; got nothing$"),
        ({"name": "gru", "hidden_size": 3, "encoder": 1}, r"^layer gru expects encoder to be a string; got 1$"),
        ({"name": "gru", "hidden_size": 0}, r"GRU expects hidden_size to be an integer of at least 1; got 0"),
        ({"name": "corelnett"}, r"^no layer 'corelnett'; known: rnn, .*corelnet, "),
    ],
)
def test_invalid_relational_options_raise_value_error(table, words):
    with pytest.raises(ValueError, match=words):
        build(Settings(table, {"name": "rmts"}, Train()))


def test_relational_network_on_sequence_task_raises_value_error():
    words = "^layer corelnet expects a task out of same-different, same-different-6, rmts, .*; got copy$"
    with pytest.raises(ValueError, match=words):
        settings(layer={"name": "corelnet"})


def test_training_set_of_too_many_batches_is_refused():
    """The order of its batches is in memory."""
    with pytest.raises(ValueError, match="Train expects examples for at most 10,000,000 batches of 2; got 1000000000"):
        Train(batch=2, examples=10**9)
