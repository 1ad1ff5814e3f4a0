"""`steadygrad listen` to a run on something like speech."""

import json
import math
import shutil
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from steadygrad.cli.main import main
from steadygrad.tasks import TIMIT, speech, speech_quality
from steadygrad.tasks.speech_quality import missing_scores, predicted_sound
from steadygrad.training import Settings, Train, train
from tests.fakes import write_timit_sample

TESTED = ["dr8-fabc8-si1", "dr8-fabc8-sx2", "dr8-mabc8-si1", "dr8-mabc8-sx2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs, and sentences of a second or a little more that one of them was trained on."""
    folder = tmp_path_factory.mktemp("runs")
    write_timit_sample(folder / "data", 16_000, varied=4000)
    layer = {"name": "gru", "hidden_size": 8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEADYGRAD_DATA", str(folder / "data"))
        train(Settings(layer, {"name": "timit"}, Train(epochs=1)), folder / "run")
        train(Settings(layer, {"name": "copy", "delay": 5}, Train(steps=1)), folder / "copying")
    return folder


@pytest.fixture
def run(runs, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("STEADYGRAD_DATA", str(runs / "data"))
    monkeypatch.chdir(tmp_path)
    for name in ("run", "copying"):
        shutil.copytree(runs / name, name)

    def call(*words):
        code = main([*map(str, words), "--threads", "1"])
        return code, *capsys.readouterr()

    return call


def read_wav(path):
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def test_changed_recordings_are_rejected(run, runs, tmp_path, monkeypatch):
    """What the network sees is normalised by those that it was trained on."""
    fewer = tmp_path / "fewer"
    shutil.copytree(runs / "data", fewer)
    shutil.rmtree(next((fewer / "timit_sample").glob("dr1-*")))
    monkeypatch.setenv("STEADYGRAD_DATA", str(fewer))
    for words in (["listen", "run"], ["evaluate", "run"]):
        code, _, said = run(*words)
        assert code == 2
        assert "run was trained on other recordings than are here now" in said
    with pytest.raises(ValueError, match="run was trained on other recordings than are here now"):
        train(Settings({"name": "gru", "hidden_size": 8}, {"name": "timit"}, Train(epochs=2)), "run", resume=True)


def test_listen_writes_wav_files_and_scores(run):
    code, out, _ = run("listen", "run", "--files", 2, "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["sentence"] for row in found["sentences"]] == TESTED
    assert found["mse"] == pytest.approx(json.loads(run("evaluate", "run", "--json")[1])["mse"], rel=1e-5)
    assert found["padded_mse"] < found["mse"]
    for score in {"segsnr", "stoi", "pesq"} - set(missing_scores()):
        assert found[score] == pytest.approx(np.mean([row[score] for row in found["sentences"]]))
    assert sorted(path.name for path in Path("run/listen").iterdir()) == TESTED[:2]
    task = TIMIT()
    for recording in task.part("test").recordings[:2]:
        folder = Path("run/listen", recording.name)
        original, predicted = (read_wav(folder / f"{name}.wav") for name in ("original", "predicted"))
        expected = speech.read_speech("test", recording.path)
        np.testing.assert_allclose(original / 32768, expected.numpy(), rtol=0, atol=1e-4)
        assert predicted.shape == original.shape
        assert predicted.any()
        assert sorted(path.name for path in folder.iterdir()) == ["original.wav", "predicted.wav"]


def test_listen_table_has_written_sentences_and_mean_of_all(run):
    code, out, _ = run("listen", "run", "-o", "sounds", "--files", 1, "--weights", "last")
    assert code == 0
    title, header, first, all_, last = out.splitlines()
    assert title == "gru on timit, test sentences, last weights"
    scores = [score for score in ("segsnr", "stoi", "pesq") if score not in missing_scores()]
    assert header.split() == ["mse", *scores, "padded_mse"]
    assert first.split()[0] == TESTED[0]
    assert all_.startswith("all 4 ")
    assert last == "original.wav and predicted.wav of 1 in sounds"
    assert Path("sounds", TESTED[0], "predicted.wav").is_file()
    assert not Path("run/listen").exists()


def test_listen_with_zero_files_writes_nothing(run):
    code, out, _ = run("listen", "run", "--files", 0)
    assert code == 0
    assert len(out.splitlines()) == 3
    assert not Path("run/listen").exists()


def test_missing_speech_packages_omit_only_their_scores(run, monkeypatch):
    for package in speech_quality.PACKAGES.values():
        monkeypatch.setitem(sys.modules, package, None)
    code, out, err = run("listen", "run", "--json")
    assert code == 0
    assert err == "without stoi and pesq: pip install steadygrad[speech]\n"
    found = json.loads(out)
    assert list(found) == ["mse", "segsnr", "padded_mse", "sentences"]
    assert math.isfinite(found["segsnr"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("listen nowhere", "nowhere is no run's directory: it has no settings.toml"),
        ("listen copying", "listen expects a run on timit; copying was trained on copy"),
        ("listen run --files -1", "--files expects at least 0; got -1"),
        ("listen run --task.corpus full", "unknown argument '--task.corpus'"),
    ],
)
def test_invalid_input_exits_2_with_one_line(words, message, run):
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"steadygrad: {message}")
    assert err.count("\n") == 1


def test_nan_predictions_exit_2(run, monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: torch.full((*x.shape[:-1], self.out_features), math.nan))
    code, out, err = run("listen", "run")
    assert (code, out) == (2, "")
    assert err == "steadygrad: listen expects finite predictions; got NaN or infinity from the best weights of run\n"


class PerfectPredictor(nn.Module):
    """Knows what comes, but for so many dB."""

    def __init__(self, targets, wrong):
        super().__init__()
        self.outputs = targets + wrong

    def forward(self, x):
        return self.outputs


@pytest.mark.parametrize("normalised", [True, False])
def test_perfect_prediction_reconstructs_original_sound(run, normalised):
    task = TIMIT(normalised=normalised)
    original = speech.read_speech("test", task.part("test").recordings[1].path)
    _, targets = task.take("test", torch.tensor([1]))
    predicted, mse = predicted_sound(PerfectPredictor(targets, 0.0), task, 1, original)
    torch.testing.assert_close(predicted, original, rtol=0, atol=1e-5)
    assert mse == 0
    assert speech_quality.segmental_snr(original, predicted) == pytest.approx(35)
    louder, mse = predicted_sound(PerfectPredictor(targets, 6.0206 / task.scale.deviation), task, 1, original)
    assert mse == pytest.approx(6.0206**2, rel=1e-4)
    assert speech_quality.segmental_snr(original, louder) == pytest.approx(
        0, abs=0.1
    )  # twice as loud: the error is the signal
