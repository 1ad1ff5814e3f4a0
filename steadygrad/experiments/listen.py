"""Predictions of a network that was trained on speech, as sound files and as quality scores."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad import files
from steadygrad.tasks import TIMIT, speech
from steadygrad.training import RunDirectory, load_model

SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "segsnr": speech.segmental_snr,
    "stoi": speech.stoi,
    "pesq": speech.pesq,
}
"""functions of an original sound and of the sound rebuilt from predicted magnitudes and original phases"""


def listen(
    directory: RunDirectory,
    out: Path,
    *,
    files: int = 3,
    weights: str = "best",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Score a run's predictions, as `judge` does. Write the first ``files`` sentences as sound to ``out``."""
    model, task, settings = load_model(directory, weights=weights)
    if not isinstance(task, TIMIT):
        raise ValueError(f"listen expects a run on timit; {directory} was trained on {settings.task['name']}")

    def keep(number: int, name: str, original: Tensor, predicted: Tensor) -> None:
        if not predicted.isfinite().all():
            raise ValueError(
                f"listen expects finite predictions; got NaN or infinity from the {weights} weights of {directory}"
            )
        if number < files:
            write(out / name, original, predicted)

    return judge(model.eval(), task, keep=keep, progress=progress)


@torch.no_grad()
def judge(
    model: nn.Module,
    task: TIMIT,
    *,
    keep: Callable[[int, str, Tensor, Tensor], object] = lambda number, name, original, predicted: None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Score a model's predictions of all test sentences, one after the other.

    Returns ``sentences``, the scores of each sentence, and the means: ``mse`` in dB² over all frames, the others over
    sentences. ``padded_mse`` is the error as the papers count it: sentences are padded to the longest, and padding has
    an error of 0. Scores whose package is not installed are left out. ``keep`` is called with the number, name,
    original sound and predicted sound of each sentence. ``progress`` is called with the time steps done and in total.
    """
    scores = {name: score for name, score in SCORES.items() if name not in missing_scores()}
    recordings, frames = task.part("test")
    sizes = [len(sentence) - 1 for sentence in frames]
    rows: list[dict[str, Any]] = []
    for number, recording in enumerate(recordings):
        progress(sum(sizes[:number]), sum(sizes))
        original = speech.read_speech("listen", recording.path)
        predicted, mse = prediction(model, task, number, original)
        keep(number, recording.name, original, predicted)
        found = {name: score(original, predicted) for name, score in scores.items()}
        rows.append({"sentence": recording.name, "mse": mse, **found})
    squares = sum(row["mse"] * size for row, size in zip(rows, sizes, strict=True))
    means = {name: mean([row[name] for row in rows]) for name in scores}
    padded = squares / (len(sizes) * max(sizes))
    return {"mse": squares / sum(sizes), **means, "padded_mse": padded, "sentences": rows}


def missing_scores() -> list[str]:
    """Return the scores whose package is not installed."""
    return [score for score, package in speech.PACKAGES.items() if find_spec(package) is None]


def prediction(model: nn.Module, task: TIMIT, number: int, original: Tensor) -> tuple[Tensor, float]:
    """Return a test sentence as sound, with each frame predicted from the frames before it, and the mse in dB²."""
    inputs, targets = task.take("test", torch.tensor([number]))
    outputs = model(inputs)
    first = speech.log_magnitude(speech.stft(original))[:1]  # the first frame is silence and is not predicted
    decibels = torch.cat([first, task.decibels(outputs[0]).to(first)])
    return speech.rebuild(decibels, original), task.metrics(outputs, targets)["mse"]


def write(folder: Path, original: Tensor, predicted: Tensor) -> None:
    """Write original.wav and predicted.wav to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, signal in (("original", original), ("predicted", predicted)):
        files.write(folder / f"{name}.wav", speech.wav_file(signal))


def mean(values: list[float]) -> float:
    """Return the mean of the values that are not NaN. A sentence that is too short has no STOI."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
