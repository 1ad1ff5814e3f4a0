"""`steadygrad generate`: a trained language model goes on with a text."""

import pytest

from steadygrad.cli.main import main
from steadygrad.models import LanguageModel
from steadygrad.tasks import CharPTB, WordPTB
from steadygrad.training import Settings, train

DONE_RESULT = {"status": "done", "steps": 1, "wall_seconds": 1.0, "score": "bpc", "best": None, "parameters": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A network that has read eight words again and again."""
    folder = tmp_path_factory.mktemp("text")
    tables = {
        "layer": {"name": "gru", "hidden_size": 32, "embedding_size": 8},
        "task": {"name": "char-ptb"},
        "train": {"epochs": 8, "batch": 4, "window": 30, "evaluate_batch": 2, "lr": 2e-2},
    }
    train(Settings.from_tables(tables), folder)
    return folder


def said(capsys, *arguments):
    assert main(["generate", *map(str, arguments), "--threads", "1"]) == 0
    return capsys.readouterr().out


def test_generated_text_continues_prompt(run, capsys):
    text = said(capsys, run, "--prompt", "the ban", "--length", 200)
    assert text.startswith("the ban")
    assert len(text) == len("the ban") + 200 + 1
    assert set(text) <= set(CharPTB().decode(range(len(CharPTB().vocabulary))))
    words = set(text.split()[1:-1])
    assert len(words & {"<unk>", "N", "a", "bank", "said", "the", "yen", "rose"}) >= 5


def test_the_same_seed_says_the_same(run, capsys):
    first, again, other = (said(capsys, run, "--length", 60, "--seed", seed) for seed in (1, 1, 2))
    assert first == again != other


def test_near_zero_temperature_is_greedy_and_ignores_seed(run, capsys):
    for coldest in ("0", "1e-40", "1e-300"):
        texts = [said(capsys, run, "--temperature", coldest, "--length", 40, "--seed", seed) for seed in (1, 2)]
        assert texts[0] == texts[1] == said(capsys, run, "--temperature", 0, "--length", 40)


def test_word_model_separates_prompt_and_continuation_by_space(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(WordPTB, "vocabulary_size", len(WordPTB().vocabulary))  # the text of the tests has few words
    tables = {
        "layer": {"name": "gru", "hidden_size": 2, "embedding_size": 2},
        "task": {"name": "word-ptb"},
        "train": {"steps": 1, "batch": 2, "window": 5, "evaluate_batch": 2},
    }
    train(Settings.from_tables(tables), tmp_path)
    text = said(capsys, tmp_path, "--prompt", "the yen", "--length", 1)
    assert text.startswith("the yen ")
    assert said(capsys, tmp_path, "--prompt", "the yen ", "--length", 1) == text


def test_generate_uses_training_window(run, capsys, monkeypatch):
    """After it memories of past states are emptied."""
    asked, generate = [], LanguageModel.generate
    monkeypatch.setattr(
        LanguageModel, "generate", lambda *words, window: asked.append(window) or generate(*words, window=window)
    )
    said(capsys, run, "--length", 3)
    assert asked == [30]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "Zen"], "CharPTB expects text of its vocabulary; got 'Z'"),
        (["--prompt", "a\tb"], r"CharPTB expects text of its vocabulary; got '\t'"),
        (["--prompt", ""], "generate expects at least one token to go on from; got shape (0,)"),
        (["--length", "0"], "--length expects at least 1; got 0"),
        (["--temperature", "-1"], "generate expects a temperature of at least 0; got -1.0"),
    ],
)
def test_invalid_input_exits_2_with_message(run, capsys, arguments, words):
    assert main(["generate", str(run), *arguments]) == 2
    assert capsys.readouterr().err == f"steadygrad: {words}\n"


def test_generate_rejects_runs_on_non_text_tasks(tmp_path, capsys):
    tables = {"layer": {"name": "gru", "hidden_size": 2}, "task": {"name": "copy", "delay": 2}, "train": {"steps": 1}}
    train(Settings.from_tables(tables), tmp_path)
    assert main(["generate", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"steadygrad: generate expects a run on a text; {tmp_path} is one on copy\n"


@pytest.mark.parametrize(
    ("layer", "asked", "units"),
    [("gru", ("sizes", "[4, 5]"), [4, 5]), ("scornn", ("hidden_size", "60"), [60]), ("gru", ("sizes", "none"), [415])],
)
def test_requested_sizes_override_recipe_sizes(tmp_path, monkeypatch, layer, asked, units):
    """The row of gru has one size, that of scornn a list."""
    asked_for = []
    monkeypatch.setattr(
        "steadygrad.training.train", lambda settings, *_, **__: asked_for.append(settings) or DONE_RESULT
    )
    size = ["--layer.embedding_size", "4", "--layer.tied", "false", "--out", str(tmp_path / "run")]
    assert main(["train", layer, "char-ptb", f"--layer.{asked[0]}", asked[1], *size]) == 0
    model = asked_for[0].build_model(CharPTB())
    assert [layer.hidden_size for layer in model.layers] == units


def test_hidden_size_together_with_sizes_exits_2(tmp_path, capsys):
    both = ["--layer.sizes", "[4]", "--layer.hidden_size", "4"]
    assert main(["train", "gru", "char-ptb", *both, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "steadygrad: layer gru expects either hidden_size or sizes; got both\n"


def test_requested_updates_override_recipe_epochs(tmp_path, capsys):
    short = ["--train.steps", "3", "--train.batch", "2", "--train.window", "20", "--train.evaluate_batch", "2"]
    small = [
        "--layer.hidden_size",
        "4",
        "--layer.embedding_size",
        "4",
        "--threads",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["train", "gru", "char-ptb", *short, *small]) == 0
    assert capsys.readouterr().out.startswith("done after 3 updates")
