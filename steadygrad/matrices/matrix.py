"""A square matrix that is computed from free tensors, so that a constraint always holds."""

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils._python_dispatch import _get_current_dispatch_mode

from steadygrad.kernels import Operator, at_least_single, autocasts, needs_plain, own_precision


class NonFiniteError(ValueError):
    """A parameter holds NaN or infinity: whatever trained it has diverged."""


class Matrix(nn.Module):
    """W = map(*free): optimise the free tensors, call the module for the matrix.

    The free tensors are packed, so ``parameters()`` counts exactly the degrees of freedom that papers report. In
    evaluation without gradients, or with frozen parameters, W is remembered until a free tensor or a buffer of the map
    changes.
    """

    def __init__(self, map: nn.Module, *free: Tensor) -> None:
        super().__init__()
        self.map = map
        own = (
            f if isinstance(f, nn.Parameter) else nn.Parameter(f.detach().clone(memory_format=torch.contiguous_format))
            for f in free
        )
        self.free = nn.ParameterList(own)
        self.dropout = 0.0
        """share of the entries of W that are zero in training, others each time"""
        self.trusting = False
        """whether version counters are enough to tell that nothing has changed: one step has no time for more"""
        self._remembered: tuple[Tensor, list[int], list[Tensor]] | None = None

    @property
    def size(self) -> int:
        """Rows (and columns) of W."""
        if isinstance(size := getattr(self.map, "size", None), int):
            return size
        with torch.no_grad():
            return len(self())

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each free tensor is, as the map says: skew, reflector, angle, modulus, …, or plainly matrix."""
        return getattr(self.map, "kinds", None) or ("matrix",) * len(self.free)

    @property
    def orthogonal(self) -> bool:
        """Whether it is meant to be orthogonal or unitary: made of nothing else than what turns and mirrors."""
        return set(self.kinds) <= {"skew", "reflector", "angle"}

    def readings(self) -> dict[str, float]:
        """Numbers worth watching while the matrix is trained, if its map has any."""
        read: Callable[[], dict[str, float]] | None = getattr(self.map, "readings", None)
        return {} if read is None else read()

    def operator(self) -> Operator | None:
        """Rows h → rows h Wᵀ without W, where the map knows how to and that is faster."""
        if self.size < getattr(self.map, "operator_from", math.inf) or (self.training and self.dropout):
            return None
        free = self._free()
        if not needs_plain(free[0]):
            self._check_finite(free)
        operator: Any = self.map.operator
        return operator(*map(at_least_single, free))

    def forward(self) -> Tensor:
        """W, in training without the share of its entries that is dropped."""
        W = self.value()
        if not (self.training and self.dropout):
            return W
        return W * dropout(torch.ones_like(W.real), self.dropout) if W.is_complex() else dropout(W, self.dropout)

    def value(self) -> Tensor:
        """W, whole."""
        free = self._free()
        if torch.compiler.is_compiling() or needs_plain(free[0]):
            return self._evaluate(free)
        lasting = not self.training and (not torch.is_grad_enabled() or self._is_frozen(free))
        remembered = self._remembered  # read once: another thread may forget it meanwhile
        if self.trusting and remembered is not None and lasting and self._versions(remembered[0]) == remembered[1]:
            return remembered[0]
        self._check_finite(free)
        if not lasting:
            self._remembered = None
            return self._evaluate(free)
        if remembered is not None and self._still_holds(*remembered):
            return remembered[0]
        # a tensor born in inference mode could never take part in training again
        with torch.inference_mode(False), torch.no_grad():
            W = self._evaluate(free)
            self._remembered = W, self._versions(W), [t.detach().clone() for t in self._causes()]
        return W

    def _free(self) -> tuple[Tensor, ...]:
        """The free tensors, without the detour by name that a ParameterList takes for each.

        By name where something else stands in a parameter's place, as pruning and parametrisations have it.
        """
        own = self.free._parameters
        if len(own) == len(self.free) and "".join(own).isdigit():  # "0", "1", …, and no "0_orig"
            return tuple(f for f in own.values() if f is not None)
        return tuple(self.free)

    def _is_frozen(self, free: tuple[Tensor, ...]) -> bool:
        return all(map(is_frozen, free)) and all(map(is_frozen, self.map.parameters()))

    def _evaluate(self, free: tuple[Tensor, ...]) -> Tensor:
        """map(*free), in single precision at least: autocast and half precision would break the constraint."""
        dtype, device = free[0].dtype, free[0].device.type
        if dtype.itemsize > 2 and not autocasts(device):
            return self.map(*free)
        with own_precision(device):
            W = self.map(*map(at_least_single, free))
            return W if W.is_complex() else W.to(dtype)  # there is no half of a complex number

    def _causes(self) -> list[Tensor]:
        return [*self._free(), *self.map.parameters(), *self.map.buffers()]

    def _versions(self, W: Tensor) -> list[int]:
        return [version(W), *(n for t in self._causes() for n in (t.data_ptr(), version(t)))]

    def _still_holds(self, W: Tensor, versions: list[int], causes: list[Tensor]) -> bool:
        # Values are compared, not version counters, because an edit through `.data` leaves no other trace.
        now = self._causes()
        return version(W) == versions[0] and len(now) == len(causes) and all(map(same, now, causes))

    def _check_finite(self, free: tuple[Tensor, ...]) -> None:
        for i, f in enumerate(free):
            # one NaN or infinity spoils the sum, which is cheaper to look at than every entry
            if not math.isfinite(f.detach().sum().item()) and (wrong := f.numel() - int(f.isfinite().sum())):
                raise NonFiniteError(
                    f"{type(self.map).__name__} expects finite parameters; got {wrong} NaN or infinite values "
                    f"in free tensor {i} of shape {tuple(f.shape)}"
                )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Matrix":
        self._remembered = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_remembered": None}  # copies and pickles evaluate for themselves


def is_frozen(free: Tensor) -> bool:
    """Whether nothing is asked of it but its value. A tensor put in a parameter's place may carry a tangent."""
    return isinstance(free, nn.Parameter) and not free.requires_grad


def version(tensor: Tensor) -> int:
    """How often it was written to, which a tensor born in inference mode does not count."""
    return -1 if tensor.is_inference() else tensor._version


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in value, type, shape and place."""
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_between(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and low <= value <= high


def check_size(who: str, size: int) -> int:
    if not is_count(size, least=1):
        raise ValueError(f"{who} expects a size of at least 1; got {size!r}")
    return size


def check_square(who: str, W: Tensor, size: int | None = None) -> Tensor:
    if W.dim() != 2 or W.shape[0] != W.shape[1] or (size is not None and len(W) != size):
        expected = "a square matrix" if size is None else f"a {size} × {size} matrix"
        raise ValueError(f"{who} expects {expected}; got shape {tuple(W.shape)}")
    return W


def index_of(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep the index tensors that ``make`` returns, except in a compiled graph, which keeps its own constants."""
    cached = lru_cache(maxsize=64)(make)

    @wraps(make)
    def index(*key: Any) -> Tensor:
        passing = torch._C._are_functorch_transforms_active() or _get_current_dispatch_mode() is not None
        if torch.compiler.is_compiling() or passing:  # what is made then belongs to them
            return make(*key)
        with torch.inference_mode(False):  # it outlives the call that happens to come first
            return cached(*key)

    return index


@index_of
def lower_triangle(n: int, device: torch.device) -> Tensor:
    """Where the strict lower triangle of an n × n matrix lies in its flat form, row by row."""
    rows, cols = torch.tril_indices(n, n, offset=-1, device=device)
    return rows * n + cols


class Skew(torch.autograd.Function):
    """A = L − Lᵀ, L strictly lower triangular and packed."""

    @staticmethod
    def forward(ctx: Any, free: Tensor, n: int) -> Tensor:
        L = unpacked(free, n)
        return L.sub_(L.mT.contiguous())  # torch transposes by blocks; a strided subtraction is much slower

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        return skew_free(G - G.mT), None


def unpacked(free: Tensor, n: int) -> Tensor:
    """The strictly lower triangular L."""
    return free.new_zeros(n * n).scatter(0, lower_triangle(n, free.device), free).view(n, n)


def skew(free: Tensor, size: int | None = None) -> Tensor:
    """The skew-symmetric A whose strict lower triangle, row by row, is ``free`` of length n(n − 1)/2."""
    n = (1 + math.isqrt(1 + 8 * free.numel())) // 2 if size is None else size
    if free.dim() != 1 or free.numel() != n * (n - 1) // 2:
        expected = "n(n − 1)/2 numbers" if size is None else f"{n * (n - 1) // 2} numbers for size {n}"
        raise ValueError(f"skew expects {expected}, the packed lower triangle; got shape {tuple(free.shape)}")
    if needs_plain(free):
        L = unpacked(free, n)
        return L - L.mT
    return Skew.apply(free, n)


def skew_free(A: Tensor) -> Tensor:
    """The packed strict lower triangle of A: ``skew(skew_free(A)) == A`` for skew-symmetric A."""
    n = len(check_square("skew_free", A))
    return A.reshape(-1).index_select(0, lower_triangle(n, A.device))


def is_orthogonal(W: Tensor) -> bool:
    """But for rounding."""
    I = torch.eye(len(W), dtype=torch.float64, device=W.device)
    return bool((W.double().mT @ W.double() - I).abs().max() < torch.finfo(W.dtype).eps ** 0.5)


def nearest_orthogonal(W: Tensor, determinant: int | None = None) -> Tensor:
    """The orthogonal matrix closest to W in the Frobenius norm, if asked among those of this determinant (±1)."""
    check_square("nearest_orthogonal", W)
    if not W.isfinite().all():
        raise ValueError(f"nearest_orthogonal expects finite entries; got {int((~W.isfinite()).sum())} that are not")
    U, _, Vh = torch.linalg.svd(W.detach().double())
    if determinant is not None and torch.linalg.det(U @ Vh) * determinant < 0:
        U[:, -1] *= -1  # the direction in which W stretches least, so the cheapest to turn round
    return (U @ Vh).to(W.dtype)
