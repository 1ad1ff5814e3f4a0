"""Convolutional encoder of images, part of every relational network (Webb et al., 2021)."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from steadygrad.models.relational.starts import kaiming

FEATURES = 128
SMALLEST = 8  # side of an image of which three halvings leave one pixel


class Encoder(nn.Module):
    """z = relu(W₂ relu(W₁ conv³(x))), a conv: 32 channels, 4 × 4, stride 2, padding 1, ReLU.

    images (n, channels, size, size) → z (n, 128). Three convolutions reduce an image of 32 × 32 pixels to 4 × 4
    positions, and a cell of 12 × 12 to one position. This position depends on the whole cell, because its receptive
    field is 22 × 22 pixels.
    """

    def __init__(self, image_size: int, channels: int) -> None:
        super().__init__()
        if image_size < SMALLEST:
            raise ValueError(f"Encoder expects images of at least {SMALLEST} × {SMALLEST} pixels; got {image_size}")
        convolutions = [nn.Conv2d(inputs, 32, kernel_size=4, stride=2, padding=1) for inputs in (channels, 32, 32)]
        self.convolutions = nn.Sequential(*(part for one in convolutions for part in (one, nn.ReLU())), nn.Flatten())
        self.hidden = nn.Linear(32 * (image_size // 8) ** 2, 256)
        self.out = nn.Linear(256, FEATURES)
        self.apply(kaiming)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.hidden(self.convolutions(images)).relu()).relu()


def each_once(encode: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return encode(images), a row of features for each image, and encode equal images only once.

    Equal rows of a matrix product may be rounded differently, and normalisation over objects would amplify the
    difference between two encodings of the same image. Encoding once also saves time: a batch of training may consist
    of five different glyphs.
    """
    # each copy needs its own gradient; an empty batch and the meta device have no data to compare
    if images.requires_grad or not len(images) or images.is_meta:
        return encode(images)
    one_of_each, which = copies(images[:, :1] if images.stride(1) == 0 else images)
    return encode(images.index_select(0, one_of_each)).index_select(0, which)


def copies(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the different images, and for every image the position of its equal among them.

    Images are grouped by a randomly weighted sum of their bits, which is exact because it uses integers, and then
    compared. `torch.unique` of whole images takes three times as long.
    """
    bits = images.flatten(1).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[images.dtype.itemsize])
    sums = (bits * weights_of_bits(bits.shape[1], bits.dtype, bits.device)).sum(dim=1)
    _, which = sums.unique(return_inverse=True)
    one_of_each = one_of_every_kind(which)
    if torch.equal(bits, bits.index_select(0, one_of_each.index_select(0, which))):
        return one_of_each, which
    _, which = bits.unique(dim=0, return_inverse=True)  # two different images have the same sum
    return one_of_every_kind(which), which


def one_of_every_kind(kinds: Tensor) -> Tensor:
    """Return for each kind 0, 1, … the position of one element of this kind."""
    places = torch.arange(len(kinds), device=kinds.device)
    return kinds.new_empty(int(kinds.max()) + 1).scatter_(0, kinds, places)


@cache
def weights_of_bits(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return fixed random odd weights for the sum in `copies`."""
    info = torch.iinfo(dtype)
    drawn = torch.randint(info.min // 2, info.max // 2, (count,), generator=torch.Generator().manual_seed(0))
    return (2 * drawn + 1).to(dtype=dtype, device=device)  # odd, so that no bit is lost
