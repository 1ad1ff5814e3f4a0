"""Quality of predicted speech: scores of sounds, and scores of a model's predictions of TIMIT's test sentences."""

import math
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.tasks import speech
from steadygrad.tasks.packages import import_optional
from steadygrad.tasks.speech import RATE
from steadygrad.tasks.timit import TIMIT

PACKAGES = {"stoi": "pystoi", "pesq": "pesq"}
"""Package that computes each score. The extra ``speech`` installs it."""
SEGMENT = RATE // 100
"""Samples of a segment: 10 ms."""
LEAST_SNR, MOST_SNR = -10.0, 35.0
QUIET = 40.0
"""Segments this many dB below the loudest segment are silence."""


def segmental_snr(clean: Tensor, estimate: Tensor) -> float:
    """Return the segmental SNR mean_k 10 log₁₀(Σ x² / Σ (x − y)²) of an estimate y of a clean signal x, in dB.

    x and y are signals (samples,) at 8 kHz; k are segments of 10 ms, each limited to −10 … 35 dB. The result is NaN
    if x is silent or shorter than a segment. Raise ValueError if x and y differ in length.

    Segments that are 40 dB or more below the loudest are silence and are left out. Samples after the last complete
    segment are ignored.
    """
    if clean.shape != estimate.shape:
        raise ValueError(f"segmental_snr expects signals of one length; got {len(clean)} and {len(estimate)} samples")
    if len(clean) < SEGMENT or not clean.any():
        return math.nan
    x, y = (signal.unfold(0, SEGMENT, SEGMENT) for signal in (clean, estimate))
    power, error = x.square().sum(1), (x - y).square().sum(1)
    spoken = power > power.max() * 10 ** (-QUIET / 10)
    return (10 * torch.log10(power[spoken] / error[spoken])).clamp(LEAST_SNR, MOST_SNR).mean().item()


def stoi(clean: Tensor, estimate: Tensor) -> float:
    """Return the short-time objective intelligibility (STOI) of an estimate of clean speech, 0 to 1.

    It is NaN below 0.4 s of speech (Taal et al., 2011). Raise ValueError if the package pystoi is not installed.
    """
    if len(clean) < 0.4 * RATE or not clean.any():  # pystoi has no score, or 0, for these
        return math.nan
    library = import_optional("stoi", PACKAGES["stoi"], "speech")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return float(library.stoi(clean.numpy(), estimate.numpy(), RATE))
        except RuntimeWarning:  # pystoi warns that there is too little speech
            return math.nan


def pesq(clean: Tensor, estimate: Tensor) -> float:
    """Return the perceptual quality (PESQ) of an estimate of clean speech, 1 to 4.5; NaN without enough speech.

    It is MOS-LQO of P.862.1, narrow band. Raise ValueError if the package pesq is not installed.
    """
    library: Any = import_optional("pesq", PACKAGES["pesq"], "speech")
    if not estimate.any():
        return math.nan
    try:
        return float(library.pesq(RATE, clean.numpy(), estimate.numpy(), "nb"))
    except (library.NoUtterancesError, library.BufferTooShortError):
        return math.nan


SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {"segsnr": segmental_snr, "stoi": stoi, "pesq": pesq}
"""Scores by name: functions of an original sound and of one rebuilt from predicted magnitudes and its phases."""


@torch.no_grad()
def score_predictions(
    model: nn.Module,
    task: TIMIT,
    *,
    keep: Callable[[int, str, Tensor, Tensor], object] = lambda number, name, original, predicted: None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Return quality scores of a model's predictions of all TIMIT test sentences, as a dict.

    It has ``sentences``, a list of dicts with the name (``sentence``), mse and scores of each sentence, and the means:
    ``mse`` in dB² over all frames; ``segsnr``, ``stoi`` and ``pesq`` over sentences whose score is not NaN.
    ``padded_mse`` is the error as the papers count it: sentences are padded to the longest, and padding has an error of
    0. Scores whose package is not installed are left out. ``keep`` is called with the number, name, original sound and
    predicted sound of each sentence. ``progress`` is called before each sentence with the time steps done and in total.
    """
    scores = {name: score for name, score in SCORES.items() if name not in missing_scores()}
    recordings, frames = task.part("test")
    sizes = [len(sentence) - 1 for sentence in frames]
    rows: list[dict[str, Any]] = []
    for number, recording in enumerate(recordings):
        progress(sum(sizes[:number]), sum(sizes))
        original = speech.read_speech("listen", recording.path)
        predicted, mse = predicted_sound(model, task, number, original)
        keep(number, recording.name, original, predicted)
        found = {name: score(original, predicted) for name, score in scores.items()}
        rows.append({"sentence": recording.name, "mse": mse, **found})
    squares = sum(row["mse"] * size for row, size in zip(rows, sizes, strict=True))
    means = {name: mean([row[name] for row in rows]) for name in scores}
    padded = squares / (len(sizes) * max(sizes))
    return {"mse": squares / sum(sizes), **means, "padded_mse": padded, "sentences": rows}


def missing_scores() -> list[str]:
    """Return the names of the scores whose package is not installed."""
    return [score for score, package in PACKAGES.items() if find_spec(package) is None]


def predicted_sound(model: nn.Module, task: TIMIT, number: int, original: Tensor) -> tuple[Tensor, float]:
    """Return a model's prediction of test sentence ``number`` as sound, and its mse in dB², as a pair.

    Each frame is predicted from the recorded frames before it. The first frame is the recorded one. ``original`` is the
    recorded sound, whose phases are used. Sounds are signals (samples,).
    """
    inputs, targets = task.take("test", torch.tensor([number]))
    outputs = model(inputs)
    first = speech.log_magnitude(speech.stft(original))[:1]  # the first frame is silence and is not predicted
    decibels = torch.cat([first, task.decibels(outputs[0]).to(first)])
    return speech.rebuild(decibels, original), task.metrics(outputs, targets)["mse"]


def mean(values: list[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none. A short sentence has no STOI."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
