"""Something like speech, in files like those of TIMIT."""

import io
import wave
from pathlib import Path

import numpy as np

SPEAKERS = [f"dr{region}-{sex}abc{region}" for region in range(1, 9) for sex in "fm"]
SAMPLES = 4800
"""at 16 kHz: 0.3 s"""
STEPS = 21
"""what a sentence of so many samples has to be predicted"""


def write_timit_sample(folder: Path, samples: int = SAMPLES, varied: int = 0) -> None:
    """Sixteen speakers with two sentences each, like the sample that NLTK distributes, in ``folder/timit_sample``.

    Sentences are up to ``varied`` samples longer than ``samples``, so that they differ in length.
    """
    for number, speaker in enumerate(SPEAKERS):
        own = folder / "timit_sample" / speaker
        own.mkdir(parents=True)
        for sentence, name in enumerate(("si1", "sx2")):
            seed = 2 * number + sentence
            length = samples + varied * (seed % 5) // 4
            (own / f"{name}.wav").write_bytes(riff(babble(length, seed)))


def babble(samples: int, seed: int, rate: int = 16000) -> np.ndarray:
    """A voice that is louder and softer at random, with some noise: integers of 16 bits."""
    random = np.random.default_rng(seed)
    time, pitch = np.arange(samples) / rate, random.uniform(80, 250)
    voice = sum(np.sin(2 * np.pi * pitch * k * time + random.uniform(0, 6)) / k for k in range(1, 25))
    loudness = 10 ** random.uniform(-2, 0, samples // 400 + 2)  # a new one every 25 ms at 16 kHz
    spoken = voice * np.interp(np.arange(samples) / 400, np.arange(len(loudness)), loudness)
    return np.round(8000 * spoken + 10 * random.standard_normal(samples)).clip(-32768, 32767).astype(np.int16)


def riff(samples: np.ndarray, rate: int = 16000, channels: int = 1) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(samples.dtype.itemsize)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return content.getvalue()


def sphere(samples: np.ndarray, rate: int = 16000, **fields: str) -> bytes:
    """The header of TIMIT's files, with other ``fields`` if wanted, and samples in the order of bytes that it names."""
    header = {
        "database_id": "-s5 TIMIT",
        "channel_count": "-i 1",
        "sample_count": f"-i {len(samples)}",
        "sample_rate": f"-i {rate}",
        "sample_n_bytes": "-i 2",
        "sample_byte_format": "-s2 01",
        **fields,
    }
    lines = ["NIST_1A", "   1024", *(f"{name} {value}" for name, value in header.items()), "end_head", ""]
    order = ">i2" if header["sample_byte_format"].endswith("10") else "<i2"
    return "\n".join(lines).encode().ljust(1024) + samples.astype(order).tobytes()
