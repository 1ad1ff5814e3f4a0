"""Checks of arguments: what counts as an integer, a number and a choice, and the error texts."""

import math

import pytest

from steadygrad.check import (
    ArgumentTypeError,
    check_choice,
    check_flags,
    check_integers,
    check_name,
    check_share,
    check_size,
    closest,
    did_you_mean,
    enter,
    is_integer,
    is_number,
    refuse_unknown,
)

NEVER = [True, False, None, "1", math.nan, 1j, [1]]


@pytest.mark.parametrize("value", [*NEVER, 1.0, math.inf, 0])
def test_non_positive_or_non_integer_sizes_raise_value_error(value):
    assert not is_integer(value, 1)
    with pytest.raises(ValueError, match=r"^Layer expects size to be an integer of at least 1; got "):
        check_integers("Layer", other=2, size=value)
    with pytest.raises(ValueError, match=r"^Map expects a size of at least 1; got "):
        check_size("Map", value)


@pytest.mark.parametrize("value", [*NEVER, -0.1, 1.1, math.inf])
def test_values_outside_0_to_1_raise_value_error(value):
    assert not is_number(value, 0, 1)
    with pytest.raises(ValueError, match=r"^Layer expects dropout between 0 and 1; got "):
        check_share("Layer", "dropout", value)


def test_valid_integers_and_numbers_are_accepted():
    assert is_integer(-3)
    assert is_integer(10**400)
    assert check_size("Map", 3) == 3
    assert [is_number(value) for value in (-2, 0.5, 1e308, math.inf, -math.inf)] == [True, True, True, False, False]
    assert is_number(math.inf, 0, math.inf)
    for value in (0, 1, 0.5):
        check_share("Layer", "dropout", value)
    check_integers("Layer", 0, size=0)


@pytest.mark.parametrize("value", ["c", None, ["a"]])
def test_unknown_choice_raises_value_error(value):
    check_choice("Layer", "kind", "a", {"a": 1, "b": 2})
    with pytest.raises(ValueError, match=r"^Layer expects kind to be one of a, b; got "):
        check_choice("Layer", "kind", value, {"a": 1, "b": 2})


def test_a_name_belongs_to_one_class():
    registry = {}
    first = type("Own", (), {})
    again = type("Own", (), {})  # as a notebook defines a class again
    enter(registry, "own", first)
    enter(registry, "own", again)
    assert registry == {"own": again}
    with pytest.raises(ValueError, match=r"the name 'own' belongs to .*\.Own; choose another name"):
        enter(registry, "own", type("Other", (), {}))
    assert registry == {"own": again}


@pytest.mark.parametrize("value", [0, 1, None, "True", 1.0])
def test_flags_are_booleans(value):
    check_flags("Layer", bias=True, batch_first=False)
    with pytest.raises(ArgumentTypeError, match=r"^Layer expects bias to be True or False; got "):
        check_flags("Layer", batch_first=False, bias=value)


def test_integer_of_wrong_type_raises_type_error_and_out_of_range_does_not():
    with pytest.raises(TypeError, match=r"got 2\.5"):
        check_integers("Layer", size=2.5)
    with pytest.raises(ValueError, match="got 0") as found:
        check_integers("Layer", size=0)
    assert not isinstance(found.value, TypeError)


@pytest.mark.parametrize(
    ("given", "known", "names"),
    [
        ("lstmm", ["rnn", "lstm", "memlstm"], ["lstm"]),
        ("Hidden-Size", ["hidden_size", "size"], ["hidden_size"]),
        ("learning_rate", ["lr", "lr_every", "log_every"], ["lr"]),
        ("batch_size", ["batch", "steps"], ["batch"]),
        ("lr", ["lr_factor", "lr", "lr_constrained"], ["lr"]),
        ("nnrnn-2018", ["nnrnn", "nnrnn-2019", "ncgru"], ["nnrnn", "nnrnn-2019"]),
        ("zebra", ["rnn", "lstm"], []),
        ("*", ["rnn", "lstm"], []),
        ("", ["rnn", "lstm"], []),
        ("lstm", [], []),
    ],
)
def test_closest_names_have_similar_letters_or_same_words(given, known, names):
    assert closest(given, known) == names
    assert did_you_mean(given, known) == (f"; did you mean {' or '.join(names)}?" if names else "")


def test_errors_on_names_end_with_closest_name():
    with pytest.raises(ValueError, match=r"^no layer 'lstmm'; known: rnn, lstm; did you mean lstm\?$"):
        check_name("layer", "lstmm", ["rnn", "lstm"])
    with pytest.raises(ValueError, match=r"^no layer \['lstm'\]; known: rnn, lstm$"):
        check_name("layer", ["lstm"], ["rnn", "lstm"])
    with pytest.raises(ValueError, match=r"^task copy: unknown key 'dealy'; known: delay; did you mean delay\?$"):
        refuse_unknown("task copy", ["delay", "dealy"], ["delay"])
    with pytest.raises(ValueError, match=r"; got 'adm'; did you mean adam\?$"):
        check_choice("Train", "optimizer", "adm", ["sgd", "adam"])
    assert check_name("layer", "rnn", ["rnn"]) == "rnn"
