"""What the attention kernel takes and returns: weights, sizes and memories."""

from typing import NamedTuple

from torch import Tensor

from steadygrad.kernels.steps import Steps


class Recurrence(NamedTuple):
    """Weights of the cell in the attention kernel: h = φ(U x + W s + b), or an LSTM if ``activation`` is None.

    U (hidden, inputs) multiplies the input x. W (hidden, hidden) multiplies s, the previous h after attention (see
    `Attention`). ``bias`` is b (hidden) or None, and ``activation`` the name of φ. For an LSTM the weights and the bias
    have 4 · hidden rows, in torch's order i, f, g, o.
    """

    U: Tensor
    W: Tensor
    bias: Tensor | None
    activation: str | None = None


class Attention(NamedTuple):
    """Weights and sizes of attention: a(s, m) = v · tanh(A s + B m), or (A s) · (B m)/√N if v is None.

    a(s, m) is the score of a past state m for the query s. The result of attention is the next s = f · (h + Σ α_m m),
    where α is the softmax of the scores. A and B are (N, N), v is (N), and N is the hidden size. ``factor`` is f.
    ``short`` is the number of recent states in memory (S), None for no limit, and ``relevant`` the number of older
    states kept as relevant (R).
    """

    A: Tensor
    B: Tensor
    v: Tensor | None
    factor: float
    short: int | None
    relevant: int


class Carried(NamedTuple):
    """The memory of past states between two calls of the attention kernel, with one row per sequence.

    S holds the recent states and R older states that are kept as relevant.

    ``states`` (batch, places, hidden) are first the places of S, empty ones in front and the latest state last, then
    the places of R. ``received`` (batch, S) is the attention that each state in S has received. ``scores`` and
    ``times`` (batch, R) are the scores and the time steps of the states in R. ``ages`` (batch) is the number of states
    so far. If S has no limit, ``ages`` is the number of states in S, and ``received`` is empty.
    """

    states: Tensor
    received: Tensor
    scores: Tensor
    times: Tensor
    ages: Tensor


class Inputs(NamedTuple):
    """Tensors for which `Attentive` computes gradients: x, the weights, the initial state and the carried states.

    The initial state is ``h``, ``cells`` (c of an LSTM, else None) and ``macro`` (s), each (batch, hidden). ``carried``
    is the tensor ``states`` of `Carried`.
    """

    x: Tensor
    U: Tensor
    W: Tensor
    bias: Tensor | None
    A: Tensor
    B: Tensor
    v: Tensor | None
    h: Tensor
    cells: Tensor | None
    macro: Tensor
    carried: Tensor


class Counters(NamedTuple):
    """Tensors that the attention kernel updates in place: the tensors of `Carried` without ``states``, and ``members``.

    ``members`` (batch, R) are the row numbers of the R older states of each sequence that are kept as relevant.
    """

    received: Tensor
    scores: Tensor
    members: Tensor
    times: Tensor
    ages: Tensor


class Saved(NamedTuple):
    """Results of the forward pass of attention that its backward pass uses. Cells and gates are None without an LSTM.

    ``kept`` (rows, R) holds the row numbers of the relevant states that each row attended to. ``exponentials`` is 1 if
    the kernel worked with exponentials of queries and keys, else 0.
    """

    states: Tensor
    cells: Tensor | None
    gates: Tensor | None
    macro: Tensor
    keys: Tensor
    queries: Tensor
    weights: Tensor
    kept: Tensor
    exponentials: int


class Plan(NamedTuple):
    """Arguments of `Attentive` that have no gradient. ``ages`` are those before the first step.

    ``sizes`` are three numbers of places per sequence: for recent states (S), for relevant states (R), and for recent
    states in the memory before the first step, some of which may be empty.
    """

    activation: str | None
    factor: float
    sizes: tuple[int, int, int]
    steps: Steps
    ages: Tensor
