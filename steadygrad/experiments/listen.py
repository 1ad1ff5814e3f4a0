"""Predictions of a network that was trained on speech, as sound files and as quality scores."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from steadygrad import files
from steadygrad.tasks import TIMIT, speech
from steadygrad.tasks.speech_quality import score_predictions
from steadygrad.training import RunDirectory, load_model


def listen(
    directory: RunDirectory,
    out: Path,
    *,
    files: int = 3,
    weights: str = "best",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> dict[str, Any]:
    """Return quality scores of a TIMIT run's predictions, and write the first ``files`` sentences as WAV to ``out``.

    A sentence has a folder with original.wav and predicted.wav. The scores are the dict of `score_predictions`, of all
    test sentences. ``progress`` is called with the time steps done and in total. Raise ValueError if the run is not on
    TIMIT or predicts NaN.
    """
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

    return score_predictions(model.eval(), task, keep=keep, progress=progress)


def write(folder: Path, original: Tensor, predicted: Tensor) -> None:
    """Write two signals as original.wav and predicted.wav to ``folder``, which is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, signal in (("original", original), ("predicted", predicted)):
        files.write(folder / f"{name}.wav", speech.wav_file(signal))
