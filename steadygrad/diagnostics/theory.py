"""Theorems about memory and gradients beside computed numbers, as tables, notes and curves.

Each function returns a `Comparison`. The function of the same name in `steadygrad.report.theory_figures` draws it:

    found = theory.powers(size=4)
    theory_figures.powers(**found.curves, path="powers.png")
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from steadygrad.diagnostics.attention import (
    attention_gradients,
    cancelling_attention,
    dependency_depths,
    relay_attention,
    sparse_attention_bound,
    uniform_attention,
    uniform_attention_rate,
)
from steadygrad.diagnostics.fisher import chain, fisher_memory_curve, ganguli_bound
from steadygrad.diagnostics.spectrum import power_norms
from steadygrad.diagnostics.transients import trajectories, unit_triangular

TABLE_6 = {
    (0.95, 0.0, 0.0): 3.03,
    (1.0, 0.0, 0.0): 5.19,
    (1.05, 0.0, 0.0): 12.1,
    (0.95, 0.005, 0.0): 3.18,
    (1.0, 0.005, 0.0): 5.30,
    (1.05, 0.005, 0.0): 12.1,
    (0.95, 0.0, 0.2): 12.0,
    (1.0, 0.0, 0.2): 16.2,
    (1.05, 0.0, 0.2): 20.5,
    (0.95, 0.005, 0.2): 12.1,
    (1.0, 0.005, 0.2): 16.3,
    (1.05, 0.005, 0.2): 20.4,
}
"""(α, β, d) of the chains of 100 units in nnRNN → sum of the memory curve as printed"""
RING_RADIUS = 0.95  # of the normal network; the sum of its memory curve is 1 for any radius
GROWTH = 1.02  # an eigenvalue off the unit circle, to compare powers with
SPARSE_EIGENVALUE = 0.5  # with it, each relay multiplies the gradient by exactly 1/κ
FORGOTTEN = 1e-6  # a gradient below this counts as vanished
BLOCK = 30  # steps between relays, enough for ½ᵏ to become negligible


@dataclass(frozen=True)
class Table:
    """A table of numbers. ``columns`` maps the name of a column to the format of its numbers, such as ".3g".

    ``rows`` are sequences of values, one for each column: numbers, strings, or None, shown as "–".
    """

    title: str
    columns: dict[str, str]
    rows: Sequence[Sequence[Any]]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as a list of dicts by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def cells(self) -> list[list[str]]:
        """Return the rows as a list of lists of strings, formatted by ``columns``; "–" for None."""

        def cell(value: Any, form: str) -> str:
            return "–" if value is None else value if isinstance(value, str) else format(value, form)

        return [list(map(cell, row, self.columns.values())) for row in self.rows]


@dataclass(frozen=True)
class Comparison:
    """Computed numbers beside a theorem: a list of `Table`, a list of notes in words, and the curves of a figure.

    ``curves`` is a dict of the keyword arguments of the function of the same name in
    `steadygrad.report.theory_figures`.
    """

    tables: list[Table]
    notes: list[str]
    curves: dict[str, Any]
    """arguments of the figure, except for its path"""


def fisher(size: int = 100) -> Comparison:
    """Return a `Comparison` of the Fisher memory of chains of units, a normal network and Ganguli's bound.

    The table is table 6 of nnRNN. The curves (fig. 1c) are ``chains``, a dict of J(k) by (α, β, d), ``normal``, J(k) of
    a ring, and ``bound``. α, β and d are ``alpha``, ``beta`` and ``diagonal`` of `chain`. The printed numbers are of
    ``size`` 100 units. Double precision is not enough for chains of more than about 120.
    """
    first = torch.eye(size, dtype=torch.float64)[0]
    ring = RING_RADIUS * torch.eye(size, dtype=torch.float64).roll(1, 0)
    curves = {key: fisher_memory_curve(chain(size, *key), first).tolist() for key in TABLE_6}
    normal, bound = fisher_memory_curve(ring, first).tolist(), ganguli_bound(first)
    rows = []
    for key, curve in curves.items():
        total, printed = sum(curve), TABLE_6[key] if size == 100 else None
        rows.append([*key, total, printed, None if printed is None else 100 * (total / printed - 1)])
    columns = {"α": "g", "β": "g", "d": "g", "J_tot": "#.4g", "printed": "#.3g", "difference, %": "+.1f"}
    notes = [
        f"A normal network has {sum(normal):.4g}, whatever its size; Ganguli's bound for {size} units is {bound:g}.",
        "With a diagonal these sums need more care than an inverse in double precision; for 100 units all digits hold.",
    ]
    steps = size * 3 // 2
    drawn = {
        "chains": {key: curve[:steps] for key, curve in curves.items()},
        "normal": normal[:steps],
        "bound": bound,
    }
    return Comparison([Table(f"Fisher memory, {size} units", columns, rows)], notes, drawn)


def transients(size: int = 100, samples: int = 1000) -> Comparison:
    """Return a `Comparison` of the norm of states in chains of units from random unit vectors (nnRNN, figure 1b).

    The curves are ``chains``, a dict by (α, β), ``alpha`` and ``beta`` of `chain`. Each value is a pair for the
    standard deviation across units and the norm of the state, each as `mean_and_spread` over the samples.
    """
    bands, rows = {}, []
    for alpha, beta in [(alpha, beta) for alpha, beta, d in TABLE_6 if d == 0]:
        states = trajectories(chain(size, alpha, beta), steps=size + size // 10, samples=samples)
        deviations, norms = states.std(dim=2, correction=0), states.norm(dim=2)
        bands[alpha, beta] = mean_and_spread(deviations), mean_and_spread(norms)
        mean, _ = bands[alpha, beta][1]
        rows.append([alpha, beta, max(mean), mean.index(max(mean)), mean[size - 1], mean[size]])
    columns = {"α": "g", "β": "g", "largest": ".3g", "at step": "d", f"at {size - 1}": ".3g", f"at {size}": ".3g"}
    notes = ["Every chain forgets all at once: its N-th power is 0."]
    table = Table(f"Mean norm of the state, {size} units, {samples} starts", columns, rows)
    return Comparison([table], notes, {"chains": bands})


def mean_and_spread(samples: Tensor) -> tuple[list[float], list[float]]:
    """Return the pair of the mean and the standard deviation over samples, the first dimension of (samples, steps).

    Both are lists of floats (steps).
    """
    return samples.mean(0).tolist(), samples.std(0).tolist()


def powers(size: int = 6, x: float = 0.5, steps: int = 1000) -> Comparison:
    """Return a `Comparison` of ‖Wᵏ‖ for matrices with 1 on the diagonal and x above it (thesis, prop. 3.4.2).

    These powers grow as polynomials. The sizes are 2 … ``size``, and k goes from 0 to ``steps``. The curves are
    ``norms``, a dict of lists by size, ``x``, and ``growth``, an eigenvalue to compare with.
    """
    norms = {n: power_norms(unit_triangular(n, x), steps).tolist() for n in range(2, size + 1)}
    rows = [
        [n, n - 1, octave_slope(curve), curve[steps], math.comb(steps, n - 1) * x ** (n - 1)]
        for n, curve in norms.items()
    ]
    columns = {"N": "d", "degree": "d", "slope": "z.3f", "‖Wᵏ‖": ".4g", "C(k, N−1) xᴺ⁻¹": ".4g"}
    table = Table(f"Unit-triangular matrices, x = {x:g}, k = {steps}", columns, rows)
    notes = [f"An eigenvalue of {GROWTH:g} has {GROWTH**steps:.3g} there."]
    return Comparison([table], notes, {"norms": norms, "x": x, "growth": GROWTH})


def attention(
    eigenvalues: Sequence[float] = (-0.5, 0.0, 0.3, 0.5, 0.6),
    kappa: Sequence[int] = (2, 3, 8),
    depth: int = 3,
    steps: int = 1000,
) -> Comparison:
    """Return a `Comparison` of gradients without attention and with uniform or sparse attention.

    They belong to theorems 4.4.2 and 4.4.3 of the thesis. Uniform attention has ``steps`` steps and a recurrent matrix
    V with these ``eigenvalues``, between −1 and 1. Sparse attention attends to κ states, for each κ in ``kappa``. The
    path to the first state passes up to ``depth`` relays (`relay_attention`). Each kind of attention has a table. The
    curves are ``plain`` and ``uniform`` of `uniform_case`, ``sparse`` of `sparse_case`, and ``sparse_eigenvalue``, the
    constant 0.5, which is V in ``sparse``.
    """
    uniform, uniform_curves = uniform_case(eigenvalues, steps)
    sparse, sparse_curves = sparse_case(kappa, depth)
    notes = [
        "A normal V has the gradients of all its eigenvalues, so the slowest to fall decides.",
        "Uniform attention keeps Ω(1/T) when an eigenvalue has Re λ ≥ |λ|²; negative ones alone fall faster.",
        "Sparse attention keeps its bound when one is positive; without, ways may cancel, as in the last row.",
    ]
    drawn = {**uniform_curves, "sparse": sparse_curves, "sparse_eigenvalue": SPARSE_EIGENVALUE}
    return Comparison([uniform, sparse], notes, drawn)


def uniform_case(eigenvalues: Sequence[float], steps: int) -> tuple[Table, dict[str, Any]]:
    """Return the pair of the `Table` and a dict of the curves of gradients under uniform attention.

    The curves are dicts by eigenvalue: ``plain``, a list of |gradients| without attention, and ``uniform``, the pair of
    such a list with attention and its rate (`uniform_attention_rate`).
    """
    V = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
    plain, curves = (
        dict(zip(eigenvalues, gradients.diagonal(dim1=1, dim2=2).abs().T.tolist(), strict=True))
        for gradients in (attention_gradients(V, w) for w in (torch.zeros(steps, steps), uniform_attention(steps)))
    )
    rates = {eigenvalue: uniform_attention_rate(eigenvalue) for eigenvalue in eigenvalues}
    rows = [
        [
            eigenvalue,
            next((k for k, gradient in enumerate(plain[eigenvalue]) if gradient < FORGOTTEN), None),
            curve[-1],
            octave_slope([curve[0], *curve]),
            rates[eigenvalue],
            max(-1.0, eigenvalue - 1),
            "yes" if rates[eigenvalue] >= -1 else "no",
        ]
        for eigenvalue, curve in curves.items()
    ]
    columns = {
        "λ": "g",
        f"no attention: steps to {FORGOTTEN:g}": "d",
        "gradient at T": ".3g",
        "slope": "z.3f",
        "λ/(1−λ) − 1": "z.3f",
        "prop. B.1.33": "z.3f",
        "Ω(1/T)": "",
    }
    uniform = {eigenvalue: (curve, rates[eigenvalue]) for eigenvalue, curve in curves.items()}
    return Table(f"Uniform attention, T = {steps}", columns, rows), {"plain": plain, "uniform": uniform}


def sparse_case(kappas: Sequence[int], depth: int) -> tuple[Table, dict[int, tuple[list[float], list[float]]]]:
    """Return the pair of the `Table` of gradients under sparse attention and a dict of curves by κ.

    Each value of the dict is a pair of lists: the |gradients| through relays (`relay_attention`) and their lower bound.
    The last row of the table is the case of `cancelling_attention`, which has no curve.
    """

    def gradients(eigenvalue: float, weights: Tensor, start: int = 0) -> list[float]:
        return attention_gradients(torch.tensor([[eigenvalue]]), weights, start)[:, 0, 0].abs().tolist()

    curves, rows = {}, []
    for kappa in kappas:
        weights, start = relay_attention(kappa - 1 + BLOCK * (depth + 1), kappa, depth), kappa - 1
        curve, depths = gradients(SPARSE_EIGENVALUE, weights, start), dependency_depths(weights, start)
        bound = [sparse_attention_bound(SPARSE_EIGENVALUE, kappa, d) for d in depths]
        curves[kappa] = curve, bound
        for end in range(BLOCK - 1, len(curve), BLOCK):
            factor = curve[end] / curve[end - BLOCK] if end >= BLOCK else None
            rows.append([SPARSE_EIGENVALUE, kappa, depths[end], curve[end], factor, bound[end]])
    cancelled = cancelling_attention(3 * BLOCK)
    rows.append([-0.5, 1, max(dependency_depths(cancelled)), gradients(-0.5, cancelled)[-1], None, None])
    columns = {"λ": "g", "κ": "d", "d": "d", "gradient": ".3g", "to d − 1": ".4f", "λᵈ/κᵈ⁺¹": ".3g"}
    return Table("Sparse attention", columns, rows), curves


def octave_slope(curve: Sequence[float]) -> float:
    """Return the slope of the curve, values above 0 at 0, 1, …, in a log-log plot from half its length to its end."""
    last = len(curve) - 1
    return math.log(curve[last] / curve[last // 2]) / math.log(last / (last // 2))
