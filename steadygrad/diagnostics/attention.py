"""How far back gradients reach in a recurrence that attends to its past states (Kerg et al., 2020; thesis, chapter 4).

h_{t+1} = V s_t,  s_t = h_t + Σ_{i≤t} α_{i,t} h_i.  The weights are a matrix with a row for each t
and a column for each i. States are counted from 0; the thesis counts them from 1.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor


def uniform_attention(length: int) -> Tensor:
    """Return the attention weights α_{i,t} = 1/(t + 1), i = 0 … t, as a matrix with a row for each t (thesis 4.4.2).

    The shape is (length, length), with zeros above the diagonal, in double precision.
    """
    return torch.ones(length, length, dtype=torch.float64).tril() / torch.arange(1, length + 1)[:, None]


def sparse_attention(attended: Sequence[Collection[int]]) -> Tensor:
    """Return the attention weights α_{i,t} = 1/κ_t for i ∈ A_t = ``attended[t]``, κ_t = |A_t| (thesis, 4.4.3).

    The result is a matrix (length, length) in double precision, length = len(attended): row t holds the weights at step
    t. An empty A_t means no attention at this step. Raise ValueError if an A_t contains a state after t or below 0.
    """
    weights = torch.zeros(len(attended), len(attended), dtype=torch.float64)
    for t, states in enumerate(attended):
        if any(not 0 <= i <= t for i in states):
            raise ValueError(f"sparse_attention expects state {t} to attend to states 0 … {t}; got {sorted(states)}")
        for i in states:
            weights[t, i] = 1 / len(states)
    return weights


def relay_attention(length: int, kappa: int, depth: int) -> Tensor:
    """Return the weights of a sparse attention with A_t = {the last relay} ∪ {the κ − 1 states before all relays}.

    A_t is the set of states that step t attends to, each with weight 1/κ, κ = ``kappa``. The result is a matrix
    (length, length) as in `sparse_attention`. There are d + 1 relays at equal distances, d = ``depth``. The first relay
    is state κ − 1; earlier steps attend to nothing. The path from the first relay to the states of block b passes b
    more relays. The states before the first relay cannot depend on it: they receive attention and contribute nothing to
    the gradient. Raise ValueError if κ < 1, d < 0 or length < κ + d.
    """
    block = (length - kappa + 1) // (depth + 1) if kappa >= 1 and depth >= 0 else 0
    if block < 1:
        raise ValueError(
            "relay_attention expects kappa of at least 1, depth of at least 0 and a length of at least kappa + depth; "
            f"got kappa {kappa}, depth {depth}, length {length}"
        )
    first, others = kappa - 1, range(kappa - 1)
    relays = [first + block * min(k // block, depth) for k in range(length - first)]
    return sparse_attention([set[int]()] * first + [{*others, relay} for relay in relays])


def cancelling_attention(length: int) -> Tensor:
    """Return the weights of a sparse attention with A_t = {0}, {t}, {t − 1} in turn: κ = 1, and the depth is at most 1.

    A_t is the one state that step t attends to, with weight 1. The result is a matrix (length, length) as in
    `sparse_attention`. With V = −½ I every third gradient of `attention_gradients` is 0. This is why theorem 4.4.3
    requires a positive real eigenvalue.
    """
    return sparse_attention([({0}, {t}, {t - 1})[t % 3] for t in range(length)])


def attention_gradients(V: Tensor, weights: Tensor, start: int = 0) -> Tensor:
    """Return ds_{t+k}/dh_t = H_k + Σ_{j≤k} α_{t+j,t+k} H_j,  H_0 = I,  H_{k+1} = V ds_{t+k}/dh_t,  t = ``start``.

    The recurrence is h_{t+1} = V s_t, s_t = h_t + Σ_{i≤t} α_{i,t} h_i, and H_k is dh_{t+k}/dh_t. V is (N, N).
    ``weights`` is a matrix (length, length) with α_{i,t} in row t and column i. The result has one matrix for every k
    that the weights cover, shape (length − start, N, N), in double precision. Weights of 0 give Vᵏ. The weights are
    treated as constants, as in the theorems.

    Raise ValueError if V is not square, if the weights are not square or not 0 above the diagonal, or for another
    start.
    """
    if V.dim() != 2 or V.shape[0] != V.shape[1]:
        raise ValueError(f"attention_gradients expects a square V; got shape {tuple(V.shape)}")
    steps = checked_steps(weights, start)
    V = V.detach().to(torch.promote_types(V.dtype, torch.float64))
    weights = weights.to(V)
    H = torch.cat([torch.eye(len(V)).to(V)[None], V.new_zeros(steps, *V.shape)])
    gradients = V.new_zeros(steps, *V.shape)
    for k in range(steps):
        gradients[k] = H[k] + torch.tensordot(weights[start + k, start : start + k + 1], H[: k + 1], dims=1)
        H[k + 1] = V @ gradients[k]
    return gradients


def dependency_depths(weights: Tensor, start: int = 0) -> list[int]:
    """Return a list of d_k, the fewest factors V on any path from h_t to s_{t+k},  t = ``start``,  k = 0, 1, …

    The recurrence and ``weights`` are those of `attention_gradients`. The list has one integer for each k, length −
    start of them. A path goes from a state to any later s that attends to it, or to the s of its own time, and from
    there through V to the next state. The largest d_k is the d of theorem 4.4.3. Raise ValueError for weights that are
    not square or not causal.
    """
    steps = checked_steps(weights, start)
    to_state, depths = [0], list[int]()  # fewest factors to h_{t+j} and to s_{t+k}
    for k in range(steps):
        attended = weights[start + k, start : start + k + 1].nonzero()[:, 0].tolist()
        depths.append(min(to_state[j] for j in [*attended, k]))
        to_state.append(depths[-1] + 1)
    return depths


def uniform_attention_rate(eigenvalue: complex) -> float:
    """Return r = Re λ/(1 − λ) − 1 for an eigenvalue λ of V with |λ| < 1. Raise ValueError for other λ.

    Under uniform attention the part of ds_T/dh_t (`attention_gradients`) that belongs to λ goes as Tʳ.

    dh_T/dh_0 is the coefficient of xᵀ in (1 − x)^{−a} (1 − λx)^{a−1},  a = λ/(1 − λ). The singularity nearest to 0 of
    this function is x = 1. Theorem 4.4.2, Ω(1/T), therefore needs an eigenvalue with Re λ ≥ |λ|². A real eigenvalue in
    [0, 1) is sufficient; negative eigenvalues alone are not. (Proposition B.1.33 has λ in the place of λ/(1 − λ), and
    −1 at the least.)
    """
    if not abs(eigenvalue) < 1:
        raise ValueError(f"uniform_attention_rate expects an eigenvalue of modulus below 1; got {eigenvalue!r}")
    return (eigenvalue / (1 - eigenvalue)).real - 1


def sparse_attention_bound(eigenvalue: float, kappa: int, depth: int) -> float:
    """Return λᵈ/κᵈ⁺¹, a lower bound of ‖ds_T/dh_t‖ for a normal V with an eigenvalue λ > 0.

    λ is ``eigenvalue``. Sparse attention attends to at most κ = ``kappa`` states, and d = ``depth`` is that of
    `dependency_depths`. This is theorem 4.4.3 with the constant that it leaves out. A path with d factors V has d + 1
    weights, each at least 1/κ, and for λ > 0 no other path can cancel it. Raise ValueError unless λ > 0, κ ≥ 1 and d ≥
    0.
    """
    if not (eigenvalue > 0 and kappa >= 1 and depth >= 0):
        raise ValueError(
            "sparse_attention_bound expects an eigenvalue above 0, kappa of at least 1 and depth of at least 0; "
            f"got {eigenvalue!r}, {kappa!r} and {depth!r}"
        )
    return float(eigenvalue**depth / kappa ** (depth + 1))


def checked_steps(weights: Tensor, start: int) -> int:
    """Return how many states the attention weights (length, length) cover from state ``start`` on: length − start.

    Raise ValueError unless the weights are square and causal (0 above the diagonal), and ``start`` is one of their
    states.
    """
    square = weights.dim() == 2 and weights.shape[0] == weights.shape[1]
    if not square or weights.triu(1).any():
        raise ValueError(
            "attention expects a square table of weights, zero above its diagonal; "
            f"got shape {tuple(weights.shape)}{' with weights on the future' if square else ''}"
        )
    if not 0 <= start < len(weights):
        raise ValueError(f"attention expects a start among states 0 … {len(weights) - 1}; got {start}")
    return len(weights) - start
