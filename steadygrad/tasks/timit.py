"""TIMIT: predict the next frame of a spectrogram of speech (Garofolo et al., 1993; as a task, Wisdom et al., 2016)."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from steadygrad.tasks import speech
from steadygrad.tasks.data import VARIABLE, data_set
from steadygrad.tasks.dataset import ExampleTask

FOLDERS = {"full": "timit", "sample": "timit_sample"}
HOW_TO_GET = {
    "full": "timit is LDC93S1 of the Linguistic Data Consortium, with TRAIN and TEST in it",
    "sample": "timit_sample is what nltk.download('timit') puts into corpora/timit",
}
SENTENCES = {"full": 3696, "sample": 96}
"""Number of training sentences in each corpus."""
MANY = 1000
"""More recordings than this take more than a few seconds to read."""
STEPS = 194
"""Average number of predictions in a sentence. An average sentence lasts 3.06 s."""
CORE_TEST = (
    "mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0 "
    "mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0"
)
"""Speakers of the corpus's own core test set: two men and one woman from each of eight dialect regions."""
DEVELOPMENT = (
    "faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 fedw0 mgjf0 "
    "mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0 "
    "mrcs0 mrjm4 fcal1 mmwh0 fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1"
)
"""Fifty other speakers of the test folder, as in Kaldi's recipe: the 400 sentences on which the papers validate."""


@dataclass(frozen=True)
class TIMIT(ExampleTask, name="timit"):
    """Predict the next frame of a spoken sentence, 16 ms later: the power in dB at 129 frequencies.

        input    f₀ f₁ f₂ … f_{T−2}       f = 10 log₁₀(10⁻⁵ + |X|²), X the short-time Fourier transform
        target   f₁ f₂ f₃ … f_{T−1}       at 8 kHz: Hann windows of 256 samples, a new one every 128

    Sentences of a batch are padded: inputs with 0, targets with NaN. The loss ignores the padding.
    ``corpus``      "full" is LDC93S1, "sample" is NLTK's part of it, "auto" is the first of them that is found
    ``normalised``  inputs and outputs are (f − mean frame) / deviation of the training data; ``mse`` stays in dB²
    """

    corpus: str = "auto"
    normalised: bool = True

    causal: ClassVar[bool] = True
    score: ClassVar[str] = "mse"
    training: ClassVar[Mapping[str, Any]] = {"epochs": 20, "batch": 8, "evaluate_batch": 16}

    def __post_init__(self) -> None:
        self.check_choice("corpus", ("auto", *FOLDERS))
        self.check_flags("normalised")
        if self.corpus == "auto":  # resolved, so that the settings of a run name its corpus
            there = (corpus for corpus, folder in FOLDERS.items() if data_set(folder))
            object.__setattr__(self, "corpus", next(there, "auto"))

    @property
    def input_size(self) -> int:
        return speech.BINS

    @property
    def output_size(self) -> int:
        return speech.BINS

    @property
    def steps(self) -> int:
        """Average number of time steps of a sentence. Sentences differ in length."""
        return STEPS

    @property
    def training_steps(self) -> int:
        """Approximate number of time steps in one pass through the training data."""
        return SENTENCES.get(self.corpus, SENTENCES["full"]) * STEPS

    def folder(self) -> Path:
        """Return the folder of the corpus. Raise a ValueError that says how to get it if there is none."""
        wanted = FOLDERS if self.corpus == "auto" else {self.corpus: FOLDERS[self.corpus]}
        if (folder := next(filter(None, map(data_set, wanted.values())), None)) is None:
            names, ways = " or ".join(wanted.values()), "; ".join(HOW_TO_GET[corpus] for corpus in wanted)
            raise ValueError(f"TIMIT expects a folder {names} in the one that ${VARIABLE} names; got none: {ways}")
        return folder

    def part(self, split: str) -> "Part":
        """Return the recordings of a split and their spectrograms, read from the corpus, as a `Part`."""
        self.check_split(split)
        return read(self.folder()).parts[split]

    @property
    def fingerprint(self) -> str | None:
        """Hash of the names and lengths of the training recordings if they normalise the data, else None."""
        if not self.normalised:
            return None
        recordings, frames = self.part("train")
        words = [f"{one.name.lower()} {len(shown)}" for one, shown in zip(recordings, frames, strict=True)]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]

    def count(self, split: str) -> int:
        return len(self.part(split).recordings)

    def take(self, split: str, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return frames and next frames (n, time, 129) of the sentences with the indices ``which`` (n,).

        Shorter sentences are padded at the end: inputs with 0, targets with NaN.
        """
        frames = self.part(split).frames
        chosen = [self.normalise(frames[number]) for number in which.tolist()]
        inputs = pad_sequence([sentence[:-1] for sentence in chosen], batch_first=True)
        targets = pad_sequence([sentence[1:] for sentence in chosen], batch_first=True, padding_value=torch.nan)
        return inputs, targets

    @property
    def scale(self) -> "Scale":
        """Mean frame and standard deviation of the training data, a `Scale`; 0 and 1 if the task is not normalised."""
        return read(self.folder()).scale if self.normalised else Scale(torch.zeros(()), 1.0)

    def normalise(self, decibels: Tensor) -> Tensor:
        """Return spectrogram frames in dB, (…, 129), as network inputs: (frame − mean) / deviation.

        Frames are unchanged if the task is not normalised.
        """
        mean, deviation = self.scale
        return (decibels - mean) / deviation

    def decibels(self, outputs: Tensor) -> Tensor:
        """Return the outputs of a network in dB: the inverse of `normalise`."""
        mean, deviation = self.scale
        return outputs * deviation + mean.to(outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error over all values of (batch, time, 129), a scalar tensor, without the padding.

        The padding is where ``targets`` are NaN.
        """
        real = ~targets.isnan()
        return torch.where(real, outputs - targets, 0).square().sum() / real.sum()

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the dict {"mse": mean squared error in dB²}, without the padding."""
        return {"mse": self.loss(outputs, targets).item() * self.scale.deviation**2}

    @property
    def guessing_loss(self) -> float:
        """Mean squared error of always predicting the mean training frame: 1 if normalised, otherwise in dB²."""
        return 1.0 if self.normalised else read(self.folder()).scale.deviation ** 2

    def weight(self, targets: Tensor) -> float:
        """Return the number of target values that are no padding, the weight of the batch in a mean."""
        return float((~targets.isnan()).sum())


class Scale(NamedTuple):
    """Mean frame and standard deviation of spectrograms, for normalisation."""

    mean: Tensor
    """Mean frame (129,), or the scalar tensor 0 if the task is not normalised."""
    deviation: float
    """Standard deviation from the mean frame, in dB: one number for all frequencies.

    So the MSE of normalised frames is the MSE in dB² times a constant.
    """


class Recording(NamedTuple):
    """One recorded sentence: speaker, name of the sentence and path of the file."""

    speaker: str
    sentence: str
    path: Path

    @property
    def name(self) -> str:
        """Name of the recording: SPEAKER-SENTENCE."""
        return f"{self.speaker}-{self.sentence}"


class Part(NamedTuple):
    """One split of the corpus: its recordings, and the spectrogram of each in dB."""

    recordings: list[Recording]
    frames: list[Tensor]
    """Spectrogram (time, 129) of each recording, in dB."""


class Corpus(NamedTuple):
    """The whole corpus: its splits, and the scale (mean and deviation) of the training data."""

    parts: dict[str, Part]
    """Recordings and spectrograms by split: "train", "valid" and "test"."""
    scale: Scale
    """Mean and deviation of the targets of training."""


@cache
def read(folder: Path) -> Corpus:
    """Return the whole TIMIT corpus in a folder as spectrograms, a `Corpus`. It is read once per process.

    On a terminal, a progress bar is shown.
    """
    speakers = of_sample(folder) if folder.name == FOLDERS["sample"] else of_corpus(folder)
    recordings = {split: [one for path in paths for one in spoken(path)] for split, paths in speakers.items()}
    total, console = sum(map(len, recordings.values())), Console(stderr=True)
    if total > MANY and not console.is_terminal:
        console.print(f"TIMIT: reading {total} recordings")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("TIMIT", total=total)
        parts = {split: Part(chosen, []) for split, chosen in recordings.items()}
        for part in parts.values():
            for recording in part.recordings:
                signal = speech.read_speech("TIMIT", recording.path)
                part.frames.append(speech.log_magnitude(speech.stft(signal)).float())
                progress.advance(bar)
    return Corpus(parts, measure([sentence[1:] for sentence in parts["train"].frames]))


def measure(sentences: list[Tensor]) -> Scale:
    """Return the mean frame and the standard deviation of sentences (time, 129), as a `Scale`.

    Sentences are added one by one, because all of them in double precision would take a gigabyte.
    """
    count = sum(map(len, sentences))
    mean = torch.stack([frames.double().sum(0) for frames in sentences]).sum(0) / count
    square = sum((frames - mean).square().sum().item() for frames in sentences) / (count * len(mean))
    return Scale(mean.float(), math.sqrt(square))


def of_sample(folder: Path) -> dict[str, list[Path]]:
    """Return the folders of the speakers of each split, a dict of lists, for NLTK's sample of TIMIT.

    The last two speakers, a woman and a man of dialect region 8, are for tests, those of region 7 for validation. Raise
    ValueError if there are fewer than five speakers.
    """
    speakers = [path for path in subfolders(folder) if path.name.lower().startswith("dr")]
    if len(speakers) < 5:
        raise ValueError(f"TIMIT expects speakers in {folder}, such as dr1-fvmh0, five at least; got {len(speakers)}")
    return {"train": speakers[:-4], "valid": speakers[-4:-2], "test": speakers[-2:]}


def of_corpus(folder: Path) -> dict[str, list[Path]]:
    """Return the folders of the speakers of each split, a dict of lists, for the full TIMIT corpus.

    Training uses all of TRAIN. Of TEST, the core test set is for tests and other speakers are for validation. Raise
    ValueError if one of these speakers is missing.
    """
    train, test = (by_name(folder, part) for part in ("train", "test"))
    chosen = {"valid": DEVELOPMENT.split(), "test": CORE_TEST.split()}
    if missing := [name for names in chosen.values() for name in names if name not in test]:
        raise ValueError(f"TIMIT expects the speaker {missing[0]} in {folder}/TEST; got {len(test)} others")
    return {"train": list(train.values())} | {split: [test[name] for name in names] for split, names in chosen.items()}


def by_name(folder: Path, part: str) -> dict[str, Path]:
    """Return a dict of the speakers' folders by name in lower case. Each is in the folder of a dialect region.

    ``part`` is "train" or "test". Raise ValueError if there are no speakers.
    """
    regions = [region for top in subfolders(folder) if top.name.lower() == part for region in subfolders(top)]
    if not (speakers := {path.name.lower(): path for region in regions for path in subfolders(region)}):
        raise ValueError(f"TIMIT expects speakers in {folder}/{part.upper()}, such as DR1/FVMH0; got none")
    return speakers


def spoken(speaker: Path) -> list[Recording]:
    """Return the recordings in a speaker's folder without the sentences sa1 and sa2.

    Every speaker reads these two sentences, so training would reveal sentences of the tests. Raise ValueError if there
    are no others.
    """
    files = sorted(path for path in speaker.iterdir() if path.suffix.lower() == ".wav" and path.name[0] != ".")
    by_sentence = {path.name.partition(".")[0].lower(): path for path in files}  # one of SX1.WAV and SX1.WAV.wav
    if not (own := {name: path for name, path in by_sentence.items() if not name.startswith("sa")}):
        raise ValueError(f"TIMIT expects recordings, *.wav, in {speaker}; got none besides sa1 and sa2")
    return [Recording(speaker.name.lower(), name, path) for name, path in own.items()]


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name regardless of case."""
    return sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.name.lower())
