"""Unitary matrices as products of plane rotations (Jing et al., 2017)."""

import math
from cmath import phase
from itertools import pairwise

import torch
from torch import Tensor, nn

from steadygrad.check import check_size, is_integer
from steadygrad.kernels import Operator, traced
from steadygrad.matrices.complex import nearest_unitary, phases
from steadygrad.matrices.matrix import Matrix, check_square, index_of, is_orthogonal, nearest_orthogonal
from steadygrad.matrices.peeling import peeled
from steadygrad.matrices.registry import entered

MOST_LAYERS = 10_000
"""largest capacity; as many layers as units reach every unitary matrix"""
Layout = list[list[tuple[int, int]]]
"""layers of index pairs (i, j); no index occurs twice in a layer"""


def tunable_layout(size: int, capacity: int) -> Layout:
    """Return ``capacity`` layers of pairs of neighbours to rotate: alternately (0, 1), (2, 3), … and (1, 2), (3, 4), …

    A layer is a list of pairs. With ``capacity`` = size every unitary matrix can be represented.
    """
    return [[(i, i + 1) for i in range(layer % 2, size - 1, 2)] for layer in range(capacity)]


def fourier_layout(size: int) -> Layout:
    """Return layers of pairs to rotate, at distances 1, 2, 4, …, as in a fast Fourier transform.

    A layer is a list of pairs. For n = 2ᵏ every output depends on every input.
    """
    strides = [2**k for k in range(max(1, (size - 1).bit_length()))]
    return [[(i, i + s) for i in range(size - s) if (i // s) % 2 == 0] for s in strides]


def layout(size: int, layers: int | None) -> Layout:
    """Return the tunable layout (pairs to rotate) with this many layers, or the Fourier layout if it is None."""
    return fourier_layout(size) if layers is None else tunable_layout(size, layers)


@index_of
def pairs_of(size: int, layers: int | None, device: torch.device) -> Tensor:
    """Return the indices i and j of all pairs that are rotated, as a tensor (2, rotations)."""
    pairs = [pair for layer in layout(size, layers) for pair in layer]
    return torch.tensor(pairs, dtype=torch.long, device=device).view(-1, 2).T.contiguous()


@index_of
def partners_of(size: int, layers: int | None, device: torch.device) -> Tensor:
    """Return the index of each unit's partner in each layer of rotations, (layers, size); its own if it has none."""
    partners = [list(range(size)) for _ in layout(size, layers)]
    for partner, layer in zip(partners, layout(size, layers), strict=True):
        for i, j in layer:
            partner[i], partner[j] = j, i
    return torch.tensor(partners, dtype=torch.long, device=device).view(-1, size)


class Givens(nn.Module):
    """Map W = F_L … F_1 D,  F rotates pairs: (a, b) → (e^{iφ} (a cos θ − b sin θ), a sin θ + b cos θ).

    D = diag(e^{iω}), so W is unitary.

    ``style="tunable"`` pairs neighbours in L = ``capacity`` layers, 2 by default. ``style="full"`` has n such layers
    and can represent every unitary matrix. ``style="fft"`` has log₂ n layers with pairs at distances 1, 2, 4 and so on.
    Any size is allowed: a unit without a partner in a layer is left unchanged by it.
    """

    complex = True
    kinds: tuple[str, ...] = ("angle", "angle", "angle")
    names: tuple[str, ...] = ("rotation", "phase", "diagonal")

    def __init__(self, size: int, capacity: int | None = None, style: str = "tunable") -> None:
        super().__init__()
        self.size = check_size("Givens", size)
        if style not in ("tunable", "full", "fft"):
            raise ValueError(f"Givens expects style to be tunable, full or fft; got {style!r}")
        if capacity is not None and (style != "tunable" or not is_integer(capacity, 1) or capacity > MOST_LAYERS):
            raise ValueError(
                f"Givens expects capacity to be at least 1 and at most {MOST_LAYERS}, for the tunable style only; "
                f"got {capacity!r}"
            )
        self.style = style
        self.layers = None if style == "fft" else size if style == "full" else capacity or 2
        counts = [len(layer) for layer in layout(size, self.layers)]
        self.capacity = len(counts)
        self.bounds = [sum(counts[:k]) for k in range(len(counts) + 1)]

    @property
    def rotations(self) -> int:
        """Number of plane rotations in all layers."""
        return self.bounds[-1]

    @property
    def operator_from(self) -> int:
        """Size from which a time step is faster without forming W. With more than 16 layers it never is."""
        return 768 if self.capacity <= 16 else 1 << 62

    def operator(self, theta: Tensor, phi: Tensor, omega: Tensor) -> Operator:
        """Return a function that maps complex rows h (batch, n) to rows h Wᵀ without forming W.

        The angles θ and φ have one entry per rotation, ω one per unit.
        """
        rotate, D = self._rotate(theta, phases(phi)), phases(omega)
        return lambda h: rotate(h * D)

    def _rotate(self, theta: Tensor, turn: Tensor) -> Operator:
        """Return a function that applies all layers of rotations to rows h; ``turn`` is e^{iφ}.

        Each layer is h ← h∘own + h[partner]∘other, with vectors own and other of size n.
        """
        cos, sin = theta.cos(), theta.sin()
        first, second = pairs_of(self.size, self.layers, theta.device)
        partners = partners_of(self.size, self.layers, theta.device)
        layers = []
        for k, (begin, end) in enumerate(pairwise(self.bounds)):
            here, i, j = slice(begin, end), first[begin:end], second[begin:end]
            own = torch.ones(self.size, dtype=turn.dtype, device=turn.device)
            own = own.index_put((i,), turn[here] * cos[here]).index_put((j,), cos[here].to(turn.dtype))
            other = torch.zeros_like(own).index_put((i,), -turn[here] * sin[here])
            layers.append((own, other.index_put((j,), sin[here].to(turn.dtype)), partners[k]))

        def multiply(h: Tensor) -> Tensor:
            for own, other, partner in layers:
                h = torch.addcmul(h * own, h[:, partner], other)
            return h

        return multiply

    def forward(self, theta: Tensor, phi: Tensor, omega: Tensor) -> Tensor:
        """Return the unitary W (n, n), complex, from the angles θ and φ of the rotations and ω (n) of D."""
        I = torch.eye(self.size, dtype=theta.dtype, device=theta.device)
        return self.operator(theta, phi, omega)(torch.complex(I, torch.zeros_like(I))).mT

    @torch.no_grad()
    def right_inverse(self, W: Tensor) -> tuple[Tensor, ...]:
        """Return the angles of W, a tuple: θ and φ of the rotations and ω of D. They are unique only up to full turns.

        A W that is not unitary is first replaced by the nearest unitary matrix, and then by a product that has its
        zeros, as far as there are any. A unitary W that the layers cannot represent raises ValueError. So may a product
        of between about 16 and n layers, because rounding hides some of its angles.
        """
        check_square(type(self).__name__, W, self.size)
        given = is_orthogonal(W)
        U = nearest_unitary(W) if self.complex else nearest_orthogonal(W.double(), None if given else 1)
        layers = layout(self.size, self.layers)[: self.size]  # as many as units reach every W; more do nothing
        rotations, D = peeled(U, layers)
        angles = [[one.theta for one in rotations], [phase(one.phase) for one in rotations]]
        theta, phi = nn.functional.pad(
            torch.tensor(angles, dtype=torch.float64), (0, self.rotations - len(rotations))
        ).to(U.real)
        free = (theta, phi, D.angle()) if self.complex else (theta,)
        if given and not (self(*free) - U).abs().max() < torch.finfo(W.dtype).eps ** 0.5:
            raise ValueError(
                f"{type(self).__name__} of size {self.size} with capacity={self.capacity} and style={self.style!r} "
                f"cannot reach this {'unitary' if self.complex else 'orthogonal'} matrix; choose style='full', or "
                "start from another matrix, such as a value of this map" + self._limit
            )
        return tuple(f.to(W.real.dtype) for f in free)

    _limit = ""

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"size={self.size}, capacity={self.capacity}, style={self.style}"


class PlaneRotations(Givens):
    """Map W = F_L … F_1,  F rotates pairs: (a, b) → (a cos θ − b sin θ, a sin θ + b cos θ): `Givens` without phases.

    W is a real orthogonal matrix with few parameters, as in GORU.
    """

    complex = False
    kinds = names = ("angle",)
    _limit = " (its determinant is 1)"

    def operator(self, theta: Tensor) -> Operator:  # type: ignore[override]  # there are no phases
        """Return a function that maps real rows h (batch, n) to rows h Wᵀ without forming W, from the angles θ."""
        return self._rotate(theta, torch.ones_like(theta))

    def forward(self, theta: Tensor) -> Tensor:  # type: ignore[override]
        """Return the real orthogonal W (n, n) from the angles θ, one per rotation."""
        I = torch.eye(self.size, dtype=theta.dtype, device=theta.device)
        if not traced():
            return self.operator(theta)(I).mT
        # Inductor (torch 2.13) writes out of bounds in the loop that it makes of these steps; it passes complex ones by
        turn, zeros = torch.ones_like(theta), torch.zeros_like(theta)
        return self._rotate(theta, torch.complex(turn, zeros))(torch.complex(I, torch.zeros_like(I))).real.mT


@entered("rotations")
def plane_rotations(size: int, *, capacity: int | None = None, style: str = "tunable") -> Matrix:
    """Return a `Matrix` with the map `PlaneRotations`, initialised as by GORU's authors: angles ~ U(−π, π)."""
    map = PlaneRotations(size, capacity, style)
    return Matrix(map, torch.empty(map.rotations).uniform_(-math.pi, math.pi))


@entered("givens", complex=True)
def givens(size: int, *, capacity: int | None = None, style: str = "tunable") -> Matrix:
    """Return a `Matrix` with the map `Givens`, initialised as by its authors: angles ~ U(−π, π)."""
    map = Givens(size, capacity, style)
    theta, phi = torch.empty(2, map.rotations).uniform_(-math.pi, math.pi)
    return Matrix(map, theta, phi, torch.empty(size).uniform_(-math.pi, math.pi))
