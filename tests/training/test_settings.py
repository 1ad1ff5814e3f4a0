"""Settings: what is refused and in which words, and the way to a file and back."""

import math
import re
import tomllib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.layers import LAYERS
from steadygrad.models import MODELS, SequenceModel
from steadygrad.models.relational import Recurrent
from steadygrad.tasks import TASKS, ObjectTask
from steadygrad.training import Settings, Train, toml
from steadygrad.training.kinds import kind_of
from steadygrad.training.options import OPTIMIZERS, SCHEDULES
from steadygrad.training.typed import keyword_options, layer_options

SMALL = {
    "copy": {"delay": 4, "length": 2, "symbols": 3},
    "adding": {"length": 6},
    "denoise": {"delay": 4, "length": 2, "symbols": 3},
    "parenthesis": {"length": 5, "types": 2},
}
OF_OBJECTS = [name for name in TASKS if kind_of(name).networks]
every_layer = pytest.mark.parametrize("layer", LAYERS)
every_sequence = pytest.mark.parametrize("task", [task for task in TASKS if task not in OF_OBJECTS])
every_relational = pytest.mark.parametrize("task", OF_OBJECTS)
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
        ({"sed": 1}, r"^mine.toml: unknown key 'sed'; known: layer, task, train, seed$"),
        (
            {"train": {"learning_rate": 1}},
            r"^mine.toml, train: unknown key 'learning_rate'; known: steps, epochs, batch, ",
        ),
        ({"task": {"T": 3, "u": 4}}, r"^task copy: unknown key 'T', 'u'; known: delay, length, symbols, recall$"),
        ({"layer": {"hidden": 3}}, r"^layer lstm: unknown key 'hidden'; known: hidden_size, num_layers, "),
    ],
)
def test_unknown_keys_are_refused_beside_those_known(tables, words):
    with pytest.raises(ValueError, match=words):
        build(settings(**tables))


@pytest.mark.parametrize("key", ["input_size", "batch_first", "device", "dtype", "common"])
@every_layer
def test_what_the_task_or_the_loop_decides_is_no_setting_of_a_layer(layer, key):
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
def test_wrong_types_are_refused_with_what_came(table, key, value, kind):
    who = {"train": "mine.toml, train", "task": "task copy", "layer": "layer lstm"}[table]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        build(settings(**{table: {key: value}}))
    assert str(caught.value) == f"{who} expects {key} to be {kind}; got {value!r}"


@pytest.mark.parametrize("seed", [1.5, True, "1", None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match=r"^mine.toml expects seed to be an integer; got "):
        settings(seed=seed)


@pytest.mark.parametrize("name", ["layer", "task", "train"])
def test_a_table_is_a_table(name):
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
def test_unknown_names_and_bad_values_stop_at_once(tables, words):
    with pytest.raises(ValueError, match=words):
        settings(**tables)


def test_a_layer_and_a_task_have_to_be_named():
    with pytest.raises(ValueError, match="no layer None; known: rnn"):
        Settings.from_tables({"task": {"name": "copy"}})
    with pytest.raises(ValueError, match="no task None; known: copy"):
        Settings.from_tables({"layer": {"name": "lstm"}})


@pytest.mark.parametrize("table", ["layer", "task"])
def test_a_name_that_is_no_word_is_a_wrong_name(table):
    with pytest.raises(ValueError, match=f"no {table}"):
        settings(**{table: {"name": ["lstm"]}})


@every_layer
def test_a_layer_needs_its_size(layer):
    given = Settings({"name": layer, "num_layers": 2}, {"name": "copy"}, Train())
    with pytest.raises(ValueError, match=f"^layer {layer} expects hidden_size; got num_layers$"):
        build(given)


def test_what_a_layer_itself_refuses_is_passed_on():
    with pytest.raises(ValueError, match="expects hidden_size to be an integer of at least 1; got 0"):
        build(settings(layer={"hidden_size": 0}))
    with pytest.raises(ValueError, match="no matrix 'shur'; choose from free"):
        build(settings(layer={"name": "rnn", "recurrent": "shur"}))
    with pytest.raises(ValueError, match="GRU has the gates reset, update, candidate; got a matrix for input"):
        build(settings(layer={"name": "gru", "recurrent": {"input": "cayley"}}))


def test_whole_numbers_pass_for_numbers():
    train = settings(train={"lr": 1, "clip": 2, "weight_decay": 0}).train
    assert (train.lr, train.clip, train.weight_decay) == (1.0, 2.0, 0.0)
    assert {type(value) for value in (train.lr, train.clip, train.weight_decay)} == {float}
    assert build(settings(layer={"dropout": 0, "num_layers": 2})).layer.dropout == 0.0


def test_what_may_be_left_out_may_be_none():
    train = settings(train={"clip": None, "window": None, "stop_at": None}).train
    assert (train.clip, train.window, train.stop_at) == (None, None, None)


@pytest.mark.parametrize("layer", [{"name": "corelnet"}, {"name": "gru", "hidden_size": 4}])
def test_none_is_a_word_where_words_are_expected(layer):
    """As `--layer.normalisation none` gives it."""
    table = {**layer, "normalisation": None}
    found = Settings.from_tables({"layer": table, "task": {"name": "rmts", "glyphs": "own"}})
    assert build(found).normalisation is None
    tables = found.resolved()
    assert tables["layer"]["normalisation"] == found.complete()["layer"]["normalisation"] == "none"
    assert Settings.from_tables(tables).resolved() == tables


def test_none_is_no_word_of_any_kind():
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
def test_settings_survive_a_file(layer, task):
    train = {"lr": 1e-5, "lr_constrained": 1e-6, "optimizer": "rmsprop-tf", "stop_at": 1}
    before = settings({"name": layer, "hidden_size": 5, "num_layers": 2}, None, train, seed=7)
    survive_a_file(Settings(before.layer, {"name": task, **SMALL.get(task, {})}, before.train, before.seed))


def survive_a_file(before):
    text = toml.dumps(before.resolved())
    after = Settings.from_tables(tomllib.loads(text))
    assert after.resolved() == before.resolved()
    assert toml.dumps(after.resolved()) == text
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
def test_tables_in_tables_survive_a_file(layer, recurrent):
    before = settings(layer={"name": layer, "recurrent": recurrent})
    after = Settings.from_tables(tomllib.loads(toml.dumps(before.resolved())))
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
def test_what_asks_for_the_next_input_is_for_one_direction(task):
    table = {"name": "gru", "hidden_size": 3, "bidirectional": True}
    given = Settings.from_tables({"layer": table, "task": {"name": task}})
    words = "predicts the next input and expects a unidirectional layer; got bidirectional=True$"
    with pytest.raises(ValueError, match=f"^{TASKS[task].__name__} {words}"):
        build(given)
    assert build(settings(layer={"bidirectional": True})).layer.bidirectional  # what is said later may be seen


# objects


def among_objects(layer, task="rmts", **options):
    return Settings.from_tables({"layer": {"name": layer, **options}, "task": {"name": task}, "seed": 7})


@every_model
@pytest.mark.parametrize("task", ["same-different", "relational-game"])
def test_settings_of_relational_networks_survive_a_file(model, task):
    survive_a_file(among_objects(model, task))


@every_relational
def test_every_relational_task_takes_networks_and_layers(task):
    survive_a_file(among_objects("corelnet", task, hidden_size=5, encoder="random"))
    survive_a_file(among_objects("gru", task, hidden_size=5, normalisation="none", recurrent="cayley"))


@every_model
def test_a_name_among_objects_is_the_relational_network(model):
    """Also where a layer has the name."""
    built = build(among_objects(model))
    assert type(built) is MODELS[model]
    images, targets = built_task(among_objects(model)).sample(2, torch.Generator().manual_seed(0))
    assert built.eval()(images).shape == (2, 2)


def built_task(settings):
    task = settings.build_task()
    assert isinstance(task, ObjectTask)
    return task


def test_over_time_the_name_is_the_layer():
    model = build(settings(layer={"name": "lstm"}))
    assert type(model) is SequenceModel
    assert type(model.layer) is LAYERS["lstm"]


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer not in MODELS])
def test_any_other_layer_looks_at_the_objects_in_turn(layer):
    model = build(among_objects(layer, hidden_size=6, encoder="random"))
    assert type(model) is Recurrent
    assert type(model.sequence.layer) is LAYERS[layer]
    assert not any(parameter.requires_grad for parameter in model.encoder.parameters())


@every_model
def test_every_option_of_a_relational_network_has_a_default(model):
    options = keyword_options(MODELS[model])
    assert options
    assert all(option.default is not option.empty for option in options.values())
    assert among_objects(model).resolved()["layer"].keys() >= {k for k, o in options.items() if o.default is not None}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "corelnet", "size": 3}, r"^layer corelnet: unknown key 'size'; known: hidden_size, full, .*l1$"),
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
def test_options_among_objects_are_checked(table, words):
    with pytest.raises(ValueError, match=words):
        build(Settings(table, {"name": "rmts"}, Train()))


def test_a_relational_network_needs_objects():
    words = "^layer corelnet expects a task out of same-different, rmts, .*; got copy$"
    with pytest.raises(ValueError, match=words):
        settings(layer={"name": "corelnet"})


# TOML

words = st.text(st.characters(exclude_characters="\x7f", exclude_categories=["Cs"]))
plain = st.booleans() | st.integers() | st.floats(allow_nan=False) | words
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(words, inner), max_leaves=8)


@given(st.dictionaries(words, values))
def test_what_is_written_is_read_back(tables):
    read = tomllib.loads(toml.dumps(tables))
    assert read == tables
    assert str(sorted(read.items())) == str(sorted(tables.items()))  # 1 is not 1.0 and not True


@pytest.mark.parametrize(
    "text",
    [
        "😀",
        "\U0001d6fe",  # a mathematical γ
        'a"b\\c',
        "\0\b\t\n\f\r\x1b\x85\u2028",
        "",
        "\x7f",
    ],
    ids=ascii,
)
def test_odd_words_and_keys_are_read_back(text):
    tables = {"a": text, text: 1, "b": {text: [text]}}
    assert tomllib.loads(toml.dumps(tables)) == tables


def test_infinity_and_nan_are_spelt_as_toml_does():
    read = tomllib.loads(toml.dumps({"a": math.inf, "b": -math.inf, "c": [math.nan]}))
    assert (read["a"], read["b"]) == (math.inf, -math.inf)
    assert math.isnan(read["c"][0])


def test_plain_values_come_before_sections():
    text = toml.dumps({"layer": {"odd key": 1, "deep": {"a": {}}}, "seed": 3, "t": ("x", 1)})
    assert text == 'seed = 3\nt = ["x", 1]\n\n[layer]\n"odd key" = 1\ndeep = { a = {} }\n'


@pytest.mark.parametrize("value", [None, object(), {1, 2}, 1j])
def test_what_toml_has_no_word_for_is_refused(value):
    with pytest.raises(ValueError, match="TOML expects numbers, words, flags, lists and tables; got "):
        toml.dumps({"a": [value]})
