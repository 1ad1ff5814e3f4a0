"""Recurrent matrices of gates, one per gate, and their initialisation. Shared by GRU and LSTM cells."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import nn

from steadygrad.layers.start import Initialiser
from steadygrad.matrices import Free, Matrix, Spec, build

GateSpecs = Spec | Mapping[str, Spec]
"""one kind of matrix for all gates, or one by the name of each gate"""


def build_gates(who: str, recurrent: GateSpecs, gates: tuple[str, ...], hidden_size: int) -> nn.ModuleList:
    """Return one `Matrix` per gate, in order. ``recurrent`` is one kind for all gates or a dict by gate name.

    A gate that is not in the dict has a free matrix.
    """
    if isinstance(recurrent, Mapping) and "name" not in recurrent:
        if unknown := recurrent.keys() - set(gates):
            raise ValueError(f"{who} has the gates {', '.join(gates)}; got a matrix for {', '.join(sorted(unknown))}")
        specs = [recurrent.get(gate, "free") for gate in gates]
    else:
        specs = [recurrent] * len(gates)
    return nn.ModuleList(build(spec, hidden_size) for spec in specs)


class Gated(Protocol):
    """Protocol of a gated cell: the attributes that `fill` uses."""

    W: nn.Parameter
    U: nn.ModuleList
    b: nn.Parameter | None


def fill(cell: Gated, weights: Initialiser, bias: Initialiser) -> None:
    """Initialise W and every unconstrained U of a gated cell in place by ``weights(tensor)``, b by ``bias(tensor)``."""
    for parameter in (cell.W, *(matrix.free[0] for matrix in free_matrices(cell.U))):
        weights(parameter)
    if cell.b is not None:
        bias(cell.b)


def free_matrices(U: Iterable[nn.Module]) -> list[Matrix]:
    """Return those of the modules that are matrices without a constraint. The others are initialised by their map."""
    return [matrix for matrix in U if isinstance(matrix, Matrix) and isinstance(matrix.map, Free)]
