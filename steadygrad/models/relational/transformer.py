"""The transformer's encoder over objects (Vaswani et al., 2017), as Webb et al. (2021) compare with."""

import torch
from torch import Tensor, nn

from steadygrad.models.relational.attention import TransformerLayer
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import RelationalModel
from steadygrad.models.relational.normalisation import Segments

POSITIONS = ("sinusoidal", "learned")


class Transformer(RelationalModel):
    """y = C mean_t transformer(z + p)_t,  p sines and cosines, or learned.

    ``hidden_size`` is the width of the feed-forward part: 512, four times that of a token. ``symmetric`` has the
    queries serve as keys, (Q z_i) · (Q z_j), the thesis's counterpart of an asymmetric CoRelNet.
    """

    positions: Tensor

    def __init__(
        self,
        objects: int,
        image_size: int,
        channels: int,
        answers: int,
        segments: Segments,
        *,
        heads: int = 8,
        hidden_size: int = 512,
        layers: int = 1,
        positions: str = "sinusoidal",
        symmetric: bool = False,
        encoder: str = "learned",
        normalisation: str = "context",
        l1: float = 0.0,
    ) -> None:
        super().__init__(objects, image_size, channels, answers, segments, encoder, normalisation, l1)
        self.check_counts(heads=heads, hidden_size=hidden_size, layers=layers)
        self.check_choice("positions", positions, POSITIONS)
        if positions == "learned":
            self.positions = nn.Parameter(torch.randn(objects, FEATURES))
        else:
            self.register_buffer("positions", sinusoidal(objects, FEATURES))
        self.transformer = nn.Sequential(
            *(TransformerLayer(FEATURES, heads, FEATURES // heads, hidden_size, symmetric) for _ in range(layers))
        )
        self.readout = nn.Linear(FEATURES, answers)

    def answer(self, z: Tensor) -> Tensor:
        return self.readout(self.transformer(z + self.positions).mean(dim=1))


def sinusoidal(count: int, width: int) -> Tensor:
    """p_t = (sin ω₀t, cos ω₀t, sin ω₁t, …),  ω_k = 10000^(−2k / width)."""
    frequency = 10000 ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(count).unsqueeze(1) * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)
