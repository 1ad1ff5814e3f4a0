"""Gradients through attention: against autograd, closed forms, and the theorems of the thesis, section 4.4."""

import math
from itertools import pairwise

import pytest
import torch

from steadygrad.diagnostics import (
    attention_gradients,
    cancelling_attention,
    dependency_depths,
    relay_attention,
    sparse_attention,
    sparse_attention_bound,
    uniform_attention,
    uniform_attention_rate,
)

NO_ATTENTION = sparse_attention([()] * 12)
RANDOM_SPARSE = sparse_attention([{0}, {0, 1}, {1}, {0, 3}, (), {2, 3, 5}, {6}, {1, 4}, {0, 8}, {9}, {2, 3}, {5, 6, 7}])


def matrix_of_size_one(eigenvalue):
    return torch.tensor([[eigenvalue]], dtype=torch.complex128 if isinstance(eigenvalue, complex) else torch.float64)


def unrolled_recurrence(V, weights, start, h):
    """The recurrence as it is written, one vector at a time, from a given h at ``start``; h before it is random."""
    generator = torch.Generator().manual_seed(1)
    states = [torch.randn(len(V), dtype=V.dtype, generator=generator) for _ in range(start)] + [h]
    outputs = []
    for t in range(start, len(weights)):
        outputs.append(states[t] + sum(weights[t, i] * states[i] for i in range(t + 1)))
        states.append(V @ outputs[-1])
    return torch.stack(outputs)


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize(
    "weights", [uniform_attention(12), RANDOM_SPARSE, NO_ATTENTION], ids=["uniform", "sparse", "none"]
)
def test_attention_gradients_match_autograd_of_recurrence(weights, start):
    V = 0.6 * torch.randn(4, 4, dtype=torch.float64)  # not normal
    h = torch.randn(4, dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda h: unrolled_recurrence(V, weights, start, h), h).reshape(
        -1, 4, 4
    )
    torch.testing.assert_close(attention_gradients(V, weights, start), expected, rtol=1e-10, atol=1e-10)


def test_gradients_without_attention_are_powers_of_v():
    V = torch.randn(3, 3, dtype=torch.float64)
    powers = torch.stack([torch.linalg.matrix_power(V, k) for k in range(12)])
    torch.testing.assert_close(attention_gradients(V, NO_ATTENTION), powers)


# theorem 4.4.2: uniform attention


@pytest.mark.parametrize("eigenvalue", [-0.9, -0.5, 0.2, 0.5, 0.8, 0.9j, 0.3 - 0.6j])
def test_uniform_attention_gradients_match_generating_function(eigenvalue):
    """dh_T/dh_0 is the coefficient of xᵀ in (1 − x)^{−a} (1 − λx)^{a−1}."""
    a = eigenvalue / (1 - eigenvalue)
    left, right = [1 + 0j], [1 + 0j]
    for n in range(40):
        left.append(left[-1] * (a + n) / (n + 1))
        right.append(right[-1] * eigenvalue * (1 - a + n) / (n + 1))
    states = [sum(left[i] * right[n - i] for i in range(n + 1)) for n in range(41)]
    expected = torch.tensor(states[1:], dtype=torch.complex128) / eigenvalue
    found = attention_gradients(matrix_of_size_one(complex(eigenvalue)), uniform_attention(40))[:, 0, 0]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_uniform_attention_gradients_match_closed_form_at_half_and_zero():
    """λ = ½ copies h for ever, so s = 2h; λ = 0 leaves the direct share of 1/T alone."""
    gradients = attention_gradients(torch.diag(torch.tensor([0.5, 0.0])), uniform_attention(30))
    torch.testing.assert_close(gradients[:, 0, 0], torch.full((30,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(gradients[1:, 1, 1], 1 / torch.arange(2, 31, dtype=torch.float64))


@pytest.mark.parametrize("start", [0, 7])
def test_uniform_attention_gradients_decay_at_predicted_rate(start):
    eigenvalues = [-0.9, -0.5, 0.0, 0.3, 0.5, 0.6, 0.9j, 0.2 + 0.5j]
    V = torch.diag(torch.tensor(eigenvalues, dtype=torch.complex128))
    gradients = attention_gradients(V, uniform_attention(800), start).diagonal(dim1=1, dim2=2).abs()
    slopes = (gradients[799 - start] / gradients[399 - start]).log() / math.log(2)
    rates = [uniform_attention_rate(eigenvalue) for eigenvalue in eigenvalues]
    assert slopes.tolist() == pytest.approx(rates, abs=3e-3)
    for eigenvalue, slope in zip(eigenvalues, slopes.tolist(), strict=True):
        assert (slope > -1.001) == (complex(eigenvalue).real >= abs(eigenvalue) ** 2)


@pytest.mark.parametrize("eigenvalue", [0.0, 0.1, 0.7, 1.0])
def test_nonnegative_eigenvalue_keeps_gradient_above_one_over_t(eigenvalue):
    gradients = attention_gradients(matrix_of_size_one(eigenvalue), uniform_attention(200), start=3)[:, 0, 0]
    assert (gradients * torch.arange(4, 201) >= 1 - 1e-12).all()


def test_negative_eigenvalue_gradient_falls_below_one_over_t():
    """A counterexample to theorem B.1.34 as it is stated: V = −½ I is normal with moduli below 1."""
    gradients = attention_gradients(matrix_of_size_one(-0.5), uniform_attention(1600))[:, 0, 0].abs()
    shares = [float(gradients[T - 1] * T) for T in (200, 400, 800, 1600)]
    for share, twice_as_far in pairwise(shares):
        assert twice_as_far / share == pytest.approx(2 ** (-1 / 3), rel=3e-3)


# theorem 4.4.3: sparse attention


def test_dependency_depths_match_hand_computed_example():
    """0 → s_3 by attention, h_4 after it, s_6 attends to h_4; meanwhile only the recurrence carries on."""
    weights = sparse_attention([{0}, {1}, {2}, {0, 1}, {4}, {5}, {4, 6}, {6}])
    assert dependency_depths(weights) == [0, 1, 2, 0, 1, 2, 1, 2]
    assert dependency_depths(weights, start=4) == [0, 1, 0, 1]


def test_dependency_depth_is_lowest_power_of_v_in_gradient():
    """With a delay line for V the first column of a gradient holds the coefficients of V⁰, V¹, …"""
    line = torch.eye(12, dtype=torch.float64).roll(1, 0).tril()
    for weights in (RANDOM_SPARSE, NO_ATTENTION, uniform_attention(12), cancelling_attention(12)):
        for start in (0, 2):
            coefficients = attention_gradients(line, weights, start)[:, :, 0]
            assert dependency_depths(weights, start) == (coefficients != 0).int().argmax(1).tolist()


@pytest.mark.parametrize(("kappa", "eigenvalue"), [(1, 0.5), (2, 0.5), (5, 0.5), (3, 0.2), (3, -0.4)])
def test_relay_attention_gradient_matches_closed_form_per_block(kappa, eigenvalue):
    """Once block b has settled its gradient is λᵇ/(κ(1 − λ))ᵇ⁺¹; that is 2/κᵇ⁺¹ for λ = ½."""
    weights, start = relay_attention(200, kappa, depth=3), kappa - 1
    assert set((weights > 0).sum(1)[start:].tolist()) == {kappa}
    block = (200 - start) // 4
    ends = [block - 1, 2 * block - 1, 3 * block - 1, 199 - start]
    depths = dependency_depths(weights, start)
    assert (max(depths), [depths[k] for k in ends]) == (3, [0, 1, 2, 3])
    gradients = attention_gradients(matrix_of_size_one(eigenvalue), weights, start)[:, 0, 0]
    expected = [eigenvalue**b / (kappa * (1 - eigenvalue)) ** (b + 1) for b in range(4)]
    assert gradients[ends].tolist() == pytest.approx(expected, rel=1e-10, abs=0)


@pytest.mark.parametrize("eigenvalue", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    ("weights", "start", "kappa"), [(relay_attention(60, 3, 4), 2, 3), (cancelling_attention(60), 0, 1)]
)
def test_sparse_attention_stays_above_its_bound(eigenvalue, weights, start, kappa):
    gradients = attention_gradients(matrix_of_size_one(eigenvalue), weights, start)[:, 0, 0].tolist()
    for gradient, depth in zip(gradients, dependency_depths(weights, start), strict=True):
        assert gradient >= sparse_attention_bound(eigenvalue, kappa, depth) * (1 - 1e-12)


def test_lowest_coefficient_is_power_of_one_over_kappa():
    """A single way has the fewest factors V, and it has one weight more than factors."""
    line = torch.eye(3, dtype=torch.float64).roll(1, 0).tril()  # its powers end with the second
    coefficients = attention_gradients(line, relay_attention(31, 4, 2), start=3)[:, :, 0]
    for end, lowest in ((8, [1 / 4]), (17, [0, 1 / 16]), (27, [0, 0, 1 / 64])):  # blocks of 9 from state 3 on
        assert coefficients[end].tolist()[: len(lowest)] == lowest


def test_negative_eigenvalue_paths_cancel_to_zero_gradient():
    weights = cancelling_attention(90)
    assert max(dependency_depths(weights)) == 1
    gradients = attention_gradients(matrix_of_size_one(-0.5), weights)[:, 0, 0]
    assert not gradients[2::3].any()
    assert gradients[0::3].abs().min() >= 1


# bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_gradients(torch.zeros(2, 3), NO_ATTENTION), r"square V; got shape \(2, 3\)"),
        (
            lambda: attention_gradients(matrix_of_size_one(0.5), torch.zeros(3)),
            r"square table of weights.*got shape \(3,\)$",
        ),
        (
            lambda: attention_gradients(matrix_of_size_one(0.5), torch.zeros(3, 4)),
            r"square table of weights.*got shape \(3, 4\)$",
        ),
        (lambda: attention_gradients(matrix_of_size_one(0.5), torch.ones(3, 3)), "with weights on the future"),
        (
            lambda: attention_gradients(matrix_of_size_one(0.5), NO_ATTENTION, start=12),
            "start among states 0 … 11; got 12",
        ),
        (lambda: dependency_depths(NO_ATTENTION, start=-1), "got -1"),
        (lambda: sparse_attention([{0}, {2}]), r"state 1 to attend to states 0 … 1; got \[2\]"),
        (lambda: relay_attention(5, 3, 3), "got kappa 3, depth 3, length 5"),
        (lambda: relay_attention(5, 0, 1), "kappa of at least 1"),
        (lambda: uniform_attention_rate(1.0), "modulus below 1; got 1.0"),
        (lambda: sparse_attention_bound(-0.5, 1, 1), "eigenvalue above 0.*got -0.5"),
    ],
)
def test_invalid_input_raises_value_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
