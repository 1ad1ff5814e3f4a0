"""Fisher memory: table 6 of nnRNN, closed forms, and the theorems about it."""

import pytest
import torch

from steadygrad.diagnostics import (
    chain,
    delay_line_curve,
    feedforward_bound,
    fisher_memory_curve,
    fisher_memory_matrix,
    ganguli_bound,
)

N = 100
FIRST_UNIT_VECTOR = torch.eye(N, dtype=torch.float64)[0]


@pytest.mark.parametrize(
    ("alpha", "beta", "printed"),
    [
        (0.95, 0, "3.03"),
        (1, 0, "5.19"),
        (1.05, 0, "12.1"),
        (0.95, 5e-3, "3.18"),
        (1, 5e-3, "5.30"),
        (1.05, 5e-3, "12.1"),
    ],
)
def test_fisher_memory_without_diagonal_matches_table_6(alpha, beta, printed):
    total = fisher_memory_curve(chain(N, alpha, beta), FIRST_UNIT_VECTOR).sum()
    assert f"{total:#.3g}" == printed


@pytest.mark.parametrize(
    ("alpha", "beta", "printed"), [(0.95, 0, 12.0), (1, 0, 16.2), (0.95, 5e-3, 12.1), (1, 5e-3, 16.3)]
)
def test_fisher_memory_with_diagonal_is_within_1_5_percent_of_table_6(alpha, beta, printed):
    total = float(fisher_memory_curve(chain(N, alpha, beta, 0.2), FIRST_UNIT_VECTOR).sum())
    assert total == pytest.approx(printed, rel=0.015)


@pytest.mark.parametrize(("beta", "exact"), [(0, 20.83705739), (5e-3, 20.88465737)])
def test_fisher_memory_matches_high_precision_sum_where_table_6_differs(beta, exact):
    """The sums with 400 bits (mpmath); the paper prints 20.5 and 20.4, 1.6 and 2.3 % less."""
    total = float(fisher_memory_curve(chain(N, 1.05, beta, 0.2), FIRST_UNIT_VECTOR).sum())
    assert total == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("radius", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("noise", [1.0, 0.25])
def test_normal_matrix_total_fisher_memory_is_one_over_noise(radius, noise):
    torch.manual_seed(0)
    W = radius * torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q
    v = torch.nn.functional.normalize(torch.randn(12, dtype=torch.float64), dim=0)
    assert float(fisher_memory_curve(W, v, noise).sum()) == pytest.approx(1 / noise, rel=1e-8)


def test_zero_steps_raise_value_error():
    with pytest.raises(ValueError, match="at least one step; got 0"):
        fisher_memory_curve(chain(4, 0.9), FIRST_UNIT_VECTOR[:4], steps=0)


def test_complex_network_matches_real_form_of_twice_the_size():
    """In real form W = A + iB is [[A, −B], [B, A]]; a complex signal stands for both of its parts."""
    torch.manual_seed(0)
    W = 0.2 * torch.randn(6, 6, dtype=torch.complex128)
    v = torch.randn(6, dtype=torch.complex128)
    real = torch.cat([torch.cat([W.real, -W.imag], dim=1), torch.cat([W.imag, W.real], dim=1)])
    expected = fisher_memory_curve(real, torch.cat([v.real, v.imag]), steps=9)
    torch.testing.assert_close(fisher_memory_curve(W, v, steps=9), expected)
    torch.testing.assert_close(fisher_memory_matrix(W, v, steps=9).diagonal().real, expected)
    assert ganguli_bound(v) == pytest.approx(6 * float(v.norm()) ** 2)


@pytest.mark.parametrize("alpha", [0.9, 1.0, 1.1])
def test_delay_line_curve_matches_closed_form(alpha):
    curve = fisher_memory_curve(chain(20, alpha), FIRST_UNIT_VECTOR[:20], noise=2.0, steps=20)
    torch.testing.assert_close(curve, delay_line_curve(alpha, 20, noise=2.0))


@pytest.mark.parametrize("beta", [0.0, 0.002, 0.02])
def test_proposition_1_is_lower_bound_of_curve(beta):
    Theta = chain(20, 1.05, beta)
    curve, bound = fisher_memory_curve(Theta, FIRST_UNIT_VECTOR[:20], steps=20), feedforward_bound(Theta)
    assert (curve >= bound * (1 - 1e-12)).all()
    if beta == 0:
        torch.testing.assert_close(curve, bound)


def test_ill_conditioned_matrix_raises_value_error():
    for W in (chain(160, 1.05, 5e-3, 0.2), chain(400, 9.0)):
        with pytest.raises(ValueError, match="double precision can resolve"):
            fisher_memory_curve(W, torch.eye(len(W), dtype=torch.float64)[0])


def test_total_fisher_memory_is_at_most_ganguli_bound():
    torch.manual_seed(0)
    v = 3 * torch.nn.functional.normalize(torch.randn(30, dtype=torch.float64), dim=0)
    assert ganguli_bound(v, noise=2.0) == pytest.approx(30 * 9 / 2)
    for W in (chain(30, 1.2, 0.01, 0.1), 0.1 * torch.randn(30, 30, dtype=torch.float64)):
        for source in (v, FIRST_UNIT_VECTOR[:30]):
            assert 0 < float(fisher_memory_curve(W, source, noise=2.0).sum()) <= ganguli_bound(source, noise=2.0)


def test_amplifying_delay_line_approaches_ganguli_bound():
    """J(k) → ‖v‖²/ε (1 − 1/α²) for k ≥ 1, so the sum of N steps tends to N ‖v‖²/ε."""
    shares = [
        float(fisher_memory_curve(chain(8, alpha), FIRST_UNIT_VECTOR[:8]).sum()) / ganguli_bound(FIRST_UNIT_VECTOR[:8])
        for alpha in (2, 10)
    ]
    assert shares == pytest.approx([0.8, 0.99], abs=0.02)


@pytest.mark.parametrize("W", [chain(6, 1.3, 0.2, 0.1), chain(6, 0.7, 0.0, 0.9)], ids=["chain", "leaky"])
def test_fisher_memory_summed_over_inputs_equals_ganguli_bound(W):
    totals = [float(fisher_memory_curve(W, v, noise=0.5).sum()) for v in torch.eye(6, dtype=torch.float64)]
    assert sum(totals) == pytest.approx(ganguli_bound(FIRST_UNIT_VECTOR[:6], noise=0.5), rel=1e-8)
    assert max(totals) > 2 * min(totals)


def test_the_matrix_has_the_curve_on_its_diagonal():
    W = chain(8, 0.9, 0.1, 0.2)
    J, curve = (f(W, FIRST_UNIT_VECTOR[:8], steps=12) for f in (fisher_memory_matrix, fisher_memory_curve))
    torch.testing.assert_close(J.diagonal(), curve)
    assert torch.linalg.eigvalsh(J).min() > -1e-12


def test_curve_matches_definition_on_small_network():
    torch.manual_seed(0)
    W, v = 0.4 * torch.randn(5, 5, dtype=torch.float64) / 5**0.5, torch.randn(5, dtype=torch.float64)
    powers = [torch.linalg.matrix_power(W, k) for k in range(200)]
    C = 0.5 * sum(P @ P.mT for P in powers)
    expected = torch.stack([v @ P.mT @ torch.linalg.solve(C, P @ v) for P in powers[:10]])
    torch.testing.assert_close(fisher_memory_curve(W, v, noise=0.5, steps=10), expected)


@pytest.mark.parametrize(
    ("W", "v", "noise", "message"),
    [
        (torch.eye(3), torch.ones(3), 1.0, "spectral radius below 1; got 1"),
        (torch.zeros(3, 2), torch.ones(3), 1.0, "square W"),
        (torch.zeros(3, 3), torch.ones(2), 1.0, "vector v of its size"),
        (torch.zeros(3, 3), torch.ones(3), 0.0, "noise above 0"),
    ],
)
def test_invalid_input_raises_value_error(W, v, noise, message):
    with pytest.raises(ValueError, match=message):
        fisher_memory_curve(W, v, noise)


def test_feedforward_bound_rejects_non_triangular_matrix():
    with pytest.raises(ValueError, match="strictly lower triangular"):
        feedforward_bound(torch.eye(4))
