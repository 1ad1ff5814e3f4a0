"""Modules for TorchRL: the same outputs and gradients as its own split and pad, and a rollout step by step."""

import pytest
import torch
from torch.testing import assert_close

from steadygrad.layers import GRU, LAYERS, LSTM, RelLSTM
from tests.rounding import rounding

pytest.importorskip("torchrl", reason="TorchRL is not installed: pip install 'steadygrad[rl]'")

from tensordict import TensorDict
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode

from steadygrad.integrations.torchrl import LayerModule, LSTMLayerModule

I, N, BATCH, TIME = 3, 5, 4, 7
pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL itself
BOUND = rounding(torch.float64, N + I, 2 * TIME, 10.0)


def data():
    is_init = torch.rand(BATCH, TIME, 1) < 0.3
    is_init[:, 0] = True
    return TensorDict({"x": torch.randn(BATCH, TIME, I, dtype=torch.float64), "is_init": is_init}, [BATCH, TIME])


def test_gru_module_equals_torchrls_split_and_pad():
    theirs = torch.nn.GRU(I, N, batch_first=True, dtype=torch.float64)
    ours = GRU(I, N, reset="after", batch_first=True, dtype=torch.float64)
    with torch.no_grad():  # torch's update gate is 1 − ours; it adds b_hn inside the reset gate, here 0
        signs = torch.ones(3 * N, 1, dtype=torch.float64)
        signs[N : 2 * N] = -1
        theirs.bias_hh_l0.zero_()
        ours.bias_hn_l0.zero_()
        ours.weight_ih_l0.copy_(theirs.weight_ih_l0 * signs)
        ours.bias_ih_l0.copy_(theirs.bias_ih_l0 * signs[:, 0])
        ours.weight_hh_l0.copy_(theirs.weight_hh_l0 * signs)
    keys = {"in_keys": ["x", "rs"], "out_keys": ["y", ("next", "rs")]}
    given = data()
    with set_recurrent_mode(True):
        expected = GRUModule(gru=theirs, **keys)(given.clone())
        found = LayerModule(ours, **keys)(given.clone())
    assert_close(found["y"], expected["y"], rtol=0, atol=BOUND)
    assert_close(found["next", "rs"][:, -1], expected["next", "rs"][:, -1], rtol=0, atol=BOUND)
    weight = torch.randn_like(expected["y"])
    (found["y"] * weight).sum().backward()
    (expected["y"] * weight).sum().backward()
    assert_close(ours.weight_ih_l0.grad * signs, theirs.weight_ih_l0.grad, rtol=0, atol=10 * BOUND)


def test_lstm_module_equals_torchrls_split_and_pad():
    theirs = torch.nn.LSTM(I, N, batch_first=True, dtype=torch.float64)
    ours = LSTM(I, N, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        ours.weight_ih_l0.copy_(theirs.weight_ih_l0)
        ours.bias_ih_l0.copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
        ours.weight_hh_l0.copy_(theirs.weight_hh_l0)
    keys = {"in_keys": ["x", "h", "c"], "out_keys": ["y", ("next", "h"), ("next", "c")]}
    given = data()
    with set_recurrent_mode(True):
        expected = LSTMModule(lstm=theirs, **keys)(given.clone())
        found = LSTMLayerModule(ours, **keys)(given.clone())
    assert_close(found["y"], expected["y"], rtol=0, atol=BOUND)
    for key in ("h", "c"):
        assert_close(found["next", key][:, -1], expected["next", key][:, -1], rtol=0, atol=BOUND)


@pytest.mark.parametrize("name", ["exprnn", "ncgru", "lstm"])
def test_steps_of_a_rollout_equal_the_recurrent_mode(name):
    layer = LAYERS[name](I, N, num_layers=2, batch_first=True, dtype=torch.float64)
    states = ["h", "c"][: len(layer.state_sizes)]
    keys = {"in_keys": ["x", *states], "out_keys": ["y", *(("next", key) for key in states)]}
    module = (LayerModule if len(states) == 1 else LSTMLayerModule)(layer, **keys)
    given = data()
    with set_recurrent_mode(True):
        expected = module(given.clone())["y"]
    carried = {key: torch.zeros(BATCH, 2, N, dtype=torch.float64) for key in states}
    for t in range(TIME):
        step = module(TensorDict({"x": given["x"][:, t], "is_init": given["is_init"][:, t], **carried}, [BATCH]))
        assert_close(step["y"], expected[:, t], rtol=0, atol=BOUND)
        carried = {key: step["next", key] for key in states}
    assert module.make_tensordict_primer() is not None


def test_layers_that_torchrl_cannot_hold_raise_value_error():
    with pytest.raises(ValueError, match=r"LayerModule expects a layer with a state of 1 × 5 numbers; got"):
        LayerModule(RelLSTM(I, N, batch_first=True), in_key="x", out_key="y")
    with pytest.raises(ValueError, match="LayerModule expects a layer with batch_first=True"):
        LayerModule(GRU(I, N), in_key="x", out_key="y")
