"""Square matrices under a constraint. Each file defines one map and the function that builds its matrix.

These functions enter themselves into `MATRICES` (real) and `COMPLEX` by name; importing a file here is enough.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from steadygrad.check import check_size
from steadygrad.matrices import init
from steadygrad.matrices.cayley import ScaledCayley
from steadygrad.matrices.complex import complexify, realified, realify
from steadygrad.matrices.complex_cayley import ComplexCayley
from steadygrad.matrices.complex_exponential import ComplexExponential
from steadygrad.matrices.complex_schur import ComplexSchur
from steadygrad.matrices.eigenvalue import EigenvalueNormalized
from steadygrad.matrices.evolution import UnitaryEvolution
from steadygrad.matrices.exponential import Exponential
from steadygrad.matrices.free import Free, frozen
from steadygrad.matrices.givens import Givens, PlaneRotations
from steadygrad.matrices.householder import Householder
from steadygrad.matrices.longshort import LongShort
from steadygrad.matrices.matrix import Matrix, nearest_orthogonal, skew, skew_free
from steadygrad.matrices.measures import departure_from_normality, orthogonality_error, spectral_radius
from steadygrad.matrices.neumann import NeumannCayley, ReleasedNeumannCayley
from steadygrad.matrices.parameters import NonFiniteError
from steadygrad.matrices.registry import COMPLEX, MATRICES
from steadygrad.matrices.schur import RealSchur
from steadygrad.matrices.stiefel import StiefelSteps
from steadygrad.matrices.svd import BoundedSVD

__all__ = [
    "MATRICES",
    "BoundedSVD",
    "ComplexCayley",
    "ComplexExponential",
    "ComplexSchur",
    "EigenvalueNormalized",
    "Exponential",
    "Free",
    "Givens",
    "Householder",
    "LongShort",
    "Matrix",
    "NeumannCayley",
    "NonFiniteError",
    "PlaneRotations",
    "RealSchur",
    "ReleasedNeumannCayley",
    "ScaledCayley",
    "StiefelSteps",
    "UnitaryEvolution",
    "build",
    "complexify",
    "departure_from_normality",
    "frozen",
    "init",
    "nearest_orthogonal",
    "orthogonality_error",
    "realify",
    "skew",
    "skew_free",
    "spectral_radius",
]

Spec = str | Mapping[str, Any] | Callable[[int], Matrix] | Matrix


def build(spec: Spec, size: int, *, complex: bool = False) -> Matrix:
    """Return the `Matrix` given by ``spec``: a name, ``{"name": …, option: …}``, a function of the size or a `Matrix`.

    With ``complex=True``, ``size`` counts complex units. With ``complex=False``, the name of a complex matrix gives its
    real form: the first half of the units are real parts, the second half imaginary parts. Raise ValueError if the name
    or an option is unknown, if the matrix has another size, or if it is complex and that is not allowed.
    """
    check_size("A matrix", size)
    match spec:
        case str():
            return from_table({"name": spec}, size, complex)
        case Matrix():
            matrix = spec
        case Mapping():
            return from_table(spec, size, complex)
        case _ if callable(spec):
            matrix = spec(size)
        case _:
            raise ValueError(f"a matrix is a name, a table with a name, a function or a Matrix; got {spec!r}")
    if not isinstance(matrix, Matrix):
        raise ValueError(f"a function for a matrix must return a Matrix; {spec!r} gave a {type(matrix).__name__}")
    if matrix.size != size:
        raise ValueError(f"a matrix of size {size} is needed here; got one of size {matrix.size}")
    if getattr(matrix.map, "complex", False) and not complex:
        raise ValueError(f"a real matrix is needed here; got a complex one, {type(matrix.map).__name__}")
    return matrix


def from_table(table: Mapping[str, Any], size: int, complex: bool) -> Matrix:
    """Return the `Matrix` called ``table["name"]``, with the other entries as options. Raise ValueError if unknown.

    ``complex`` is True if a complex matrix is allowed; otherwise a complex matrix is returned in its real form, which
    needs an even size.
    """
    name, options = table.get("name"), {key: value for key, value in table.items() if key != "name"}
    builders = MATRICES | COMPLEX
    if name not in list(builders):  # a list, so that an unhashable name also gives this error
        raise ValueError(f"no matrix {name!r}; choose from {', '.join(builders)}")
    known = list(inspect.signature(builders[name]).parameters)[1:]  # the first parameter is the size
    if unknown := [key for key in options if key not in known]:
        raise ValueError(f"matrix {name!r} has no option {', '.join(map(repr, unknown))}; known: {', '.join(known)}")
    if name in MATRICES or complex:
        matrix = builders[name](size, **options)
    elif size % 2:
        raise ValueError(f"matrix {name!r} is complex: between real units it needs an even number of them; got {size}")
    else:
        matrix = realified(builders[name](size // 2, **options))
    matrix.label = str(name)
    return matrix
