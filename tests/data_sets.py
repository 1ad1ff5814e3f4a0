"""Small data sets of the tests' own in the form of the real ones, so that nothing has to be downloaded."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np

from steadygrad.tasks import pixels, ptb
from tests.fakes import write_timit_sample

LINES = {"train": 60, "valid": 12, "test": 9}


def write_all(folder: Path, real: Path | None) -> None:
    """Into one folder, with what else is in the real one, if there is one."""
    for make in (write_ptb, write_mnist, write_timit_sample):
        make(folder)
    for other in sorted(real.iterdir()) if real and real.is_dir() else ():
        if not (folder / other.name).exists() and other.name != "timit":  # which would be taken instead of the sample
            (folder / other.name).symlink_to(other.resolve())


def accept(files: dict[str, tuple[str, ...]], name: str, content: bytes) -> None:
    """Beside the real file."""
    files[name] = (*files[name], hashlib.sha256(content).hexdigest())


def write_ptb(folder: Path) -> None:
    (folder / "ptb").mkdir(parents=True)
    words = ["<unk>", "N", "a", "bank", "said", "the", "yen", "rose"]
    for number, (split, count) in enumerate(LINES.items()):
        random = np.random.default_rng(number)
        lines = [" ".join(random.choice(words, random.integers(2, 9))) for _ in range(count)]
        if split == "train":
            lines = [" ".join(words), *lines]
        for name, text in (
            (f"ptb.{split}.txt", "".join(f" {line} \n" for line in lines)),
            (f"ptb.char.{split}.txt", "".join(" ".join(line.replace(" ", "_")) + " \n" for line in lines) + " "),
        ):
            (folder / "ptb" / name).write_text(text, "ascii")
            accept(ptb.PTB.files, name, text.encode())


def write_mnist(folder: Path) -> None:
    (folder / "mnist").mkdir(parents=True)
    patterns = np.random.default_rng(0).integers(0, 256, (10, pixels.PIXELS), np.uint8)
    for part, count in (("train", pixels.TRAINING), ("t10k", pixels.TESTS)):
        labels = (np.arange(count) * 7 % 10).astype(np.uint8)
        for name, header, content in (
            (f"{part}-images-idx3-ubyte.gz", 16, patterns[labels]),
            (f"{part}-labels-idx1-ubyte.gz", 8, labels),
        ):
            data = bytes(header) + content.tobytes()
            (folder / "mnist" / name).write_bytes(gzip.compress(data, 1))
            accept(pixels.MNIST.files, name, data)


def real_folder() -> Path | None:
    """What $STEADYGRAD_DATA named before the tests put their own there."""
    return Path(real) if (real := os.environ.get("STEADYGRAD_REAL_DATA")) else None
