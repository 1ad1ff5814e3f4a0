"""Time the evaluation and gradient of a single matrix after an update, for each name in `MATRICES`."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from benchmarks.claims import EIGVALS, MATRIX_CLAIMS, MATRIX_EXP, judged
from benchmarks.contenders import Update, normalising
from benchmarks.steps import Effort, milliseconds
from benchmarks.timing import Contender, interleave
from steadygrad.matrices import MATRICES, Matrix, skew

ORDERS = (128, 256, 512, 1024)

BUILD: dict[str, Callable[[int], Matrix]] = {
    **MATRICES,
    "eigenvalue (normalising)": lambda size: normalising(MATRICES["eigenvalue"](size)),
    "longshort (normalising)": lambda size: normalising(MATRICES["longshort"](size)),
}


class Evaluation:
    """Computes W and its gradient from parameters that have just changed."""

    prepare: Callable[[], None]

    def __init__(self, build: Callable[[int], Matrix], size: int) -> None:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        self.matrix = build(size)
        self.G = torch.randn(size, size, generator=generator)
        self.prepare = Update(self.matrix.parameters(), generator)

    def run(self) -> None:
        self.matrix().backward(self.G)


class TorchExponential(Evaluation):
    """`torch.matrix_exp` of the same skew-symmetric matrices. The cost of unpacking them is not included."""

    def __init__(self, size: int) -> None:
        super().__init__(MATRICES["exponential"], size)
        self.update, self.prepare = self.prepare, self.unpack

    def unpack(self) -> None:
        self.update()
        self.A = skew(self.matrix.packed()[0].detach()).requires_grad_()

    def run(self) -> None:
        torch.matrix_exp(self.A).backward(self.G)


class Eigenvalues(Evaluation):
    """`torch.linalg.eigvals` of an unconstrained matrix, the cost of a spectral radius. No gradient."""

    def __init__(self, size: int) -> None:
        super().__init__(MATRICES["free"], size)

    @torch.no_grad()
    def run(self) -> None:
        torch.linalg.eigvals(self.matrix())


def measure(order: int, effort: Effort, after_round: Callable[[int], object]) -> dict[str, Any]:
    timings = interleave(list(assemble(order)), **asdict(effort), after_round=after_round)
    return {
        "order": order,
        "steps_in_turn": timings.steps,
        "milliseconds": milliseconds(timings),
        "ratios": [judged(c, timings.ratio(c.above, c.below), c.bound(0)) for c in MATRIX_CLAIMS],
    }


def assemble(order: int) -> Iterator[Contender]:
    evaluations: dict[str, Callable[[int], Evaluation]] = {
        **{name: partial(Evaluation, build) for name, build in BUILD.items()},
        MATRIX_EXP: TorchExponential,
        EIGVALS: Eigenvalues,
    }
    for name, make in evaluations.items():
        evaluation = make(order)
        yield Contender(name, evaluation.run, evaluation.prepare)
