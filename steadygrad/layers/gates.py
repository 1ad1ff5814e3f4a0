"""Recurrent matrices of gates, one per gate, and their initialisation. Shared by GRU and LSTM cells."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import nn

from steadygrad.layers.start import Initialiser
from steadygrad.matrices import Free, Matrix, Spec, build

GateSpecs = Spec | Mapping[str, Spec]
"""one kind of matrix for all gates, or one by the name of each gate"""


def build_gates(who: str, recurrent: GateSpecs, gates: tuple[str, ...], hidden_size: int) -> nn.ModuleList:
    """Return one `Matrix` (hidden_size, hidden_size) per gate, in the order of ``gates``, as an nn.ModuleList.

    ``recurrent`` is one kind of matrix for all gates, as `steadygrad.matrices.build` takes it, or a dict of kinds by
    gate name. A gate that is not in the dict has a free matrix. Raise ValueError if the dict has a name that is not in
    ``gates``; ``who`` is the layer's name in the message.
    """
    if isinstance(recurrent, Mapping) and "name" not in recurrent:
        if unknown := recurrent.keys() - set(gates):
            raise ValueError(f"{who} has the gates {', '.join(gates)}; got a matrix for {', '.join(sorted(unknown))}")
        specs = [recurrent.get(gate, "free") for gate in gates]
    else:
        specs = [recurrent] * len(gates)
    return nn.ModuleList(build(spec, hidden_size) for spec in specs)


class Gated(Protocol):
    """Protocol of a gated cell: the attributes that `fill` uses.

    W holds the input weights of all gates, U one `Matrix` per gate, and b the biases, or None.
    """

    W: nn.Parameter
    U: nn.ModuleList
    b: nn.Parameter | None


def fill(cell: Gated, weights: Initialiser, bias: Initialiser) -> None:
    """Initialise a gated cell in place: W and every free matrix in U by ``weights(tensor)``, b by ``bias(tensor)``.

    Both arguments are functions that fill a tensor in place. Matrices under a constraint are not changed.
    """
    for parameter in (cell.W, *(matrix.free[0] for matrix in free_matrices(cell.U))):
        weights(parameter)
    if cell.b is not None:
        bias(cell.b)


def free_matrices(U: Iterable[nn.Module]) -> list[Matrix]:
    """Return a list of those modules that are a `Matrix` without a constraint.

    Matrices with a constraint are left out, because their map initialises them.
    """
    return [matrix for matrix in U if isinstance(matrix, Matrix) and isinstance(matrix.map, Free)]
