"""Right inverses that solve for several free tensors: Schur forms, plane rotations, least squares."""

import math

import pytest
import torch

from steadygrad.matrices import ComplexSchur, Givens, PlaneRotations, RealSchur, UnitaryEvolution, build
from steadygrad.matrices.free import ComplexFree
from tests.rounding import rounding

pytestmark = pytest.mark.usefixtures("double")


def random_free(map, transients=0.5):
    sizes = map.free_sizes(map.size, map.in_block) if isinstance(map, RealSchur) else map.free_sizes(map.size)
    A, theta, gamma, T = (torch.randn(size) for size in sizes)
    return A / 2, math.pi * theta, 1 + 0.1 * gamma, transients * T / map.size**0.5


def schur_bound(W, blocks):
    """Each split-off multiplies twice by an orthogonal matrix; the threshold of a residual is 1e-12."""
    return rounding(W.dtype, len(W), operations=4 * blocks, scale=float(W.norm())) + 1e-12 * float(W.norm())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 33])
@pytest.mark.parametrize("transients", [0.0, 0.5])
@pytest.mark.parametrize("in_block", [False, True])
def test_real_schur_reproduces_its_matrices(size, transients, in_block):
    map = RealSchur(size, in_block)
    W = map(*random_free(map, transients))
    torch.testing.assert_close(map(*map.right_inverse(W)), W, rtol=0, atol=schur_bound(W, size))
    single = map.right_inverse(W.float())
    assert {f.dtype for f in single} == {torch.float32}
    torch.testing.assert_close(map(*single), W.float(), rtol=0, atol=schur_bound(W.float(), size))


SPECIAL = {
    "identity": torch.eye(6),
    "zero": torch.zeros(6, 6),
    "ones": torch.ones(6, 6),
    "half turns": -torch.eye(6),
    "shift": torch.eye(6).roll(1, 0),
    "Jordan": torch.eye(6) + torch.diag(torch.ones(5), 1),
    "nilpotent": torch.diag(torch.ones(5), -1),
    "random": torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
}


@pytest.mark.parametrize("which", SPECIAL)
def test_schur_forms_reach_every_matrix(which):
    """ComplexSchur, and RealSchur with ``in_block``; parallel eigenvectors cost 1e-11 × size each."""
    W = SPECIAL[which].double()
    bound = 6 * 1e-10 if which in ("Jordan", "nilpotent") else schur_bound(W, 6) + 1e-14
    real, complex = RealSchur(6, in_block=True), ComplexSchur(6)
    torch.testing.assert_close(real(*real.right_inverse(W)), W, rtol=0, atol=bound)
    torch.testing.assert_close(complex(*complex.right_inverse(W + 0j)), W + 0j, rtol=0, atol=bound)


def test_real_schur_keeps_complex_eigenvalues_of_other_matrices():
    """A block with the eigenvalues a ± ib becomes a rotation: here of equal trace, so that real parts stay."""
    W = torch.tensor([[0.5, -2.0], [0.5, 0.5]])
    map = RealSchur(2)
    found = map(*map.right_inverse(W))
    torch.testing.assert_close(found, torch.tensor([[0.5, -1.25], [1.25, 0.5]]))


def angles(map):
    theta, phi = torch.randn(2, map.rotations) * 2
    return (theta, phi, torch.randn(map.size)) if map.complex else (theta,)


LAYOUTS = [{"capacity": 1}, {"capacity": 2}, {"capacity": 3}, {"style": "full"}, {"style": "fft"}, {"capacity": 12}]


@pytest.mark.parametrize("kind", [Givens, PlaneRotations])
@pytest.mark.parametrize("options", LAYOUTS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8])
def test_rotations_reproduce_their_matrices(kind, options, size):
    """Each of the layers is one product of two entries; angles are read off entries that are not below 1e-6."""
    map = kind(size, **options)
    for W in (map(*angles(map)), torch.eye(size).to(map(*angles(map)).dtype)):
        bound = rounding(torch.float64, 2, operations=2 * map.capacity, scale=1e6)
        torch.testing.assert_close(map(*map.right_inverse(W)), W, rtol=0, atol=bound)


@pytest.mark.parametrize("size", [5, 24])
def test_full_rotations_reach_every_unitary_matrix(size):
    """By the method of Clements et al. every zero is exact, so nothing is amplified."""
    bound = rounding(torch.float64, 2, operations=2 * size)
    Z = torch.linalg.qr(torch.randn(size, size, dtype=torch.complex128)).Q
    map = Givens(size, style="full")
    torch.testing.assert_close(map(*map.right_inverse(Z)), Z, rtol=0, atol=bound)
    Q = torch.linalg.qr(torch.randn(size, size)).Q
    Q[0] *= torch.linalg.det(Q).sign()
    real = PlaneRotations(size, style="full")
    torch.testing.assert_close(real(*real.right_inverse(Q)), Q, rtol=0, atol=bound)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_evolution_reproduces_its_matrices(size):
    map = UnitaryEvolution(size)
    W = map(torch.empty(3, size).uniform_(-math.pi, math.pi), torch.empty(2, 2, size).uniform_(-1, 1))
    # the accepted sum of squares is eps · size; the search ends there only if it does not reach its square
    torch.testing.assert_close(map(*map.right_inverse(W)), W, rtol=0, atol=(2.3e-16 * size) ** 0.5)


def test_evolution_errors_say_what_to_do(monkeypatch):
    monkeypatch.setattr("steadygrad.matrices.evolution.ATTEMPTS", 2)
    Z = torch.linalg.qr(torch.randn(40, 40, dtype=torch.complex128)).Q
    with pytest.raises(ValueError, match="up to size 32; got size 40"):
        UnitaryEvolution(40).right_inverse(Z)
    with pytest.raises(ValueError, match="has found no parameters of this unitary matrix in 2 attempts"):
        UnitaryEvolution(12).right_inverse(torch.linalg.qr(Z[:12, :12]).Q)
    map = UnitaryEvolution(40)  # no search: a start
    assert map(*map.right_inverse(torch.zeros(40, 40) + 0j)).isfinite().all()


def test_free_complex_matrix_returns_its_parts():
    Z = torch.randn(3, 3, dtype=torch.complex64)
    assert torch.equal(ComplexFree(3)(*ComplexFree(3).right_inverse(Z)), Z)


@pytest.mark.parametrize("name", ["complex-exponential", "givens", "stiefel"])
def test_real_form_takes_nearest_real_form(name):
    map = build(name, 6).map
    W = torch.randn(6, 6)
    free = map.right_inverse(W)
    R = map(*free)
    torch.testing.assert_close(R[:3, :3], R[3:, 3:])
    torch.testing.assert_close(R[3:, :3], -R[:3, 3:])


@pytest.mark.parametrize(
    "make", [RealSchur, ComplexSchur, Givens, PlaneRotations, UnitaryEvolution, lambda n: build("givens", 2 * n).map]
)
def test_wrong_shape_and_nan_raise_value_error(make):
    map = make(3)
    with pytest.raises(ValueError, match=r"matrix; got shape \(5, 5\)"):
        map.right_inverse(torch.eye(5))
    with pytest.raises(ValueError, match="finite entries; got"):
        map.right_inverse(torch.full((map.size, map.size), torch.nan))
