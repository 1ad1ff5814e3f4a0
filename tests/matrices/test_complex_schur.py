"""P (Λ + T) Pᴴ in complex numbers: against numpy, its spectrum, its counts, and what it can be."""

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.matrices import ComplexSchur, build, departure_from_normality, orthogonality_error
from steadygrad.matrices import init as initialisers
from steadygrad.matrices.complex import skew_hermitian_free
from tests.rounding import rounding

every_size = pytest.mark.parametrize("size", [1, 2, 3, 5, 8])


def random_free(size: int, scale: float = 1.0, dtype=torch.float64) -> list[torch.Tensor]:
    basis, theta, gamma, T = (torch.randn(k, dtype=dtype) for k in ComplexSchur.free_sizes(size))
    return [scale * basis, theta, 1 + 0.2 * gamma, 0.3 * T]


def dense_in_numpy(basis: torch.Tensor, theta: torch.Tensor, gamma: torch.Tensor, T: torch.Tensor) -> np.ndarray:
    """With exp(A) from the eigenvectors of the Hermitian iA."""
    n = len(theta)
    A, core = np.zeros((2, n, n), dtype=complex)
    below = [(j, k) for j in range(n) for k in range(j)]
    on_and_below = [(j, k) for j in range(n) for k in range(j + 1)]
    for (j, k), value in zip(below, basis.tolist(), strict=False):
        A[j, k] += value
    for (j, k), value in zip(on_and_below, basis.tolist()[len(below) :], strict=True):
        A[j, k] += 1j * value
    A = A - np.tril(A, -1).conj().T
    angles, V = np.linalg.eigh(1j * A)
    P = (V * np.exp(-1j * angles)) @ V.conj().T
    re, im = np.split(T.numpy(), 2)
    for (j, k), a, b in zip(below, re, im, strict=True):
        core[j, k] = a + 1j * b
    core += np.diag(gamma.numpy() * np.exp(1j * theta.numpy()))
    return P @ core @ P.conj().T


@every_size
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0])
def test_matrix_matches_numpy_product(size, scale):
    free = random_free(size, scale)
    # P by four products and perhaps squarings, then two products with Λ + T; each in numpy too, and complex
    A_norm, core_norm = (float(f.norm()) for f in (free[0], torch.cat(free[2:])))
    bounds = [rounding(dtype, 2 * size, 12, (1 + A_norm) * core_norm) for dtype in (torch.float64, torch.float32)]
    np.testing.assert_allclose(ComplexSchur(size)(*free).numpy(), dense_in_numpy(*free), rtol=0, atol=bounds[0])
    single = ComplexSchur(size)(*(f.float() for f in free))
    assert single.dtype == torch.complex64
    np.testing.assert_allclose(single.numpy(), dense_in_numpy(*free), rtol=0, atol=bounds[1])


@given(size=st.integers(1, 10), scale=st.sampled_from([0.1, 1.0, 4.0]))
def test_spectrum_depends_only_on_moduli_and_angles(size, scale):
    free = random_free(size, scale)
    expected = free[2] * torch.exp(1j * free[1])
    found = torch.linalg.eigvals(ComplexSchur(size)(*free))
    # symmetric functions of the eigenvalues, whatever their order and however close two of them are
    for power in range(1, size + 1):
        torch.testing.assert_close((found**power).sum(), (expected**power).sum(), rtol=1e-9, atol=1e-8)


def test_eigenvalues_without_transients_match_parameters():
    basis, theta, gamma, T = random_free(8)
    found = torch.linalg.eigvals(ComplexSchur(8)(basis, theta, gamma, 0 * T))
    expected = gamma * torch.exp(1j * theta)
    # eigenvalues of a normal matrix are off by no more than the matrix is: P, two products, and the solver's own error
    bound = rounding(torch.float64, 2 * 8, operations=12, scale=1 + float(basis.norm()))
    for value in expected:
        assert (found - value).abs().min() < bound
    for value in found:
        assert (expected - value).abs().min() < bound


def test_core_is_lower_triangular():
    """With P = I the matrix is its core: row by row, real parts first."""
    theta, gamma = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    W = ComplexSchur(3)(torch.zeros(9), theta, gamma, torch.arange(1.0, 7.0))
    diagonal = torch.polar(gamma, theta)
    expected = torch.tensor([[0, 0, 0], [1 + 4j, 0, 0], [2 + 5j, 3 + 6j, 0]]) + torch.diag(diagonal)
    torch.testing.assert_close(W, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gradients_match_finite_differences(size):
    free = tuple(f.requires_grad_() for f in random_free(size))
    assert torch.autograd.gradcheck(ComplexSchur(size), free)


@pytest.mark.parametrize("size", [1, 2, 7, 128])
def test_parameter_counts_and_kinds(size):
    expected = (size * size, size, size, size * (size - 1))
    assert ComplexSchur.free_sizes(size) == expected
    matrix = build("complex-schur", size, complex=True)
    assert tuple(f.numel() for f in matrix.packed()) == expected
    assert matrix.kinds == ("skew", "angle", "modulus", "transient")


@given(size=st.integers(1, 8))
def test_random_matrix_is_reached_by_schur_form(size):
    """Schur's theorem, by numpy: upper triangular in some basis, lower in the reverse one; then W from its parts."""
    M = torch.randn(size, size, dtype=torch.complex128)
    eigenvalues, V = np.linalg.eig(M.numpy())
    Q = np.linalg.qr(V)[0][:, ::-1].copy()  # spans of eigenvectors, last one first: Qᴴ M Q is lower triangular
    core = Q.conj().T @ M.numpy() @ Q
    assert np.abs(np.triu(core, 1)).max(initial=0) < 1e-6
    angles, U = np.linalg.eig(Q)  # A = log Q; eigenvectors of a unitary matrix, made orthogonal where two are close
    U = np.linalg.qr(U)[0]
    A = (U * np.log(angles / np.abs(angles))) @ U.conj().T
    lower = np.tril_indices(size, -1)
    free = [
        skew_hermitian_free(torch.from_numpy((A - A.conj().T) / 2)),
        torch.from_numpy(np.angle(np.diag(core))),
        torch.from_numpy(np.abs(np.diag(core))),
        torch.from_numpy(np.concatenate([core[lower].real, core[lower].imag])),
    ]
    torch.testing.assert_close(ComplexSchur(size)(*free), M, rtol=0, atol=1e-6)


def test_builder_starts_unitary_with_uniform_angles():
    matrix = build("complex-schur", 64, complex=True)
    basis, theta, gamma, T = (f.detach() for f in matrix.packed())
    assert orthogonality_error(matrix()) < rounding(torch.float32, 2 * 64, operations=8)  # P twice, two products
    assert (gamma == 1).all()
    assert not T.any()
    assert theta.min() >= 0
    assert theta.max() <= 2 * math.pi
    assert theta.max() - theta.min() > 5
    assert not basis[64 * 63 // 2 :].any()  # P is real
    assert int((basis != 0).sum()) == 32


@pytest.mark.parametrize("init", ["henaff", "cayley"])
def test_basis_uses_requested_initialiser(init):
    torch.manual_seed(2)
    matrix = build({"name": "complex-schur", "init": init}, 9, complex=True)
    torch.manual_seed(2)
    assert torch.equal(matrix.packed()[0][:36], initialisers.SKEW[init](9))
    assert not matrix.packed()[0][36:].any()


def test_transients_make_it_non_normal():
    matrix = build("complex-schur", 8, complex=True)
    assert departure_from_normality(matrix()) < 1e-2
    with torch.no_grad():
        matrix.packed()[3].add_(1)
    # ‖Λ + T‖_F² = ‖Λ‖_F² + ‖T‖_F², and P changes nothing: 28 entries 1 + i
    assert departure_from_normality(matrix()) == pytest.approx(56**0.5, rel=1e-3)


def test_state_dict_round_trip():
    one, other = (build("complex-schur", 6, complex=True) for _ in range(2))
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    assert not torch.allclose(one(), other())
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(one(), other())


def test_wrong_parameter_lengths_raise_value_error():
    basis, theta, gamma, T = random_free(4)
    for name, wrong, length in (
        ("basis", [basis[1:], theta, gamma, T], 16),
        ("theta", [basis, theta[1:], gamma, T], 4),
        ("gamma", [basis, theta, gamma[1:], T], 4),
        ("T", [basis, theta, gamma, T[1:]], 12),
    ):
        with pytest.raises(
            ValueError, match=rf"ComplexSchur of size 4 expects {length} numbers in {name}; got shape \("
        ):
            ComplexSchur(4)(*wrong)
    with pytest.raises(ValueError, match="ComplexSchur expects a size of at least 1; got 0"):
        ComplexSchur(0)
