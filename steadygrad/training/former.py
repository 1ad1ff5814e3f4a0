"""Runs that an earlier version saved: parameters had other names, and optimizers counted them in another order."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from steadygrad.layers import RecurrentLayer
from steadygrad.layers.former import former_names, joined, rename


def renamed(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's state dict with the present names of the parameters of all its recurrent layers."""
    state = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, RecurrentLayer):
            rename(module, state, f"{name}." if name else "")
    return state


def former_order(module: nn.Module, seen: set[Tensor] | None = None) -> Iterator[Tensor]:
    """Return an iterator over a module's parameters in their earlier order; a stacked one comes once for each block.

    Parameters in ``seen`` are left out, and others are added to it.
    """
    seen = set() if seen is None else seen
    if isinstance(module, RecurrentLayer):
        own = dict(module.named_parameters())
        moved = [own[present] for _, present in former_names(module) if present in own]
        yield from (parameter for parameter in moved if parameter not in seen)
        yield from (parameter for parameter in own.values() if parameter not in seen.union(moved))
        seen.update(own.values())
    else:
        for parameter in module.parameters(recurse=False):
            if parameter not in seen:
                seen.add(parameter)
                yield parameter
        for child in module.children():
            yield from former_order(child, seen)


def optimizer_state(
    model: nn.Module, groups: list[dict[str, Any]], weights: dict[str, Tensor], former: dict[int, dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Return the state of an optimizer, a dict by number of the parameter, from one that may be in earlier order.

    ``groups`` are the parameter groups of the optimizer, and ``weights`` the model's state dict that was saved with
    the state. A parameter that the model had not then, such as b_hn of a GRU, has no state.
    """
    members: list[Tensor] = [parameter for group in groups for parameter in group["params"]]
    present = renamed(model, weights)
    known = {parameter for name, parameter in model.named_parameters(remove_duplicate=False) if name in present}
    if present.keys() == weights.keys() and known.issuperset(members):
        return former
    order = [one for one in (members if present.keys() == weights.keys() else former_order(model)) if one in known]
    old, result = 0, {}
    blocks: dict[Tensor, list[dict[str, Any]]] = {parameter: [] for parameter in members}
    for group in groups:
        here = set(group["params"])
        for parameter in order:
            if parameter in here:
                blocks[parameter].append(former.get(old, {}))
                old += 1
    for index, parameter in enumerate(members):
        states = blocks[parameter]
        if states and (first := states[0]):
            result[index] = {
                key: joined([state[key] for state in states], parameter.shape)
                if isinstance(value, Tensor) and value.dim()
                else value
                for key, value in first.items()
            }
    return result
