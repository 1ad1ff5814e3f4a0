"""Initialisers. Those in `SKEW` return packed skew-symmetric parameters, those in `FULL` return a matrix."""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from steadygrad.check import check_size
from steadygrad.kernels import at_least_single
from steadygrad.matrices.matrix import skew, skew_free


def henaff(size: int, generator: Generator | None = None, *, two_sided: bool = False) -> Tensor:
    """Return the packed skew-symmetric A = ⊕ₖ [[0, sₖ], [−sₖ, 0]],  s ~ U(−π, 0).

    exp(A) consists of plane rotations by −sₖ (Henaff, Szlam & LeCun, 2016). With ``two_sided`` s ~ U(−π, π), as in
    later code of the expRNN authors. Packed, A is its strict lower triangle, n(n − 1)/2 numbers.
    """
    return planes(size, uniform_numbers(size // 2, -math.pi, math.pi if two_sided else 0.0, generator))


def cayley(size: int, generator: Generator | None = None) -> Tensor:
    """Return the packed skew-symmetric A = ⊕ₖ [[0, sₖ], [−sₖ, 0]],  s = −√((1 − cos t)/(1 + cos t)), t ~ U(0, π/2).

    The Cayley transform of A consists of plane rotations by −t (Helfrich, Willmott & Ye, 2018).
    """
    t = uniform_numbers(size // 2, 0.0, math.pi / 2, generator)
    return planes(size, -((1 - t.cos()) / (1 + t.cos())).sqrt())


def haar(size: int, generator: Generator | None = None, *, determinant: int | None = None) -> Tensor:
    """Return a uniformly (Haar) random orthogonal matrix, of determinant ``determinant`` (±1) if that is given."""
    check_size("haar", size)
    Q, R = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    Q = Q * R.diagonal().sign()  # QR alone favours some matrices (Mezzadri, 2007)
    if determinant is not None and not Q.is_meta and torch.linalg.det(Q) * determinant < 0:
        Q[:, 0] *= -1
    return Q.to(torch.get_default_dtype())


def random_orthogonal(size: int, generator: Generator | None = None) -> Tensor:
    """Return a random orthogonal matrix with det 1: Q of a Gaussian matrix, its columns signed so that Qᵢᵢ ≥ 0.

    This is the initialiser "random" of nnRNN's program. It is not uniform: the diagonal has a mean of about √(2/(π n)).
    """
    check_size("random-orthogonal", size)
    while True:
        Q = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator)).Q
        Q = Q * torch.where(Q.diagonal() < 0, -1.0, 1.0)
        if Q.is_meta or torch.linalg.det(Q) > 0:  # true for every other sample
            return Q.to(torch.get_default_dtype())


def exp_cayley(size: int, generator: Generator | None = None) -> Tensor:
    """Return the matrix exp(A) with the A of `cayley`: plane rotations by tan(t/2), t ~ U(0, π/2).

    This is the initialiser "Cayley" of nnRNN's program.
    """
    return torch.linalg.matrix_exp(at_least_single(skew(cayley(size, generator), size))).to(torch.get_default_dtype())


def identity(size: int, generator: Generator | None = None) -> Tensor:
    """Return the identity matrix of this size."""
    return torch.eye(check_size("identity", size))


def disc(size: int, generator: Generator | None = None) -> Tensor:
    """Return a random matrix T = ⊕ₖ γₖ [[cos tₖ, −sin tₖ], [sin tₖ, cos tₖ]],  t ~ U(0, π/2), γ ~ U(−1, 1).

    This is eq. 5 of Helfrich & Ye (2020). The eigenvalues fill the unit disc, more densely towards its centre. An odd
    size ends with the 1 × 1 block γ.
    """
    check_size("disc", size)
    t = uniform_numbers(size // 2, 0.0, math.pi / 2, generator)
    radii = uniform_numbers(size - size // 2, -1.0, 1.0, generator)
    blocks = radii[: len(t), None, None] * torch.stack([t.cos(), -t.sin(), t.sin(), t.cos()], dim=-1).view(-1, 2, 2)
    return torch.block_diag(*blocks, *radii[len(t) :, None, None])


def uniform(size: int, generator: Generator | None = None) -> Tensor:
    """Return a random square matrix W ~ U(±1/√n), as in `torch.nn`'s recurrent layers."""
    bound = check_size("uniform", size) ** -0.5
    return uniform_numbers(size * size, -bound, bound, generator).view(size, size)


def xavier(size: int, generator: Generator | None = None) -> Tensor:
    """Return a random matrix W ~ U(±√(3/n)), the uniform initialiser of Glorot & Bengio (2010) for a square matrix."""
    return nn.init.xavier_uniform_(torch.empty(check_size("xavier", size), size), generator=generator)


def glorot(size: int, generator: Generator | None = None) -> Tensor:
    """Return a random matrix W ~ N(0, 1/n), the normal initialiser of Glorot & Bengio (2010) for a square matrix."""
    return nn.init.xavier_normal_(torch.empty(check_size("glorot", size), size), generator=generator)


def uniform_numbers(count: int, low: float, high: float, generator: Generator | None) -> Tensor:
    """Return ``count`` random numbers from U(low, high)."""
    return torch.empty(count).uniform_(low, high, generator=generator)


def planes(size: int, s: Tensor) -> Tensor:
    """Return the packed skew-symmetric A = ⊕ₖ [[0, sₖ], [−sₖ, 0]] of s (⌊n/2⌋); an odd size n ends with zeros.

    Packed, A is its strict lower triangle, n(n − 1)/2 numbers.
    """
    check_size("A start", size)
    A = torch.zeros(size, size)
    even = torch.arange(len(s)) * 2
    A[even + 1, even] = -s
    return skew_free(A)


Initialiser = Callable[..., Tensor]
SKEW: dict[str, Initialiser] = {"henaff": henaff, "cayley": cayley}
"""initialisers that return packed skew-symmetric parameters"""
FULL: dict[str, Initialiser] = {
    "haar": haar,
    "random-orthogonal": random_orthogonal,
    "exp-cayley": exp_cayley,
    "identity": identity,
    "disc": disc,
    "uniform": uniform,
    "xavier": xavier,
    "glorot": glorot,
}
"""initialisers that return a matrix"""


class Map(Protocol):
    """Protocol of a map: the part that `free_tensor` uses."""

    size: int

    def right_inverse(self, W: Tensor) -> Tensor:
        """Return the free tensor whose matrix is W."""


def free_tensor(name: str, map: Map, generator: Generator | None = None) -> Tensor:
    """Return the initial free tensor of ``map``, by the initialiser ``name``.

    For a skew-parametrised map, a skew initialiser gives the parameter itself. For a map of a full matrix (`from_skew =
    False`) its A is first turned into a rotation, as the initialiser's authors do. An initialiser that returns a matrix
    goes through the map's right inverse. Raise ValueError if the name is neither in `SKEW` nor `FULL`.
    """
    if name not in [*SKEW, *FULL]:
        raise ValueError(f"no initialiser {name!r}; choose from {', '.join([*SKEW, *FULL])}")
    size, from_skew = map.size, getattr(map, "from_skew", True)
    if name in SKEW:
        free = SKEW[name](size, generator)
        return (
            free if from_skew else map.right_inverse(ROTATIONS[name](at_least_single(skew(free, size))).to(free.dtype))
        )
    # half of all orthogonal matrices have the other determinant, which the map cannot reach
    own = {"determinant": getattr(map, "determinant", 1)} if name == "haar" and from_skew else {}
    return map.right_inverse(FULL[name](size, generator, **own))


def cayley_transform(A: Tensor) -> Tensor:
    """Return the Cayley transform (I + A)⁻¹ (I − A), a rotation for a skew-symmetric A."""
    I = torch.eye(len(A), dtype=A.dtype)
    return torch.linalg.solve(I + A, I - A)


ROTATIONS = {"henaff": torch.linalg.matrix_exp, "cayley": cayley_transform}
"""how the authors of each skew initialiser turn A into a rotation"""
