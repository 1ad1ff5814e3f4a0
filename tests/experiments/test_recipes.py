"""Every shipped recipe loads, has the size and the numbers its paper prints, and learns; a wrong one is explained."""

import pytest
import torch

from steadygrad.catalog.papers import merge
from steadygrad.experiments import SCALES, every, load, names, select
from steadygrad.experiments.recipe import read, train_with
from steadygrad.tasks import TASKS, DataTask
from steadygrad.training import RunDirectory, Trainer, evaluate, parameter_count
from steadygrad.training.evaluate import readings
from steadygrad.training.kinds import kind_of

RECIPES = {recipe.name: recipe for recipe in every()}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
OUTPUT_PARAMETER_PREFIXES = ("decoder.", "readout.", "f.", "sequence.readout.")
"""the part of a relational network that makes the answer"""
SIZE_KEYS = {"hidden_size", "sizes", "embedding_size", "short_size", "reflections", "every"}
"""what a smoke test makes smaller of a layer for a data set"""


def size(recipe):
    settings = recipe.settings("paper")
    with torch.device("meta"):
        return parameter_count(settings.build_model(settings.build_task()))


def printed(words):
    """ "18.9K" as 18,900 and its last digit's worth, 100."""
    digits, times = words[:-1], {"K": 1e3, "M": 1e6}[words[-1]]
    unit = times / 10 ** len(digits.partition(".")[2])
    return times * float(digits), unit


# what ships


def test_recipe_name_selects_exactly_that_recipe():
    for recipe in RECIPES.values():
        assert select(recipe.name) == [recipe]
        assert recipe.paper in names()


@every_recipe
def test_parameter_count_at_paper_scale_matches_published_count(recipe):
    count = size(recipe)
    about, unit = printed(recipe.parameters) if recipe.parameters else (count, 0)
    assert abs(count - about) <= unit


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("nnrnn-2019/copy/nnrnn", 18_953),
        ("demo/copy/nnrnn", 18_889),  # without the entries inside the blocks
        ("enrnn-2020/adding/enrnn", 15_441),
        ("enrnn-2020/copying/enrnn", 22_395),
    ],
)
def test_parameter_counts_match_known_values(name, count):
    assert size(RECIPES[name]) == count


@every_recipe
def test_smoke_scale_trains_one_update_and_computes_metric(recipe, tmp_path):
    """Both in one test, because building a model and an update take most of the time."""
    trainer = Trainer(recipe.settings("smoke"), RunDirectory(tmp_path), (), "cpu")
    assert trainer.task.steps <= 50 or isinstance(trainer.task, DataTask)
    before = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    trainer.update()
    learning = {n: p for n, p in trainer.model.named_parameters() if p.numel() and p.requires_grad}
    for name, parameter in learning.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    moved = {name for name, p in learning.items() if p.grad.any() and not torch.equal(p, before[name])}
    if kind_of(
        recipe.task["name"]
    ).networks:  # softmax over a normalised pair may have no gradient left for the encoder
        assert any(name.startswith(OUTPUT_PARAMETER_PREFIXES) for name in moved)
    else:
        held = {name for name in before if name.endswith(".modulus")} if "modulus" in recipe.layer else set()
        assert moved == {name for name, p in trainer.model.named_parameters() if p.numel()} - held
        assert all(torch.equal(trainer.model.get_parameter(name), before[name]) for name in held)

    batch, window = trainer.options.evaluate_batch, trainer.options.window
    measured = evaluate(trainer.model, trainer.task, 2, batch=batch, window=window) | readings(trainer.model)
    assert recipe.metric in measured
    assert not recipe.published or recipe.metric in recipe.published
    higher = recipe.metric == trainer.task.score and trainer.task.higher_is_better
    assert recipe.attained == ("max" if higher or recipe.metric == "neumann_norm" else "min")


@every_recipe
def test_scales_change_only_listed_settings(recipe):
    assert recipe.settings() == recipe.settings("paper")
    assert recipe.reduced("paper") == ""
    assert recipe.reduced("smoke")
    smoke = recipe.settings("smoke")
    if issubclass(TASKS[recipe.task["name"]], DataTask):
        assert {key for key, value in smoke.layer.items() if recipe.layer.get(key) != value} <= SIZE_KEYS
    else:
        assert smoke.layer == recipe.layer
    assert (smoke.train.steps, smoke.train.epochs) == (20, None)
    for scale in SCALES:
        settings = recipe.settings(scale)
        assert bool(recipe.reduced(scale)) == (settings != recipe.settings("paper"))


# what the papers print

NC_GRU = {  # section 4: power of ten, metric, hidden sizes, and the two columns of tables 1 to 4
    "parenthesis": (
        *(1e-3, "loss", 100, 200),
        {
            "lstm": (42, 0.62, 6.93),
            "gru": (50, 29.94, 1.526),
            "scornn": (110, 24.85, 18.957),
            "goru": (64, 1.199, 1.66),
            "ncgru-c": (56, 0.286, 0.227),
            "ncgru-rc": (56, 0.149, 0.167),
        },
    ),
    "denoise": (
        *(1e-2, "loss", 200, 400),
        {
            "lstm": (90, 10.08, 5.427),
            "gru": (100, 9.799, 5.2338),
            "scornn": (200, 8.258, 3.812),
            "goru": (128, 4.453, 2.29),
            "ncgru-c": (118, 1.639, 0.878),
            "ncgru-rc": (118, 1.633, 0.774),
        },
    ),
    "adding": (
        *(1e-5, "mse", 200, 400),
        {
            "lstm": (68, 2.2829, 269.7),
            "gru": (70, 1.776, 1.2976),
            "scornn": (190, 51.49, 16_295.05),
            "goru": (128, 2.758, 2.3067),
            "ncgru-c": (80, 1.022, 0.81),
            "ncgru-rc": (80, 5.0, 4.93),
        },
    ),
    "copying": (
        *(1e-2, "loss", 1000, 2000),
        {
            "lstm": (68, 2.040, 1.03),
            "gru": (78, 2.039, 0.89),
            "scornn": (190, 0.002, 0.03),
            "goru": (100, 1.488, 0.718),
            "ncgru-c": (96, 0.904, 0.44),
            "ncgru-rc": (96, 0.882, 0.496),
        },
    ),
}


@pytest.mark.parametrize("table", NC_GRU)
def test_ncgru_recipes_match_tables_1_to_4(table):
    power, metric, short, long, lines = NC_GRU[table]
    found = {recipe.row: recipe for recipe in select(f"ncgru-2022/{table}")}
    assert set(found) == {f"{name}-{T}" for name in lines for T in (short, long)}
    for name, (hidden, *values) in lines.items():
        for T, value in zip((short, long), values, strict=True):
            recipe = found[f"{name}-{T}"]
            layer, _, orthogonal = name.partition("-")
            assert recipe.published == {metric: pytest.approx(value * power, rel=1e-9)}
            assert (recipe.metric, recipe.attained) == (metric, "min")
            assert (recipe.layer["name"], recipe.layer.get("orthogonal", "")) == (layer, orthogonal)
            assert recipe.layer["hidden_size"] == hidden
            assert recipe.task["length" if table in ("parenthesis", "adding") else "delay"] == T


@pytest.mark.parametrize(
    ("row", "hidden", "lr", "lr_orth", "smoothing", "pull", "decay", "init"),
    [  # the LSTM's "Glorot" is Xavier on [h; x], as the program has it
        ("nnrnn", 128, 5e-4, 1e-6, 0.99, 1e-4, 1e-6, "henaff"),
        ("exprnn-128", 128, 1e-3, 1e-4, 0.99, None, None, "henaff"),
        ("exprnn-176", 176, 1e-3, 1e-4, 0.99, None, None, "henaff"),
        ("lstm-128", 128, 5e-4, None, 0.99, None, None, "memorynets"),
        ("lstm-63", 63, 1e-3, None, 0.99, None, None, "memorynets"),
        ("rnn-orth", 128, 2e-4, None, 0.99, None, None, "random-orthogonal"),
        ("eurnn-128", 128, 1e-3, None, 0.5, None, None, None),
        ("eurnn-256", 256, 1e-3, None, 0.5, None, None, None),
        ("rnn", 128, 1e-3, None, 0.9, None, None, "glorot"),
    ],
)
def test_nnrnn_copy_recipes_match_table_2(row, hidden, lr, lr_orth, smoothing, pull, decay, init):
    recipe = RECIPES[f"nnrnn-2019/copy/{row}"]
    layer, train = recipe.layer, recipe.train
    assert (layer["hidden_size"], layer.get("spectrum_pull")) == (hidden, pull)
    assert layer.get("init", layer.get("start", layer.get("recurrent", {}).get("init"))) == init
    assert (train["optimizer"], train["lr"], train.get("lr_constrained")) == ("rmsprop", lr, lr_orth)
    assert (train["smoothing"], train.get("decay_transients")) == (smoothing, decay)


TRANSFER_COPY = {  # table 1 in percent; T = 100, 200, 400, 2000, 5000
    "orth-rnn": (99, 4, 16, 10, 0),
    "exprnn": (100, 86, 73, 58, 50),
    "memrnn": (99, 99, 99, 92, None),
    "relrnn": (100, 99, 99, 99, 99),
    "lstm": (99, 64, 48, 19, 14),
    "h-detach": (100, 91, 77, 51, 42),
    "sab": (99, 95, 95, 95, 95),
    "rellstm": (100, 99, 99, 99, 99),
}
DENOISE = {  # table 2; T = 100, 300, 500, 1000, 2000
    "orth-rnn": (90, 71, 61, 29, 3),
    "exprnn": (34, 25, 20, 16, 11),
    "memrnn": (99, 99, 99, 99, None),
    "relrnn": (100, 99, 99, 99, 99),
    "lstm": (82, 41, 33, 21, 15),
    "goru": (92, 93, 91, 93, 73),
    "sab": (99, 99, 99, 99, 99),
    "rellstm": (100, 99, 99, 99, 99),
}
COPY = {  # appendix B.4, table 2; T = 100, 200, 300, 500, 1000, 2000
    "lstm": (100, 100, 100, 12, 12, 12),
    "orth-rnn": (100, 100, 100, 100, 80, 11),
    "exprnn": (100, 100, 100, 100, 100, 100),
    "memrnn": (100, 100, 100, 100, 100, None),
    "sab": (100, 100, 100, 100, 100, 100),
    "relrnn": (100, 100, 100, 100, 100, 100),
    "rellstm": (100, 100, 100, 100, 100, 100),
}
TUNED = {  # appendix B.4, tables 3 and 4: optimizer, lr, activation, ν, ρ
    "transfer-copy": {
        "orth-rnn": ("rmsprop", 2e-4, "modrelu", None, None),
        "exprnn": ("rmsprop", 2e-4, "modrelu", None, None),
        "lstm": ("adam", 2e-4, None, None, None),
        "relrnn": ("adam", 2e-4, "tanh", 10, 10),
    },
    "denoise": {
        "orth-rnn": ("rmsprop", 2e-4, "modrelu", None, None),
        "exprnn": ("rmsprop", 2e-4, "modrelu", None, None),
        "lstm": ("adam", 2e-4, None, None, None),
        "goru": ("rmsprop", 1e-3, None, None, None),
        "relrnn": ("rmsprop", 2e-4, "modrelu", 10, 10),
    },
}
TUNED["copy"] = TUNED["transfer-copy"]


def test_relrnn_transfer_copy_recipes_match_table_1():
    found = {recipe.row: recipe for recipe in select("relrnn-2020/transfer-copy")}
    assert set(found) == set(TRANSFER_COPY)
    for name, values in TRANSFER_COPY.items():
        keys = ("accuracy", "accuracy@200", "accuracy@400", "accuracy@2000", "accuracy@5000")
        printed = {key: value / 100 for key, value in zip(keys, values, strict=True) if value is not None}
        assert found[name].published == pytest.approx(printed, abs=1e-12)
        assert found[name].trained_on() == {"delay": 100}
        assert found[name].transfers() == [{"delay": T} for T in (200, 400, 2000, 5000)]
    assert "out of memory" in found["memrnn"].note


@pytest.mark.parametrize(
    ("table", "lines", "delays"),
    [("denoise", DENOISE, (100, 300, 500, 1000, 2000)), ("copy", COPY, (100, 200, 300, 500, 1000, 2000))],
)
def test_relrnn_denoise_and_copy_recipes_match_tables(table, lines, delays):
    found = {recipe.row: recipe for recipe in select(f"relrnn-2020/{table}")}
    assert set(found) == {f"{name}-{T}" for name in lines for T in delays}
    for name, values in lines.items():
        for T, value in zip(delays, values, strict=True):
            recipe = found[f"{name}-{T}"]
            assert recipe.task["delay"] == T
            assert recipe.published == ({} if value is None else {"accuracy": pytest.approx(value / 100, abs=1e-12)})
            assert ("out of memory" in recipe.note) == (value is None)


@pytest.mark.parametrize("table", TUNED)
def test_relrnn_hyperparameters_match_tables_3_and_4(table):
    for recipe in select(f"relrnn-2020/{table}"):
        layer, train = recipe.layer, recipe.train
        assert (layer["hidden_size"], train["batch"], train["clip"], train["steps"]) == (128, 10, 1.0, 200_000)
        assert (recipe.metric, recipe.attained) == ("accuracy", "max")
        if tuned := TUNED[table].get(recipe.row.rstrip("0123456789").rstrip("-")):
            chosen = layer.get("activation"), layer.get("short"), layer.get("relevant")
            assert (train["optimizer"], train["lr"], *chosen) == tuned


def test_relrnn_tradeoff_changes_one_memory_at_a_time():
    sizes = [(recipe.layer["short"], recipe.layer["relevant"]) for recipe in select("relrnn-2020/tradeoff")]
    assert sizes == [(15, rho) for rho in (3, 8, 18, 25)] + [(nu, 15) for nu in (3, 8, 18, 25)]


MINIGRID = {  # appendix B.2, table 1 of the thesis: MemLSTM and RelLSTM in training, both in the test
    "redbluedoors": ("RedBlueDoors-6x6", "RedBlueDoors-8x8", 0.97, 0.97, 0.95, 0.95),
    "gotoobject": ("GoToObject-6x6-N2", "GoToObject-8x8-N2", 0.85, 0.84, 0.66, 0.74),
    "memory": ("MemoryS7", "MemoryS13", 0.4, 0.94, 0.24, 0.30),
    "gotodoor": ("GoToDoor-5x5", "GoToDoor-8x8", 0.17, 0.25, 0.11, 0.15),
    "fetch": ("Fetch-5x5-N2", "Fetch-8x8-N3", 0.42, 0.5, 0.44, 0.45),
    "doorkey": ("DoorKey-5x5", "DoorKey-16x16", 0.94, 0.93, 0.31, 0.44),
}


def test_relrnn_minigrid_recipes_match_table():
    found = {recipe.row: recipe for recipe in select("relrnn-2020/minigrid")}
    assert set(found) == {f"{name}-{layer}" for name in MINIGRID for layer in ("memlstm", "rellstm")}
    for name, (small, large, *rewards) in MINIGRID.items():
        for number, layer in enumerate(("memlstm", "rellstm")):
            recipe = found[f"{name}-{layer}"]
            assert recipe.layer["name"] == layer
            assert recipe.trained_on() == {"environment": small}
            assert recipe.transfers() == [{"environment": large}]
            assert recipe.published == {"reward": rewards[number], f"reward@{large}": rewards[2 + number]}
            assert recipe.settings().train.frames == 5_000_000
    assert all(
        (recipe.layer["short"], recipe.layer["relevant"]) == (5, 5) for row, recipe in found.items() if "rel" in row
    )


# reading

HEADER = '[paper]\ntitle = "a paper"\n'
TABLE = '[table]\ntask = { name = "copy", delay = 3 }\ntrain = { lr = 0.1, steps = 5 }\n'
ROW = '[table.row]\nlayer = { name = "lstm", hidden_size = 4 }\n'
WHOLE = HEADER + TABLE + ROW


def test_row_overrides_table_settings_per_key():
    text = TABLE.replace("[table]\n", '[table]\nlayer = { name = "lstm", hidden_size = 4 }\ncaption = "all"\n')
    own = '[table.plain]\n[table.own]\ntask = { delay = 7 }\ntrain = { lr = 0.2 }\nlayer = { name = "gru" }\n'
    plain, changed = read("paper", HEADER + text + own).recipes
    assert plain.layer == {"name": "lstm", "hidden_size": 4}
    assert (plain.task, plain.train) == ({"name": "copy", "delay": 3}, {"lr": 0.1, "steps": 5})
    assert changed.layer == {"name": "gru", "hidden_size": 4}
    assert (changed.task, changed.train) == ({"name": "copy", "delay": 7}, {"lr": 0.2, "steps": 5})
    assert plain.caption == changed.caption == "all"
    assert [plain.name, changed.name] == ["paper/table/plain", "paper/table/own"]


def test_recipe_fields_have_defaults():
    (recipe,) = read("paper", WHOLE).recipes
    assert (recipe.seeds, recipe.metric, recipe.attained, recipe.counts) == ((0,), "loss", "min", "best")
    assert (recipe.parameters, recipe.published, recipe.note) == (None, {}, "")
    assert recipe.settings("desk") == recipe.settings("smoke") == recipe.settings("paper")
    assert recipe.settings().seed == 0


def test_settings_use_recipe_seed_unless_given():
    (recipe,) = read("paper", WHOLE + "seeds = [5400, 7]\n").recipes
    assert recipe.settings().seed == 5400
    assert recipe.settings(seed=3).seed == 3


def test_seeded_task_options_take_run_seed():
    (recipe,) = read("paper", WHOLE + 'seeds = [5400, 7]\nseeded = ["delay"]\n').recipes
    assert recipe.settings().task["delay"] == 5400
    assert recipe.settings("smoke", seed=3).task["delay"] == 3


def test_scale_overrides_settings_per_key():
    desk = "desk = { layer = { hidden_size = 2 }, task = { delay = 1 }, train = { steps = 1 } }\n"
    (recipe,) = read("paper", WHOLE + desk).recipes
    settings = recipe.settings("desk")
    assert settings.layer == {"name": "lstm", "hidden_size": 2}
    assert settings.task == {"name": "copy", "delay": 1}
    assert (settings.train.steps, settings.train.lr) == (1, 0.1)
    assert recipe.reduced("desk") == "hidden_size 2, delay 1, steps 1"
    assert recipe.settings("paper").train.steps == 5


def test_scale_with_updates_removes_epochs():
    table = TABLE.replace("steps = 5", "epochs = 5") + "desk = { train = { epochs = 2 } }\n"
    (recipe,) = read("paper", HEADER + table + "smoke = { train = { steps = 3 } }\n" + ROW).recipes
    found = {scale: (recipe.settings(scale).train.epochs, recipe.settings(scale).train.steps) for scale in SCALES}
    assert found == {"paper": (5, 2000), "desk": (2, 2000), "smoke": (None, 3)}
    assert recipe.reduced("desk") == "epochs 2"


def test_train_with_drops_smoothing_for_optimizer_without_it():
    train = {"optimizer": "rmsprop", "smoothing": 0.9, "lr": 0.1}
    assert train_with(train, {"optimizer": "sgd"}) == {"optimizer": "sgd", "lr": 0.1}
    assert train_with(train, {"optimizer": "adam"}) == train | {"optimizer": "adam"}
    assert train_with(train, {"optimizer_constrained": "sgd"}) == train | {"optimizer_constrained": "sgd"}
    assert train_with(train, {"optimizer": "sgd", "smoothing": 0.5})["smoothing"] == 0.5  # refused by `Train`
    assert train_with({"optimizer": "sgd", "smoothing": 0.5}, {})["smoothing"] == 0.5


def test_transfer_settings_are_inherited_and_overridden():
    table = TABLE + "transfer = { delay = [6, 9] }\nsmoke = { transfer = { delay = [2] } }\n"
    own = '[table.own]\nlayer = { name = "lstm", hidden_size = 4 }\ntransfer = { delay = [12] }\n'
    inherits, overrides = read("paper", HEADER + table + ROW + own).recipes
    assert inherits.transfers() == inherits.transfers("desk") == [{"delay": 6}, {"delay": 9}]
    assert inherits.transfers("smoke") == [{"delay": 2}]
    assert inherits.trained_on() == {"delay": 3}
    assert overrides.transfers() == [{"delay": 12}]
    assert (inherits.reduced("smoke"), inherits.reduced("paper")) == ("tested on delay 2", "")
    (plain,) = read("paper", WHOLE).recipes
    assert (plain.transfers(), plain.trained_on()) == ([], {})


def test_published_transfer_value_is_keyed_by_setting():
    numbers = 'transfer = { delay = [6, 9] }\npublished = { accuracy = 1, "accuracy@9" = 0.5 }\nmetric = "accuracy"\n'
    (recipe,) = read("paper", WHOLE + numbers + 'attained = "max"\n').recipes
    assert recipe.published == {"accuracy": 1.0, "accuracy@9": 0.5}
    assert (recipe.metric, recipe.attained) == ("accuracy", "max")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("transfer = 5", r"\[table.row\] transfer expects a table; got 5"),
        ("transfer = {}", r"\[table.row\] transfer expects one key that the task gives, out of delay; got none"),
        ("transfer = { dealy = [6] }", r"transfer expects one key that the task gives, out of delay; got dealy"),
        ("transfer = { name = [6] }", r"transfer expects one key that the task gives, out of delay; got name"),
        ("transfer = { delay = [6], length = [2] }", r"transfer expects one key .*; got delay, length"),
        ("transfer = { delay = [] }", r"transfer expects delay to be a list of different values; got \[\]"),
        ("transfer = { delay = 6 }", r"transfer expects delay to be a list of different values; got 6"),
        ("transfer = { delay = [6, 6] }", r"transfer expects delay to be a list of different values; got \[6, 6\]"),
        ("desk = { transfer = { delay = [] } }", r"\[table.row\] desk transfer expects delay to be a list"),
        ("smoke = { transfer = 5 }", r"\[table.row\] smoke.transfer expects a table; got 5"),
        (
            "defaults = { transfer = { delay = [6] } }",
            r"\[table.row\] defaults: unknown key 'transfer'; known: layer, task, train$",
        ),
        (
            'transfer = { delay = [6] }\npublished = { "loss@7" = 1 }',
            r"\[table.row\] published expects a value of transfer behind @, out of 6; got 'loss@7'",
        ),
        ('published = { "loss@7" = 1 }', r"published expects a value of transfer behind @, out of none; got 'loss@7'"),
    ],
)
def test_invalid_transfer_table_raises_value_error(text, message):
    with pytest.raises(ValueError, match=rf"^paper.toml .*{message}"):
        read("paper", WHOLE + text + "\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('transfer = { delay = ["6"] }', "paper/table/row, transfer: task copy expects delay to be an integer"),
        ("transfer = { delay = [0] }", "paper/table/row, transfer: Copy expects delay .* of at least 1; got 0"),
        (
            "task = { symbols = 8 }\ntransfer = { symbols = [4] }",
            r"row, transfer: the network was trained for 10 inputs, 9 outputs; this task has 6 inputs, 5 outputs",
        ),
    ],
)
def test_transfer_settings_rejected_by_task_raise_value_error(text, message):
    (recipe,) = read("paper", WHOLE + text + "\n").recipes
    with pytest.raises(ValueError, match=message):
        recipe.settings("paper")


KNOWN = (
    "ablation, attained, (caption, )?counts, defaults, desk, layer, metric, note, parameters, published, seeded, "
    "seeds, smoke, task, train, transfer"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "yaer = 2020\n" + TABLE + ROW, r"paper.toml \[paper\]: unknown key 'yaer'; known: .*title.*year"),
        (
            HEADER + TABLE + 'metrik = "mse"\n' + ROW,
            r"paper.toml \[table\]: unknown key 'metrik'; known: ablation, attained, caption, .*figures",
        ),
        (
            WHOLE + 'paramters = "15K"\n',
            rf"paper.toml \[table.row\]: unknown key 'paramters'; known: {KNOWN}; did you mean parameters\?$",
        ),
        (WHOLE + 'caption = "mine"\n', r"paper.toml \[table.row\]: unknown key 'caption'; known: "),
        (
            WHOLE + "desk = { trian = { steps = 1 } }\n",
            r"\[table.row\] desk: unknown key 'trian'; known: layer, task, train, transfer; did you mean train\?$",
        ),
        (
            HEADER + TABLE + "smoke = { seeds = [1] }\n" + ROW,
            r"paper.toml \[table.row\] smoke: unknown key 'seeds'; known: layer, task, train, transfer$",
        ),
        (HEADER + TABLE + '[table.row]\nnote = "x"\n', r"paper.toml \[table.row\] expects a layer with a name"),
        (
            HEADER + TABLE + "[table.row]\nlayer = { hidden_size = 4 }\n",
            r"paper.toml \[table.row\] expects a layer with a name",
        ),
        (HEADER + "[table]\n" + ROW, r"paper.toml \[table.row\] expects a task with a name"),
        (
            WHOLE + 'published = { loss = "0.1" }\n',
            r"paper.toml \[table.row\] published expects loss to be a number; got '0.1'",
        ),
        (
            WHOLE + "published = { loss = true }\n",
            r"paper.toml \[table.row\] published expects loss to be a number; got True",
        ),
        (WHOLE.replace('"lstm"', '"lstn"'), r"paper.toml \[table.row\]: no layer 'lstn'; known: rnn, rnn-orth"),
        (WHOLE + 'attained = "best"\n', r"paper.toml \[table.row\] expects attained to be min or max; got 'best'"),
        (
            WHOLE + 'counts = "max"\n',
            r"paper.toml \[table.row\] expects counts to be best, last, test or extreme; got 'max'",
        ),
        (
            WHOLE + 'counts = "test"\n',
            r"paper.toml \[table.row\] expects a task with a data set if its test counts; got copy",
        ),
        (WHOLE + "seeded = [1]\n", r"paper.toml \[table.row\] expects seeded to be a list of strings; got \[1\]"),
        (
            HEADER + TABLE + "figures = [1]\n" + ROW,
            r"paper.toml \[table.row\] expects figures to be a list of strings; got \[1\]",
        ),
        (HEADER + TABLE, r"paper.toml \[table\]: no rows"),
    ],
)
def test_invalid_recipe_keys_raise_value_error(text, message):
    with pytest.raises(ValueError, match=message):
        read("paper", text)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            "smoke = { train = { stesp = 1 } }\n",
            "paper/table/row, smoke scale, train: unknown key 'stesp'; known: steps, epochs, batch",
        ),
        ("smoke = { task = { dealy = 1 } }\n", "unknown key 'dealy'; known: delay, length"),
        ("smoke = { train = { steps = 1.5 } }\n", "expects steps to be an integer; got 1.5"),
        ('smoke = { layer = { name = "lstn" } }\n', "no layer 'lstn'; known: rnn, "),
    ],
)
def test_invalid_scale_settings_raise_value_error(extra, message):
    (recipe,) = read("paper", WHOLE + extra).recipes
    assert recipe.settings("paper")
    with pytest.raises(ValueError, match=message):
        recipe.settings("smoke")


def test_unknown_scale_raises_value_error():
    (recipe,) = read("paper", WHOLE).recipes
    with pytest.raises(ValueError, match="paper/table/row expects a scale out of smoke, desk, paper; got 'huge'"):
        recipe.settings("huge")


def test_merge_goes_down_into_tables():
    shared = {"a": 1, "t": {"x": 1, "y": {"p": 1, "q": 2}}, "s": {"z": 1}}
    own = {"b": 2, "t": {"y": {"q": 3}, "w": 4}, "s": 5}
    assert merge(shared, own) == {"a": 1, "b": 2, "t": {"x": 1, "y": {"p": 1, "q": 3}, "w": 4}, "s": 5}
    assert shared == {"a": 1, "t": {"x": 1, "y": {"p": 1, "q": 2}}, "s": {"z": 1}}


# choosing


def test_every_paper_has_a_title_and_rows():
    assert {"corelnet-2022", "demo", "enrnn-2020", "ncgru-2022", "nnrnn-2019", "relrnn-2020"} <= set(names())
    for name in names():
        assert load(name).title
        assert load(name).recipes == tuple(select(name))
    assert sum(len(load(name).recipes) for name in names()) == len(RECIPES)  # so no two rows share a name


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("demo", ["copy/nnrnn", "copy/lstm", "copy/rnn"]),
        ("demo/copy/*nn", ["copy/nnrnn", "copy/rnn"]),
        ("demo/c*y/lst?", ["copy/lstm"]),
        ("nnrnn-2019/copy/lstm-*", ["copy/lstm-128", "copy/lstm-63"]),
        ("nnrnn-2019/copy/lstm-??", ["copy/lstm-63"]),
        ("ncgru-2022/*ing/gru-200*", ["adding/gru-200", "copying/gru-2000"]),
    ],
)
def test_select_supports_glob_patterns(pattern, rows):
    assert [f"{recipe.table}/{recipe.row}" for recipe in select(pattern)] == rows


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nnrnn", r"no paper 'nnrnn'; known: corelnet-2022, demo, enrnn-2020, ncgru-2022, nnrnn-2019"),
        ("*", r"no paper '\*'; known: "),
        ("demo/adding", r"no table 'adding' in demo; known: copy$"),
        ("enrnn-2020/x*", r"no table 'x\*' in enrnn-2020; known: adding, copying, gradients, sizes, timit, char-ptb$"),
        ("demo/copy/gru", r"no row 'gru' in demo/copy; known: nnrnn, lstm, rnn$"),
        ("enrnn-2020/s*/gru", r"no row 'gru' in enrnn-2020/s\*; known: short-0, short-32"),
        ("demo/copy/lstm/0", r"expected PAPER\[/TABLE\[/ROW\]\]; got 'demo/copy/lstm/0'"),
    ],
)
def test_select_unknown_name_raises_value_error(pattern, message):
    with pytest.raises(ValueError, match=message):
        select(pattern)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (WHOLE + "seeds = 3\n", r"paper.toml \[table.row\] expects seeds to be a list of integers; got 3"),
        (WHOLE + "seeds = []\n", r"paper.toml \[table.row\] expects at least one seed; got none"),
        (WHOLE + "published = 5\n", r"paper.toml \[table.row\] published expects a table; got 5"),
        (WHOLE + "published = { loss = nan }\n", r"paper.toml \[table.row\] published expects loss to be finite"),
        (WHOLE + "desk = 5\n", r"paper.toml \[table.row\] desk expects a table; got 5"),
        (WHOLE + "desk = { train = 5 }\n", r"paper.toml \[table.row\] desk.train expects a table; got 5"),
        (WHOLE + "train = 5\n", r"paper.toml \[table.row\] train expects a table; got 5"),
        (WHOLE + "ablation = 1\n", r"paper.toml \[table.row\] expects ablation to be true or false; got 1"),
        (WHOLE + "parameters = 15\n", r"paper.toml \[table.row\] expects parameters to be a string; got 15"),
        ("a = 3\n", r"paper.toml \[a\] expects a table; got 3"),
        ("paper = 3\n", r"paper.toml \[paper\] expects a table; got 3"),
        ("[table\n", r"paper.toml is not readable: "),
        ("x = " + 200 * "[" + 200 * "]", r"paper.toml is not readable: expected at most 20 lists or tables inside"),
        ("x = " + 9000 * "[" + 9000 * "]", r"paper.toml is not readable: expected at most 20 lists or tables inside"),
    ],
)
def test_invalid_recipe_types_raise_value_error(text, message):
    with pytest.raises(ValueError, match=message):
        read("paper", text)
