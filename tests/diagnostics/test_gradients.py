"""Gradients of several sequences, measured together, are those of each sequence by itself."""

import pytest
import torch
from torch import nn

from steadygrad.diagnostics import batch_gradient_norms, gradient_norms, gradients
from steadygrad.layers import GRU, LSTM, NNRNN, RNN, SAB, CoRNN, MemLSTM, MemRNN, RelLSTM, RelRNN
from tests.rounding import rounding

TIME, BATCH, UNITS = 12, 4, 5


@pytest.mark.parametrize("at_once", [10**9, 3 * TIME * UNITS, 1], ids=["all", "some", "one"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("make", [RNN, NNRNN, LSTM, GRU, CoRNN, RelRNN, RelLSTM, MemRNN, MemLSTM, SAB, nn.GRU, nn.LSTM])
def test_batch_gradient_norms_equal_those_of_single_sequences(make, batch_first, at_once, monkeypatch):
    monkeypatch.setattr(gradients, "AT_ONCE", at_once)
    module, x = make(3, UNITS, batch_first=batch_first).double(), torch.randn(TIME, BATCH, 3, dtype=torch.float64)
    weight = torch.randn(TIME, BATCH, 2 * UNITS, dtype=torch.float64)

    def loss(outputs, here):
        return (outputs * weight[:, here, : outputs.shape[-1]]).sin().sum()

    found = batch_gradient_norms(module, x, loss)
    single = [gradient_norms(module, x[:, i], lambda o, i=i: loss(o[:, None], slice(i, i + 1))) for i in range(BATCH)]
    expected = torch.stack(single, dim=1)
    # each step back multiplies by matrices of the gates, of norms below 10; sums have at most inputs + units terms
    bound = rounding(torch.float64, 3 + UNITS, 2 * TIME, 10)
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound * float(expected.max()))
    assert found.shape == (TIME, BATCH)
    assert not torch.allclose(found[:, 0], found[:, 1])  # else slices could be confused


def test_batch_gradient_norms_reject_bidirectional_module():
    with pytest.raises(ValueError, match="expects one direction; got a bidirectional module"):
        batch_gradient_norms(GRU(3, 4, bidirectional=True), torch.randn(5, 2, 3), lambda outputs, here: outputs.sum())
