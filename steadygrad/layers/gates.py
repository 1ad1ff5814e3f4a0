"""Recurrent matrices of cells: parameters if they are free, modules if they are under a constraint."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from steadygrad.kernels import needs_plain
from steadygrad.layers.cell import Cell
from steadygrad.layers.naming import Owned
from steadygrad.layers.start import Initialiser
from steadygrad.matrices import Free, Matrix, Spec, build
from steadygrad.matrices.parameters import check_finite, version

GateSpecs = Spec | Mapping[str, Spec]
"""one kind of matrix for all gates, or one by the name of each gate"""


def bare(matrix: Matrix) -> nn.Parameter | Matrix:
    """Return the parameter of a matrix without a constraint, another matrix unchanged."""
    (first, *_) = matrix.free
    return first if isinstance(matrix.map, Free) and isinstance(first, nn.Parameter) else matrix


class FreeWeights(nn.Module):
    """Base class of modules with recurrent matrices that may be parameters: checks them and applies dropout."""

    dropout = 0.0
    """probability that an entry of a parameter is set to zero in training; drawn anew at each call"""

    def used(self, name: str, weight: Tensor, blocks: int = 1) -> Tensor:
        """Return the weight of this name for a forward pass: in training, dropout is applied to its entries.

        A weight of several square ``blocks`` of rows gets dropout block by block. Raise NonFiniteError if it has NaN or
        infinity. In evaluation that is checked again only if its memory or its version counter has changed.
        """
        if not torch.compiler.is_compiling() and not needs_plain(weight):
            seen: dict[str, tuple[int, int]] = self.__dict__.setdefault("_finite", {})
            now = weight.data_ptr(), version(weight)
            if self.training or seen.get(name) != now or now[1] < 0:
                self.checked(name, weight)
                seen[name] = now
        if not (self.training and self.dropout):
            return weight
        return torch.cat([nn.functional.dropout(block, self.dropout) for block in weight.chunk(blocks)])

    def checked(self, name: str, weight: Tensor) -> Tensor:
        """Return the weight of this name. Raise NonFiniteError if it has NaN or infinity, unless it is traced."""
        if not torch.compiler.is_compiling() and not needs_plain(weight):
            check_finite(type(self).__name__, name + self.__dict__.get("_suffix", ""), weight)
        return weight


class Gates(FreeWeights):
    """Recurrent matrices of gates of which at least one is under a constraint, by the names of the gates.

    A matrix under a constraint is a `Matrix`, another one a parameter (hidden, hidden).
    """

    def __init__(self, matrices: Mapping[str, Matrix]) -> None:
        super().__init__()
        self.names = tuple(matrices)
        for gate, matrix in matrices.items():
            setattr(self, gate, bare(matrix))

    @property
    def label(self) -> str:
        """Kinds of the matrices under a constraint, such as "cayley" for all gates or "reset/candidate: neumann"."""
        own = {gate: weight for gate in self.names if isinstance(weight := self[gate], Matrix)}
        gates = {label: [g for g in own if own[g].label == label] for label in (m.label for m in own.values())}
        if len(own) == len(self.names) and len(gates) == 1:
            return next(iter(gates))
        return "; ".join(f"{'/'.join(some)}: {label}" for label, some in gates.items())

    def __getitem__(self, gate: str) -> Tensor | Matrix:
        """Return the matrix of a gate: a parameter or a `Matrix`."""
        return cast(Tensor | Matrix, getattr(self, gate))

    def evaluated(self) -> list[Tensor]:
        """Return the list of the matrices (hidden, hidden) of all gates; in training, with dropout."""
        weights = ((gate, self[gate]) for gate in self.names)
        return [weight() if isinstance(weight, Matrix) else self.used(gate, weight) for gate, weight in weights]

    def forward(self) -> Tensor:
        """Return the matrices of all gates, stacked: (gates · hidden, hidden)."""
        return torch.cat(self.evaluated())


def build_gates(who: str, recurrent: GateSpecs, gates: tuple[str, ...], hidden_size: int) -> nn.Parameter | Gates:
    """Return the recurrent matrices of all gates, in the order of ``gates``.

    They are one parameter (gates · hidden_size, hidden_size) if all are free, otherwise a module `Gates`. ``recurrent``
    is one kind of matrix for all gates, as `steadygrad.matrices.build` takes it, or a dict of kinds by gate name. A
    gate that is not in the dict has a free matrix. Raise ValueError if the dict has a name that is not in ``gates``;
    ``who`` is the layer's name in the message.
    """
    if isinstance(recurrent, Mapping) and "name" not in recurrent:
        if unknown := recurrent.keys() - set(gates):
            raise ValueError(f"{who} has the gates {', '.join(gates)}; got a matrix for {', '.join(sorted(unknown))}")
        specs = [recurrent.get(gate, "free") for gate in gates]
    else:
        specs = [recurrent] * len(gates)
    matrices = [build(spec, hidden_size) for spec in specs]
    free = [weight for weight in map(bare, matrices) if isinstance(weight, nn.Parameter)]
    if len(set(free)) == len(gates):  # a matrix that gates share stays one parameter
        return nn.Parameter(torch.cat([weight.detach() for weight in free]))
    return Gates(dict(zip(gates, matrices, strict=True)))


class GatedCell(Cell, FreeWeights):
    """Base class of cells with gates. The rows of ``weight_ih`` (gates · hidden, inputs) are in the order of `GATES`.

    ``weight_hh`` holds the recurrent matrices of the gates, which `build_gates` makes, and ``bias_ih`` the biases, or
    None. A subclass sets `GATES` and creates them.
    """

    GATES: tuple[str, ...]
    weight_ih = Owned()
    weight_hh = Owned()
    bias_ih = Owned()

    def stacked(self) -> Tensor:
        """Return the recurrent matrices of all gates, stacked: (gates · hidden, hidden); in training, with dropout."""
        weight: Any = self.weight_hh
        return weight() if isinstance(weight, Gates) else self.used("weight_hh", weight, len(self.GATES))

    def gates(self) -> dict[str, Tensor | Matrix]:
        """Return the recurrent matrix of each gate by name: a `Matrix`, or a tensor (hidden, hidden) if it is free."""
        weight: Any = self.weight_hh
        blocks = map(weight.__getitem__, self.GATES) if isinstance(weight, Gates) else weight.chunk(len(self.GATES))
        return dict(zip(self.GATES, blocks, strict=True))

    def free_gates(self) -> dict[str, Tensor]:
        """Return the recurrent matrices (hidden, hidden) without a constraint, by the names of their gates."""
        return {gate: weight for gate, weight in self.gates().items() if isinstance(weight, Tensor)}

    def matrices(self) -> dict[str, Tensor]:
        """Return a dict of the recurrent matrices (hidden, hidden) by the names of their gates."""
        own: Any = self.weight_hh
        if not isinstance(own, Gates):
            self.checked("weight_hh", own)
            return dict(self.free_gates())
        weights = ((gate, own[gate]) for gate in self.GATES)
        return {
            gate: weight.value() if isinstance(weight, Matrix) else own.checked(gate, weight)
            for gate, weight in weights
        }

    def kinds(self) -> dict[Tensor, str]:
        """Return the kind "matrix" of each parameter that is a recurrent matrix, or all of them."""
        weight = self.weight_hh
        own = self.free_gates().values() if isinstance(weight, Gates) else [weight]
        return dict.fromkeys(own, "matrix")


def fill(cell: GatedCell, weights: Initialiser, bias: Initialiser) -> None:
    """Initialise a gated cell in place: its weights by the function ``weights``, ``bias_ih`` by the function ``bias``.

    Both functions fill a tensor in place. The weights are ``weight_ih`` and the free recurrent matrices. Matrices under
    a constraint are not changed.
    """
    for parameter in (cell.weight_ih, *cell.free_gates().values()):
        weights(parameter)
    if cell.bias_ih is not None:
        bias(cell.bias_ih)
