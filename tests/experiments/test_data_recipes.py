"""Rows on real data have the numbers, sizes and rates that the papers print."""

import pytest

from steadygrad.experiments import every, select
from steadygrad.tasks import TASKS, DataTask
from steadygrad.training import parameter_count

DATA_RECIPES = [recipe for recipe in every() if issubclass(TASKS[recipe.task["name"]], DataTask)]


def rows(pattern):
    return {recipe.row: recipe for recipe in select(pattern)}


def published_values(recipe):
    """In the order of the table; of accuracies the percentage."""
    return tuple(100 * value if name == "accuracy" else value for name, value in recipe.published.items())


def rates(recipe):
    train = recipe.train
    return train["lr"], train.get("lr_constrained"), train["smoothing"], train.get("decay_transients")


@pytest.mark.parametrize("recipe", DATA_RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_with_published_numbers_report_test_split(recipe):
    assert recipe.counts == ("test" if recipe.published or recipe.table != "psmnist" else "best")
    assert recipe.settings("paper").train.epochs > recipe.settings("desk").train.epochs > 0


NNRNN = {  # tables 1 and 4: bpc, accuracy in percent for 150 and 300 steps
    "rnn": (2.89, 40.01, 2.9, 39.97),
    "rnn-orth": (1.62, 66.29, 1.66, 65.53),
    "eurnn-2048": (1.61, 65.68, 1.62, 65.55),
    "eurnn-1024": (1.69, 64.01, 1.68, 64.2),
    "exprnn-1386": (1.49, 68.07, 1.52, 67.58),
    "exprnn-1024": (1.51, 67.51, 1.55, 66.89),
    "nnrnn": (1.47, 68.78, 1.49, 68.52),
}
TABLE_3 = {  # units, lr, lr orth, α, T decay, δ, start
    "nnrnn": (512, 1.5e-4, 1.5e-5, 0.99, 1e-4, 0.15, "cayley"),
    "exprnn-512": (512, 5e-4, 5e-5, 0.99, None, None, "cayley"),
    "exprnn-722": (722, 5e-4, 5e-5, 0.99, None, None, "cayley"),
    "lstm-512": (512, 5e-4, None, 0.9, None, None, "memorynets"),
    "lstm-257": (257, 5e-4, None, 0.9, None, None, "memorynets"),
    "rnn-orth": (512, 5e-5, None, 0.99, None, None, "random-orthogonal"),
    "eurnn-512": (512, 1e-4, None, 0.9, None, None, None),
    "eurnn-1024": (1024, 1e-4, None, 0.9, None, None, None),
    "rnn": (512, 1e-4, None, 0.9, None, None, "glorot"),
}
TABLE_5 = {
    "nnrnn-150": (1024, 8e-4, 8e-5, 0.9, 1e-4, 1, "cayley"),
    "exprnn-1024-150": (1024, 5e-3, 1e-4, 0.9, None, None, "cayley"),
    "exprnn-1386-150": (1386, 5e-3, 1e-4, 0.9, None, None, "cayley"),
    "lstm-1024-150": (1024, 8e-3, None, 0.9, None, None, "memorynets"),
    "lstm-475-150": (475, 1e-3, None, 0.99, None, None, "memorynets"),
    "rnn-orth-150": (1024, 1e-4, None, 0.9, None, None, "exp-cayley"),  # the README's; random in the table
    "eurnn-1024-150": (1024, 1e-3, None, 0.9, None, None, None),
    "eurnn-2048-150": (2048, 1e-3, None, 0.9, None, None, None),
    "rnn-150": (1024, 1e-5, None, 0.9, None, None, "glorot"),
    "nnrnn-300": (1024, 8e-4, 6e-5, 0.9, 1e-4, 1e-4, "cayley"),
    "exprnn-1024-300": (1024, 5e-3, 1e-4, 0.9, None, None, "cayley"),
    "exprnn-1386-300": (1386, 5e-3, 1e-4, 0.9, None, None, "cayley"),
    "lstm-1024-300": (1024, 8e-3, None, 0.9, None, None, "memorynets"),
    "lstm-475-300": (475, 3e-3, None, 0.9, None, None, "memorynets"),
    "rnn-orth-300": (1024, 1e-4, None, 0.9, None, None, "exp-cayley"),
    "eurnn-1024-300": (1024, 1e-3, None, 0.9, None, None, None),
    "eurnn-2048-300": (2048, 1e-3, None, 0.9, None, None, None),
    "rnn-300": (1024, 1e-5, None, 0.9, None, None, "glorot"),
}
APPENDIX_A_6 = [  # the authors' response: moduli that are held
    ("nnrnn-gamma-1-150", 1.0, 1.46),
    ("nnrnn-gamma-0958-150", 0.958, 1.47),
    ("nnrnn-gamma-1-300", 1.0, 1.49),
    ("nnrnn-gamma-0958-300", 0.958, 1.49),
]


def test_nnrnn_published_values_match_tables_1_and_4():
    found = rows("nnrnn-2019/char-ptb")
    for name, values in NNRNN.items():
        assert published_values(found[f"{name}-150"]) + published_values(found[f"{name}-300"]) == pytest.approx(
            values, abs=1e-9
        )
    assert found["lstm-1024-150"].published == {"bpc": 1.37}  # section 5.2
    without = {"lstm-475-150", "lstm-1024-300", "lstm-475-300"}
    assert {row for row, recipe in found.items() if not recipe.published} == without


@pytest.mark.parametrize(
    ("table", "lines", "ours"), [("psmnist", TABLE_3, 3), ("char-ptb", TABLE_5, len(APPENDIX_A_6))]
)
def test_nnrnn_hyperparameters_match_tables_3_and_5(table, lines, ours):
    found = rows(f"nnrnn-2019/{table}")
    assert len(found) == len(lines) + ours
    for row, (units, *expected, pull, start) in lines.items():
        layer = found[row].layer
        assert (layer["hidden_size"], layer.get("spectrum_pull")) == (units, pull)
        assert layer.get("init", layer.get("start", layer.get("recurrent", {}).get("init"))) == start
        assert rates(found[row]) == tuple(expected)
        assert found[row].train["optimizer"] == "rmsprop"
        if table == "char-ptb":
            assert found[row].train["window"] == int(row[-3:])


@pytest.mark.parametrize(("row", "modulus", "bpc"), APPENDIX_A_6)
def test_nnrnn_fixed_modulus_recipes_match_appendix_a_6(row, modulus, bpc):
    held, trained = (rows("nnrnn-2019/char-ptb")[name] for name in (row, f"nnrnn-{row[-3:]}"))
    assert held.published == {"bpc": bpc}
    assert held.layer["modulus"] == modulus
    assert rates(held) == rates(trained)
    assert held.train["window"] == int(row[-3:])


def test_nnrnn_170_and_lstm_86_have_similar_parameter_counts():
    counts = []
    for row in ("nnrnn-170", "lstm-86"):
        (recipe,) = select(f"nnrnn-2019/psmnist/{row}")
        settings = recipe.settings()
        counts.append(parameter_count(settings.build_model(settings.build_task())))
    assert counts == [30_950, 31_142]


TIMIT = {  # table 1: mse of test and validation, SegSNR, STOI, PESQ
    "enrnn": (0.13, 0.13, 4.84, 0.83, 2.75),
    "scornn": (1.52, 1.56, 4.55, 0.82, 2.72),
    "lstm-158": (8.27, 8.53, 4.0, 0.79, 2.51),
    "lstm-468": (5.42, 5.6, 4.82, 0.81, 2.75),
}
ENRNN = {  # table 2: units, bpc of test and validation
    "enrnn": (1030, 1.429, 1.475),
    "lstm-350": (350, 1.461, 1.506),
    "lstm-1030": (1030, 1.408, 1.447),
    "gru": (415, 1.601),
    "eurnn": (2048, 1.715),
    "goru": (512, 1.623),
    "ornn": (512, 1.68, 1.73),
    "nnrnn": (1024, 1.47),
}


def test_enrnn_timit_recipes_match_table_1():
    found = rows("enrnn-2020/timit")
    assert {row: published_values(recipe) for row, recipe in found.items()} == TIMIT
    for recipe in found.values():
        assert list(recipe.published) == ["mse", "valid_mse", "segsnr", "stoi", "pesq"]
        assert (recipe.train["batch"], recipe.train["epochs"]) == (28, 300)
    layer = found["enrnn"].layer
    assert (layer["hidden_size"] - layer["short_size"], layer["short_size"], layer["coupling"]) == (374, 94, False)


def test_enrnn_char_ptb_recipes_match_table_2():
    found = rows("enrnn-2020/char-ptb")
    assert {row: (recipe.layer["hidden_size"], *published_values(recipe)) for row, recipe in found.items()} == ENRNN
    layer = found["enrnn"].layer
    assert (layer["hidden_size"] - layer["short_size"], layer["short_size"], layer["activation"]) == (310, 720, "relu")
    for row, recipe in found.items():
        assert ("quoted" in recipe.note) == (row in ("gru", "eurnn", "goru", "ornn", "nnrnn"))
        if row != "nnrnn":
            assert [recipe.train[key] for key in ("batch", "window", "epochs")] == [32, 50, 20]


def test_ornn_parameter_count_without_embedding_matches_paper():
    (recipe,) = select("enrnn-2020/char-ptb/ornn")
    settings = recipe.settings()
    count = parameter_count(settings.build_model(settings.build_task()))
    assert count - 50 * recipe.layer["embedding_size"] == 183_090  # 183K


NCGRU = {  # tables 5 and 6: sizes, bpc or perplexity
    "char-ptb": {
        "lstm": ([350, 880, 350], 1.4),
        "gru": ([415, 950, 415], 1.455),
        "scornn": ([500, 2000, 500], 1.6),
        "ncgru-c": ([430, 1000, 430], 1.385),
        "ncgru-c-435": ([435], 1.385),
    },
    "word-ptb": {
        "lstm": ([400, 830, 400], 78.93),
        "gru": ([400, 1060, 400], 80.73),
        "scornn": ([400, 2000, 400], 123.9),
        "ncgru-c": ([400, 1150, 400], 77),
    },
}


@pytest.mark.parametrize("table", NCGRU)
def test_ncgru_recipes_match_tables_5_and_6(table):
    found = rows(f"ncgru-2022/{table}")
    assert {row: (recipe.layer["sizes"], *published_values(recipe)) for row, recipe in found.items()} == NCGRU[table]
    for row, recipe in found.items():
        layer, train = recipe.layer, recipe.train
        dropout = [layer[f"{place}_dropout"] for place in ("input", "layer", "output")]
        assert dropout == {"char-ptb": [0.15] * 3, "word-ptb": [0.4, 0.4, 0.25]}[table] or row == "ncgru-c-435"
        assert (train["optimizer"], train["lr"]) == ("adam", 7e-4 if row == "ncgru-c-435" else 5e-4)
        assert layer.get("reflections") == (50 if layer["name"] in ("scornn", "ncgru") else None)
        assert layer["embedding_size"] == layer["sizes"][-1]  # tied
        if table == "char-ptb":
            assert (train["batch"], train["window"]) == (32, 100)


RELRNN = {  # table 3: bpc and accuracy on PTB, accuracy on pMNIST, in percent
    "rnn": (1.56, 66, 90.4),
    "orth-rnn": (1.53, 66, 93.4),
    "exprnn": (1.49, 68, 96.6),
    "relrnn": (1.43, 69, 92.8),
    "lstm": (1.36, 73, 91.1),
    "h-detach": (92.3,),
    "sab": (1.37, 94.2),
    "rellstm": (1.36, 73, 94.3),
}
TUNED = {  # appendix B.4, tables 5 and 6: lr, lr orth, activation, ν, ρ
    "pmnist": {
        "orth-rnn": (1e-4, None, "modrelu", None, None),
        "exprnn": (1e-4, 1e-5, "modrelu", None, None),
        "lstm": (2e-4, None, None, None, None),
        "relrnn": (3e-4, None, "modrelu", 10, 10),
    },
    "char-ptb": {
        "orth-rnn": (1e-3, None, "tanh", None, None),
        "exprnn": (3e-3, 3e-4, "tanh", None, None),
        "lstm": (2e-4, None, None, None, None),
        "relrnn": (3e-4, None, "tanh", 10, 5),
    },
}


def test_relrnn_published_values_match_table_3():
    text, images = rows("relrnn-2020/char-ptb"), rows("relrnn-2020/pmnist")
    assert set(images) == set(RELRNN)
    assert set(text) == set(RELRNN) - {"h-detach"}
    for row, values in RELRNN.items():
        found = (published_values(text[row]) if row in text else ()) + published_values(images[row])
        assert found == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("table", TUNED)
def test_relrnn_hyperparameters_match_tables_5_and_6(table):
    found = rows(f"relrnn-2020/{table}")
    for row, tuned in TUNED[table].items():
        layer, train = found[row].layer, found[row].train
        own = (layer.get(key) for key in ("activation", "short", "relevant"))
        assert (train["lr"], train.get("lr_constrained"), *own) == tuned
        assert train["optimizer"] == "adam"
    assert {recipe.layer["hidden_size"] for recipe in found.values()} == {{"pmnist": 100, "char-ptb": 1024}[table]}
