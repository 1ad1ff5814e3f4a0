"""Complex matrices in real form, and the promises that every one of COMPLEX keeps, between complex and real units."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.matrices import (
    COMPLEX,
    MATRICES,
    Matrix,
    build,
    complexify,
    departure_from_normality,
    orthogonality_error,
    realify,
    spectral_radius,
)
from steadygrad.matrices.complex import haar_unitary, skew_hermitian, skew_hermitian_free
from steadygrad.matrices.complex_cayley import complex_cayley
from tests.rounding import rounding

every_complex = pytest.mark.parametrize("name", COMPLEX)
UNITARY = [name for name in COMPLEX if name != "complex-schur"]
SPECS = [*COMPLEX, {"name": "givens", "style": "full"}, {"name": "givens", "style": "fft"}]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=str)
sizes = st.integers(1, 9)


def random_complex(n: int) -> torch.Tensor:
    return torch.randn(n, n, dtype=torch.complex128)


def disturb(matrix: Matrix, scale: float = 0.3) -> Matrix:
    """Away from the start, where many entries are zero."""
    with torch.no_grad():
        for f in matrix.packed():
            f += scale * torch.randn_like(f)
    return matrix


def train(matrix: Matrix, steps: int, optimizer=None) -> torch.optim.Optimizer:
    generator = torch.Generator().manual_seed(1)
    optimizer = optimizer or torch.optim.Adam(matrix.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        W = matrix()
        W.backward(torch.randn(W.shape, generator=generator, dtype=W.dtype))
        optimizer.step()
    return optimizer


# Products and solves that follow each other in any of the maps: an exponential or a solve, two more factors, the check.
OPERATIONS = 8


def assert_unitary(W: torch.Tensor, atol: float) -> None:
    torch.testing.assert_close(W.mH @ W, torch.eye(len(W), dtype=W.dtype), atol=atol, rtol=0)


class TestRealForm:
    @given(n=sizes)
    def test_realify_preserves_products_sums_and_adjoints(self, n):
        A, B = random_complex(n), random_complex(n)
        scale = float(A.norm() * B.norm())
        torch.testing.assert_close(
            realify(A @ B), realify(A) @ realify(B), rtol=0, atol=rounding(torch.float64, 2 * n, scale=scale)
        )
        assert torch.equal(realify(A + B), realify(A) + realify(B))
        assert torch.equal(realify(A.mH), realify(A).mT)
        assert torch.equal(realify(torch.eye(n, dtype=torch.complex128)), torch.eye(2 * n, dtype=torch.float64))

    @given(n=sizes)
    def test_realified_matrix_acts_on_stacked_real_and_imaginary_parts(self, n):
        A, h = random_complex(n), torch.randn(n, dtype=torch.complex128)
        image = A @ h
        torch.testing.assert_close(realify(A) @ torch.cat([h.real, h.imag]), torch.cat([image.real, image.imag]))

    @given(n=sizes)
    def test_complexify_inverts_realify(self, n):
        A = random_complex(n)
        assert torch.equal(complexify(realify(A)), A)

    def test_known_value(self):
        assert realify(torch.tensor([[1 + 2j]])).tolist() == [[1, -2], [2, 1]]
        assert realify(torch.tensor([[3.0, 4.0], [5.0, 6.0]])).tolist() == [
            [3, 4, 0, 0],
            [5, 6, 0, 0],
            [0, 0, 3, 4],
            [0, 0, 5, 6],
        ]

    @given(n=sizes)
    def test_realify_of_real_matrix_equals_that_of_its_complex_copy(self, n):
        A = torch.randn(n, n, dtype=torch.float64)
        assert torch.equal(realify(A), realify(A.to(torch.complex128)))

    @given(n=sizes)
    def test_realified_unitary_is_orthogonal_with_determinant_one(self, n):
        R = realify(torch.linalg.qr(random_complex(n))[0])
        torch.testing.assert_close(
            R.mT @ R, torch.eye(2 * n, dtype=torch.float64), rtol=0, atol=rounding(torch.float64, 2 * n, 2)
        )
        assert float(torch.linalg.det(R)) == pytest.approx(1)  # |det W|²

    @given(n=sizes)
    def test_realified_spectrum_contains_both_conjugates(self, n):
        A = random_complex(n)
        eigenvalues = torch.linalg.eigvals(A)
        characteristic = torch.linalg.eigvals(realify(A))
        for value in torch.cat([eigenvalues, eigenvalues.conj()]):
            assert (characteristic - value).abs().min() < 1e-10

    def test_realify_and_complexify_pass_gradcheck(self):
        assert torch.autograd.gradcheck(realify, (random_complex(3).requires_grad_(),))
        assert torch.autograd.gradcheck(realify, (torch.randn(3, 3, dtype=torch.float64, requires_grad=True),))
        assert torch.autograd.gradcheck(complexify, (torch.randn(6, 6, dtype=torch.float64, requires_grad=True),))


class TestSkewHermitian:
    @given(n=sizes)
    def test_skew_hermitian_packs_and_unpacks_parameters(self, n):
        free = torch.randn(n * n, dtype=torch.float64)
        R = skew_hermitian(free, n)
        A = complexify(R)
        assert torch.equal(R, -R.mT)
        assert torch.equal(A, -A.mH)
        assert torch.equal(realify(A), R)
        assert torch.equal(skew_hermitian_free(A), free)

    @given(n=sizes)
    def test_every_skew_hermitian_matrix_is_reached(self, n):
        A = random_complex(n)
        A = A - A.mH
        free = skew_hermitian_free(A)
        assert free.shape == (n * n,)
        assert free.dtype == torch.float64
        assert torch.equal(complexify(skew_hermitian(free, n)), A)

    def test_known_value(self):
        """Re A below the diagonal row by row, then Im A on and below it."""
        A = complexify(skew_hermitian(torch.arange(1.0, 10.0), 3))
        assert A.tolist() == [
            [4j, -1 + 5j, -2 + 7j],
            [1 + 5j, 6j, -3 + 8j],
            [2 + 7j, 3 + 8j, 9j],
        ]

    @pytest.mark.parametrize("n", [1, 2, 5])
    def test_gradients_match_finite_differences(self, n):
        free = torch.randn(n * n, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda f: skew_hermitian(f, n), (free,))
        assert torch.autograd.gradgradcheck(lambda f: skew_hermitian(f, n).sin(), (free,))

    @pytest.mark.parametrize("shape", [(8,), (10,), (3, 3)])
    def test_wrong_number_of_parameters_raises_value_error(self, shape):
        with pytest.raises(ValueError, match=r"skew_hermitian expects 9 numbers for size 3; got shape \("):
            skew_hermitian(torch.zeros(shape), 3)


class TestHaar:
    @given(n=sizes)
    def test_haar_unitary_is_unitary(self, n):
        W = haar_unitary(n)
        assert W.dtype == torch.complex64
        assert_unitary(W, rounding(torch.float32, 2 * n, operations=2))

    def test_haar_unitary_supports_double_precision(self, double):
        assert haar_unitary(5).dtype == torch.complex128
        assert_unitary(haar_unitary(30), rounding(torch.float64, 2 * 30, operations=2))

    def test_haar_eigenangle_moments_match_theory(self, double):
        """Uniform, so Σ e^{ikθ} has mean 0; and they repel, so its mean square is min(k, n) (Diaconis & Shahshahani).

        Independent angles would have n, and the Q of a plain QR has a mean far from 0.
        """
        n, samples = 4, 2000
        eigenvalues = torch.linalg.eigvals(torch.stack([haar_unitary(n) for _ in range(samples)]))
        for k in range(1, 7):
            power = (eigenvalues**k).sum(1)
            expected = min(k, n)
            assert power.mean().abs() < 4 * math.sqrt(expected / samples)
            assert power.abs().square().mean() == pytest.approx(expected, rel=4 * samples**-0.5)

    def test_eigenangles_are_uniform(self, double):
        """No bin of sixteen has more or less than its part, which repulsion keeps even closer than chance would."""
        angles = torch.linalg.eigvals(torch.stack([haar_unitary(8) for _ in range(500)])).angle().flatten()
        counts = torch.histc(angles, 16, -math.pi, math.pi)
        chi_squared = float(((counts - 250) ** 2 / 250).sum())
        assert chi_squared < 25  # the 95th percentile of independent angles

    def test_plain_qr_fails_eigenangle_test(self, double):
        """The same statistic on Q alone: R with a positive diagonal is what makes Q uniform."""
        Q = torch.linalg.qr(torch.randn(2000, 4, 4, dtype=torch.complex128))[0]
        assert torch.linalg.eigvals(Q).sum(1).mean().abs() > 10 * math.sqrt(1 / 2000)


class TestBetweenComplexUnits:
    @every_spec
    @given(size=sizes)
    def test_every_size_builds_evaluates_and_learns(self, spec, size):
        matrix = build(spec, size, complex=True)
        W = matrix()
        assert W.shape == (size, size)
        assert W.dtype == torch.complex64
        assert matrix.size == size
        assert len(matrix.kinds) == len(matrix.packed())
        W.abs().pow(3).sum().backward()
        assert all(f.grad is not None and f.grad.isfinite().all() for f in matrix.free)

    @every_spec
    @given(size=sizes)
    def test_initial_matrix_is_unitary(self, spec, size):
        assert_unitary(build(spec, size, complex=True)(), rounding(torch.float32, 2 * size, OPERATIONS))

    @pytest.mark.parametrize("spec", [s for s in SPECS if s != "complex-schur"], ids=str)
    @given(size=sizes, scale=st.sampled_from([0.1, 1.0, 10.0]))
    def test_matrix_is_unitary_for_any_parameters(self, spec, size, scale):
        matrix = disturb(build(spec, size, complex=True), scale)
        condition = 1 + max(float(f.detach().norm()) for f in matrix.packed())  # of I + A, where there is one
        assert_unitary(matrix(), rounding(torch.float32, 2 * size, OPERATIONS, condition))
        assert_unitary(matrix.double()(), rounding(torch.float64, 2 * size, OPERATIONS, condition))

    @every_spec
    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_gradients_match_finite_differences(self, spec, size, double):
        matrix = disturb(build(spec, size, complex=True)).eval()  # in training stiefel would rewrite gradcheck's input
        assert torch.autograd.gradcheck(lambda *free: matrix.map(*free), tuple(matrix.packed()))

    @every_complex
    def test_parameter_counts_match_formulas(self, name):
        n = 8
        expected = {
            "evolution": 7 * n,
            "stiefel": n * n,
            "complex-cayley": n * n + n,
            "complex-exponential": n * n,
            "givens": 2 * 7 + n,  # two layers: four rotations and three, two angles each
            "complex-schur": n * n + n + n + n * (n - 1),
        }
        matrix = build(name, n, complex=True)
        assert sum(p.numel() for p in matrix.parameters()) == expected[name]
        assert all(p.dtype == torch.float32 for p in matrix.parameters())

    @every_complex
    def test_cached_value_follows_parameter_change(self, name):
        matrix = disturb(build(name, 6, complex=True)).eval()
        with torch.no_grad():
            first = matrix()
            assert matrix() is first
            matrix.packed()[0].data.view(-1)[0] += 0.5
            assert not torch.allclose(matrix(), first)

    @every_complex
    def test_copies_are_independent(self, name):
        matrix = disturb(build(name, 5, complex=True)).eval()
        W = matrix().detach().clone()
        twin = copy.deepcopy(matrix)
        torch.testing.assert_close(twin(), W)
        with torch.no_grad():
            twin.packed()[0].add_(0.3)
        assert not torch.allclose(twin(), W)
        assert torch.equal(matrix(), W)

    @every_complex
    def test_training_resumed_from_state_dict_is_bitwise_equal(self, name):
        matrix = disturb(build(name, 6, complex=True))
        optimizer = train(matrix, 7)
        file = io.BytesIO()
        torch.save({"matrix": matrix.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        assert all(value.is_contiguous() for value in saved["matrix"].values())  # as safetensors demands
        assert not any(value.is_complex() for value in saved["matrix"].values())
        resumed = build(name, 6, complex=True)
        resumed.load_state_dict(saved["matrix"])
        again = torch.optim.Adam(resumed.parameters(), lr=1e-2)
        again.load_state_dict(saved["optimizer"])
        train(matrix, 30, optimizer)
        train(resumed, 30, again)
        assert torch.equal(matrix(), resumed())

    @every_complex
    def test_autocast_does_not_touch_the_constraint(self, name):
        matrix = disturb(build(name, 6, complex=True)).eval()  # in training stiefel would move its base
        with torch.no_grad():
            W = matrix()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(matrix(), W)

    @every_complex
    def test_half_precision_keeps_the_imaginary_part(self, name):
        matrix = disturb(build(name, 6, complex=True), 0.1)
        with torch.no_grad():
            W = matrix()
            half = matrix.bfloat16()()
        assert half.is_complex()
        torch.testing.assert_close(half.to(W.dtype), W, rtol=0, atol=0.1)
        half_gradient = matrix()
        half_gradient.abs().sum().backward()
        assert matrix.free[0].grad.dtype == torch.bfloat16

    @every_complex
    def test_non_finite_parameters_raise_value_error(self, name):
        matrix = build(name, 8, complex=True)
        with torch.no_grad():
            matrix.packed()[0].view(-1)[[0, 2]] = torch.tensor([torch.nan, -torch.inf])
        with pytest.raises(ValueError, match=r"expects finite parameters; got 2 NaN or infinite values in"):
            matrix()

    @pytest.mark.parametrize("name", MATRICES)
    def test_real_matrices_work_between_complex_units(self, name):
        matrix = disturb(build(name, 6, complex=True))
        W = matrix()
        assert W.shape == (6, 6)
        assert not W.is_complex()
        R = realify(W)
        assert torch.equal(R[:6, :6], W)
        assert torch.equal(R[6:, 6:], W)
        assert not R[:6, 6:].any()
        assert not R[6:, :6].any()


class TestBetweenRealUnits:
    @every_spec
    @pytest.mark.parametrize("size", [2, 6, 10])
    def test_even_size_gives_real_form_of_complex_matrix(self, spec, size):
        matrix = disturb(build(spec, size)).double()
        R = matrix()
        assert R.shape == (size, size)
        assert R.dtype == torch.float64
        assert matrix.size == size
        assert torch.equal(realify(complexify(R)), R)
        assert torch.equal(complexify(R), matrix.map.inner(*matrix.packed()))
        assert len(matrix.kinds) == len(matrix.packed())
        R.square().sum().backward()
        assert all(f.grad is not None for f in matrix.free)

    @pytest.mark.parametrize("spec", [s for s in SPECS if s != "complex-schur"], ids=str)
    def test_real_form_is_orthogonal(self, spec):
        matrix = disturb(build(spec, 8))
        condition = 1 + max(float(f.detach().norm()) for f in matrix.packed())
        assert_unitary(matrix(), rounding(torch.float32, 8, OPERATIONS, condition))
        assert_unitary(matrix.double()(), rounding(torch.float64, 8, OPERATIONS, condition))

    def test_schur_in_real_form_has_conjugate_pairs_of_its_spectrum(self, double):
        matrix = disturb(build("complex-schur", 8))
        _, theta, gamma, _ = (f.detach() for f in matrix.packed())
        expected = gamma * torch.exp(1j * theta)
        found = torch.linalg.eigvals(matrix().detach())
        for value in torch.cat([expected, expected.conj()]):
            assert (found - value).abs().min() < 1e-7  # T makes them sensitive
        assert found.abs().log().sum().item() == pytest.approx(2 * gamma.abs().log().sum().item(), abs=1e-6)

    @every_complex
    @pytest.mark.parametrize("size", [1, 3, 7])
    def test_odd_size_raises_value_error(self, name, size):
        with pytest.raises(ValueError, match=rf"'{name}' is complex.*even number of them; got {size}"):
            build(name, size)

    @every_complex
    def test_gradients_match_finite_differences(self, name, double):
        matrix = disturb(build(name, 6)).eval()
        assert torch.autograd.gradcheck(lambda *free: matrix.map(*free), tuple(matrix.packed()))

    def test_real_form_has_same_parameters_as_complex_matrix(self):
        for name in COMPLEX:
            real, complex_ = build(name, 12), build(name, 6, complex=True)
            assert [f.shape for f in real.packed()] == [f.shape for f in complex_.packed()]
            assert real.kinds == complex_.kinds

    @pytest.mark.parametrize("spec", [lambda size: complex_cayley(size), complex_cayley(6)], ids=["function", "Matrix"])
    def test_complex_matrix_from_function_or_object_raises_value_error(self, spec):
        """A kernel of real numbers would read its memory as twice as many of them."""
        with pytest.raises(ValueError, match="complex"):
            build(spec, 6)

    def test_stiefel_base_moves_in_real_form(self):
        matrix = build("stiefel", 8)
        before = matrix.map.inner.base.clone()
        train(matrix, 2)
        matrix()
        assert not matrix.packed()[0].any()
        assert not torch.equal(matrix.map.inner.base, before)
        assert_unitary(matrix(), rounding(torch.float32, 8, OPERATIONS))


class TestSpecs:
    @pytest.mark.parametrize("complex", [False, True])
    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("stifel", ["no matrix 'stifel'", "evolution", "stiefel", "complex-cayley", "givens", "complex-schur"]),
            ({"name": "evolution", "capacity": 2}, ["'evolution' has no option 'capacity'"]),
            ({"name": "stiefel", "init": "haar"}, ["'stiefel' has no option 'init'"]),
            ({"name": "givens", "layers": 2}, ["'givens' has no option 'layers'", "capacity, style"]),
            ({"name": "givens", "capacity": 0}, ["capacity to be at least 1", "got 0"]),
            ({"name": "givens", "capacity": -1}, ["got -1"]),
            ({"name": "givens", "capacity": 2.0}, ["got 2.0"]),
            ({"name": "givens", "capacity": True}, ["got True"]),
            ({"name": "givens", "style": "FFT"}, ["tunable, full or fft", "got 'FFT'"]),
            ({"name": "complex-cayley", "init": "henaf"}, ["henaff, cayley, haar", "got 'henaf'"]),
            ({"name": "complex-exponential", "init": "disc"}, ["henaff, cayley, haar", "got 'disc'"]),
            ({"name": "complex-cayley", "reflections": 2}, ["has no option 'reflections'", "init"]),
            ({"name": "complex-schur", "init": "haar"}, ["henaff, cayley", "got 'haar'"]),
            ({"name": "complex-schur", "in_block": True}, ["has no option 'in_block'"]),
            ({"name": "givens", "size": 4}, ["no option 'size'"]),
        ],
    )
    def test_invalid_specs_raise_value_error(self, spec, words, complex):
        with pytest.raises(ValueError, match=r".") as e:
            build(spec, 6, complex=complex)
        assert all(word in str(e.value) for word in words), str(e.value)

    @every_complex
    @pytest.mark.parametrize("size", [0, -2, 2.0, "4", True])
    def test_invalid_sizes_raise_value_error(self, name, size):
        for complex in (False, True):
            with pytest.raises(ValueError, match="size of at least 1; got"):
                build(name, size, complex=complex)

    def test_names_do_not_collide(self):
        assert not MATRICES.keys() & COMPLEX.keys()


class TestMeasures:
    """They know complex matrices by their conjugates."""

    def test_measures_of_unitary_matrix(self, double):
        W = haar_unitary(12)
        assert orthogonality_error(W) < rounding(torch.float64, 2 * 12, operations=2)
        assert orthogonality_error(1j * W) < rounding(torch.float64, 2 * 12, operations=2)
        assert spectral_radius(W) == pytest.approx(1)
        assert departure_from_normality(W) < 1e-6

    def test_measures_of_complex_matrices_known_values(self):
        assert orthogonality_error(2j * torch.eye(4, dtype=torch.complex64)) == pytest.approx(6)
        assert spectral_radius(torch.diag(torch.tensor([1 + 1j, 0.5, 1j]))) == pytest.approx(math.sqrt(2))
        assert departure_from_normality(torch.tensor([[1j, 3 + 4j], [0, 2]])) == pytest.approx(5)

    def test_measures_of_real_form_match_complex_matrix(self, double):
        """Frobenius norms of the real form count every entry twice, eigenvalues come with their conjugates."""
        A = random_complex(7)
        assert spectral_radius(realify(A)) == pytest.approx(spectral_radius(A))
        assert orthogonality_error(realify(A)) == pytest.approx(np.sqrt(2) * orthogonality_error(A))
        assert departure_from_normality(realify(A)) == pytest.approx(np.sqrt(2) * departure_from_normality(A))
