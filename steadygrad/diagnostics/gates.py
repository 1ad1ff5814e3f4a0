"""The gradient through one step of a GRU, and its bound by theorem 1 of NC-GRU (Mucllari et al., 2022)."""

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from steadygrad.diagnostics.flow import attends, check, jacobians, looking_at
from steadygrad.kernels import activate, at_least_single
from steadygrad.layers import GRU


@dataclass(frozen=True)
class GateBound:
    """Norms of a GRU's one-step gradient along a sequence and their bound: ‖∂h_t/∂h_{t−1}‖₂ ≤ α + β ‖U_c‖₂.

    ``true`` are the norms and ``bound`` their bounds, computed from ``alpha`` and ``beta`` (α and β of `gate_bound`).
    These four and ``undecided`` are tensors (time,). ``candidate_norm`` is ‖U_c‖₂, U_c the candidate's recurrent
    matrix.

    ``undecided`` is the largest distance of a gate from 0 or 1, whichever is nearer. As it tends to 0, α + β tends to 2
    at most, and to 1 at most if each gate is open or closed in all units (corollary 2; with ‖U_c‖ = 1 corollary 3).
    """

    true: Tensor
    bound: Tensor
    alpha: Tensor
    beta: Tensor
    undecided: Tensor
    candidate_norm: float

    @property
    def holds(self) -> bool:
        """Whether the bound holds at every step, up to rounding."""
        return bool((self.true <= self.bound * (1 + 8 * torch.finfo(self.true.dtype).eps)).all())


@torch.no_grad()
def gate_bound(layer: GRU, x: Tensor) -> GateBound:
    """Return a `GateBound`: the norm of ∂h_t/∂h_{t−1} of a GRU and its upper bound α + β ‖U_c‖ at each step.

    x is one sequence (time, inputs). ``layer`` is a GRU or NC-GRU with num_layers=1 and one direction, without
    attention, whose reset acts before the product. Otherwise ValueError is raised.

    α = δ_u (max|h| + max|c|) ‖U_u‖ + max(1 − u),  β = max u (δ_r ‖U_r‖ max|h| + max r),  δ = max g(1 − g) of a gate g.
    h is h_{t−1}; r, u and c are reset gate, update gate and candidate; U_r, U_u and U_c are their recurrent matrices.
    """
    check(layer, x)
    if not has_gate_bound(layer):
        raise ValueError(
            f"gate_bound expects a GRU of one level without attention, its reset before the product; got {layer}"
        )
    with looking_at(layer):
        outputs = layer(x)[0]
    h = torch.cat([layer.default_states(1, x)[0][0], outputs[:-1]])
    r, u, c = gate_values(layer, x, h)
    norms = {
        name.removesuffix("_l0"): float(torch.linalg.matrix_norm(at_least_single(U), 2))
        for name, U in layer.matrices().items()
    }

    def largest(values: Tensor) -> Tensor:
        return values.abs().max(dim=1).values

    delta_u, delta_r = largest(u * (1 - u)), largest(r * (1 - r))
    alpha = delta_u * (largest(h) + largest(c)) * norms["update"] + largest(1 - u)
    beta = largest(u) * (delta_r * norms["reset"] * largest(h) + largest(r))
    with torch.enable_grad():
        true = torch.linalg.matrix_norm(jacobians(layer, x).state, 2)
    undecided = largest(torch.minimum(gates := torch.cat([r, u], dim=1), 1 - gates))
    return GateBound(true, alpha + beta * norms["candidate"], alpha, beta, undecided, norms["candidate"])


def has_gate_bound(module: nn.Module) -> TypeGuard[GRU]:
    """Return whether theorem 1 of NC-GRU covers the module.

    It covers a GRU with num_layers=1 and one direction, without attention, that resets before the product.
    """
    if not isinstance(module, GRU) or module.num_layers != 1 or module.bidirectional or attends(module):
        return False
    cell: Any = module.cells[0]
    return cell.reset == "before"


def gate_values(layer: GRU, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tuple of reset gate, update gate and candidate of a GRU at every step, each (time, hidden).

    x are the inputs (time, inputs) and h the previous states h_{t−1} (time, hidden).
    """
    cell: Any = layer.cells[0]
    inputs, U = x @ cell.weight_ih.mT, layer.matrices()
    if (bias := cell.bias_ih) is not None:
        inputs[:, : len(bias)] += bias
    x_r, x_u, x_c = inputs.chunk(3, dim=1)
    r, u = torch.sigmoid(x_r + h @ U["reset_l0"].mT), torch.sigmoid(x_u + h @ U["update_l0"].mT)
    return r, u, activate(cell.activation, x_c + (r * h) @ U["candidate_l0"].mT, cell.bias_modrelu)
