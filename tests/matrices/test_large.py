"""The constraint of every matrix holds in single precision, however large its free tensors are, and so do gradients."""

import pytest
import torch

from steadygrad.matrices import (
    COMPLEX,
    MATRICES,
    EigenvalueNormalized,
    NeumannCayley,
    NonFiniteError,
    ScaledCayley,
    build,
    departure_from_normality,
    init,
    orthogonality_error,
    skew,
    spectral_radius,
)
from steadygrad.matrices.exponential import CAREFUL, SCHEMES, SkewExp
from steadygrad.matrices.measures import eigenvectors_of
from steadygrad.matrices.spectral import eigen, exp_from_eigen
from tests.campaigns.violation import violation
from tests.rounding import rounding

SIZES = [32, 33]  # a skew-symmetric matrix of odd size has the eigenvalue 0 beside large ones


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 30.0, 1e3, 1e6, 1e10, 1e30])
@pytest.mark.parametrize("name", [*MATRICES, *COMPLEX])
def test_constraint_holds_for_free_tensors_of_any_size(name, scale, size):
    matrix = build(name, size, complex=name in COMPLEX)
    with torch.no_grad():
        for free, kind in zip(matrix.packed(), matrix.kinds, strict=True):
            free.copy_(torch.randn_like(free) * (1.0 if kind == "modulus" else scale))
    found, bound = violation(matrix, matrix())
    assert found <= bound


@pytest.mark.parametrize("scale", [1e6, 1e12, 1e30])
def test_real_generators_of_any_size_give_unitary_matrices(scale):
    """The real form of a real L has every eigenvalue twice, and rounding may split each pair by more than a turn."""
    matrix = build("complex-exponential", 8, complex=True)
    with torch.no_grad():
        matrix.packed()[0].copy_(torch.randn(64) * scale)[28:] = 0  # the imaginary part
    assert orthogonality_error(matrix()) < 1e-6


def exp_at(free, size):
    """exp(A) as the map computes it, with a flag: whether eigenvectors were needed."""
    X = SkewExp.apply(free, size)
    return X, len(X.grad_fn.saved_tensors) == 3


def of_norm(norm, size, dtype=torch.float64):
    free = torch.randn(size * (size - 1) // 2, dtype=torch.float64)
    return (free * norm / torch.linalg.matrix_norm(skew(free, size), 2)).to(dtype).requires_grad_()


def test_eigenvectors_are_used_only_for_large_norms():
    """So results at the norms of papers do not change by a bit."""
    radius = SCHEMES[torch.float32].radius
    assert not exp_at(of_norm(radius * 2 ** (CAREFUL - 1), 64, torch.float32), 64)[1]
    assert exp_at(of_norm(1e3, 64, torch.float32), 64)[1]


@pytest.mark.parametrize("equal_angles", [False, True])
@pytest.mark.parametrize("size", [2, 5, 6])
def test_gradient_by_eigenvectors_matches_finite_differences(size, equal_angles):
    free = of_norm(1e3, size)
    if equal_angles:
        free = init.planes(size, torch.full((size // 2,), 1e3)).double().requires_grad_()
    assert exp_at(free, size)[1]
    assert torch.autograd.gradcheck(lambda free: exp_at(free, size)[0], free, atol=1e-4)


@pytest.mark.parametrize("norm", [20.0, 100.0, 1e3, 1e5])
def test_large_exponential_and_gradient_match_double_precision(norm):
    """The same A in both precisions, against torch's exponential in double."""
    free, G = of_norm(norm, 24, torch.float32), torch.randn(24, 24)
    exact = free.detach().double().requires_grad_()
    expected = torch.linalg.matrix_exp(skew(exact, 24))
    X, by_eigenvectors = exp_at(free, 24)
    # squarings in single precision lose a digit for each factor 10 of the norm, eigenvectors in double lose none
    bound = rounding(torch.float32, 24, operations=4, scale=1 if by_eigenvectors else 1 + norm)
    torch.testing.assert_close(X.double(), expected, rtol=0, atol=bound)
    (ours,), (theirs,) = torch.autograd.grad(X, free, G), torch.autograd.grad(expected, exact, G.double())
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=bound * float(G.norm()))


@pytest.mark.parametrize("norm", [1e2, 1e4, 1e7])
def test_large_cayley_transform_and_gradient_match_double_precision(norm):
    map = ScaledCayley(33, 5)
    free, G = of_norm(norm, 33, torch.float32), torch.randn(33, 33)
    exact = free.detach().double().requires_grad_()
    I, A = torch.eye(33, dtype=torch.float64), skew(exact, 33)
    expected = torch.linalg.solve(I + A, I - A) * map.D
    W = map(free)
    # up to 80 units in the last place are accepted without eigenvectors
    torch.testing.assert_close(W.double(), expected, rtol=0, atol=80 * torch.finfo(torch.float32).eps)
    (ours,), (theirs,) = torch.autograd.grad(W, free, G), torch.autograd.grad(expected, exact, G.double())
    bound = 160 * torch.finfo(torch.float32).eps * float(G.norm())
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=bound)


@pytest.mark.parametrize("make", [lambda x: SkewExp.apply(x, 4), ScaledCayley(4)], ids=["exponential", "cayley"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_bare_maps_raise_non_finite_error(make, value):
    with pytest.raises(NonFiniteError, match="finite"):
        make(torch.full((6,), value))


def test_angles_that_double_precision_cannot_hold_raise_non_finite_error():
    angles, V = eigen(skew(torch.randn(6).double(), 4))
    with pytest.raises(NonFiniteError, match="1e10"):  # as if rounding had moved one of a pair ±θ
        exp_from_eigen(angles + torch.tensor([1.0, 0, 0, 0]), V, torch.float32)


def test_eigen_decomposes_zero_and_extreme_matrices():
    for scale in (0.0, 1e-300, 1.0, 1e307):
        A = skew(torch.randn(10).double() * scale, 5)
        angles, V = eigen(A)
        torch.testing.assert_close(((V * (1j * angles)) @ V.mH).real, A, rtol=0, atol=1e-14 * scale)
        assert orthogonality_error(V) < rounding(torch.float64, 5, operations=4)


@pytest.mark.parametrize("value", [1e-42, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("radius", ["exact", "power"])
def test_equal_entries_of_any_size_have_a_spectral_radius(value, radius):
    """LAPACK does not converge on many matrices of equal entries: on which depends on the processor."""
    map = EigenvalueNormalized(32, radius=radius)
    T = torch.full((32, 32), value)
    W = map(T)
    assert spectral_radius(W) == pytest.approx(min(32 * float(T[0, 0]), 1.0), rel=1e-5)


def test_matrices_on_which_lapack_does_not_converge_have_eigenvalues(monkeypatch):
    """On some processors eigvals fails on many of these. Here the first call always fails."""
    T = torch.full((6, 6), 1.25, dtype=torch.float64)
    for name in ("eigvals", "eig"):
        given = getattr(torch.linalg, name)

        def stubborn(T, given=given):
            if torch.equal(T.diagonal(), T[0, 1].expand(6)):
                raise torch.linalg.LinAlgError("failed to converge")
            return given(T)

        monkeypatch.setattr(torch.linalg, name, stubborn)
    bound = rounding(torch.float64, 6, operations=8, scale=7.5)
    assert spectral_radius(T) == pytest.approx(7.5, abs=bound)
    values, vectors = eigenvectors_of(T)
    torch.testing.assert_close(T.to(values.dtype) @ vectors, vectors * values, rtol=0, atol=bound)


@pytest.mark.parametrize("size", range(2, 80, 3))
def test_equal_entries_have_one_eigenvalue_that_is_not_zero(size):
    T = torch.full((size, size), 1.1, dtype=torch.float64)
    assert spectral_radius(T) == pytest.approx(1.1 * size, abs=rounding(torch.float64, size, 8, 1.1 * size))


def test_radius_and_normality_of_tiny_and_empty_matrices():
    assert spectral_radius(torch.full((32, 32), 1e-42, dtype=torch.float64)) == pytest.approx(32e-42)
    assert departure_from_normality(torch.zeros(0, 0)) == 0.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("map", [ScaledCayley, NeumannCayley])
def test_few_huge_entries_leave_a_double_precision_map_orthogonal(map, seed):
    """Most eigenvalues are 0: their rounding errors, times 1e20, must not count as angles."""
    random = torch.Generator().manual_seed(seed)
    free = torch.randn(32 * 31 // 2, generator=random, dtype=torch.float64) * 1e20
    free *= torch.rand(free.shape, generator=random, dtype=torch.float64) < 0.1
    assert orthogonality_error(map(32).double()(free)) < 32 * 1e-14
