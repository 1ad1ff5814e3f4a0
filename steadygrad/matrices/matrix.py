"""A square matrix that is computed from unconstrained tensors in such a way that its constraint always holds."""

import math
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.utils._python_dispatch import _get_current_dispatch_mode

from steadygrad.kernels import Operator, at_least_single, autocasts, needs_plain, own_precision
from steadygrad.matrices.cached import Cached, samples
from steadygrad.matrices.parameters import (
    as_parameter,
    as_row,
    check_finite,
    free_kinds,
    free_names,
    is_frozen,
    is_sharded,
    whole,
)


class Matrix(nn.Module):
    """Module of a square matrix W = map(*free): optimise the free tensors, call the module for the matrix.

    The free tensors are packed, so ``parameters()`` counts exactly the degrees of freedom that papers report. Computing
    W raises `NonFiniteError` if a free tensor has NaN or infinity.

    A free tensor is a parameter with the name of its kind, such as ``skew`` or ``angle``; a map whose free tensors
    share a kind names them in ``names``. A free tensor of fewer than two dimensions is stored as one row (1, k),
    because common initialisers such as `torch.nn.init.orthogonal_` refuse vectors. The map receives the tensor in its
    own shape.

    In evaluation mode, W is cached if gradients are disabled or all parameters are frozen. The cached W is used until a
    free tensor, or a parameter or buffer of the map, gets another version counter or data pointer. An in-place edit
    through ``.data`` changes neither. Such an edit is noticed if one of the first `SAMPLE` entries of a free tensor
    changes, as in initialisation loops and moving averages of weights. Call `refresh` after an edit of other entries
    through ``.data``, or of an inference tensor, which has no version counter.
    """

    place = ""
    """name of this module in its layer, such as ``weight_hh_l0``, for error messages"""

    def __init__(self, map: nn.Module, *free: Tensor) -> None:
        super().__init__()
        self.map = map
        self.names = free_names(map, len(free))
        """names of the free tensors, which are parameters of this module"""
        self._shapes = [f.shape for f in free]  # as the map expects them
        for name, f in zip(self.names, free, strict=True):
            self.register_parameter(name, as_parameter(f))
        self.label = type(map).__name__
        """kind of the matrix to show in `repr` of a layer; `build` replaces it by the name that it was given"""
        self.dropout = 0.0
        """probability that an entry of W is set to zero in training; drawn anew at each call"""
        self._cached: Cached | None = None
        self._drawn: tuple[str, list[Tensor]] | None = None  # name and `samples` of the initial values, see `watch`

    @property
    def size(self) -> int:
        """Number of rows (and columns) of W."""
        if isinstance(size := getattr(self.map, "size", None), int):
            return size
        with torch.no_grad():
            return len(self())

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of the free tensors, as the map declares them: "skew", "angle", …; by default "matrix"."""
        return free_kinds(self.map, len(self.names))

    @property
    def free(self) -> tuple[Tensor, ...]:
        """Tuple of the free tensors, which are the parameters of this module, or what a tool has put in their place."""
        own = self._parameters  # faster than attributes
        return tuple(own[name] if name in own else getattr(self, name) for name in self.names)  # type: ignore[misc]

    def packed(self) -> tuple[Tensor, ...]:
        """Return the free tensors in the shapes that the map takes, as a tuple of views.

        Those that are sharded over processes are put together.
        """
        return self._shaped(map(whole, self.free))

    def _shaped(self, free: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return whole free tensors in the shapes that the map takes, as a tuple of views."""
        return tuple(f if f.dim() == len(s) else f.view(s) for f, s in zip(free, self._shapes, strict=True))

    @property
    def orthogonal(self) -> bool:
        """Whether W is orthogonal or unitary by construction: it is made of rotations and reflections only."""
        return set(self.kinds) <= {"skew", "reflector", "angle"}

    def readings(self) -> dict[str, float]:
        """Return numbers to log during training, a dict by name; it is empty if the map has none."""
        read: Callable[[], dict[str, float]] | None = getattr(self.map, "readings", None)
        return {} if read is None else read()

    def operator(self) -> Operator | None:
        """Return a function that maps rows h (batch, n) to rows h Wᵀ without forming W.

        For a complex W the rows are complex. Return None if the map has no such function, if forming W is faster, or if
        dropout is active.
        """
        if torch.compiler.is_compiling():  # a traced loop over the steps multiplies by W
            return None
        if self.size < getattr(self.map, "operator_from", math.inf) or (self.training and self.dropout):
            return None
        free = self.free
        if not needs_plain(free[0]):
            if self._drawn is not None:
                self._notice(*self._drawn)
            self._check_finite(free)
        operator: Any = self.map.operator
        return operator(*map(at_least_single, self.packed()))

    def forward(self) -> Tensor:
        """Return W (n, n); in training, dropout is applied to its entries."""
        W = self.value()
        if not (self.training and self.dropout):
            return W
        return W * dropout(torch.ones_like(W.real), self.dropout) if W.is_complex() else dropout(W, self.dropout)

    def value(self) -> Tensor:
        """Return W (n, n) without dropout.

        It is cached in evaluation mode if gradients are disabled or all parameters are frozen. A cached W has no graph.
        """
        free = self.free
        if needs_plain(free[0]):
            return self._evaluate(self._shaped(map(whole, free)))
        sharded = is_sharded(free[0])
        if self._drawn is not None and not sharded:
            self._notice(*self._drawn)
        if self.training or sharded or (torch.is_grad_enabled() and not self._is_frozen(free)):
            self._cached = None
            gathered = tuple(map(whole, free))
            self._check_finite(gathered)
            return self._evaluate(self._shaped(gathered))
        cached = self._cached  # read once: another thread may clear it meanwhile
        if cached is not None and cached.is_current(free, self.map):
            return cached.W
        self._check_finite(free)
        # outside inference mode, because a tensor created in it cannot be used in training
        with torch.inference_mode(False), torch.no_grad():
            W = self._evaluate(self._shaped(free))
            self._cached = Cached.of(W, free, self.map)
        return W

    def refresh(self) -> None:
        """Clear the cached W, so that the next call computes W anew, and accept the values of the free tensors."""
        self._cached = self._drawn = None

    def watch(self, name: str) -> None:
        """Let the first evaluation warn if the initial values of all free tensors have been overwritten before it.

        Loading a state dict, `refresh`, a copy and unpickling end the watch. ``name`` is that of the layer and the
        weight in the warning.
        """
        self._drawn = name, [sample.clone() for sample in samples(self.free)]

    def _notice(self, name: str, drawn: list[Tensor]) -> None:
        """End the watch, and warn if no free tensor is near the values that were drawn for it.

        Small changes, such as noise or updates, are no reason to warn.
        """
        self._drawn = None
        if not all(isinstance(f, nn.Parameter) for f in self.free):
            return
        with torch.no_grad():
            pairs = [(now, was) for now, was in zip(samples(self.free), drawn, strict=True) if len(was)]
            floor = 0.01  # size of the entries of a free tensor that starts at zero, below which a change is small
            scales = [max(float(was.norm()), floor * math.sqrt(len(was))) for _, was in pairs]
            changes = [float((now - was).norm()) for now, was in pairs]
            if not pairs or any(change <= 0.5 * scale for change, scale in zip(changes, scales, strict=True)):
                return
        warnings.warn(
            f"{name} was overwritten after it was built: its constraint still holds, but its values no longer follow "
            "the initialisation of the layer. Call reset_parameters() of the layer to draw them again, or refresh() if "
            "this was intended",
            stacklevel=2,
        )

    def _is_frozen(self, free: tuple[Tensor, ...]) -> bool:
        """Return whether no free tensor and no parameter of the map requires a gradient."""
        return all(map(is_frozen, free)) and all(map(is_frozen, self.map.parameters()))

    def _evaluate(self, free: tuple[Tensor, ...]) -> Tensor:
        """Return map(*free), in single precision at least: autocast and half precision would break the constraint."""
        dtype, device = free[0].dtype, free[0].device.type
        if dtype.itemsize > 2 and not autocasts(device):
            return self.map(*free)
        with own_precision(device):
            W = self.map(*map(at_least_single, free))
            return W if W.is_complex() else W.to(dtype)  # complex W stays in single precision

    def _check_finite(self, free: tuple[Tensor, ...]) -> None:
        """Raise NonFiniteError if a free tensor has NaN or infinity."""
        for name, kind, f in zip(self.names, self.kinds, free, strict=True):
            check_finite(type(self.map).__name__, f"{self.place}.{name}".removeprefix("."), f, kind)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Matrix":
        """Clear the cache, then apply ``fn`` to all tensors, as `nn.Module` does."""
        self._cached = None
        super()._apply(fn, recurse)
        if self._drawn is not None:
            name, drawn = self._drawn
            with torch.no_grad():
                self._drawn = name, [fn(sample) for sample in drawn]
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load the tensors, as `nn.Module` does, also under their earlier names: ``free.0``, ``free.1``, …"""
        for i, name in enumerate(self.names):
            if (old := state.pop(f"{prefix}free.{i}", None)) is not None:
                state[prefix + name] = as_row(old)
        self._drawn = None
        super()._load_from_state_dict(state, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cached": None, "_drawn": None}  # not copied or pickled


def check_square(who: str, W: Tensor, size: int | None = None) -> Tensor:
    """Return W, or raise ValueError unless it is a square matrix, of ``size`` if that is given."""
    if W.dim() != 2 or W.shape[0] != W.shape[1] or (size is not None and len(W) != size):
        expected = "a square matrix" if size is None else f"a {size} × {size} matrix"
        raise ValueError(f"{who} expects {expected}; got shape {tuple(W.shape)}")
    return W


def index_of(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate a function that makes index tensors so that its results are cached.

    Nothing is cached while compiling, tracing or in a torch.func transform.
    """
    cached = lru_cache(maxsize=64)(make)

    @wraps(make)
    def index(*key: Any) -> Tensor:
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return make(*key)
        if _get_current_dispatch_mode() is not None:  # such tensors belong to the graph
            return make(*key)
        with torch.inference_mode(False):  # the cached tensor is used by later calls too
            return cached(*key)

    return index


@index_of
def lower_triangle(n: int, device: torch.device) -> Tensor:
    """Return the positions of the strict lower triangle in a flattened n × n matrix, row by row: n(n − 1)/2 indices."""
    rows, cols = torch.tril_indices(n, n, offset=-1, device=device)
    return rows * n + cols


class Skew(torch.autograd.Function):
    """Autograd function A = L − Lᵀ of the packed, strictly lower triangular L."""

    @staticmethod
    def forward(ctx: Any, free: Tensor, n: int) -> Tensor:
        """Return the skew-symmetric n × n matrix A from its packed lower triangle."""
        L = unpacked(free, n)
        return L.sub_(L.mT.contiguous())  # torch transposes by blocks; a strided subtraction is much slower

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the packed triangle from the gradient G of A."""
        return skew_free(G - G.mT), None


def unpacked(free: Tensor, n: int) -> Tensor:
    """Return the strictly lower triangular L (n, n) whose packed form is ``free``, n(n − 1)/2 numbers row by row."""
    return free.new_zeros(n * n).scatter(0, lower_triangle(n, free.device), free).view(n, n)


def skew(free: Tensor, size: int | None = None) -> Tensor:
    """Return the skew-symmetric A whose strict lower triangle, row by row, is ``free`` of length n(n − 1)/2.

    ``size`` is n; by default it follows from the length. Raise ValueError if the length does not fit.
    """
    n = (1 + math.isqrt(1 + 8 * free.numel())) // 2 if size is None else size
    if free.dim() != 1 or free.numel() != n * (n - 1) // 2:
        expected = "n(n − 1)/2 numbers" if size is None else f"{n * (n - 1) // 2} numbers for size {n}"
        raise ValueError(f"skew expects {expected}, the packed lower triangle; got shape {tuple(free.shape)}")
    if needs_plain(free):
        L = unpacked(free, n)
        return L - L.mT
    return Skew.apply(free, n)


def skew_free(A: Tensor) -> Tensor:
    """Return the packed strict lower triangle of A: ``skew(skew_free(A)) == A`` for skew-symmetric A."""
    n = len(check_square("skew_free", A))
    return A.reshape(-1).index_select(0, lower_triangle(n, A.device))


def is_orthogonal(W: Tensor) -> bool:
    """Return whether WᴴW = I up to rounding: no entry differs by √eps of W's dtype or more. W is real or complex."""
    M = W.to(torch.promote_types(W.dtype, torch.float64))
    I = torch.eye(len(W), dtype=M.dtype, device=W.device)
    return bool((M.mH @ M - I).abs().max() < torch.finfo(W.dtype).eps ** 0.5)


def nearest_orthogonal(W: Tensor, determinant: int | None = None) -> Tensor:
    """Return the orthogonal matrix, of this determinant (±1) if given, that is closest to W in the Frobenius norm.

    The result has no gradient history and the dtype of W. Raise ValueError if W is not square or not finite.
    """
    check_square("nearest_orthogonal", W)
    if not W.isfinite().all():
        raise ValueError(
            f"nearest_orthogonal expects finite entries; got {int((~W.isfinite()).sum())} NaN or infinite values"
        )
    U, _, Vh = torch.linalg.svd(W.detach().double())
    if determinant is not None and torch.linalg.det(U @ Vh) * determinant < 0:
        U[:, -1] *= -1  # flip the direction of the smallest singular value, which changes W least
    return (U @ Vh).to(W.dtype)
