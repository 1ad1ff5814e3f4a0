"""corelnet-2022 has the numbers, sizes and hold-outs that the paper prints."""

import pytest

from steadygrad.experiments import load, select
from steadygrad.training import parameter_count

KINDS_PER_TASK = {
    "rmts-3": 6,
    "same-different-6": 12,
    "relational-game": 1,
    "comparison": 1,
    "transitive-comparison": 1,
}
IDENTITY_RULES_4 = {(False, False): 7, (False, True): 5, (True, False): 3, (True, True): 2}
"""by whether they are flipped and some are missing"""
TASKS = ("same-different", "rmts", "dist3", "identity-rules")
HARDEST_HELD_OUT = {"same-different": 98, "same-different-6": 98, "rmts-3": 94, "identity-rules-4": 94}
"""m of the captions; 95 for the others"""

PARAMETERS = {  # appendix C.7, table 3: CoRelNet, CoRelNet-nhid, ESBN
    "same-different": (200_418, 1_910_760, 1_910_757),
    "rmts": (205_026, 1_910_754, 1_910_757),
    "dist3": (211_684, 1_911_784, 1_911_783),
    "identity-rules": (211_684, 1_911_784, 1_911_783),
    "same-different-6": (205_026, 1_910_754, 1_910_757),  # 1,910,760 is printed, which no hidden size gives
    "rmts-3": (211_170, 1_910_754, 1_910_757),
    "identity-rules-4": (223_974, 1_912_808, 1_912_809),
}

NETWORKS = ("corelnet", "corelnet-t", "esbn", "predinet", "transformer", "mnm", "lstm", "ntm", "rn")
GAMES = {  # tables 1 and 2 of the games in percent, hexominoes and stripes, network by network
    "same": (
        (94.7, 98.7, 60.9, 99.1, 96.3, 97.3, 96.4, 97.2, 92.9),
        (90.4, 98.4, 60.5, 97.7, 93.6, 95.5, 90.3, 93.4, 83.7),
    ),
    "between": (
        (96.6, 91.9, 79.5, 94.4, 90.9, 93.6, 94.9, 96.3, 73.6),
        (93.1, 87.0, 82.5, 92.4, 87.5, 90.2, 91.7, 93.5, 54.5),
    ),
    "occurs": (
        (96.2, 91.6, 74.3, 92.9, 95.9, 84.9, 92.2, 93.5, 71.2),
        (88.7, 79.3, 73.3, 87.4, 88.7, 77.0, 79.8, 87.1, 54.6),
    ),
    "xoccurs": (
        (92.2, 91.7, 63.0, 67.2, 75.1, 73.8, 79.1, 84.2, 65.7),
        (83.6, 85.4, 64.7, 61.3, 69.4, 70.6, 77.2, 81.7, 61.7),
    ),
    "row-matching": (
        (97.7, 95.4, 81.1, 50.3, 50.3, 49.9, 50.1, 50.2, 50.5),
        (94.8, 90.5, 76.8, 50.5, 50.4, 49.8, 50.2, 49.9, 50.4),
    ),
    "colour-shape": ((47.2, 49.6, 31.2, 74.9, 89.1, 75.7, 80.1, 88.0, 77.5),),
    "left-of": ((99.2, 97.6, 49.9, 94.9, 96.0, 97.5, 97.2, 97.5, 51.0),),
}


def size(pattern):
    (recipe,) = select(f"corelnet-2022/{pattern}")
    settings = recipe.settings()
    return parameter_count(settings.build_model(settings.build_task()))


@pytest.mark.parametrize("task", PARAMETERS)
def test_parameter_counts_match_appendix_table_3(task):
    table = "basic" if task in TASKS else "unseen-relations"
    found = size(f"{table}/{task}-corelnet"), size(f"parameters/{task}"), size(f"{table}/{task}-esbn")
    assert found == PARAMETERS[task]


@pytest.mark.parametrize("game", GAMES)
def test_game_recipes_match_tables_1_and_2(game):
    table = "games" if len(GAMES[game]) == 2 else "games-hexominoes"
    found = {recipe.row: recipe for recipe in select(f"corelnet-2022/{table}/{game}-*")}
    assert set(found) == {f"{game}-{network}" for network in NETWORKS}
    for network, *values in zip(NETWORKS, *GAMES[game], strict=True):
        recipe = found[f"{game}-{network}"]
        printed = {key: value / 100 for key, value in zip(("accuracy", "accuracy@stripes"), values, strict=False)}
        assert recipe.published == pytest.approx(printed, abs=1e-12)
        assert (recipe.layer, recipe.task["game"]) == ({"name": network}, game)
        assert recipe.task["test_shapes"] == "hexominoes"
        assert recipe.transfers() == ([{"test_shapes": "stripes"}] if len(values) == 2 else [])


def problem_kinds(task):
    """Of problems in training, 32 of each in a batch, as in the released code."""
    if task["name"] == "identity-rules-4":
        return IDENTITY_RULES_4[task.get("flipped", False), task.get("missing", False)]
    return 1 if task.get("restricted") else KINDS_PER_TASK.get(task["name"], 3)


def test_train_settings_match_appendix():
    for recipe in load("corelnet-2022").recipes:
        train, kinds = recipe.train, problem_kinds(recipe.task)
        assert (train["optimizer"], train["lr"], train["batch"]) == ("adam", 5e-4, 32 * kinds)
        assert recipe.counts == "last"
        assert recipe.seeded == (() if recipe.task["name"] == "relational-game" else ("shapes_seed",))
        assert train["steps"] == (2500 if recipe.task["name"] == "relational-game" else 5000)
        assert (recipe.metric, recipe.attained, len(recipe.seeds)) == ("accuracy", "max", 10)
        assert bool(recipe.published) == recipe.table.startswith("games")


def test_recipes_hold_out_as_many_shapes_as_the_paper():
    by_hold_out = ("hold-out", "separated")
    for recipe in load("corelnet-2022").recipes:
        task = recipe.task
        if "held_out" in task and recipe.table not in by_hold_out:
            hardest = 89 if task.get("n") == 10 else HARDEST_HELD_OUT.get(task["name"], 95)
            assert task["held_out"] == hardest, recipe.name
    for table in by_hold_out:
        for recipe in select(f"corelnet-2022/{table}"):
            assert recipe.row.endswith(f"-{recipe.task['held_out']}")


def test_row_names_match_network_task_and_options():
    """The network, and the task unless the whole table has the same."""
    names = {"dist3": "distribution-of-n"}
    for recipe in load("corelnet-2022").recipes:
        if recipe.table not in ("games", "games-hexominoes", "parameters"):
            assert recipe.layer["name"] in recipe.row, recipe.name
        if recipe.table in ("basic", "hold-out", "sensory", "asymmetric", "random-encoder", "spurious", "mix"):
            (task,) = (task for task in TASKS if recipe.row.startswith(task))
            assert recipe.task["name"] == names.get(task, task)
        assert recipe.task.get("missing", False) == ("missing" in recipe.row)
        assert recipe.task.get("restricted", False) == ("restricted" in recipe.row)
        random = recipe.table == "random-encoder" or recipe.row.endswith("-random")
        assert recipe.layer.get("encoder", "learned") == ("random" if random else "learned")


def test_l1_strength_of_colour_recipes_matches_figure_6():
    for recipe in select("corelnet-2022/spurious"):
        assert recipe.task["colour"]
        strength = 5.0 if recipe.task["name"] == "rmts" else 1.0
        assert recipe.layer.get("l1", 0.0) == (strength if recipe.row.endswith("-l1") else 0.0)


def test_esbn_rmts_recipes_exist_with_both_normalisations():
    """Over all objects as in CoRelNet's program, within pairs as in Webb's scripts."""
    for over_all in [*select("corelnet-2022/basic/rmts-esbn"), *select("corelnet-2022/hold-out/rmts-esbn-[0-9]*")]:
        (pairs,) = select(over_all.name.replace("rmts-esbn", "rmts-esbn-pairs"))
        assert pairs.task == over_all.task
        assert pairs.layer == over_all.layer | {"normalisation": "segmented"}
        assert "normalisation" not in over_all.layer
    settings = pairs.settings()
    model = settings.build_model(settings.build_task())
    assert model.normalisation.segments == ((0, 2), (2, 4), (4, 6))


def test_corelnet_t_recipes_have_expected_parameter_counts():
    sizes = {"same-different": 221_866, "rmts": 221_898, "dist3": 222_436, "identity-rules": 222_436}
    assert {task: size(f"basic/{task}-corelnet-t") for task in TASKS} == sizes


def test_rmts_transformer_recipe_trains_5000_updates_at_desk_scale():
    (recipe,) = select("corelnet-2022/hold-out/rmts-transformer-0")
    assert recipe.settings("desk").train.steps == 5000
