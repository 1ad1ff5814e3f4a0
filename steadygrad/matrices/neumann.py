"""The scaled Cayley transform with an inverse that is updated by a Neumann series (Mucllari et al., 2022)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from steadygrad.check import is_integer, is_number
from steadygrad.kernels import matmul, needs_plain
from steadygrad.matrices.cayley import CayleyGradient, ScaledCayley, cayley
from steadygrad.matrices.init import free_tensor
from steadygrad.matrices.inverse import LARGE, cayley_inverse, orthogonality_error_estimate, probes
from steadygrad.matrices.matrix import Matrix, skew
from steadygrad.matrices.parameters import same, version
from steadygrad.matrices.registry import entered
from steadygrad.matrices.spectral import is_near_orthogonal


class NeumannCayley(ScaledCayley):
    """Map W = Ã (I − A) D,  Ã ← (I + X + … + Xᵏ) Ã ≈ (I + A)⁻¹,  X = Ã δA,  δA = A_old − A_new,  k = ``order``.

    A is skew-symmetric and D the diagonal matrix of ±1 of `ScaledCayley`. Each evaluation with a new A is one update of
    Ã (Algorithm 1). Errors accumulate, so Ã is computed exactly at the start, after ``reset_every`` updates, and in two
    more cases:

    - ‖X‖₂ is not below ``exact_above``. The series converges for ‖X‖₂ < 1. But a single update of order 2 with
      ‖X‖₂ = 0.9 may have an error of 0.9³ and leave W that far from orthogonal until the next reset. Hence the stricter
      default.
    - ‖WᵀW − I‖_F, estimated with a few random vectors, exceeds ``max_drift`` √n. If gradients agree from update to
      update, a learning rate of 1e-3 gives ‖X‖₂ ≈ 0.02 per update, and 50 updates between resets are too many.

    If A is so large that rounding errors of Ã alone make W inaccurate, W is that of `ScaledCayley`.

    ``exact_above=inf, max_drift=inf`` disables these checks, which is the algorithm as printed. ``exact_solves`` counts
    the exact inverses so far. Ã, its A and its age are buffers, so a run can be resumed.
    """

    inverse: Tensor
    last: Tensor
    age: Tensor
    exact_solves: Tensor

    def __init__(
        self,
        size: int,
        reflections: int = 0,
        order: int = 2,
        reset_every: int = 50,
        exact_above: float = 0.1,
        max_drift: float = 4e-6,
    ) -> None:
        super().__init__(size, reflections)
        if order not in (1, 2, 3):
            raise ValueError(f"NeumannCayley expects an order of 1, 2 or 3; got {order!r}")
        if not is_integer(reset_every, 1):
            raise ValueError(f"NeumannCayley expects reset_every of at least 1 update; got {reset_every!r}")
        if not is_number(exact_above, 0, 1) and exact_above != math.inf:
            raise ValueError(
                f"NeumannCayley expects exact_above in 0 … 1, for convergence, or inf for no check; got {exact_above!r}"
            )
        if not is_number(max_drift, 0, math.inf):
            raise ValueError(f"NeumannCayley expects max_drift of at least 0; got {max_drift!r}")
        self.order, self.reset_every, self.exact_above, self.max_drift = order, reset_every, exact_above, max_drift
        self.register_buffer("inverse", torch.eye(size))
        self.register_buffer("last", torch.zeros(size * (size - 1) // 2))
        self.register_buffer("age", torch.tensor(-1))  # updates since Ã was exact; −1: there is no Ã yet
        self.register_buffer("exact_solves", torch.tensor(0))
        self._step: tuple[Tensor, Tensor] | None = None  # Ã and δA of the last update
        self._evaluated: Evaluated | None = None
        """W of the last evaluation, which is used again until A or a buffer changes"""

    @property
    def neumann_norm(self) -> float:
        """‖X‖₂ of the last update, where X = Ã δA; 0 before the first update.

        Ã is the stored inverse before the update, and δA the old A minus the new A. ‖X‖₂ is also computed if the update
        used an exact inverse instead of the series in X. `ReleasedNeumannCayley` has its own X.
        """
        if self._step is None:
            return 0.0
        inverse, delta = self._step
        return float(torch.linalg.matrix_norm(inverse @ skew(delta, self.size), 2))

    def readings(self) -> dict[str, float]:
        """Return numbers to log during training: the dict {"neumann_norm": ‖X‖₂ of the last update}."""
        return {"neumann_norm": self.neumann_norm}

    def forward(self, free: Tensor) -> Tensor:
        """Return W (n, n) from the packed strict lower triangle of the skew-symmetric A, n(n − 1)/2 numbers.

        If A has changed, first update the stored Ã ≈ (I + A)⁻¹.
        """
        if needs_plain(free):
            return cayley(free, self.D)
        evaluated = self._evaluated
        if evaluated is None or not evaluated.is_of(self) or not same(free.detach(), self.last):
            evaluated = self._evaluated = self._evaluate(free.detach())
        if not evaluated.accurate:
            return super().forward(free)
        return CayleyGradient.apply(free, self.inverse, evaluated.W, self.D)

    def _evaluate(self, free: Tensor) -> "Evaluated":
        """Return an `Evaluated` with W for this A, after an update of the stored inverse Ã if A has changed.

        ``free`` is the packed A.
        """
        with torch.inference_mode(False), torch.no_grad():  # Ã is used again after inference mode
            J = skew(-free, self.size)
            J.diagonal().add_(1)  # I − A
            self._follow(free, J)
            W = matmul(self.inverse, J).mul_(self.D)
            large = self.max_drift < math.inf and 2 * float(free.dot(free)) > LARGE**2  # ‖A‖_F, in the fastest way
            accurate = not large or is_near_orthogonal(W, units=400)  # rounding errors of Ã are multiplied by I − A
        return Evaluated.of(self, W, accurate)

    def _follow(self, free: Tensor, J: Tensor) -> None:
        """Update the stored inverse Ã to this A, by the series or exactly. Do nothing if A has not changed.

        ``free`` is the packed A, and ``J`` is I − A. Ã is a new tensor each time, because a backward pass may still
        need the old one.
        """
        known = self.age >= 0 and self.inverse.dtype == free.dtype
        if known and same(free, self.last):
            return
        inverse = None
        if known:
            start, delta = self._from(free)
            self._step = start, delta
            self.age = self.age + 1  # in new tensors, because buffers created in inference mode cannot be written to
            if self.age < self.reset_every and self.exact_above > 0:
                X = matmul(start, skew(delta, self.size))
                if norm_below(X, self.exact_above) and not self._would_drift(X, J):
                    inverse = self._series(X, start)
        if inverse is None:
            inverse = cayley_inverse(skew(free, self.size)).contiguous()  # safetensors needs rows, LAPACK gives columns
            self.age = torch.zeros_like(self.age)
            self.exact_solves = self.exact_solves + 1
        self.inverse, self.last = inverse, free.clone()

    def _from(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inverse Ã from which the series starts, and the packed δA of X = Ã δA."""
        return self.inverse, self.last - free

    def _series(self, X: Tensor, start: Tensor) -> Tensor:
        """Return the truncated Neumann series times ``start``, (I + X + … + Xᵏ) · ``start``, where k is ``self.order``.

        Horner's rule avoids powers of X: for k = 2 the result is ``start`` + X (``start`` + X ``start``). ``start`` is
        a matrix (n, n) or a vector (n,).
        """
        total = start
        for _ in range(self.order):
            total = start + (X @ total if start.dim() == 1 else matmul(X, total))
        return total

    def _would_drift(self, X: Tensor, J: Tensor) -> bool:
        """Return whether this update of the inverse would leave W too far from orthogonal.

        X is the matrix of the series, and ``J`` is I − A. The error of W is estimated before the update, with products
        of matrices and vectors only.
        """
        if self.max_drift == math.inf:
            return False
        error = orthogonality_error_estimate(
            lambda z: self._series(X, self.inverse @ (J @ z)),
            lambda z: J.mT @ (self.inverse.mT @ self._series(X.mT, z)),
            probes(X, 2),
        )
        return not error <= self.max_drift * self.size**0.5

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy or a pickle, without the W of the last evaluation."""
        return self.__dict__ | {"_evaluated": None}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NeumannCayley":
        """Apply ``fn`` to all tensors, as `nn.Module` does. A new dtype invalidates the stored inverse."""
        dtype = self.inverse.dtype
        super()._apply(fn, recurse)
        if self.inverse.dtype != dtype:
            self.age.fill_(-1)  # an inverse in single precision is too inaccurate in double precision
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load the tensors, as `nn.Module` does. An inverse of another dtype is not used."""
        super()._load_from_state_dict(state, prefix, *rest)
        self._step = None
        saved = state.get(f"{prefix}inverse")
        if saved is not None and saved.dtype != self.inverse.dtype:
            self.age.fill_(-1)

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        own = ("order", "reset_every", "exact_above", "max_drift")
        return ", ".join([super().extra_repr(), *(f"{name}={getattr(self, name)}" for name in own)])


class Evaluated(NamedTuple):
    """W of a `NeumannCayley`, whether it is accurate, and what it was computed from besides A."""

    W: Tensor
    accurate: bool
    causes: tuple[Tensor, ...]
    """Ã, its age and D"""
    versions: tuple[int, ...]
    """version counters of W and of the causes"""

    @classmethod
    def of(cls, map: NeumannCayley, W: Tensor, accurate: bool) -> "Evaluated":
        """Return the `Evaluated` of a W that ``map`` has just computed."""
        causes = map.inverse, map.age, map.D
        return cls(W, accurate, causes, tuple(version(t) for t in (W, *causes)))

    def is_of(self, map: NeumannCayley) -> bool:
        """Return whether neither W nor the buffers of ``map`` have changed since W was computed. A is not compared."""
        inverse, age, D = self.causes
        same_tensors = inverse is map.inverse and age is map.age and D is map.D
        return same_tensors and all(version(t) == v for t, v in zip((self.W, *self.causes), self.versions, strict=True))


class ReleasedNeumannCayley(NeumannCayley):
    """Map to Wᵀ for W = Ã (I − A) D,  Ã ← (I + X + … + Xᵏ) Ã,  X = λ Ã dL/dA,  λ = ``released_lr``.

    This is the update in the program that Mucllari et al. released. It differs from Algorithm 1 (`NeumannCayley`):

    - X contains the raw gradient times a learning rate, whereas Algorithm 1 has A_old − A_new. With Adam on A the two
      disagree, and W does not stay orthogonal: its error is 8e-3 after 12 updates at 1e-3. ``released_lr`` should be
      the learning rate of A. It is constant, as in the program.
    - Ã is exact after the first update and then after every ``reset_every`` updates (49 in the program), and never in
      between, however far W is from orthogonal.
    - The program multiplies row vectors, h W. For column vectors the matrix is therefore Wᵀ.

    The gradient is the sum over the backward passes in training mode since A last changed. It is a buffer, so a run can
    be resumed.
    """

    gradient: Tensor

    def __init__(
        self, size: int, reflections: int = 0, order: int = 2, reset_every: int = 49, released_lr: float = 1e-3
    ) -> None:
        super().__init__(size, reflections, order, reset_every, exact_above=math.inf, max_drift=math.inf)
        if not is_number(released_lr, 0, math.inf):
            raise ValueError(f"ReleasedNeumannCayley expects released_lr of at least 0; got {released_lr!r}")
        self.released_lr = released_lr
        self.register_buffer("gradient", torch.zeros(size * (size - 1) // 2))
        self.borrowed: Tensor | None = None
        """Ã of another matrix, from which the next series starts instead of this matrix's own Ã; None for its own"""

    def forward(self, free: Tensor) -> Tensor:
        """Return Wᵀ (n, n) from the packed A, after an update of Ã if A has changed.

        In training, the backward pass adds the gradient of A to a buffer.
        """
        if self.training and torch.is_grad_enabled() and free.requires_grad and not needs_plain(free):
            free = free.view_as(free)
            free.register_hook(self._add_gradient)
        return super().forward(free).mT

    def right_inverse(self, W: Tensor) -> Tensor:
        """Return the packed A for which `forward`, which returns a transposed matrix, gives the matrix W.

        The conditions are those of `ScaledCayley.right_inverse`.
        """
        return super().right_inverse(W.mT)

    def _add_gradient(self, gradient: Tensor) -> None:
        """Add the gradient of A to the buffer ``gradient``, which the next update of the inverse uses."""
        self.gradient = self.gradient + gradient.detach()

    def _follow(self, free: Tensor, J: Tensor) -> None:
        """Update the stored inverse Ã to this A. The first change of A gives an exact inverse, as in the program."""
        first = self.age < 0
        super()._follow(free, J)
        if first:  # so that the next update is exact
            self.age = torch.full_like(self.age, self.reset_every - 1)

    def _from(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inverse from which the series starts, and λ times the summed gradient. Set the sum to 0."""
        delta, self.gradient = self.released_lr * self.gradient, torch.zeros_like(self.gradient)
        return self.inverse if self.borrowed is None else self.borrowed, delta

    def extra_repr(self) -> str:
        """Return the sizes and options to show in `repr`, as text."""
        return f"{super().extra_repr()}, released_lr={self.released_lr}"


def norm_below(X: Tensor, bound: float) -> bool:
    """Return whether ‖X‖₂ < bound, by the cheapest test that decides it; False if X has NaN or infinity.

    A power iteration, which underestimates the norm a little, decides if the norm is not close to the bound.
    """
    frobenius = float(torch.linalg.vector_norm(X))
    if not math.isfinite(frobenius) or frobenius >= bound * len(X) ** 0.5:
        return False
    if frobenius < bound:
        return True
    q = probes(X, 1)[0]
    for _ in range(8):
        q = X.mT @ (X @ q)
        q = q / torch.linalg.vector_norm(q)
    below = float(torch.linalg.vector_norm(X @ q))  # a lower bound, a few percent too small
    if below >= bound or 1.2 * below < bound:
        return below < bound
    return float(torch.linalg.matrix_norm(X, 2)) < bound


@entered("neumann")
def neumann_cayley(
    size: int,
    *,
    reflections: int = 0,
    order: int = 2,
    reset_every: int = 50,
    exact_above: float = 0.1,
    max_drift: float = 4e-6,
    released_lr: float | None = None,
    init: str = "cayley",
) -> Matrix:
    """Return a `Matrix` with the map `NeumannCayley` or, with ``released_lr``, `ReleasedNeumannCayley`.

    The latter ignores ``exact_above`` and ``max_drift``. ``init`` is the name of an initialiser.
    """
    map = (
        NeumannCayley(size, reflections, order, reset_every, exact_above, max_drift)
        if released_lr is None
        else ReleasedNeumannCayley(size, reflections, order, reset_every, released_lr)
    )
    return Matrix(map, free_tensor(init, map))
