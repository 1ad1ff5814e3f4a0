"""Compute and draw what theorems say about memory and gradients.

steadygrad theory fisher -o fisher.png        what chains of units remember of a signal in noise
steadygrad theory transients --samples 200    how chains amplify the signal before they forget it
steadygrad theory powers --size 6 -o p.svg    with eigenvalues of 1, powers grow only as polynomials
steadygrad theory attention --json            gradients without attention, with uniform and with sparse attention
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadygrad.cli.common import add_threads, check_target, dotted, say, set_threads, show_table

if TYPE_CHECKING:
    from torch import Tensor

Curves = dict[float, list[float]]

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
FORGOTTEN = 1e-6
BLOCK = 30  # steps between relays, enough for ½ᵏ to become negligible


@dataclass(frozen=True)
class Table:
    """A table of numbers. ``columns`` maps the name of a column to the format of its numbers."""

    title: str
    columns: dict[str, str]
    rows: Sequence[Sequence[Any]]

    def show(self) -> None:
        def cell(value: Any, form: str) -> str:
            return "–" if value is None else value if isinstance(value, str) else format(value, form)

        shown = [list(map(cell, row, self.columns.values())) for row in self.rows]
        show_table(self.title, list(self.columns), shown, right_from=0)


@dataclass(frozen=True)
class Finding:
    """The result of a computation: tables, notes, and a function that draws the figure to a file."""

    tables: list[Table]
    notes: list[str]
    draw: Callable[[str], Path]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    chosen = parser.add_subparsers(dest="what", metavar="|".join(THEORIES), required=True)
    for name, (find, own_arguments) in THEORIES.items():
        summary = (find.__doc__ or "").splitlines()[0]
        own = chosen.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        for option, settings in own_arguments.items():
            own.add_argument(option, **settings)
        own.add_argument("-o", "--output", metavar="FILE", help="draw it: a name that ends in .png, .svg or .pdf")
        own.add_argument("--json", action="store_true", help="the tables as JSON")
        add_threads(own)


def run(options: argparse.Namespace) -> int:
    dotted(options.rest, ())
    set_threads(options)
    from steadygrad.files import json_text
    from steadygrad.report.figures import FORMATS

    check_target(f"theory {options.what}", options.output, list(FORMATS))
    find, _ = THEORIES[options.what]
    found = find(options)
    figure = found.draw(options.output) if options.output else None
    if options.json:
        tables = {
            table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in found.tables
        }
        print(json_text({"tables": tables, "notes": found.notes, "figure": figure and str(figure)}))
        return 0
    for table in found.tables:
        table.show()
        say("")
    for note in found.notes:
        say(note)
    if figure:
        say(f"drawn in {figure}")
    return 0


def fisher(options: argparse.Namespace) -> Finding:
    """Fisher memory of chains of units, a normal network and Ganguli's bound (nnRNN, table 6 and figure 1c)."""
    size = within(options, "size", 2, 120)  # double precision is not enough for longer chains with a diagonal
    import torch

    from steadygrad.diagnostics import chain, fisher_memory_curve, ganguli_bound

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

    def draw(path: str) -> Path:
        from steadygrad.report import theory

        steps = size * 3 // 2
        shown = {key: curve[:steps] for key, curve in curves.items()}
        return theory.fisher(shown, normal[:steps], bound, path)

    return Finding([Table(f"Fisher memory, {size} units", columns, rows)], notes, draw)


def transients(options: argparse.Namespace) -> Finding:
    """Size of the states of chains of units from random starts on the unit sphere (nnRNN, figure 1b)."""
    size, samples = within(options, "size", 2, 200), within(options, "samples", 2, 1000)
    from steadygrad.diagnostics import chain, trajectories

    bands, rows = {}, []
    for alpha, beta in [(alpha, beta) for alpha, beta, d in TABLE_6 if d == 0]:
        states = trajectories(chain(size, alpha, beta), steps=size + size // 10, samples=samples)
        deviations, norms = states.std(dim=2, correction=0), states.norm(dim=2)
        bands[alpha, beta] = mean_and_spread(deviations), mean_and_spread(norms)
        mean, _ = bands[alpha, beta][1]
        rows.append([alpha, beta, max(mean), mean.index(max(mean)), mean[size - 1], mean[size]])
    columns = {"α": "g", "β": "g", "largest": ".3g", "at step": "d", f"at {size - 1}": ".3g", f"at {size}": ".3g"}

    def draw(path: str) -> Path:
        from steadygrad.report import theory

        return theory.transients(bands, path)

    notes = ["Every chain forgets all at once: its N-th power is 0."]
    return Finding([Table(f"Mean norm of the state, {size} units, {samples} starts", columns, rows)], notes, draw)


def mean_and_spread(samples: "Tensor") -> tuple[list[float], list[float]]:
    return samples.mean(0).tolist(), samples.std(0).tolist()


def powers(options: argparse.Namespace) -> Finding:
    """Powers of matrices with 1 on the diagonal and x above it grow as polynomials (thesis, proposition 3.4.2)."""
    size, steps = within(options, "size", 2, 8), within(options, "steps", 20, 5000)
    if not 0 < options.x <= 10:
        raise ValueError(f"theory powers expects --x above 0 and up to 10; got {options.x:g}")
    from steadygrad.diagnostics import power_norms, unit_triangular

    norms = {n: power_norms(unit_triangular(n, options.x), steps).tolist() for n in range(2, size + 1)}
    rows = [
        [n, n - 1, octave_slope(curve), curve[steps], math.comb(steps, n - 1) * options.x ** (n - 1)]
        for n, curve in norms.items()
    ]
    columns = {"N": "d", "degree": "d", "slope": "z.3f", "‖Wᵏ‖": ".4g", "C(k, N−1) xᴺ⁻¹": ".4g"}

    def draw(path: str) -> Path:
        from steadygrad.report import theory

        return theory.powers(norms, options.x, GROWTH, path)

    title = f"Unit-triangular matrices, x = {options.x:g}, k = {steps}"
    return Finding([Table(title, columns, rows)], [f"An eigenvalue of {GROWTH:g} has {GROWTH**steps:.3g} there."], draw)


def attention(options: argparse.Namespace) -> Finding:
    """Gradients without attention, with uniform and with sparse attention (thesis, theorems 4.4.2 and 4.4.3)."""
    steps, depth = within(options, "steps", 40, 5000), within(options, "depth", 0, 10)
    if any(not abs(eigenvalue) < 1 for eigenvalue in options.eigenvalues):
        raise ValueError(f"theory attention expects --eigenvalues between -1 and 1; got {listed(options.eigenvalues)}")
    if any(not 1 <= kappa <= 100 for kappa in options.kappa):
        raise ValueError(f"theory attention expects --kappa from 1 to 100; got {listed(options.kappa)}")
    plain, uniform, uniform_table = uniform_case(options.eigenvalues, steps)
    sparse, sparse_table = sparse_case(options.kappa, depth)

    def draw(path: str) -> Path:
        from steadygrad.report import theory

        return theory.attention(plain, uniform, sparse, SPARSE_EIGENVALUE, path)

    notes = [
        "A normal V has the gradients of all its eigenvalues, so the slowest to fall decides.",
        "Uniform attention keeps Ω(1/T) when an eigenvalue has Re λ ≥ |λ|²; negative ones alone fall faster.",
        "Sparse attention keeps its bound when one is positive; without, ways may cancel, as in the last row.",
    ]
    return Finding([uniform_table, sparse_table], notes, draw)


def uniform_case(eigenvalues: list[float], steps: int) -> tuple[Curves, dict[float, tuple[list[float], float]], Table]:
    """Return gradients without attention, gradients with attention and their rate, by eigenvalue, and the table."""
    import torch

    from steadygrad.diagnostics import attention_gradients, uniform_attention, uniform_attention_rate

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
    return plain, uniform, Table(f"Uniform attention, T = {steps}", columns, rows)


def sparse_case(kappas: list[int], depth: int) -> tuple[dict[int, tuple[list[float], list[float]]], Table]:
    """Return gradients through relays and their bound, by κ, and the table."""
    import torch

    from steadygrad import diagnostics

    def gradients(eigenvalue: float, weights: "Tensor", start: int = 0) -> list[float]:
        V = torch.tensor([[eigenvalue]])
        return diagnostics.attention_gradients(V, weights, start)[:, 0, 0].abs().tolist()

    curves, rows = {}, []
    for kappa in kappas:
        weights, start = diagnostics.relay_attention(kappa - 1 + BLOCK * (depth + 1), kappa, depth), kappa - 1
        curve, depths = gradients(SPARSE_EIGENVALUE, weights, start), diagnostics.dependency_depths(weights, start)
        bound = [diagnostics.sparse_attention_bound(SPARSE_EIGENVALUE, kappa, d) for d in depths]
        curves[kappa] = curve, bound
        for end in range(BLOCK - 1, len(curve), BLOCK):
            factor = curve[end] / curve[end - BLOCK] if end >= BLOCK else None
            rows.append([SPARSE_EIGENVALUE, kappa, depths[end], curve[end], factor, bound[end]])
    cancelled = diagnostics.cancelling_attention(3 * BLOCK)
    rows.append([-0.5, 1, max(diagnostics.dependency_depths(cancelled)), gradients(-0.5, cancelled)[-1], None, None])
    columns = {"λ": "g", "κ": "d", "d": "d", "gradient": ".3g", "to d − 1": ".4f", "λᵈ/κᵈ⁺¹": ".3g"}
    return curves, Table("Sparse attention", columns, rows)


def octave_slope(curve: Sequence[float]) -> float:
    """Return the slope of the curve in a log-log plot, between half its length and its end."""
    last = len(curve) - 1
    return math.log(curve[last] / curve[last // 2]) / math.log(last / (last // 2))


def within(options: argparse.Namespace, name: str, least: int, most: int) -> int:
    """Return the option, or raise ValueError if it is out of range."""
    value: int = getattr(options, name)
    if not least <= value <= most:
        raise ValueError(f"theory {options.what} expects --{name} from {least} to {most}; got {value}")
    return value


def listed(values: Sequence[float]) -> str:
    return ", ".join(format(value, "g") for value in values)


def number(default: float, what: str) -> dict[str, Any]:
    """Return the argparse settings of an option with one number."""
    return {"type": type(default), "default": default, "metavar": "N", "help": f"{what} (default {default})"}


def numbers(default: list[float] | list[int], what: str) -> dict[str, Any]:
    """Return the argparse settings of an option with several numbers."""
    return number(default[0], what) | {"nargs": "+", "default": default, "help": f"{what} (default {listed(default)})"}


THEORIES: dict[str, tuple[Callable[[argparse.Namespace], Finding], dict[str, dict[str, Any]]]] = {
    "fisher": (fisher, {"--size": number(100, "units of a chain")}),
    "transients": (
        transients,
        {"--size": number(100, "units of a chain"), "--samples": number(1000, "random starts")},
    ),
    "powers": (
        powers,
        {
            "--size": number(6, "units of the largest matrix"),
            "--x": number(0.5, "what stands above the diagonal"),
            "--steps": number(1000, "highest power"),
        },
    ),
    "attention": (
        attention,
        {
            "--eigenvalues": numbers([-0.5, 0.0, 0.3, 0.5, 0.6], "of V, for uniform attention"),
            "--kappa": numbers([2, 3, 8], "attended states, for sparse attention"),
            "--depth": number(3, "relays on the way, for sparse attention"),
            "--steps": number(1000, "length of a sequence"),
        },
    ),
}
