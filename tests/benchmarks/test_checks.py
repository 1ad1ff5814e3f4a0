"""benchmarks/checks.py: the checks that it times are those of the layers, and they are put back."""

import torch

from benchmarks import checks
from steadygrad.kernels import native
from steadygrad.layers import GRU


def test_checks_are_recorded_and_put_back():
    before = native.addresses
    with checks.recorded() as calls:
        GRU(3, 4)(torch.randn(5, 2, 3))
    assert native.addresses is before
    assert len(calls) >= 3
    checks.repeated(calls, 2)()


def test_rows_have_times_and_share():
    for row in (checks.update_row(0.01), checks.call_row("rnn", 0.01)):
        assert len(row) == 5
        assert 0 < float(row[-1].rstrip("%")) < 100
