"""Base class of relational networks: encode each object, normalise over the objects, answer."""

import inspect
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice, check_integers, is_number
from steadygrad.models.model import Model
from steadygrad.models.relational.encoder import FEATURES, Encoder, encode_each_once
from steadygrad.models.relational.normalisation import ContextNormalisation
from steadygrad.models.relational.similarity import Views
from steadygrad.problem import Problem

ENCODERS = ("learned", "random")
NORMALISATIONS = ("context", "segmented", "none")
MOST_LAYERS = 1000
"""largest number of ``layers`` of a network; without a limit, a huge number fills the memory or takes for ever"""


class RelationalModel(Model):
    """Base class of networks that answer from relations between images: x → z = normalised(encoder(x)) → answer(z).

    images (batch, objects, channels, image_size, image_size) → logits (batch, answers), sizes as in ``problem``. z are
    the features of the objects, (batch, objects, 128). Options of all networks, which a subclass takes as ``**shared``:

    ``encoder``        "learned", or "random": the encoder keeps its initial weights
    ``normalisation``  "context" over all objects, "segmented" over the objects of each segment, a range of objects that
                       belong together (``problem.segments``), or "none"
    ``l1``             weight λ of the penalty λ (Σ |W| + Σ |b|) on a linear layer W, b after the encoder; 0 means no
                       such layer

    An ``asymmetric`` network (second positional argument) has two linear layers after the encoder, whose outputs are
    normalised with the same gain and shift (`Views`); with ``l1`` the penalty is summed over both. Options or a problem
    with invalid values raise ValueError.
    """

    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **options: Any) -> None:
        """Replace ``**shared`` in the signature of the class by the keyword-only parameters of its base class.

        `help`, settings and the command line take the options of a network from its signature.
        """
        super().__init_subclass__(**options)
        _, *own = inspect.signature(cls.__init__).parameters.values()
        if own and own[-1].kind is own[-1].VAR_KEYWORD:
            names = {parameter.name for parameter in own}
            inherited = inspect.signature(cls.__mro__[1]).parameters.values()
            own[-1:] = [p for p in inherited if p.kind is p.KEYWORD_ONLY and p.name not in names]
        cls.__signature__ = inspect.Signature(own)

    def __init__(
        self,
        problem: Problem,
        asymmetric: bool = False,
        /,
        *,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__()
        objects, image_size, channels, answers, segments = problem
        self.check_counts(objects=objects, image_size=image_size, channels=channels, answers=answers)
        self.check_choice("encoder", encoder, ENCODERS)
        self.check_choice("normalisation", normalisation, NORMALISATIONS)
        if not is_number(l1, 0):
            raise ValueError(f"{self._name} expects a finite l1 of at least 0; got {l1!r}")
        if [i for begin, end in segments for i in range(begin, end)] != list(range(objects)):
            raise ValueError(
                f"{self._name} expects segments that contain each of {objects} objects once, in order; got {segments}"
            )
        self.shape, self.answers, self.l1 = (objects, channels, image_size, image_size), answers, l1
        self.encoder = Encoder(image_size, channels).requires_grad_(encoder == "learned")
        self.selection: nn.Module | None = None
        if asymmetric:
            self.selection = Views(FEATURES)
        elif l1:
            self.selection = nn.Linear(FEATURES, FEATURES)
        if normalisation != "segmented":
            segments = ((0, objects),)
        self.normalisation = None if normalisation == "none" else ContextNormalisation(segments, FEATURES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (batch, answers) from images (batch, objects, channels, image_size, image_size)."""
        return self.answer(self.encode(images))

    def encode(self, images: Tensor) -> Tensor:
        """Return the normalised features z of images (batch, objects, channels, image_size, image_size).

        z is (batch, objects, 128), or (batch, objects, 2, 128) for an asymmetric network (`Views`). Raise ValueError
        for images of another shape, or of another dtype than the weights unless autocast is enabled.
        """
        if tuple(images.shape[1:]) != self.shape:
            raise ValueError(f"{self._name} expects images (batch, *{self.shape}); got {tuple(images.shape)}")
        dtype = self.encoder.out.weight.dtype
        if images.dtype != dtype and not torch.is_autocast_enabled(images.device.type):
            raise ValueError(f"{self._name} expects images of {dtype}, the dtype of its weights; got {images.dtype}")
        z = encode_each_once(self.features, images.flatten(0, 1)).unflatten(0, images.shape[:2])
        return z if self.normalisation is None else self.normalisation(z)

    def features(self, images: Tensor) -> Tensor:
        """Return the features of each image (n, channels, size, size), not normalised.

        They are (n, 128), or (n, 2, 128) for an asymmetric network (`Views`).
        """
        z = self.encoder(images)
        return z if self.selection is None else self.selection(z)

    def answer(self, z: Tensor) -> Tensor:
        """Return the logits (batch, answers) from z (batch, objects, …), the features that `encode` returns.

        Each network defines this method; `RelationalModel` raises NotImplementedError.
        """
        raise NotImplementedError

    def relate(self, z: Tensor) -> Tensor | None:
        """Return the relations (batch, objects, objects) that `answer` uses; None if it uses no such matrix."""
        return None

    def penalty(self) -> Tensor | float:
        """Return the L1 term that training adds to the loss: ``l1`` times Σ |W| + Σ |b|, as a scalar tensor.

        W and b are those of the linear layer or layers that follow the encoder. Without ``l1`` the term is 0.0.
        """
        if self.selection is None or not self.l1:
            return 0.0
        return self.l1 * sum(parameter.abs().sum() for parameter in self.selection.parameters())

    @property
    def _name(self) -> str:
        """Name of the class, for error messages."""
        return type(self).__name__

    def check_counts(self, most: int | None = None, **counts: int) -> None:
        """Raise ValueError unless every keyword argument is an integer of at least 1 and at most ``most``, if given."""
        check_integers(self._name, most=most, **counts)

    def check_choice(self, name: str, value: str, known: Iterable[str]) -> None:
        """Raise ValueError unless the value of the option ``name`` is one of the known values."""
        check_choice(self._name, name, value, known)


def perceptron(*sizes: int) -> nn.Sequential:
    """Return an nn.Sequential of linear layers with a ReLU between successive layers, and none after the last.

    Each size is an argument: perceptron(8, 16, 2) has the layers 8 → 16 and 16 → 2. Raise ValueError unless there are
    at least two, integers of at least 1.
    """
    if len(sizes) < 2:
        raise ValueError(f"perceptron expects at least two sizes, each an argument; got {', '.join(map(repr, sizes))}")
    check_integers("perceptron", **{f"size {place}": size for place, size in enumerate(sizes)})
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)]
    parts = [part for layer in layers for part in (layer, nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def with_position(z: Tensor) -> Tensor:
    """Return z (batch, objects, features) with the position of each object, 0 … objects − 1, as one more, last feature.

    The result is (batch, objects, features + 1).
    """
    position = torch.arange(z.shape[1], dtype=z.dtype, device=z.device)
    return torch.cat([z, position.expand(len(z), -1).unsqueeze(2)], dim=2)
