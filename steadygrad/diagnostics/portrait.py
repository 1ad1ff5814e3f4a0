"""Measurements of a network as numbers that JSON can hold, from which pages and figures are drawn elsewhere."""

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.diagnostics.doctor import conclude, measure
from steadygrad.diagnostics.flow import (
    Jacobians,
    attends,
    input_maps,
    jacobians,
    looking_at,
    shortened,
    state_blocks,
)
from steadygrad.diagnostics.gates import gate_bound, has_gate_bound
from steadygrad.diagnostics.gradients import gradient_norms
from steadygrad.diagnostics.memory import attention_map
from steadygrad.diagnostics.spectrum import power_norms
from steadygrad.diagnostics.transients import schur_forms
from steadygrad.kernels import at_least_single
from steadygrad.layers import RecurrentLayer
from steadygrad.matrices.measures import departure_from_normality, doubled, eigenvalues_of, orthogonality_error
from steadygrad.models import RelationalModel

ROWS = 256
"""largest number of rows of T; a larger T is reduced to the largest entry of each block"""
CELLS = 120
"""largest number of rows and columns of a heat map; longer sequences skip steps, or merge them for attention"""
POWERS = 100
"""largest k of ‖Wᵏ‖"""
GREYS = 16
"""shades of a pixel: one hexadecimal digit"""


def observe(module: nn.Module, x: Tensor) -> dict[str, Any]:
    """Return cheap measurements that change during training, on one sequence x (time, inputs), as a dict for JSON.

    ``matrices`` has the dict of `seen` for every recurrent matrix, by name. If the network has such parts: ``schur``
    (angles and transient share of each Schur form, by name), ``gates`` (a dict that says how close a GRU comes to its
    `gate_bound`: ``steps``, ``holds``, ``largest``, ``largest_bound``, ``nearest``) and ``attention`` (a list with
    `AttentionMap.summary` of each level, i.e. stacked layer).
    """
    found: dict[str, Any] = {"matrices": {name: seen(W) for name, W in recurrent_matrices(module).items()}}
    if schur := schur_forms(module):
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
    if attends(module) and not getattr(module, "bidirectional", False):
        found["attention"] = [level.summary() for level in attention_map(module, x)]
    return found


def portrait(module: nn.Module, x: Tensor, loss: Callable[[Tensor], Tensor] | None = None) -> dict[str, Any]:
    """Return all measurements of a trained network on one sequence x (time, inputs), as a dict for JSON.

    A long sequence is shortened: ``steps`` of ``of_steps`` are measured, and ``every`` is the step between points of a
    map. ``input_maps`` and ``exponents`` are those of `jacobian_part`; a layer that attends to its past states has
    ``attention`` of `attention_part` instead. ``output_gradients`` are the gradients along time of the last output and,
    if a ``loss`` of all outputs is given, ``loss_gradients`` those of the loss, as in `gradient_norms`. The latter are
    left out if a layer with attention was shortened. ``numbers`` and ``findings`` are those of a `Diagnosis`.
    ``matrices`` has the dict of `seen`, the singular values and ‖Wᵏ‖ for each recurrent matrix. ``schur`` and ``gates``
    exist if the network has such parts.
    """
    short = shortened(module, x)
    followed = short if attends(module) else x
    flow = None if attends(module) else jacobians(module, short)
    diagnosis = conclude(module, [short], [measure(module, short, flow)], len(x))
    result: dict[str, Any] = {
        "steps": len(short),
        "of_steps": len(x),
        "every": math.ceil(len(short) / CELLS),
        **(attention_part(module, short) if flow is None else jacobian_part(module, flow)),
        "output_gradients": numbers(gradient_norms(module, followed)),
        "numbers": diagnosis.numbers,
        "findings": [vars(finding) for finding in diagnosis.findings],
        "matrices": {
            name: {
                **seen(W),
                "singular_values": numbers(torch.linalg.svdvals(at_least_single(W))),
                "powers": numbers(power_norms(W, POWERS)),
            }
            for name, W in recurrent_matrices(module).items()
        },
    }
    if loss is not None and len(followed) == len(x):
        result["loss_gradients"] = numbers(gradient_norms(module, x, loss))
    if schur := schur_forms(module):
        result["schur"] = {
            name: {
                "angles": numbers(one.angles),
                "moduli": numbers(one.moduli),
                "transient_share": one.transient_share,
                "mean_by_subdiagonal": numbers(one.mean_by_subdiagonal),
                **triangle(one.T),
            }
            for name, one in schur.items()
        }
    if has_gate_bound(module):
        gates = gate_bound(module, short)
        result["gates"] = {key: numbers(getattr(gates, key)) for key in ("true", "bound", "alpha", "beta")}
    return result


def triangle(T: Tensor) -> dict[str, Any]:
    """Return a lower triangular matrix T as a dict for JSON, with the keys ``T`` and ``T_every``.

    ``T`` is a list of the rows, each up to the diagonal. A complex T is replaced by |T|. A T with more than `ROWS` rows
    is reduced: an entry is then the largest |T| in a block of ``T_every`` × ``T_every``. Otherwise ``T_every`` is 1.
    """
    every = math.ceil(len(T) / ROWS)
    if every > 1 or T.is_complex():
        T = nn.functional.max_pool2d(T.abs()[None], every, ceil_mode=True)[0]
    return {"T": [numbers(row[: i + 1], 3) for i, row in enumerate(T)], "T_every": every}


def relation_portrait(model: RelationalModel, images: Tensor, answer: int) -> dict[str, Any]:
    """Return a network's relations among the objects of one problem, its answer and the right one, as a dict for JSON.

    ``images`` is (objects, channels, size, size) in [0, 1], ``answer`` the class of the right answer. The dict has one
    key, ``similarity``, with ``images`` (`digits` of each), ``answer``, ``answered`` and the ``matrix`` of relations.
    It is empty for a network without a matrix of relations.
    """
    with looking_at(model), torch.no_grad():
        z = model.encode(images[None].to(next(model.parameters())))
        matrix, answered = model.relate(z), int(model.answer(z).argmax())
    if matrix is None:
        return {}
    return {
        "similarity": {
            "images": [digits(image) for image in images],
            "answer": answer,
            "answered": answered,
            "matrix": [numbers(row, 3) for row in matrix[0]],
        }
    }


def digits(image: Tensor) -> list[list[str]]:
    """Return an image (channels, height, width) in [0, 1] as hexadecimal digits: a list of lines per channel.

    A line is a string with one digit per pixel, 0 for a value of 0 and f for 1. A grey image has one channel in the
    result.
    """
    grey = bool((image == image[:1]).all())
    shades = ((GREYS - 1) * (image[:1] if grey else image)).round().int().tolist()
    return [["".join(f"{shade:x}" for shade in line) for line in channel] for channel in shades]


def jacobian_part(module: nn.Module, flow: Jacobians) -> dict[str, Any]:
    """Return the part of a portrait that needs Jacobians, as a dict: ``input_maps`` and ``exponents``.

    ``input_maps`` are the `logarithms` of `input_maps` for each named part of the state, or for all of it as "state".
    ``exponents`` is the list of Lyapunov exponents, the largest first.
    """
    every = math.ceil(len(flow.state) / CELLS)
    maps = input_maps(flow, state_blocks(module, flow.parts) or {"state": slice(None)}, every)
    return {
        "input_maps": {name: logarithms(norms) for name, norms in maps.items()},
        "exponents": numbers(flow.exponents),
    }


def attention_part(layer: nn.Module, x: Tensor) -> dict[str, Any]:
    """Return the part of a portrait on attention along x (time, inputs): a dict with the key ``attention``.

    It holds a list of one dict per level (stacked layer) of ``layer``, a layer or a `Stack`. ``map`` are the
    `logarithms` of the attention |α_{t,i}| of step t to state i, `merged` into blocks for long sequences. ``kept`` is a
    list of [state, first step, last step] for each stay of a state in R, the states kept as relevant. ``reach``,
    ``share_of_kept`` and ``kept_at_end`` are those of `AttentionMap.summary`. Raise ValueError if a layer does not
    attend to its past states.
    """
    every = math.ceil(len(x) / CELLS)
    return {
        "attention": [
            {"map": logarithms(merged(one.weights.abs(), every)), "kept": spells(one.kept), **one.summary()}
            for one in attention_map(layer, x)
        ]
    }


def merged(weights: Tensor, every: int) -> Tensor:
    """Return attention weights merged into blocks for a small heat map: the sum over states, averaged over steps.

    The weights are (time, time). Each block has ``every`` states and ``every`` steps; the last blocks may have fewer.
    The result is (blocks, blocks). No state is left out.
    """
    short = -len(weights) % every
    blocks = nn.functional.pad(weights, (0, short, 0, short)).unflatten(1, (-1, every)).sum(dim=2).split(every)
    return torch.stack([block.sum(dim=0) / min(every, len(weights) - every * i) for i, block in enumerate(blocks)])


def spells(kept: Tensor) -> list[list[int]]:
    """Return a sorted list of [state, first step, last step], one for each stay of a state in R.

    A stay is a run of consecutive steps, R the set of states kept as relevant. ``kept`` (time, ρ) are the states in the
    ρ places of R at each step, −1 for an empty place.
    """
    found = []
    for place in kept.mT.tolist():
        for state, steps in groupby(range(len(place)), key=place.__getitem__):
            stay = list(steps)
            if state >= 0:
                found.append([state, stay[0], stay[-1]])
    return sorted(found)


@torch.no_grad()
def recurrent_matrices(module: nn.Module) -> dict[str, Tensor]:
    """Return a dict of the recurrent matrices of a module by name, detached.

    They are those of steadygrad's layers, and the square blocks of weight_hh in torch's layers and cells. Several
    blocks of one weight are named ``weight_hh_l0[0]``, ``weight_hh_l0[1]`` and so on. An LSTM with a projection has
    none.
    """
    found: dict[str, Tensor] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, RecurrentLayer):
            with looking_at(part):
                found |= {f"{prefix}.{name}".strip("."): W.detach() for name, W in part.matrices().items()}
        if not isinstance(part, nn.RNNBase | nn.RNNCellBase):
            continue
        names = part._flat_weights_names if isinstance(part, nn.RNNBase) else ["weight_hh"]
        for own in [own for own in names if own.startswith("weight_hh")]:
            weight = getattr(part, own).detach()  # by name, which also works if it is parametrised
            if weight.shape[1] == part.hidden_size:  # false for an LSTM with a projection
                name, blocks = f"{prefix}.{own}".strip("."), weight.split(part.hidden_size)
                found |= {name if len(blocks) == 1 else f"{name}[{i}]": block for i, block in enumerate(blocks)}
    return found


def seen(W: Tensor) -> dict[str, Any]:
    """Return measures of a square matrix W as a dict for JSON.

    The keys are ``complex`` (whether W is), ``eigenvalues`` (a list of real parts and one of imaginary parts, for a
    real W only those with Im ≥ 0), ``radius``, ``orthogonality_error`` and ``departure`` from normality.
    """
    eigenvalues = eigenvalues_of(doubled(W))
    upper = eigenvalues if W.is_complex() else eigenvalues[eigenvalues.imag >= 0]
    return {
        "complex": W.is_complex(),
        "eigenvalues": [numbers(upper.real), numbers(upper.imag)],
        "radius": float(eigenvalues.abs().max()),
        "orthogonality_error": orthogonality_error(W),
        "departure": departure_from_normality(W),
    }


def numbers(values: Tensor, digits: int = 5) -> list[float]:
    """Return the values of a tensor (n,) as a list of floats, rounded to this many significant digits."""
    return [float(f"{value:.{digits}g}") for value in values.tolist()]


def logarithms(norms: Tensor) -> list[list[float | None]]:
    """Return logarithms to base 10 of a square matrix as a list of rows, each up to the diagonal.

    They are rounded to two decimals. An entry is None if its logarithm is not finite, as for 0.
    """
    rows = norms.double().log10().tolist()
    return [[round(v, 2) if math.isfinite(v) else None for v in row[: i + 1]] for i, row in enumerate(rows)]
