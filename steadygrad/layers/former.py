"""Earlier names of parameters, so that saved weights and optimizer states still load.

A cell held its parameters itself, under the letters of its equation: ``cells.0.W``. Each gate had a recurrent matrix of
its own, ``cells.0.U.0.free.0``. Now the layer holds them as torch.nn.GRU does (`steadygrad.layers.naming`).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steadygrad.layers.gates import FreeWeights, GatedCell, Gates
from steadygrad.layers.naming import places
from steadygrad.matrices import Matrix

FORMER: dict[str, dict[str, str]] = {
    "ElmanCell": {"weight_ih": "U", "bias_modrelu": "b", "bias_ih": "a or b", "weight_hh": "W"},
    "ComplexElmanCell": {"weight_ih": "U", "bias_modrelu": "b", "weight_hh": "W"},
    "GatedCell": {"weight_ih": "W", "bias_ih": "b", "bias_modrelu": "modulus", "weight_hh": "U"},
    "CoRNNCell": {"weight_hh": "W", "weight_velocity": "W_z", "weight_ih": "V", "bias_ih": "b"},
    "LEMCell": {"weight_hh": "W", "weight_ih": "V", "bias_ih": "b"},
    "AntisymmetricCell": {"weight_hh": "M", "weight_ih": "V", "bias_ih": "b"},
    "AttentiveCell": {"weight_combine": "C"},
    "Projected": {"weight_score": "v", "weight_query": "A", "weight_key": "B"},
    "TanhScore": {"weight_score": "w"},
    "LearnedScore": {"weight_relevance": "w", "bias_relevance": "b"},
}
"""earlier name of each parameter of a class, in the order of optimizer states; "a or b" is a for modReLU"""


class Former(NamedTuple):
    """Earlier and present name of a parameter or buffer, both in the layer, or of a module, which end in a dot.

    Several earlier parameters may be blocks of rows of a present one.
    """

    name: str
    present: str


def former_names(layer: nn.Module) -> Iterator[Former]:
    """Return an iterator over everything in a layer that had another name, in the order of its parameters then."""
    present = {(place.path, place.attribute): place for place in places(layer)}
    for path, part in dict.fromkeys((place.path, place.part) for place in present.values()):
        table = next((FORMER[base.__name__] for base in type(part).__mro__ if base.__name__ in FORMER), {})
        for attribute, letter in table.items():
            if (place := present.get((path, attribute))) is None:
                continue
            if letter == "a or b":
                letter = "a" if part.activation == "modrelu" else "b"
            yield from of_weight(f"{path}{letter}", place.name, getattr(layer, place.name), part)


def of_weight(name: str, present: str, weight: Any, part: nn.Module) -> Iterator[Former]:
    """Return an iterator over the earlier and present names of a weight of a cell's part, from its own two names."""
    if isinstance(weight, Matrix):
        yield from (Former(f"{name}.free.{i}", f"{present}.{kind}") for i, kind in enumerate(weight.names))
        yield Former(f"{name}.map.", f"{present}.map.")
    elif isinstance(weight, Gates):
        for i, gate in enumerate(weight.names):
            own = weight[gate]
            if isinstance(own, Matrix):
                yield from of_weight(f"{name}.{i}", f"{present}.{gate}", own, part)
            else:
                yield Former(f"{name}.{i}.free.0", f"{present}.{gate}")
    elif isinstance(part, GatedCell) and present.startswith("weight_hh"):
        yield from (Former(f"{name}.{i}.free.0", present) for i in range(len(part.GATES)))
    elif present.startswith("weight_hh") and isinstance(part, FreeWeights):
        yield Former(f"{name}.free.0", present)
    else:
        yield Former(name, present)


def rename(layer: nn.Module, state: dict[str, Tensor], prefix: str = "") -> None:
    """Give the tensors of a layer in a state dict, whose keys begin with ``prefix``, their present names, in place.

    Do nothing if they have them.
    """
    if not any(key.startswith(f"{prefix}cells.") for key in state):
        return
    found: dict[str, list[Tensor]] = {}
    for name, present in former_names(layer):
        if name.endswith("."):
            for key in [key for key in state if key.startswith(prefix + name)]:
                state[prefix + present + key.removeprefix(prefix + name)] = state.pop(key)
        elif (value := state.pop(prefix + name, None)) is not None:
            found.setdefault(present, []).append(value)
    shapes = {name: tensor.shape for name, tensor in layer.state_dict().items()}
    for name, blocks in found.items():
        state[prefix + name] = joined(blocks, shapes.get(name))


def complete(layer: nn.Module, state: dict[str, Tensor], prefix: str) -> None:
    """Add b_hn = 0 to the state dict of a GRU that an earlier version saved, in place. That version had no b_hn."""
    for place in places(layer):
        end = place.name.removeprefix("bias_hn")
        if place.attribute == "bias_hn" and f"{prefix}bias_ih{end}" in state:
            state.setdefault(prefix + place.name, torch.zeros_like(getattr(layer, place.name)))


def joined(blocks: list[Tensor], shape: torch.Size | None) -> Tensor:
    """Return blocks of rows as one tensor, in this shape if it has as many entries."""
    whole = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
    return whole if shape is None or whole.numel() != shape.numel() else whole.reshape(shape)
