"""The transformer's encoder over objects (Vaswani et al., 2017), a baseline of Webb et al. (2021)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.models.relational import initialisation
from steadygrad.models.relational.attention import AttentionLayer
from steadygrad.models.relational.encoder import FEATURES
from steadygrad.models.relational.model import MOST_LAYERS, RelationalModel, perceptron
from steadygrad.problem import Problem

POSITIONS = ("sinusoidal", "learned")


class Transformer(RelationalModel):
    """y = MLP(mean_t norm(transformer(z + p)_t)),  p sines and cosines, or learned.

    z are the normalised features of the objects, y the logits. A baseline that uses the features of the objects
    themselves. ``positions`` is ``"sinusoidal"`` or ``"learned"``. The sizes are those of Webb et al. (2021): one layer
    of 8 heads, ``hidden_size`` 512 of the feed-forward part, ``decoder_size`` 256 of the MLP. ``symmetric`` uses the
    queries as keys, (Q z_i) · (Q z_j): the counterpart of an asymmetric CoRelNet (giancarlok/relationaltasks,
    tsf_sym.py).

    Computation and initialisation follow Webb's program (taylorwwebb/emergent_symbols, Transformer.py): weights are
    Xavier or Kaiming normal, biases 0. The program also registers a second copy of the layer that it never uses; here
    there is none.
    """

    revision = 2  # revision 1 had no last norm and no 256 units in the MLP

    def __init__(
        self,
        problem: Problem,
        *,
        heads: int = 8,
        hidden_size: int = 512,
        decoder_size: int = 256,
        layers: int = 1,
        positions: str = "sinusoidal",
        symmetric: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(problem, **shared)
        self.check_counts(heads=heads, hidden_size=hidden_size, decoder_size=decoder_size)
        self.check_counts(MOST_LAYERS, layers=layers)
        self.check_choice("positions", positions, POSITIONS)
        self.positions = nn.Parameter(torch.randn(problem.objects, FEATURES)) if positions == "learned" else None
        self.layers = nn.ModuleList(
            AttentionLayer(FEATURES, FEATURES, FEATURES, heads, hidden_size, symmetric) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(FEATURES)
        self.decoder = perceptron(FEATURES, decoder_size, problem.answers)
        self.layers.apply(initialise)
        initialisation.decoder(self.decoder)

    def answer(self, z: Tensor) -> Tensor:
        x = z + (sinusoidal(z) if self.positions is None else self.positions)
        for layer in self.layers:
            x = layer(x, x)
        return self.decoder(self.norm(x).mean(dim=1))


def initialise(layer: nn.Module) -> None:
    """Initialise a layer in place as in Webb's program, if it is an `AttentionLayer`. Other modules are not changed.

    Queries, keys and values count as one Xavier matrix (3 width, width), also if queries and keys share their weights.
    """
    if not isinstance(layer, AttentionLayer):
        return
    for part in (layer.query, layer.key, layer.value):
        if part is not None:
            initialisation.xavier(part, gain=math.sqrt(1 / 2))
    initialisation.xavier(layer.merge)
    layer.feedforward.apply(initialisation.kaiming)


def sinusoidal(z: Tensor) -> Tensor:
    """Return position vectors p_t = (sin ω₀t, cos ω₀t, sin ω₁t, …) for z (batch, objects, width): (objects, width).

    ω_k = 10000^(−2k / width). The width must be even. Only shape, dtype and device of z matter.
    """
    _, count, width = z.shape
    frequency = 10000 ** (-torch.arange(0, width, 2, dtype=z.dtype, device=z.device) / width)
    angle = torch.arange(count, dtype=z.dtype, device=z.device).unsqueeze(1) * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=2).flatten(1)
