"""The steps of h_t = φ(U x_t + W h_{t−1} + b), which real and complex cells share."""

from torch import Tensor

from steadygrad.kernels import ElmanInputs, Operator, Steps, elman_unroll, operator_unroll

ElmanWeights = tuple[Tensor, Tensor | Operator]
"""U, and W as a matrix or as a function that maps rows h to h Wᵀ"""


def elman_walk(
    weights: ElmanWeights, bias: Tensor | None, activation: str, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the pair of all states (rows, hidden) and the final state of h_t = φ(U x_t + W h_{t−1} + b).

    ``weights`` is the pair of U and W; W is a matrix or a function that maps rows h to h Wᵀ. ``bias`` is b or None;
    modReLU adds b to the modulus instead. ``activation`` is the name of φ. x is (rows, inputs), laid out as ``steps``.
    ``state`` and the final state are tuples of one tensor (batch, hidden).
    """
    U, W = weights
    if isinstance(W, Tensor):
        states = elman_unroll(ElmanInputs(x, U, W, bias, state[0], activation, steps))
    else:
        states = operator_unroll(x, U, W, bias, state[0], activation, steps)
    return states, (steps.last(states),)
