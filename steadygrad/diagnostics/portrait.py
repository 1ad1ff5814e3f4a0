"""A network in numbers that JSON can hold: what a page or a figure is drawn from. Nothing is drawn here."""

import math
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from steadygrad.diagnostics.doctor import diagnose
from steadygrad.diagnostics.flow import gradient_norms, input_maps, jacobians, lyapunov_from, state_blocks
from steadygrad.diagnostics.gates import gate_bound
from steadygrad.diagnostics.spectrum import power_norms
from steadygrad.diagnostics.transients import learned_schur
from steadygrad.layers import GRU
from steadygrad.matrices import Matrix
from steadygrad.matrices.measures import departure_from_normality, orthogonality_error

STEPS = 400
"""steps of a sequence that are looked at"""
ENTRIES = 10**8
"""of all Jacobians together"""
CELLS = 120
"""rows and columns of a heat map; a longer sequence leaves steps out"""
POWERS = 100


def observe(module: nn.Module, x: Tensor) -> dict[str, Any]:
    """What changes while a network is trained, and costs little to look at: x is one sequence (time, inputs).

    The eigenvalues of every recurrent matrix (of a real one those with Im ≥ 0), its distance from orthogonal and
    normal, and as far as there are such parts the angles and transients of a Schur form and the gates' bound.
    """
    found: dict[str, Any] = {"matrices": {name: seen(W) for name, W in recurrent_matrices(module).items()}}
    if schur := learned(module):
        found["schur"] = {
            name: {"angles": numbers(one.angles), "transient_share": one.transient_share} for name, one in schur.items()
        }
    if has_gate_bound(module):
        gates = gate_bound(module, shortened(module, x))
        found["gates"] = {
            "steps": len(gates.true),
            "holds": gates.holds,
            "largest": float(gates.true.max()),
            "largest_bound": float(gates.bound.max()),
            "nearest": float((gates.true / gates.bound).max()),
        }
    return found


def portrait(module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None) -> dict[str, Any]:
    """Everything a trained network has to show on one sequence x (time, inputs).

    Norms of the input map are logarithms to base 10, None where there is no influence at all. Gradients along time are
    those of the last output and, if given, of a ``loss`` of all outputs, as for `gradient_norms`.
    """
    short = shortened(module, x)
    flow = jacobians(module, short)
    every = math.ceil(len(short) / CELLS)
    maps = input_maps(flow, state_blocks(module, flow.parts) or {"state": slice(None)}, every)
    exponents = lyapunov_from(flow.state)
    diagnosis = diagnose(module, short)
    result: dict[str, Any] = {
        "steps": len(short),
        "of_steps": len(x),
        "every": every,
        "input_maps": {name: logarithms(norms) for name, norms in maps.items()},
        "output_gradients": numbers(gradient_norms(module, x)),
        **({} if loss is None else {"loss_gradients": numbers(gradient_norms(module, x, loss))}),
        "exponents": numbers(exponents),
        "numbers": diagnosis.numbers,
        "findings": [vars(finding) for finding in diagnosis.findings],
        "matrices": {
            name: {
                **seen(W),
                "singular_values": numbers(torch.linalg.svdvals(W)),
                "powers": numbers(power_norms(W, POWERS)),
            }
            for name, W in recurrent_matrices(module).items()
        },
    }
    if schur := learned(module):
        result["schur"] = {
            name: {
                "angles": numbers(one.angles),
                "moduli": numbers(one.moduli),
                "transient_share": one.transient_share,
                "mean_by_subdiagonal": numbers(one.mean_by_subdiagonal),
                "T": [numbers(row[: i + 1], 3) for i, row in enumerate(one.T)],
            }
            for name, one in schur.items()
        }
    if has_gate_bound(module):
        gates = gate_bound(module, short)
        result["gates"] = {key: numbers(getattr(gates, key)) for key in ("true", "bound", "alpha", "beta")}
    return result


def shortened(module: nn.Module, x: Tensor) -> Tensor:
    """As many steps of x as the Jacobians leave room for."""
    with torch.no_grad():
        batch = x[:1, None] if not getattr(module, "batch_first", False) else x[None, :1]
        _, state = module(batch)
    size = sum(part.numel() for part in (state if isinstance(state, tuple | list) else [state]))
    return x[: max(2, min(STEPS, ENTRIES // size**2))]


@torch.no_grad()
def recurrent_matrices(module: nn.Module) -> dict[str, Tensor]:
    """By name: those of our layers, or the square blocks of a torch layer's weight_hh."""
    own = getattr(module, "matrices", None)
    if callable(own):
        return {name: W.detach() for name, W in own().items()}
    found: dict[str, Tensor] = {}
    for name, weight in module.named_parameters():
        if "weight_hh" in name and weight.dim() == 2 and weight.shape[0] % weight.shape[1] == 0:
            parts = weight.detach().split(weight.shape[1])
            found |= {name if len(parts) == 1 else f"{name}[{i}]": part for i, part in enumerate(parts)}
    return found


def seen(W: Tensor) -> dict[str, Any]:
    eigenvalues = torch.linalg.eigvals(W.double() if not W.is_complex() else W)
    upper = eigenvalues if W.is_complex() else eigenvalues[eigenvalues.imag >= 0]
    return {
        "eigenvalues": [numbers(upper.real), numbers(upper.imag)],
        "radius": float(eigenvalues.abs().max()),
        "orthogonality_error": orthogonality_error(W),
        "departure": departure_from_normality(W),
    }


def learned(module: nn.Module) -> dict[str, Any]:
    has_schur = any(isinstance(part, Matrix) and "transient" in part.kinds for part in module.modules())
    return learned_schur(module) if has_schur else {}


def has_gate_bound(module: nn.Module) -> TypeGuard[GRU]:
    return isinstance(module, GRU) and module.num_layers == 1 and not module.bidirectional


def numbers(values: Tensor, digits: int = 5) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def logarithms(norms: Tensor) -> list[list[float | None]]:
    """Row by row up to the diagonal."""
    rows = norms.double().log10().tolist()
    return [[round(v, 2) if math.isfinite(v) else None for v in row[: i + 1]] for i, row in enumerate(rows)]
