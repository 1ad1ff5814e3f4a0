"""Unitary matrices as products of plane rotations (Jing et al., 2017)."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from steadygrad.kernels import Operator
from steadygrad.matrices.complex import phases
from steadygrad.matrices.matrix import Matrix, check_size, is_count

Layout = list[list[tuple[int, int]]]
"""layers of pairs (i, j), no index twice in a layer"""


def tunable_layout(size: int, capacity: int) -> Layout:
    """Neighbours: (0, 1), (2, 3), … and (1, 2), (3, 4), … in turn; ``capacity`` = size reaches every unitary matrix."""
    return [[(i, i + 1) for i in range(layer % 2, size - 1, 2)] for layer in range(capacity)]


def fourier_layout(size: int) -> Layout:
    """Pairs 1, 2, 4, … apart, as a fast Fourier transform has them: for n = 2ᵏ every unit hears every other."""
    strides = [2**k for k in range(max(1, (size - 1).bit_length()))]
    return [[(i, i + s) for i in range(size - s) if (i // s) % 2 == 0] for s in strides]


class Givens(nn.Module):
    """W = F_L … F_1 D,  F rotates pairs: (a, b) → (e^{iφ} (a cos θ − b sin θ), a sin θ + b cos θ),  D = diag(e^{iω}).

    The tunable ``style`` pairs neighbours in L = ``capacity`` layers, two unless said otherwise; ``"full"`` has n of
    them and reaches every unitary matrix; ``"fft"`` has log₂ n, with pairs 1, 2, 4, … apart. Any size will do: a unit
    without a partner in a layer passes it unchanged.
    """

    first: Tensor
    second: Tensor
    partner: Tensor

    complex = True
    kinds = ("angle", "angle", "angle")

    def __init__(self, size: int, capacity: int | None = None, style: str = "tunable") -> None:
        super().__init__()
        self.size = check_size("Givens", size)
        if style not in ("tunable", "full", "fft"):
            raise ValueError(f"Givens expects style to be tunable, full or fft; got {style!r}")
        if capacity is not None and (style != "tunable" or not is_count(capacity, least=1)):
            raise ValueError(f"Givens expects capacity to be at least 1, for the tunable style only; got {capacity!r}")
        self.style = style
        layers = size if style == "full" else capacity or 2
        layout = fourier_layout(size) if style == "fft" else tunable_layout(size, layers)
        self.capacity = len(layout)
        counts = [len(layer) for layer in layout]
        self.bounds = [sum(counts[:k]) for k in range(len(counts) + 1)]
        pairs = torch.tensor([pair for layer in layout for pair in layer], dtype=torch.long).view(-1, 2)
        self.register_buffer("first", pairs[:, 0].clone(), persistent=False)
        self.register_buffer("second", pairs[:, 1].clone(), persistent=False)
        partner = torch.arange(size).repeat(len(layout), 1)
        for k, (begin, end) in enumerate(pairwise(self.bounds)):
            i, j = pairs[begin:end].T
            partner[k, i], partner[k, j] = j, i
        self.register_buffer("partner", partner, persistent=False)

    @property
    def rotations(self) -> int:
        return len(self.first)

    @property
    def operator_from(self) -> int:
        """Size from which stepping without W is faster; never, for many layers."""
        return 768 if self.capacity <= 16 else 1 << 62

    def operator(self, theta: Tensor, phi: Tensor, omega: Tensor) -> Operator:
        """Each layer is h ← h∘own + h[partner]∘other, own and other of size n."""
        cos, sin, turn = theta.cos(), theta.sin(), phases(phi)
        layers = []
        for k, (begin, end) in enumerate(pairwise(self.bounds)):
            here, i, j = slice(begin, end), self.first[begin:end], self.second[begin:end]
            own = torch.ones(self.size, dtype=turn.dtype, device=turn.device)
            own = own.index_put((i,), turn[here] * cos[here]).index_put((j,), cos[here].to(turn.dtype))
            other = torch.zeros_like(own).index_put((i,), -turn[here] * sin[here])
            layers.append((own, other.index_put((j,), sin[here].to(turn.dtype)), self.partner[k]))
        D = phases(omega)

        def multiply(h: Tensor) -> Tensor:
            h = h * D
            for own, other, partner in layers:
                h = torch.addcmul(h * own, h[:, partner], other)
            return h

        return multiply

    def forward(self, theta: Tensor, phi: Tensor, omega: Tensor) -> Tensor:
        I = torch.eye(self.size, dtype=theta.dtype.to_complex(), device=theta.device)
        return self.operator(theta, phi, omega)(I).mT

    def extra_repr(self) -> str:
        return f"size={self.size}, capacity={self.capacity}, style={self.style}"


def givens(size: int, *, capacity: int | None = None, style: str = "tunable") -> Matrix:
    """Angles ~ U(−π, π), as the authors start it."""
    map = Givens(size, capacity, style)
    theta, phi = torch.empty(2, map.rotations).uniform_(-math.pi, math.pi)
    return Matrix(map, theta, phi, torch.empty(size).uniform_(-math.pi, math.pi))
