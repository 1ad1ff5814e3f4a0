"""The steps of h_t = φ(U x_t + W h_{t−1} + b), which real and complex cells share."""

from torch import Tensor

from steadygrad.kernels import ElmanInputs, Operator, Steps, elman_unroll, operator_unroll

ElmanWeights = tuple[Tensor, Tensor | Operator]
"""U, and W as a matrix or as a function that maps rows h to h Wᵀ"""


def elman_walk(
    weights: ElmanWeights, bias: Tensor | None, activation: str, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return all states and the final state of h_t = φ(U x_t + W h_{t−1} + b); W is a matrix or an operator on rows."""
    U, W = weights
    if isinstance(W, Tensor):
        states = elman_unroll(ElmanInputs(x, U, W, bias, state[0], activation, steps))
    else:
        states = operator_unroll(x, U, W, bias, state[0], activation, steps)
    return states, (steps.last(states),)
