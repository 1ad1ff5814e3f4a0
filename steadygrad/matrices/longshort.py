"""One matrix for a long-term and a short-term state, where the short feeds the long (Helfrich & Ye, 2020)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.check import check_choice, check_size, is_integer
from steadygrad.matrices.cayley import ScaledCayley
from steadygrad.matrices.eigenvalue import EigenvalueNormalized
from steadygrad.matrices.init import free_tensor, haar
from steadygrad.matrices.matrix import Matrix, check_square
from steadygrad.matrices.registry import entered


class LongShort(nn.Module):
    """Map W = [[W_L, W_C], [0, W_S]],  W_L by the map ``long``, W_S by the map ``short``, W_C free (eq. 2).

    ``long`` and ``short`` are functions that make a map from its size. Because of the zero block, the eigenvalues of W
    are those of W_L and W_S for any W_C. The long-term state depends on the short-term state, never the reverse. Either
    part may have size 0; then there is no coupling.
    """

    long: Any
    short: Any

    def __init__(
        self,
        long_size: int,
        short_size: int,
        long: Callable[[int], Any] = ScaledCayley,
        short: Callable[[int], Any] = EigenvalueNormalized,
        coupling: bool = True,
    ) -> None:
        super().__init__()
        if not (is_integer(long_size, 0) and is_integer(short_size, 0) and long_size + short_size):
            raise ValueError(
                f"LongShort expects two sizes of at least 0, not both 0; got long {long_size!r}, short {short_size!r}"
            )
        self.size, self.long_size, self.short_size = long_size + short_size, long_size, short_size
        self.long = long(long_size) if long_size else None
        self.short = short(short_size) if short_size else None
        self.coupling = bool(coupling and long_size and short_size)

    def forward(self, *free: Tensor) -> Tensor:
        """Return W from A (if there is a long part), T (if there is a short part) and, if they are coupled, C = W_C."""
        names = self._names()
        if len(free) != len(names):
            raise ValueError(f"LongShort expects the free tensors {', '.join(names)}; got {len(free)}")
        parts = dict(zip(names, free, strict=True))
        if self.long is None or self.short is None:
            return (self.long or self.short)(*free)
        W_L, W_S = self.long(parts["A"]), self.short(parts["T"])
        shape = self.long_size, self.short_size
        W_C = parts.get("C", W_L.new_zeros(()).expand(shape))
        if W_C.shape != shape:
            raise ValueError(f"LongShort expects a coupling C of shape {shape}; got {tuple(W_C.shape)}")
        top = torch.cat([W_L, W_C], dim=1)
        return torch.cat([top, nn.functional.pad(W_S, (self.long_size, 0))])

    def right_inverse(self, W: Tensor) -> tuple[Tensor, ...]:
        """Return the tuple of the free tensors A, T and C of W, as far as they exist.

        The lower left block of W is taken as zero.
        """
        check_square("LongShort", W, self.size)
        n = self.long_size
        blocks = {"A": W[:n, :n], "T": W[n:, n:], "C": W[:n, n:]}
        maps = {"A": self.long, "T": self.short}
        return tuple(maps[name].right_inverse(blocks[name]) if name in maps else blocks[name] for name in self._names())

    @property
    def blocks(self) -> dict[str, slice]:
        """Slice of the units of each non-empty part, "long" and "short", by name."""
        parts = {"long": slice(0, self.long_size), "short": slice(self.long_size, self.size)}
        return {name: part for name, part in parts.items() if part.stop > part.start}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each free tensor that exists: what ``long`` declares for A, "matrix" for T, "coupling" for C."""
        kinds = {"A": getattr(self.long, "kinds", ("matrix",))[0], "T": "matrix", "C": "coupling"}
        return tuple(kinds[name] for name in self._names())

    def _names(self) -> list[str]:
        """Return the names of the free tensors that exist: A (long part), T (short part) and C (coupling)."""
        present = {"A": self.long, "T": self.short, "C": self.coupling}
        return [name for name, part in present.items() if part]

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"long_size={self.long_size}, short_size={self.short_size}, coupling={self.coupling}"


def xavier(rows: int, columns: int) -> Tensor:
    """Return a random coupling matrix C ~ U(±√(6/(rows + columns)))."""
    return nn.init.xavier_uniform_(torch.empty(rows, columns))


def truncated_orthogonal(rows: int, columns: int) -> Tensor:
    """Return the upper left block of a random orthogonal matrix of size max(rows, columns)."""
    return haar(max(rows, columns))[:rows, :columns]


COUPLINGS: dict[str, Callable[[int, int], Tensor]] = {"xavier": xavier, "orthogonal": truncated_orthogonal}


@entered("longshort")
def long_short(
    size: int,
    *,
    short_size: int | None = None,
    coupling: bool = True,
    reflections: int | None = None,
    epsilon: float = 0.0,
    radius: str = "exact",
    long_init: str = "cayley",
    short_init: str = "disc",
    coupling_init: str = "xavier",
) -> Matrix:
    """Return a `Matrix` with the map `LongShort`; by default 40 % of the units are short-term.

    W_L has the map `ScaledCayley` with ``reflections``, by default 30 % of its size, W_S the map `EigenvalueNormalized`
    with ``epsilon`` and ``radius``. ``long_init`` and ``short_init`` are names of initialisers. ``coupling_init`` is
    ``"xavier"`` (uniform) or ``"orthogonal"``: W_C starts as a block of a random orthogonal matrix (section 5.4).
    """
    check_choice("LongShort", "coupling_init", coupling_init, COUPLINGS)
    check_size("LongShort", size)
    short_size = round(0.4 * size) if short_size is None else short_size
    if not is_integer(short_size, 0) or short_size > size:
        raise ValueError(f"short_size counts some of the {size} units, so 0 … {size}; got {short_size!r}")
    long_size = size - short_size
    reflections = round(0.3 * long_size) if reflections is None else reflections
    map = LongShort(
        long_size,
        short_size,
        partial(ScaledCayley, reflections=reflections),
        partial(EigenvalueNormalized, epsilon=epsilon, radius=radius),
        coupling,
    )
    starts = (long_init, map.long), (short_init, map.short)
    free = [free_tensor(name, part) for name, part in starts if part is not None]
    if map.coupling:
        free.append(COUPLINGS[coupling_init](long_size, short_size))
    return Matrix(map, *free)
