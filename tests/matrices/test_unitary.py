"""Unitary matrices of full capacity: against numpy, against the step of Wisdom et al., back from W, and their drift."""

import copy
import io
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from steadygrad.matrices import ComplexCayley, ComplexExponential, StiefelSteps, build, realify
from steadygrad.matrices.complex import haar_unitary
from tests.rounding import rounding

sizes = st.integers(1, 9)


def skew_hermitian_in_numpy(free: np.ndarray, n: int) -> np.ndarray:
    """A = −Aᴴ of its n² numbers, entry by entry."""
    A, left = np.zeros((n, n), dtype=complex), iter(free)
    for j in range(n):
        for k in range(j):
            A[j, k] = next(left)
    for j in range(n):
        for k in range(j + 1):
            A[j, k] += 1j * next(left)
    return A - np.tril(A, -1).conj().T


def cayley(A: np.ndarray) -> np.ndarray:
    I = np.eye(len(A))
    return np.linalg.solve(I + A, I - A)


def bound(free: torch.Tensor) -> float:
    """Of the Cayley transform of A: solves with I + A, of at most this condition number, back and forth; the check."""
    return rounding(free.dtype, 2 * math.isqrt(len(free)), operations=4, scale=1 + 2 * float(free.norm()))


def assert_unitary(W: torch.Tensor, atol: float) -> None:
    torch.testing.assert_close(W.mH @ W, torch.eye(len(W), dtype=W.dtype), atol=atol, rtol=0)


def unitary_edge_cases(n: int) -> dict[str, torch.Tensor]:
    """Unitary matrices that a plain Cayley transform cannot reach, or that have no gap to choose."""
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.complex128))[0]
    angles = torch.linspace(-math.pi, math.pi, n, dtype=torch.float64)
    ones = torch.ones(n, dtype=torch.complex128)
    return {
        "I": torch.diag(ones),
        "−I": torch.diag(-ones),
        "iI": torch.diag(1j * ones),
        "an eigenvalue −1": Q @ torch.diag(torch.cat([-ones[:1], torch.polar(ones.real, angles / 3)[1:]])) @ Q.mH,
        "all −1 but one": Q @ torch.diag(torch.cat([-ones[1:], ones[:1]])) @ Q.mH,
        "evenly spread": Q @ torch.diag(torch.polar(ones.real, angles * (n - 1) / n)) @ Q.mH,
        "uniformly random": Q,
    }


class TestComplexCayley:
    @given(size=sizes, scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]))
    def test_matrix_matches_numpy(self, size, scale):
        free, theta = scale * torch.randn(size * size, dtype=torch.float64), torch.randn(size, dtype=torch.float64)
        expected = cayley(skew_hermitian_in_numpy(free.numpy(), size)) * np.exp(1j * theta.numpy())
        np.testing.assert_allclose(ComplexCayley(size)(free, theta).numpy(), expected, rtol=0, atol=bound(free))

    def test_known_value(self):
        """n = 1: (1 − ia)/(1 + ia) e^{iθ} turns by θ − 2 atan a."""
        W = ComplexCayley(1)(torch.tensor([0.7]), torch.tensor([0.3]))
        torch.testing.assert_close(W, torch.polar(torch.ones(1, 1), torch.tensor([[0.3 - 2 * math.atan(0.7)]])))

    @given(size=sizes, magnitude=st.floats(-3, 3))
    def test_matrix_is_unitary_for_any_parameters(self, size, magnitude):
        map = ComplexCayley(size)
        free, theta = 10**magnitude * torch.randn(size * size, dtype=torch.float64), torch.randn(size)
        assert_unitary(map(free, theta.double()), bound(free))
        if magnitude <= 1:
            assert_unitary(map(free.float(), theta), bound(free.float()))

    @pytest.mark.parametrize("size", [1, 2, 3, 6])
    def test_gradients_match_finite_differences(self, size):
        free = torch.randn(size * size, dtype=torch.float64, requires_grad=True)
        theta = torch.randn(size, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(ComplexCayley(size), (free, theta))

    @pytest.mark.parametrize("size", [1, 2, 3, 8])
    @pytest.mark.parametrize("which", unitary_edge_cases(2))
    def test_right_inverse_recovers_matrix(self, which, size):
        map, W = ComplexCayley(size), unitary_edge_cases(size)[which]
        free, theta = map.right_inverse(W)
        assert free.shape == (size * size,)
        assert theta.shape == (size,)
        torch.testing.assert_close(map(free, theta), W, rtol=0, atol=bound(free))
        single = map.right_inverse(W.to(torch.complex64))
        assert {f.dtype for f in single} == {torch.float32}
        torch.testing.assert_close(map(*single), W.to(torch.complex64), rtol=0, atol=bound(single[0]))

    def test_right_inverse_bounds_norm_of_parameters(self):
        """The widest gap is at least 2π/n, so ‖A‖₂ = cot(gap/4) at most, where −1 would be infinite."""
        for W in unitary_edge_cases(8).values():
            free, _ = ComplexCayley(8).right_inverse(W)
            assert np.linalg.norm(skew_hermitian_in_numpy(free.numpy(), 8), 2) < 1.01 / math.tan(math.pi / 16)

    def test_right_inverse_of_non_unitary_matrix_gives_nearest_unitary(self):
        M = torch.randn(5, 5, dtype=torch.complex128)
        free, theta = ComplexCayley(5).right_inverse(M)
        W = ComplexCayley(5)(free, theta)
        assert_unitary(W, bound(free))
        P = W.mH @ M  # the polar factor: what is left is Hermitian and positive
        torch.testing.assert_close(P, P.mH, rtol=0, atol=bound(free) * float(M.norm()))
        assert (torch.linalg.eigvalsh(P) > 0).all()

    def test_invalid_input_raises_value_error(self):
        with pytest.raises(ValueError, match="ComplexCayley expects a size of at least 1; got 0"):
            ComplexCayley(0)
        with pytest.raises(ValueError, match=r"ComplexCayley expects a 4 × 4 matrix; got shape \(3, 3\)"):
            ComplexCayley(4).right_inverse(torch.eye(3))
        with pytest.raises(ValueError, match="finite entries; got 1"):
            ComplexCayley(2).right_inverse(torch.tensor([[1, torch.nan], [0, 1j]]))

    def test_builder_initial_angles_match_paper(self):
        """D turns by all angles; A is real, of plane rotations by angles in (−π/2, 0)."""
        matrix = build("complex-cayley", 64, complex=True)
        free, theta = (f.detach() for f in matrix.packed())
        assert theta.min() >= 0
        assert theta.max() <= 2 * math.pi
        assert theta.max() - theta.min() > 5
        R = matrix().detach() * torch.polar(torch.ones(64), -theta)
        zero = rounding(torch.float32, 2 * 2, operations=4)  # planes do not mix: sums of two complex products
        assert R.imag.abs().max() < zero
        pairs = torch.arange(0, 64, 2)
        assert (R.real.diagonal() > 0).all()
        assert (R.real[pairs, pairs + 1] > 0).all()
        assert int((R.abs() > zero).sum()) == 128

    def test_haar_init_starts_at_haar_unitary(self):
        torch.manual_seed(5)
        target = haar_unitary(7)
        torch.manual_seed(5)
        matrix = build({"name": "complex-cayley", "init": "haar"}, 7, complex=True)
        torch.testing.assert_close(matrix(), target, rtol=0, atol=bound(matrix.packed()[0].detach()))

    def test_register_parametrization_makes_complex_weight_unitary(self):
        layer = nn.Linear(5, 5, dtype=torch.complex64)
        P = layer.weight.detach().clone()
        register_parametrization(layer, "weight", ComplexCayley(5), unsafe=True)  # real numbers behind complex ones
        atol = bound(layer.parametrizations.weight.original0.detach())
        assert_unitary(layer.weight, atol)
        P = layer.weight.mH @ P
        torch.testing.assert_close(P, P.mH, rtol=0, atol=atol)
        layer(torch.randn(2, 5, dtype=torch.complex64)).abs().sum().backward()
        assert layer.parametrizations.weight.original0.grad.shape == (25,)


def exponential_bound(free: torch.Tensor) -> float:
    """Of the exponential: four products and as many squarings as ‖L‖ has powers of two; L itself is off by eps ‖L‖."""
    norm = 1 + 2 * float(free.norm())
    return rounding(free.dtype, 2 * math.isqrt(len(free)), operations=8 + math.log2(norm), scale=norm)


class TestComplexExponential:
    @given(size=sizes, scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]))
    def test_exponential_matches_numpy_eigendecomposition(self, size, scale):
        """In numpy: L = V diag(iθ) Vᴴ, exp(L) = V diag(e^{iθ}) Vᴴ."""
        free = scale * torch.randn(size * size, dtype=torch.float64)
        angles, V = np.linalg.eigh(-1j * skew_hermitian_in_numpy(free.numpy(), size))
        expected = (V * np.exp(1j * angles)) @ V.conj().T
        W = ComplexExponential(size)(free)
        np.testing.assert_allclose(W.numpy(), expected, rtol=0, atol=exponential_bound(free))
        assert_unitary(W, exponential_bound(free))

    def test_known_values(self):
        """n = 1: e^{ia}. A Pauli matrix: exp(iaX) = cos a + i sin a X."""
        W = ComplexExponential(1)(torch.tensor([0.7]))
        torch.testing.assert_close(W, torch.polar(torch.ones(1, 1), torch.tensor([[0.7]])))
        W = ComplexExponential(2)(torch.tensor([0.0, 0.0, 0.3, 0.0]))
        c, s = math.cos(0.3), math.sin(0.3)
        torch.testing.assert_close(W, torch.tensor([[c, 1j * s], [1j * s, c]]))

    @pytest.mark.parametrize("size", [1, 2, 3, 6])
    def test_gradients_match_finite_differences(self, size):
        free = (2 * torch.randn(size * size, dtype=torch.float64)).requires_grad_()
        assert torch.autograd.gradcheck(ComplexExponential(size), (free,))

    @pytest.mark.parametrize("size", [1, 2, 3, 8])
    @pytest.mark.parametrize("which", unitary_edge_cases(2))
    def test_right_inverse_recovers_matrix(self, which, size):
        map, W = ComplexExponential(size), unitary_edge_cases(size)[which]
        (free,) = map.right_inverse(W)
        assert free.shape == (size * size,)
        # the Cayley transform on the way has entries up to cot(π/2n)
        pole = 1 / math.tan(math.pi / (2 * size + 2))
        torch.testing.assert_close(map(free), W, rtol=0, atol=pole * exponential_bound(free))
        assert np.linalg.norm(skew_hermitian_in_numpy(free.numpy(), size), 2) < math.pi + pole * exponential_bound(free)
        (single,) = map.right_inverse(W.to(torch.complex64))
        assert single.dtype == torch.float32
        torch.testing.assert_close(map(single), W.to(torch.complex64), rtol=0, atol=exponential_bound(single))

    def test_right_inverse_of_non_unitary_matrix_gives_nearest_unitary(self):
        M = torch.randn(5, 5, dtype=torch.complex128)
        map = ComplexExponential(5)
        (free,) = map.right_inverse(M)
        P = map(free).mH @ M  # the polar factor: what is left is Hermitian and positive
        torch.testing.assert_close(P, P.mH, rtol=0, atol=10 * exponential_bound(free) * float(M.norm()))
        assert (torch.linalg.eigvalsh(P) > 0).all()

    def test_henaff_init_is_real_and_haar_init_is_haar_unitary(self):
        """Real rotations by Henaff's angles, or a uniformly random unitary matrix."""
        W = build("complex-exponential", 64, complex=True)()
        assert W.imag.abs().max() < rounding(torch.float32, 4, operations=8)
        torch.manual_seed(5)
        target = haar_unitary(7)
        torch.manual_seed(5)
        matrix = build({"name": "complex-exponential", "init": "haar"}, 7, complex=True)
        torch.testing.assert_close(matrix(), target, rtol=0, atol=exponential_bound(matrix.packed()[0].detach()))

    def test_invalid_input_raises_value_error(self):
        with pytest.raises(ValueError, match="ComplexExponential expects a size of at least 1; got 0"):
            ComplexExponential(0)
        with pytest.raises(ValueError, match=r"ComplexExponential expects a 4 × 4 matrix; got shape \(3, 3\)"):
            ComplexExponential(4).right_inverse(torch.eye(3))


class TestStiefelSteps:
    def gradient(self, W: np.ndarray, target: np.ndarray) -> np.ndarray:
        """∂L/∂Re W + i ∂L/∂Im W of L = Σ |W − target|⁴ / 4."""
        return np.abs(W - target) ** 2 * (W - target)

    def loss(self, W: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (W - target).abs().pow(4).sum() / 4

    @pytest.mark.parametrize("full_diagonal", [False, True])
    @pytest.mark.parametrize("size", [1, 2, 3, 6])
    @pytest.mark.parametrize("lr", [0.01, 0.5])
    def test_sgd_step_matches_wisdom_et_al(self, size, lr, full_diagonal, double):
        """W ← (I + λ/2 G̃)⁻¹ (I − λ/2 G̃) W,  G̃ = G Wᴴ − W Gᴴ with half its diagonal, or with all of it.

        At A = 0, dW = −dA W and dL = Re tr(Gᴴ dW) = −½ Re tr(G̃'ᴴ dA), G̃' = G Wᴴ − W Gᴴ, the skew-Hermitian gradient
        of Wisdom et al. An entry off the diagonal of A stands in it twice, one on the diagonal once. So the packed
        numbers have the gradient −G̃' off the diagonal and −½ G̃' on it: plain descent on them is their step with
        their λ, but half as fast along the phases on the diagonal. With ``full_diagonal`` the diagonal of A is √2
        times its numbers, whose gradient is √2 times as large, and the step is theirs.
        """
        matrix = build({"name": "stiefel", "full_diagonal": full_diagonal}, size, complex=True)
        target = torch.randn(size, size, dtype=torch.complex128)
        optimizer = torch.optim.SGD(matrix.parameters(), lr=lr)
        W = matrix().detach().numpy()
        for _ in range(4):
            optimizer.zero_grad()
            self.loss(matrix(), target).backward()
            optimizer.step()
            G = self.gradient(W, target.numpy())
            S = G @ W.conj().T - W @ G.conj().T
            diagonal = np.diag(np.diag(S))
            np.testing.assert_allclose(
                skew_hermitian_in_numpy(matrix.skew.grad[0].numpy(), size),
                diagonal - S - diagonal / (math.sqrt(2) if full_diagonal else 2),
                atol=1e-11,
            )
            W = cayley(lr / 2 * (S if full_diagonal else S - diagonal / 2)) @ W
            np.testing.assert_allclose(matrix().detach().numpy(), W, rtol=0, atol=1e-11)

    def test_small_steps_decrease_loss(self, double):
        matrix = build("stiefel", 6, complex=True)
        target = haar_unitary(6)
        optimizer = torch.optim.SGD(matrix.parameters(), lr=0.02)
        losses = []
        for _ in range(50):
            optimizer.zero_grad()
            losses.append(self.loss(matrix(), target))
            losses[-1].backward()
            optimizer.step()
        assert all(b < a for a, b in pairwise(losses))

    @pytest.mark.parametrize("full_diagonal", [False, True])
    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_gradients_match_finite_differences_away_from_zero(self, size, full_diagonal, double):
        matrix = build({"name": "stiefel", "full_diagonal": full_diagonal}, size, complex=True).eval()
        free = torch.randn(size * size, requires_grad=True)
        assert torch.autograd.gradcheck(matrix.map, (free,))

    @given(size=sizes, scale=st.sampled_from([0.1, 1.0, 10.0]))
    def test_matrix_matches_numpy(self, size, scale):
        map = StiefelSteps(size).double().eval()
        B = torch.linalg.qr(torch.randn(size, size, dtype=torch.complex128))[0]
        map.right_inverse(B)
        free = scale * torch.randn(size * size, dtype=torch.float64)
        expected = cayley(skew_hermitian_in_numpy(free.numpy(), size) / 2) @ B.numpy()
        np.testing.assert_allclose(map(free).numpy(), expected, rtol=0, atol=bound(free))
        assert_unitary(map(free), bound(free))

    def test_an_update_moves_the_base_and_not_the_matrix(self, double):
        matrix = build("stiefel", 5, complex=True)
        for _ in range(3):
            with torch.no_grad():
                matrix.packed()[0].add_(torch.randn(25))
                atol = bound(matrix.packed()[0])
                before = matrix().clone()
                assert matrix.packed()[0].any()
            after = matrix()
            torch.testing.assert_close(after, before, rtol=0, atol=atol)
            assert not matrix.packed()[0].any()
            torch.testing.assert_close(matrix.map.base, realify(after.detach()), rtol=0, atol=atol)

    @pytest.mark.parametrize("how", ["eval", "no_grad", "unchanged"])
    def test_only_an_update_in_training_moves_the_base(self, how):
        matrix = build("stiefel", 5, complex=True)
        base = matrix.map.base.clone()
        if how != "unchanged":
            with torch.no_grad():
                matrix.packed()[0].normal_()
        if how == "eval":
            matrix.eval()
        with torch.set_grad_enabled(how != "no_grad"):
            first = matrix().detach().clone()
            for _ in range(3):
                assert torch.equal(matrix(), first)
        assert torch.equal(matrix.map.base, base)
        assert bool(matrix.packed()[0].any()) == (how != "unchanged")

    def test_gradients_of_several_losses_accumulate(self, double):
        matrix = build("stiefel", 4, complex=True)
        targets = [haar_unitary(4), haar_unitary(4)]
        for target in targets:
            self.loss(matrix(), target).backward()
        added = matrix.free[0].grad.clone()
        matrix.zero_grad()
        W = matrix()
        sum(self.loss(W, target) for target in targets).backward()
        torch.testing.assert_close(added, matrix.free[0].grad)

    @pytest.mark.parametrize("size", [1, 2, 3, 8])
    @pytest.mark.parametrize("which", unitary_edge_cases(2))
    def test_right_inverse_recovers_matrix(self, which, size):
        map, W = StiefelSteps(size).double(), unitary_edge_cases(size)[which]
        (free,) = map.right_inverse(W)
        assert free.shape == (size * size,)
        assert not free.any()
        torch.testing.assert_close(map(free), W, rtol=0, atol=bound(free))

    @pytest.mark.parametrize("evaluations", [0, 1])
    def test_training_resumed_from_state_dict_is_bitwise_equal(self, evaluations):
        """Whether the last update has already moved the base or not."""

        def updates(matrix, optimizer, count):
            generator = torch.Generator().manual_seed(2)
            for _ in range(count):
                optimizer.zero_grad()
                matrix().backward(torch.randn(6, 6, generator=generator, dtype=torch.complex64))
                optimizer.step()

        matrix = build("stiefel", 6, complex=True)
        optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-2)
        updates(matrix, optimizer, 5)
        for _ in range(evaluations):
            matrix()
        assert bool(matrix.packed()[0].any()) == (not evaluations)
        file = io.BytesIO()
        torch.save([matrix.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        state, moments = torch.load(file, weights_only=True)
        resumed = build("stiefel", 6, complex=True)
        resumed.load_state_dict(state)
        again = torch.optim.Adam(resumed.parameters(), lr=1e-2)
        again.load_state_dict(moments)
        with torch.no_grad():
            assert torch.equal(matrix(), resumed())
        updates(matrix, optimizer, 40)
        updates(resumed, again, 40)
        assert torch.equal(matrix(), resumed())

    def test_double_after_float32_training_is_unitary_to_double_precision(self):
        matrix = build("stiefel", 16, complex=True)
        optimizer = torch.optim.SGD(matrix.parameters(), lr=1e-2)
        for _ in range(20):
            matrix.skew.grad = torch.randn_like(matrix.skew)
            optimizer.step()
            matrix()
        before = matrix().detach()
        after = copy.deepcopy(matrix).double()()
        double, single = (rounding(dtype, 2 * 16, operations=4) for dtype in (torch.float64, torch.float32))
        assert_unitary(after, double)
        torch.testing.assert_close(after.to(torch.complex64), before, rtol=0, atol=single)

    def test_orthogonality_error_does_not_grow_over_1000_updates(self):
        """Size 8, 1000 updates: as unitary at the end as after ten of them."""
        matrix = build("stiefel", 8, complex=True)
        optimizer = torch.optim.SGD(matrix.parameters(), lr=1e-2)
        errors = []
        for _ in range(1000):
            matrix.skew.grad = torch.randn_like(matrix.skew)
            optimizer.step()
            errors.append(largest_defect(matrix().detach()))
        # a solve, a product and the polish; a thousand updates that added up would be at 300 times as much
        bound = rounding(torch.float32, 2 * 8, operations=3)
        assert max(errors[:10]) < bound
        assert max(errors) < bound

    def test_invalid_input_raises_value_error(self):
        with pytest.raises(ValueError, match="StiefelSteps expects a size of at least 1; got 0"):
            StiefelSteps(0)
        with pytest.raises(ValueError, match=r"StiefelSteps expects a 4 × 4 matrix; got shape \(3, 3\)"):
            StiefelSteps(4).right_inverse(torch.eye(3))
        with pytest.raises(ValueError, match=r"expects 9 numbers for size 3; got shape \(8,\)"):
            StiefelSteps(3)(torch.zeros(8))


def largest_defect(W: torch.Tensor) -> float:
    """max |WᴴW − I|."""
    W = W.to(torch.complex128)
    return float((W.mH @ W - torch.eye(len(W), dtype=W.dtype)).abs().max())


DRIFTING = [
    "stiefel",
    "complex-cayley",
    "complex-exponential",
    "evolution",
    "givens",
    {"name": "givens", "style": "fft"},
]


@pytest.mark.parametrize("spec", DRIFTING, ids=str)
def test_stays_unitary_over_999_updates(spec):
    """Single precision, size 128, Adam at 1e-3 on random gradients."""
    matrix = build(spec, 128, complex=True)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
    start, worst = matrix().detach(), 0.0
    for k in range(999):
        for f in matrix.free:
            f.grad = torch.randn_like(f)
        optimizer.step()
        if k % 37 == 0:
            worst = max(worst, largest_defect(matrix().detach()))
        elif isinstance(matrix.map, StiefelSteps):
            matrix.map.step(matrix.packed()[0])  # as an evaluation would do first; the others have no memory
    end = matrix().detach()
    assert max(worst, largest_defect(end)) < 1e-4
    assert (end - start).norm() > 0.1  # it did go somewhere
