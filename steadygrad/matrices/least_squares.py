"""Free tensors of a map by least squares, for maps whose equation cannot be solved."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
"""a differentiable function of a vector"""


def levenberg_marquardt(residual: Function, x: Tensor, updates: int = 60) -> tuple[Tensor, float]:
    """Return a local minimum of ‖residual(x)‖² near x, and its value, after at most ``updates`` updates."""
    r = residual(x)
    loss, damping = float(r.square().sum()), 1e-2
    I = torch.eye(len(x), dtype=x.dtype, device=x.device)
    for _ in range(updates):
        J = jacobian(residual, x)
        g, H = J.mT @ r, J.mT @ J
        before = loss
        for _ in range(8):
            moved = x - torch.linalg.solve(H + damping * I, g)
            r = residual(moved)
            loss = float(r.square().sum())
            if loss < before:
                break
            damping *= 4
        else:
            return x, before
        x, damping = moved, max(damping / 5, 1e-12)
        if before - loss < 1e-9 * before:
            break
    return x, loss


def jacobian(function: Function, x: Tensor) -> Tensor:
    """Return the Jacobian (outputs, inputs) of a function at x, by forward mode, as there are fewer inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, from the scripts that it compiles at first
        return torch.func.jacfwd(function)(x)


def search(residual: Function, start: Callable[[], Tensor], attempts: int, enough: float) -> tuple[Tensor, float]:
    """Return the best of ``attempts`` local minima of ‖residual(x)‖², and its value.

    Each begins at a new ``start()``. The first value of at most ``enough`` ends the search.
    """
    best, least = start(), float("inf")
    for _ in range(attempts):
        x, loss = levenberg_marquardt(residual, start())
        if loss < least:
            best, least = x, loss
        if least <= enough:
            break
    return best, least
