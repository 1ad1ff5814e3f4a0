"""Classification of images read pixel by pixel: MNIST and Fashion-MNIST."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from steadygrad.tasks.data import DataSet
from steadygrad.tasks.dataset import ExampleTask
from steadygrad.tasks.task import accuracy, cross_entropy

PIXELS, CLASSES, TRAINING, TESTS = 28 * 28, 10, 60_000, 10_000
MNIST = DataSet(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    {
        "train-images-idx3-ubyte.gz": ("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",),
        "train-labels-idx1-ubyte.gz": ("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",),
        "t10k-images-idx3-ubyte.gz": ("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",),
        "t10k-labels-idx1-ubyte.gz": ("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",),
    },
)
FASHION = DataSet(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    {  # SHA-256 of the .gz files
        "train-images-idx3-ubyte.gz": ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",),
        "train-labels-idx1-ubyte.gz": ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",),
        "t10k-images-idx3-ubyte.gz": ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",),
        "t10k-labels-idx1-ubyte.gz": ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",),
    },
)


@dataclass(frozen=True)
class PixelMNIST(ExampleTask, name="pixel-mnist"):
    """Classify an image of 784 pixels into ten classes, reading one pixel in [0, 1] per step.

    input   0 0 … 0.5 1 1 0.2 … 0 0
    target  the digit

    ``permuted``  read the pixels in one fixed random order, drawn by numpy.random.RandomState(permutation_seed)
    ``fashion``   classify clothes (Fashion-MNIST) instead of digits (MNIST)
    ``held_back`` number of validation images, the last of the 60,000 training images
    """

    permuted: bool = True
    permutation_seed: int = 1234
    fashion: bool = False
    held_back: int = 10_000

    last_only: ClassVar[bool] = True
    score: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    training: ClassVar[Mapping[str, Any]] = {"epochs": 15, "batch": 100, "evaluate_batch": 500}

    def __post_init__(self) -> None:
        self.check_flags("permuted", "fashion")
        self.check(held_back=1)
        self.check_seed("permutation_seed")
        if self.held_back >= TRAINING:
            raise ValueError(f"PixelMNIST expects held_back below {TRAINING}; got {self.held_back}")

    @property
    def input_size(self) -> int:
        return 1

    @property
    def output_size(self) -> int:
        return CLASSES

    @property
    def steps(self) -> int:
        return PIXELS

    @property
    def training_steps(self) -> int:
        return self.count("train") * PIXELS

    def count(self, split: str) -> int:
        return {"train": TRAINING - self.held_back, "valid": self.held_back, "test": TESTS}[split]

    def take(self, split: str, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return pixels (n, 784, 1) in [0, 1] and labels (n,) of the images with the indices ``which`` (n,)."""
        images, labels = images_and_labels(self.fashion, split == "test")
        which = which + self.count("train") if split == "valid" else which
        pixels = images[which].float() / 255
        pixels = pixels[:, order(self.permutation_seed)] if self.permuted else pixels
        return pixels.unsqueeze(2), labels[which]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the dict {"accuracy": share of images that are classified right}."""
        return {"accuracy": accuracy(outputs, targets)}

    @property
    def guessing_loss(self) -> float:
        """Loss of guessing, ln 10. Each of the ten classes has a frequency of 0.1, to within about 0.01."""
        return math.log(CLASSES)


@cache
def order(seed: int) -> Tensor:
    """Return the fixed random permutation of the 784 pixels for this seed, a tensor of indices."""
    return torch.from_numpy(np.random.RandomState(seed).permutation(PIXELS))


@cache
def images_and_labels(fashion: bool, test: bool) -> tuple[Tensor, Tensor]:
    """Return MNIST's or Fashion-MNIST's pixels (images, 784) from 0 to 255 and labels (images,).

    They are those of training or, with ``test``, of the tests. Missing files are downloaded.
    """
    data, part = FASHION if fashion else MNIST, "t10k" if test else "train"
    images = data.read("PixelMNIST", f"{part}-images-idx3-ubyte.gz")
    labels = data.read("PixelMNIST", f"{part}-labels-idx1-ubyte.gz")
    return idx(images, 16).view(-1, PIXELS), idx(labels, 8).long()


def idx(content: bytes, header: int) -> Tensor:
    """Return the data of an IDX file as a flat tensor of bytes, after a header of this many bytes."""
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).copy())
