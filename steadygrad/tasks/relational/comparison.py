"""Comparison: which of two shapes is larger, an asymmetric relation (Kerg, 2022, chapter 7)."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.tasks.relational.glyphs import SIZE
from steadygrad.tasks.relational.shapes import ShapeTask

SIZES = (16, 24, SIZE)
"""Pixels of a small, a medium and a large shape. The thesis gives no numbers."""
SMALL, MEDIUM, LARGE = range(len(SIZES))


@dataclass(frozen=True)
class Comparison(ShapeTask, name="comparison"):
    """Choose the larger of two copies of one shape, a small and a large copy.

    input    A a    a A
    target   0      1
    """

    @property
    def rows(self) -> tuple[int, ...]:
        return (2,)

    @property
    def output_size(self) -> int:
        """Number of answers, 2: the first or the second shape is larger."""
        return 2

    def letter_count(self, unseen: bool) -> int:
        return 1

    def pairs(self, unseen: bool) -> tuple[tuple[int, int], ...]:
        """Return the pairs of sizes in problems of training, or of tests if ``unseen``, each pair once.

        Problems have each pair in both orders. Sizes are indices of `SIZES`, such as `SMALL`.
        """
        return ((SMALL, LARGE),)

    def problems(self, batch: int, generator: Generator, unseen: bool) -> tuple[Tensor, Tensor]:
        """Return images (batch, 2, 3, 32, 32) and answers (batch,) of random problems.

        They are problems of training, or of tests if ``unseen``. The answer is the place of the larger shape, 0 or 1.
        """
        sizes = torch.tensor([sizes[::order] for sizes in self.pairs(unseen) for order in (1, -1)])
        sizes = sizes[torch.randint(len(sizes), (batch,), generator=generator)]
        shapes = self.assign_shapes(torch.zeros_like(sizes), generator, unseen)
        images = in_every_size(self.images)[sizes, shapes]
        return self.with_channels(images, generator), sizes.argmax(1)


@dataclass(frozen=True)
class TransitiveComparison(Comparison, name="transitive-comparison"):
    """Choose the larger of two copies of one shape. Tests combine two sizes that training never combines.

    input    A a    a A        training: small and medium, medium and large; tests: small and large
    target   0      1
    """

    def pairs(self, unseen: bool) -> tuple[tuple[int, int], ...]:
        return super().pairs(unseen) if unseen else ((SMALL, MEDIUM), (MEDIUM, LARGE))


@cache  # a tensor is hashed by identity; the tensor of glyphs is always the same
def in_every_size(images: Tensor) -> Tensor:
    """Return images (shapes, 32, 32) scaled to all sizes, centred on white: (sizes, shapes, 32, 32)."""
    scaled = [F.interpolate(images[None], size=(size, size), mode="bilinear", antialias=True)[0] for size in SIZES]
    return torch.stack([F.pad(image, [(SIZE - image.shape[-1]) // 2] * 4, value=1.0) for image in scaled])
