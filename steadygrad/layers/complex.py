"""Recurrent cell with complex units. Its inputs and outputs are real: a state h is passed as (Re h, Im h)."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.kernels import COMPLEX_MODRELU, SMOOTHED_COMPLEX_MODRELU, Steps, StreamLevel
from steadygrad.layers.cell import Cell
from steadygrad.layers.elman import ElmanWeights, elman_walk
from steadygrad.layers.gates import FreeWeights, bare
from steadygrad.layers.naming import Owned
from steadygrad.matrices import Matrix, Spec, build
from steadygrad.matrices.complex import realify

COMPLEX_ACTIVATIONS = {"modrelu": COMPLEX_MODRELU, "smoothed-modrelu": SMOOTHED_COMPLEX_MODRELU}


class ComplexElmanCell(Cell, FreeWeights):
    """h_t = modReLU(U x_t + W h_{t−1}; b),  modReLU(z) = z/|z| · max(|z| + b, 0),  h, U, W complex, b real.

    x (rows, inputs) is real. h and U are stored as real tensors: the state is (Re h, Im h), of shape (batch, 2 ·
    units), and U is (2 · units, inputs), first the rows of Re U. ``units`` counts complex units.
    ``activation="smoothed-modrelu"`` computes z/(m + ε) · max(m + b, 0) with m = √(|z|² + ε) and ε = 1e-5, as the uRNN
    programs do. U is ``weight_ih``, W ``weight_hh`` and b ``bias_modrelu``. ``input_init`` and ``bias_init`` are
    functions that fill U and b in place; by default U starts uniform in ±1/√units and b in ±0.01. If `Matrix.operator`
    returns a function, the steps use it, and W is not formed.
    """

    shown = ("activation",)
    resets_inside = True
    weight_ih = Owned()
    weight_hh = Owned()
    bias_modrelu = Owned()

    def __init__(
        self,
        input_size: int,
        units: int,
        *,
        recurrent: Spec,
        bias: bool,
        activation: str = "modrelu",
        input_init: Any = None,
        bias_init: Any = None,
    ) -> None:
        super().__init__()
        self.activation = COMPLEX_ACTIVATIONS[activation]
        self.state_sizes, self.output_size = (2 * units,), 2 * units
        self.weight_ih = nn.Parameter(torch.empty(2 * units, input_size))  # real parts, then imaginary ones
        self.weight_hh = bare(build(recurrent, units, complex=True))
        self.bias_modrelu = nn.Parameter(torch.empty(units)) if bias else None
        if input_init is None:
            bound = 1 / math.sqrt(units)
            nn.init.uniform_(self.weight_ih, -bound, bound)
        else:
            input_init(self.weight_ih)
        if self.bias_modrelu is not None:
            (bias_init or (lambda b: nn.init.uniform_(b, -0.01, 0.01)))(self.bias_modrelu)

    def weights(self) -> ElmanWeights:
        """Return the pair of U (2 · units, inputs) and W in its real form (2 · units, 2 · units), `realify(W)`.

        If `Matrix.operator` returns a function, this function, which maps complex rows h to h Wᵀ, takes the place of W.
        """
        U, W = self.weight_ih, self.weight_hh
        if isinstance(W, Matrix) and (operator := W.operator()) is not None:
            return U, operator
        return U, realify(W() if isinstance(W, Matrix) else self.used("weight_hh", W)).to(U.dtype)

    def walk(
        self, weights: ElmanWeights, x: Tensor, steps: Steps, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run over all time steps and return the states (rows, 2 · units), real parts first, and the final state.

        The final state is a tuple of one tensor (batch, 2 · units).
        """
        return elman_walk(weights, self.bias_modrelu, self.activation, x, steps, state)

    def stream_level(self, weights: ElmanWeights) -> StreamLevel | None:
        """Return the cell as a `StreamLevel`; None with smoothed modReLU, or if W is given as a function."""
        U, W = weights
        if not isinstance(W, Tensor) or self.activation != COMPLEX_MODRELU:
            return None
        return StreamLevel("elman", U, W, modulus=self.bias_modrelu, activation=self.activation)

    def matrices(self) -> dict[str, Tensor]:
        """Return {"recurrent": W} with W (units, units), complex unless ``recurrent`` names a real matrix."""
        W = self.weight_hh
        return {"recurrent": W.value() if isinstance(W, Matrix) else self.checked("weight_hh", W)}

    def kinds(self) -> dict[Tensor, str]:
        """Return {W: "matrix"} if W is a parameter."""
        return {} if isinstance(self.weight_hh, Matrix) else {self.weight_hh: "matrix"}
