"""The real Schur form: its spectrum is what it says, its numbers are those of the authors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.matrices import RealSchur, build, departure_from_normality, skew_free


def random_free(size, in_block, scale=1.0):
    basis, theta, gamma, T = (torch.randn(k, dtype=torch.float64) for k in RealSchur.free_sizes(size, in_block))
    return basis, 3 * theta, 1 + 0.1 * gamma, scale * T


@given(size=st.integers(1, 11))
def test_spectrum_depends_only_on_moduli_and_angles(size):
    basis, theta, gamma, T = random_free(size, False, scale=0.5)
    # far enough apart: eigenvalues that meet are ill-conditioned in any matrix that is not normal
    gamma = 1 + 0.1 * torch.arange(len(gamma), dtype=torch.float64)
    found = torch.linalg.eigvals(RealSchur(size)(basis, theta, gamma, T))
    moduli = torch.cat([gamma[: len(theta)].repeat_interleave(2), gamma[len(theta) :]])
    torch.testing.assert_close(found.abs().sort().values, moduli.sort().values, rtol=0, atol=1e-10)
    angles = torch.cat([theta, -theta, torch.zeros(size % 2, dtype=torch.float64)])
    cosines = (found.real / found.abs()).sort().values
    torch.testing.assert_close(cosines, angles.cos().sort().values, rtol=0, atol=1e-8)


def test_in_block_entries_change_spectrum_by_known_formula():
    """γ cos θ ± √(γ sin θ (−t − γ sin θ)) for a block with t below its diagonal."""
    theta, gamma, t = torch.tensor([0.7]), torch.tensor([0.9]), torch.tensor([-0.8])
    W = RealSchur(2, in_block=True)(torch.tensor([0.3]), theta, gamma, t)
    s = gamma * theta.sin()
    root = torch.sqrt(-s * (t + s) + 0j)
    expected = torch.cat([gamma * theta.cos() + root, gamma * theta.cos() - root])
    found = torch.linalg.eigvals(W)
    torch.testing.assert_close(found.real.sort().values, expected.real.sort().values)


@pytest.mark.parametrize(("size", "in_block", "sizes"), [
    (128, True, (8128, 64, 64, 8128)),
    (128, False, (8128, 64, 64, 8064)),
    (5, False, (10, 2, 3, 8)),
    (1, True, (0, 0, 1, 0)),
])  # fmt: skip
def test_free_sizes(size, in_block, sizes):
    assert RealSchur.free_sizes(size, in_block) == sizes
    assert tuple(f.numel() for f in build({"name": "schur", "in_block": in_block}, size).free) == sizes


def test_core_is_block_lower():
    """With P = I the matrix is its core: rotations on the diagonal, T below, row by row."""
    theta, gamma = torch.tensor([0.5, 1.0]), torch.tensor([1.0, 2.0, 3.0])
    T = torch.arange(1.0, 9.0)
    W = RealSchur(5)(torch.zeros(10), theta, gamma, T)
    c, s = gamma[:2] * theta.cos(), gamma[:2] * theta.sin()
    expected = torch.tensor([
        [c[0], -s[0], 0, 0, 0],
        [s[0], c[0], 0, 0, 0],
        [1, 2, c[1], -s[1], 0],
        [3, 4, s[1], c[1], 0],
        [5, 6, 7, 8, 3],
    ])  # fmt: skip
    torch.testing.assert_close(W, expected)
    printed = RealSchur(5, in_block=True)(torch.zeros(10), theta, gamma, torch.arange(1.0, 11.0))
    expected = torch.tensor([
        [c[0], -s[0], 0, 0, 0],
        [s[0] + 1, c[0], 0, 0, 0],
        [2, 3, c[1], -s[1], 0],
        [4, 5, s[1] + 6, c[1], 0],
        [7, 8, 9, 10, 3],
    ])  # fmt: skip
    torch.testing.assert_close(printed, expected)


@pytest.mark.parametrize("in_block", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_gradients_match_finite_differences(size, in_block):
    free = tuple(f.requires_grad_() for f in random_free(size, in_block))
    assert torch.autograd.gradcheck(RealSchur(size, in_block), free)


def test_schur_matches_nnrnn_oracle(oracle):
    data = oracle("nnrnn")
    map = RealSchur(12, in_block=True)
    free = skew_free(-data["log_P"].mT), -data["theta"], data["gamma"], skew_free(data["T"])
    free = tuple(f.clone().requires_grad_() for f in free)
    V = map(*free)
    torch.testing.assert_close(V, data["V"], rtol=1e-9, atol=1e-12)
    V.backward(data["grad_V"])
    basis, theta, gamma, T = (f.grad for f in free)

    def close(ours, theirs):
        return torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)

    close(basis, skew_free(-data["grad_log_P"].mT))
    close(theta, -data["grad_theta"])
    close(gamma, data["grad_gamma"])
    close(T, skew_free(data["grad_T"]))


def test_transients_make_it_non_normal():
    matrix = build("schur", 8)
    assert departure_from_normality(matrix()) < 1e-2
    with torch.no_grad():
        matrix.packed()[3].add_(1)
    # ‖Λ + T‖_F² = ‖Λ‖_F² + ‖T‖_F², and P changes nothing
    assert departure_from_normality(matrix()) == pytest.approx(24**0.5, rel=1e-3)


def test_wrong_parameter_lengths_raise_value_error():
    basis, theta, gamma, T = random_free(6, False)
    with pytest.raises(ValueError, match=r"RealSchur of size 6 expects 3 numbers in theta; got shape \(2,\)"):
        RealSchur(6)(basis, theta[:2], gamma, T)
    with pytest.raises(ValueError, match=r"expects 15 numbers in T; got shape \(12,\)"):
        RealSchur(6, in_block=True)(basis, theta, gamma, T)


@pytest.mark.parametrize("name", ["schur", "complex-schur"])
def test_fixed_modulus_is_not_trained(name):
    matrix = build({"name": name, "modulus": 0.9}, 6, complex=name != "schur")
    optimizer = torch.optim.Adam(matrix.parameters(), lr=0.01)
    before = matrix().detach()
    for _ in range(3):
        optimizer.zero_grad()
        matrix().abs().square().mul(torch.arange(6)).sum().backward()
        optimizer.step()
    assert not torch.allclose(matrix(), before, atol=1e-3)
    torch.testing.assert_close(torch.linalg.eigvals(matrix()).abs(), torch.full((6,), 0.9), rtol=0, atol=1e-3)


def test_invalid_modulus_raises_value_error():
    for modulus in (0.0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match=f"RealSchur expects a modulus above 0, or None .* got {modulus!r}"):
            build({"name": "schur", "modulus": modulus}, 6)
