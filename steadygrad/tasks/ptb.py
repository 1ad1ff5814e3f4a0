"""Language modelling on the Penn Treebank as prepared by Mikolov, by characters and by words."""

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from steadygrad import files
from steadygrad.tasks.data import DataSet, cache_folder, read_npz
from steadygrad.tasks.dataset import SPLITS, TextTask
from steadygrad.tasks.task import accuracy, cross_entropy

END = "<eos>"
"""Token at the end of every line."""
SPACE = "_"
PTB = DataSet(
    "ptb",
    "https://www.fit.vut.cz/person/imikolov/public/rnnlm/simple-examples.tgz",
    {
        "ptb.char.train.txt": ("e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9",),
        "ptb.char.valid.txt": ("21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8",),
        "ptb.char.test.txt": ("1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe",),
        "ptb.train.txt": ("fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",),
        "ptb.valid.txt": ("c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",),
        "ptb.test.txt": ("dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",),
    },
)


@dataclass(frozen=True)
class PennTreebank(TextTask):
    """Base class of Penn Treebank tasks. Tokens are separated by spaces, and every line ends with the token `END`."""

    form: ClassVar[str]
    """File name, with a placeholder for the split."""

    def tokens(self, split: str) -> Tensor:
        return corpus(type(self).__name__, self.form).numbers[split]

    @property
    def vocabulary(self) -> list[str]:
        """List of words or characters by index, in the order of their first occurrence in the training text."""
        return corpus(type(self).__name__, self.form).vocabulary

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy per token."""
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the dict {"accuracy": share of tokens that are predicted right}."""
        return {"accuracy": accuracy(outputs, targets)}

    def numbered(self, tokens: Sequence[str]) -> Tensor:
        """Return the indices of tokens as an int64 tensor. Raise ValueError for tokens outside the vocabulary."""
        known = {token: number for number, token in enumerate(self.vocabulary)}
        if unknown := sorted({token for token in tokens if token not in known}):
            raise ValueError(
                f"{type(self).__name__} expects text of its vocabulary; got {', '.join(map(repr, unknown[:5]))}"
            )
        return torch.tensor([known[token] for token in tokens], dtype=torch.long)


@dataclass(frozen=True)
class CharPTB(PennTreebank, name="char-ptb"):
    """Predict the next character. The score is bits per character. One of the 50 symbols is the end of a line.

    input   t h e _ y e n _ r o s
    target  h e _ y e n _ r o s e
    """

    form: ClassVar[str] = "ptb.char.{split}.txt"
    vocabulary_size: ClassVar[int] = 50
    sizes: ClassVar[dict[str, int]] = {"train": 5_017_482, "valid": 393_042, "test": 442_423}
    entropy: ClassVar[float] = 3.004110
    score: ClassVar[str] = "bpc"
    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "batch": 128, "window": 150, "evaluate_batch": 10}

    def conclude(self, means: dict[str, float]) -> dict[str, float]:
        """Return the dict of means with ``bpc``, bits per character, added: the loss divided by ln 2."""
        return means | {"bpc": means["loss"] / math.log(2)}

    def encode(self, text: str) -> Tensor:
        """Return the vocabulary indices of all characters of a string as an int64 tensor (characters,).

        Spaces and line breaks count as characters. The string is plain text, whereas in the files spaces separate the
        characters. Raise ValueError for characters outside the vocabulary.
        """
        return self.numbered([{" ": SPACE, "\n": END}.get(character, character) for character in text])

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(
            {SPACE: " ", END: "\n"}.get(symbol, symbol) for symbol in map(self.vocabulary.__getitem__, tokens)
        )


@dataclass(frozen=True)
class WordPTB(PennTreebank, name="word-ptb"):
    """Predict the next word. The score is perplexity. The 10,000 words include <unk> (rare), N (number) and <eos>.

    input   the yen rose
    target  yen rose <eos>
    """

    form: ClassVar[str] = "ptb.{split}.txt"
    vocabulary_size: ClassVar[int] = 10_000
    sizes: ClassVar[dict[str, int]] = {"train": 929_589, "valid": 73_760, "test": 82_430}
    entropy: ClassVar[float] = 6.529332
    score: ClassVar[str] = "perplexity"
    training: ClassVar[Mapping[str, Any]] = {"epochs": 10, "batch": 20, "window": 70, "evaluate_batch": 10}

    def conclude(self, means: dict[str, float]) -> dict[str, float]:
        """Return the dict of means with ``perplexity`` added: e to the power of the loss."""
        return means | {"perplexity": math.exp(min(means["loss"], 700.0))}

    def encode(self, text: str) -> Tensor:
        """Return the vocabulary indices of the words of a string as an int64 tensor (words,).

        White space separates the words. A line break counts as the word <eos>. Raise ValueError for words outside the
        vocabulary: they are not replaced by <unk>.
        """
        return self.numbered(text.replace("\n", f" {END} ").split())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the words of these token indices as text, a space after each. <eos> becomes a line break."""
        words = [self.vocabulary[token] for token in tokens]
        return "".join("\n" if word == END else f"{word} " for word in words)


class Corpus(NamedTuple):
    """Vocabulary of a text, and the token indices of each split."""

    vocabulary: list[str]
    numbers: dict[str, Tensor]
    """Token indices of each split."""


@cache
def corpus(who: str, form: str) -> Corpus:
    """Return the vocabulary and token indices of the Penn Treebank files, as a `Corpus`.

    ``form`` is the file name with a placeholder, such as "ptb.{split}.txt". ``who`` is the name of the task in error
    messages. Vocabulary and indices are cached on disk, because tokenising takes a second. Missing files are
    downloaded.
    """
    raw = {split: PTB.read(who, form.format(split=split)) for split in SPLITS}
    digest = hashlib.sha256(b"".join(raw.values())).hexdigest()
    path = cache_folder() / "tokens" / f"{digest}.npz"
    arrays = read_cache(path)
    if arrays is None:
        arrays = tokenised(raw)
        write_cache(path, arrays)
    return Corpus(
        arrays["vocabulary"].tolist(), {split: torch.from_numpy(arrays[split].astype(np.int64)) for split in SPLITS}
    )


def tokenised(raw: dict[str, bytes]) -> dict[str, Any]:
    """Return a dict of arrays from the raw texts: ``vocabulary``, and the token indices of each split by its name.

    ``raw`` is a dict of the raw texts by split.
    """
    texts = {
        split: [
            token for line in content.decode("ascii").splitlines() if line.strip() for token in (*line.split(), END)
        ]
        for split, content in raw.items()
    }
    known = {token: number for number, token in enumerate(dict.fromkeys(texts["train"]))}
    smallest = np.uint8 if len(known) <= 256 else np.uint16
    arrays = {split: np.array([known[token] for token in tokens], smallest) for split, tokens in texts.items()}
    return {"vocabulary": np.array(list(known)), **arrays}


def read_cache(path: Path) -> dict[str, Any] | None:
    """Return the dict of arrays of `tokenised` from a cache file, or None if the file is missing or damaged."""
    try:
        return read_npz("PennTreebank", path, ("vocabulary", *SPLITS))
    except (OSError, ValueError):
        return None


def write_cache(path: Path, arrays: dict[str, Any]) -> None:
    """Write the dict of arrays of `tokenised` to a cache file. Disk errors are ignored."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    with suppress(OSError):  # without the cache, every run tokenises again, which takes a second
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content.getvalue())
