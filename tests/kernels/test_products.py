"""The product is torch's, for every layout, size and thread count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.kernels import matmul
from steadygrad.kernels.backend import VARIABLE
from tests.backends import needs_c
from tests.rounding import rounding

sizes = st.integers(1, 70) | st.sampled_from([255, 256, 257, 600])


def matrix_with_layout(rows, columns, by_columns, gap, dtype):
    """A random matrix in rows or columns, with or without numbers in between."""
    if by_columns:
        return matrix_with_layout(columns, rows, False, gap, dtype).mT
    return torch.randn(rows, columns + gap, dtype=dtype)[:, :columns]


@given(
    M=sizes,
    N=sizes,
    K=sizes,
    layout=st.tuples(st.booleans(), st.booleans()),
    gap=st.sampled_from([0, 3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    alpha=st.sampled_from([1.0, -0.5]),
    threads=st.integers(1, 3),
)
def test_matmul_matches_torch(M, N, K, layout, gap, dtype, alpha, threads):
    torch.set_num_threads(threads)
    A, B = matrix_with_layout(M, K, layout[0], gap, dtype), matrix_with_layout(K, N, layout[1], gap, dtype)
    C = torch.randn(M, N, dtype=dtype)
    largest = float(A.norm(dim=1).max() * B.norm(dim=0).max()) + float(C.abs().max())
    tolerance = {"rtol": 0, "atol": rounding(dtype, K, scale=largest)}
    torch.testing.assert_close(matmul(A, B, alpha=alpha), alpha * (A @ B), **tolerance)
    expected = C + alpha * (A @ B)
    into = torch.full_like(C, torch.nan)
    assert matmul(A, B, out=into, alpha=alpha) is into
    torch.testing.assert_close(into, alpha * (A @ B), **tolerance)
    assert matmul(A, B, add=C, alpha=alpha) is C
    torch.testing.assert_close(C, expected, **tolerance)


@needs_c
def test_matmul_is_bitwise_equal_for_any_thread_count():
    A, B = torch.randn(130, 300), torch.randn(300, 90)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(matmul(A, B))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("backend", ["python", "reference", "auto"])
def test_matmul_falls_back_for_unsupported_tensors(backend, monkeypatch):
    """Expanded and empty factors, half precision: whatever the kernel does not take, torch does."""
    monkeypatch.setenv(VARIABLE, backend)
    A = torch.randn(4, 5)
    column = torch.randn(5, 1)
    torch.testing.assert_close(matmul(A, column.expand(5, 3)), A @ column.expand(5, 3))
    torch.testing.assert_close(matmul(A, column, add=torch.ones(4, 1), alpha=2.0), 1 + 2 * A @ column)
    torch.testing.assert_close(matmul(A, column, out=torch.empty(4, 1), alpha=2.0), 2 * A @ column)
    torch.testing.assert_close(matmul(A[:, :0], column[:0]), torch.zeros(4, 1))
    torch.testing.assert_close(matmul(A[:, :0], column[:0], add=torch.ones(4, 1)), torch.ones(4, 1))
    torch.testing.assert_close(matmul(A.bfloat16(), column.bfloat16()), A.bfloat16() @ column.bfloat16())
    assert matmul(A[:0], column).shape == (0, 1)


@pytest.mark.parametrize("backend", ["python", "auto"])
def test_matmul_refuses_both_targets(backend, monkeypatch):
    """Otherwise C would add to ``out``, and torch to ``add``."""
    monkeypatch.setenv(VARIABLE, backend)
    A = torch.randn(3, 3)
    with pytest.raises(ValueError, match=r"^matmul expects either out or add; got both$"):
        matmul(A, A, add=torch.zeros(3, 3), out=torch.zeros(3, 3))
