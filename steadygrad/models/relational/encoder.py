"""Images to vectors: the convolutions in front of every relational network (Webb et al., 2021)."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from steadygrad.models.relational.starts import kaiming

FEATURES = 128
SMALLEST = 8  # pixels that are still one after three halvings


class Encoder(nn.Module):
    """z = relu(W₂ relu(W₁ conv³(x))), a conv: 32 channels, 4 × 4, stride 2, padding 1, ReLU.

    images (n, channels, size, size) → z (n, 128). Three halvings leave 4 × 4 places of an image of 32 × 32, and a
    single place of a cell of 12 × 12, which is still seen whole: the last convolution looks at 22 pixels.
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
    """encode(images), a row of features for each image, with no image encoded twice.

    Rows of one product are not always rounded alike, and normalisation over objects would blow up the difference
    between two encodings of the same image. It also saves the work: five glyphs make up a batch of training.
    """
    # each copy has a gradient of its own; and of none, or without numbers, nothing is alike
    if images.requires_grad or not len(images) or images.is_meta:
        return encode(images)
    one_of_each, which = copies(images[:, :1] if images.stride(1) == 0 else images)
    return encode(images.index_select(0, one_of_each)).index_select(0, which)


def copies(images: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of images that are all different, and for every image the place of its like among them.

    Images are told apart by a sum of their bits, weighted at random and exact as it is of whole numbers, and then
    compared: `torch.unique` of whole images takes three times as long.
    """
    bits = images.flatten(1).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[images.dtype.itemsize])
    sums = (bits * weights_of_bits(bits.shape[1], bits.dtype, bits.device)).sum(dim=1)
    _, which = sums.unique(return_inverse=True)
    one_of_each = one_of_every_kind(which)
    if torch.equal(bits, bits.index_select(0, one_of_each.index_select(0, which))):
        return one_of_each, which
    _, which = bits.unique(dim=0, return_inverse=True)  # two have the same sum
    return one_of_every_kind(which), which


def one_of_every_kind(kinds: Tensor) -> Tensor:
    """For each kind 0, 1, … the place of one that is of it."""
    places = torch.arange(len(kinds), device=kinds.device)
    return kinds.new_empty(int(kinds.max()) + 1).scatter_(0, kinds, places)


@cache
def weights_of_bits(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    info = torch.iinfo(dtype)
    drawn = torch.randint(info.min // 2, info.max // 2, (count,), generator=torch.Generator().manual_seed(0))
    return (2 * drawn + 1).to(dtype=dtype, device=device)  # odd, so that no bit is lost
