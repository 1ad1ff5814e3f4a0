"""Base class of relational tasks: images, a question about their relations, and held-out images for tests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.problem import Problem, Segments
from steadygrad.tasks.task import Task, accuracy, cross_entropy


@dataclass(frozen=True)
class ObjectTask(Task):
    """Base class of tasks on objects. Inputs are images (batch, objects, channels, image_size, image_size) in [0, 1].

    Targets (batch,) are answers. `sample` draws problems for training, `sample_unseen` for tests: with held-out shapes
    and, in some tasks, held-out relations.
    """

    channels: ClassVar[int] = 3
    image_size: ClassVar[int] = 32
    last_only: ClassVar[bool] = True
    score: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    training: ClassVar[Mapping[str, Any]] = {
        "steps": 5000,  # this and lr: Kerg et al. (2022), table 1 of the appendix
        "lr": 5e-4,
        "optimizer": "adam",  # Webb et al. (2021); with the table's "gradient descent", the loss would hardly fall
        "batch": 32,
        "evaluate_every": 250,
        "evaluate_examples": 1000,
    }

    @property
    def objects(self) -> int:
        """Number of images of a problem."""
        return sum(self.rows)

    @property
    def rows(self) -> tuple[int, ...]:
        """Numbers of images in each row, as papers draw a problem: a tuple such as (3, 2, 4)."""
        raise NotImplementedError

    @property
    def problem(self) -> Problem:
        """Sizes of a problem that a relational network needs, such as the number of objects and of answers."""
        return Problem(self.objects, self.image_size, self.channels, self.output_size, self.segments)

    @property
    def segments(self) -> Segments:
        """Ranges of objects that networks may normalise together, a tuple of pairs (begin, end), end excluded.

        It is one range of all objects, unless Webb et al. divide them.
        """
        return ((0, self.objects),)

    @property
    def steps(self) -> int:
        """Number of objects of a problem."""
        return self.objects

    @property
    def model_sizes(self) -> dict[str, int]:
        return {**super().model_sizes, "objects": self.objects}

    @property
    def input_size(self) -> int:
        """Number of values of an image: channels times pixels."""
        return self.channels * self.image_size**2

    def sample_unseen(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return images and answers of ``batch`` random problems for tests.

        They have held-out shapes and, in some tasks, held-out relations.
        """
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the answers (batch,), from logits (batch, output_size)."""
        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the dict {"accuracy": share of right answers}."""
        return {"accuracy": accuracy(outputs, targets)}

    @property
    def guessing_loss(self) -> float:
        """Loss of giving all answers the same probability."""
        return math.log(self.output_size)

    def example(self, generator: Generator, gap: int = 2) -> tuple[Tensor, int]:
        """Return a random problem of training as a picture (channels, height, width), and its answer.

        Between the images the picture is grey, ``gap`` pixels on each side of an image.
        """
        images, targets = self.sample(1, generator)
        rows = [torch.cat(list(F.pad(row, [gap] * 4, value=0.5)), dim=-1) for row in images[0].split(self.rows)]
        width = max(row.shape[-1] for row in rows)
        return torch.cat([F.pad(row, (0, width - row.shape[-1]), value=0.5) for row in rows], dim=1), int(targets)
