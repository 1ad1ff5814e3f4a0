"""Damage files of data sets and read them. A reader returns the right content or raises a ValueError of one line.

Sounds have no checksum, so damaged samples are not noticed. Their reader has to return a finite signal.
"""

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from steadygrad.tasks import ptb, speech
from steadygrad.tasks.data import DataSet
from steadygrad.tasks.relational import games, glyphs
from tests.campaigns.campaign import Campaign
from tests.campaigns.damage import damage
from tests.fakes import babble, riff, sphere

SOUND = babble(2000, seed=0)
TEXT = b" a bank said \n" * 50
Read = Callable[[Path], Any]


def run(campaign: Campaign) -> None:
    """Damage one file in each try and read it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        kinds = make_kinds(Path(folder))
        expected = {name: read(path) for name, (path, read) in kinds.items()}
        originals = {name: path.read_bytes() for name, (path, _) in kinds.items()}
        for random in campaign.tries():
            name = random.choice(list(kinds))
            path, read = kinds[name]
            path.write_bytes(damage(random, originals[name]))
            campaign.count("files")
            try:
                with warnings.catch_warnings(action="ignore"):
                    content = read(path)
                if not equal(content, expected[name]) and not (name.startswith("sound") and is_sound(content)):
                    campaign.fail(f"{name}: other content")
            except ValueError as error:
                if path.name not in str(error):
                    campaign.fail(f"{name}: the error does not name the file: {error}")
            except Exception as error:
                campaign.fail(f"{name}: {type(error).__name__}: {error}")
            path.write_bytes(originals[name])


def make_kinds(folder: Path) -> dict[str, tuple[Path, Read]]:
    """Write a whole file of each kind. Return its path and reader by name."""
    idx = gzip.compress(bytes(16) + np.random.default_rng(0).integers(0, 256, 3000, np.uint8).tobytes())
    images = np.random.default_rng(0).integers(0, 192, (3, 36, 36, 3))
    return {
        "sound riff": (written(folder / "a.wav", riff(SOUND)), read_sound),
        "sound sphere": (written(folder / "b.wav", sphere(SOUND)), read_sound),
        "mnist": (written(folder / "images-idx3-ubyte.gz", idx), checked_reader(gzip.decompress(idx))),
        "ptb text": (written(folder / "ptb.txt", TEXT), checked_reader(TEXT)),
        "ptb archive": (written(folder / "simple.tgz", archive(TEXT)), read_member),
        "ptb tokens": (written(folder / "tokens.npz", npz(vocabulary=np.array(["a", "b"]), **tokens())), read_tokens),
        "games": (
            written(folder / "games.npz", npz(images=images, labels=np.ones((3, 1), np.int64))),
            games.read_images.__wrapped__,
        ),
        "glyphs": (glyph_folder(folder / "glyphs") / "0.png", lambda path: glyphs.read_glyphs.__wrapped__(path.parent)),
    }


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read_sound(path: Path) -> torch.Tensor:
    return speech.read_speech("TIMIT", path)


def checked_reader(content: bytes) -> Read:
    """Return a reader of a file with this content, whose SHA-256 is known."""
    return lambda path: data_set(path.name, content).checked("Own", path.name, path.read_bytes(), path)


def archive(content: bytes) -> bytes:
    packed, entry = io.BytesIO(), tarfile.TarInfo("data/ptb.txt")
    entry.size = len(content)
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def read_member(path: Path) -> bytes:
    return data_set("ptb.txt", TEXT).opened("Own", "ptb.txt", path, packed=True)[1]


def data_set(name: str, content: bytes) -> DataSet:
    return DataSet("own", "file:///", {name: (hashlib.sha256(content).hexdigest(),)})


def tokens() -> dict[str, np.ndarray]:
    return {split: np.arange(400, dtype=np.uint8) % 2 for split in ("train", "valid", "test")}


def npz(**arrays: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def read_tokens(path: Path) -> dict[str, np.ndarray]:
    """Return the cached tokens; a damaged cache counts as missing."""
    if (found := ptb.read_cache(path)) is None:
        raise ValueError(f"{path.name} is not used")
    return found


def glyph_folder(folder: Path) -> Path:
    """Return a folder of glyphs: two images, and links to the second."""
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (glyphs.SIZE, glyphs.SIZE), np.uint8)
    for number in range(glyphs.COUNT):
        path = folder / f"{number}.png"
        if number < 2:
            Image.fromarray(pixels).save(path)
        else:
            os.link(folder / "1.png", path)
    return folder


def equal(one: Any, other: Any) -> bool:
    """Return whether two contents are equal: bytes, tensors, arrays, and tuples or dicts of them."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, bytes):
        return one == other
    return np.array_equal(np.asarray(one), np.asarray(other))


def is_sound(content: Any) -> bool:
    """Return whether the content is a finite, non-empty signal below 2; the filter may exceed 1."""
    return content.dim() == 1 and len(content) > 0 and bool((content.abs() < 2).all())
