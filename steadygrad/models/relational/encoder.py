"""Convolutional encoder of images, part of every relational network (Webb et al., 2021)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from steadygrad.kernels import needs_plain
from steadygrad.models.relational.initialisation import kaiming

FEATURES = 128
SMALLEST = 8  # side of an image that three convolutions of stride 2 reduce to one position


class Encoder(nn.Module):
    """z = relu(W₂ relu(W₁ conv³(x))), a conv: 32 channels, 4 × 4, stride 2, padding 1, ReLU.

    images (n, channels, size, size) → z (n, 128). Images of fewer than 8 × 8 pixels raise ValueError. Three
    convolutions reduce an image of 32 × 32 pixels to 4 × 4 positions, and one of 12 × 12 to a single position. This
    position depends on the whole image, because its receptive field is 22 × 22 pixels.
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
        """Return the features z (n, 128) of images (n, channels, size, size)."""
        return self.out(self.hidden(self.convolutions(images)).relu()).relu()


def encode_each_once(encode: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return encode(images), a row of features for each image, but encode equal images only once.

    ``encode`` is a function from images (n, channels, size, size) to features (n, …). All images are encoded if they
    require a gradient, are on the meta device or are traced by torch.func.

    Equal rows of a matrix product may be rounded differently, and normalisation over objects would amplify the
    difference between two encodings of the same image. Encoding once also saves time. A batch of RMTS may show five
    glyphs on 192 images: an update of CoRelNet then takes 5 ms instead of 48 ms, one of ESBN 59 ms instead of 109 ms
    (one thread, see benchmarks/relational.py). The comparison of pixels takes 0.3 ms of it. Tasks therefore return
    images, not indices of glyphs, and users' own images are treated in the same way.
    """
    # each copy needs its own gradient; an empty batch, the meta device and torch.func have no data to compare
    if images.requires_grad or not len(images) or needs_plain(images):
        return encode(images)
    pixels = images[:, :1] if images.stride(1) == 0 else images  # the channels of a grey glyph share memory
    rows = pixels.flatten(1).contiguous().view(torch.uint8).cpu().numpy()
    numbers: dict[bytes, int] = {}
    which = [numbers.setdefault(row.tobytes(), len(numbers)) for row in rows]
    one_of_each = list({number: place for place, number in enumerate(which)}.values())
    return encode(images[one_of_each]).index_select(0, torch.tensor(which, device=images.device))
