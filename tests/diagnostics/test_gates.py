"""Theorem 1 of NC-GRU and its corollaries, at every step of random networks."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from steadygrad.diagnostics import gate_bound
from steadygrad.diagnostics.gates import gate_values
from steadygrad.layers import GORU, GRU, LSTM, NCGRU


@pytest.fixture
def x():
    return torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda: GRU(3, 8),
        lambda: NCGRU(3, 8),
        lambda: NCGRU(3, 8, orthogonal="ruc"),
        lambda: GRU(3, 8, bias=False),
        lambda: GRU(3, 8, trained_state=True),
    ],
    ids=["gru", "ncgru", "all orthogonal", "no bias", "trained state"],
)
@pytest.mark.filterwarnings("ignore:.* was overwritten after it was built")
def test_the_bound_holds_at_every_step(make, scale, x):
    torch.manual_seed(0)
    layer = make().double()
    for start in layer.initial_state or ():
        nn.init.normal_(start)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(scale)
    found = gate_bound(layer, x)
    assert (found.true <= found.bound * (1 + 1e-12)).all()
    assert found.holds
    assert not replace(found, bound=0.99 * found.true).holds


@pytest.mark.parametrize("make", [GRU, NCGRU, partial(GRU, bias=False)], ids=["gru", "ncgru", "no bias"])
def test_gate_values_reproduce_layer_states(make, x):
    """They give back its states: h_t = (1 − u)∘h + u∘c."""
    torch.manual_seed(0)
    layer = make(3, 5).double()
    outputs = layer(x[:, None])[0][:, 0]
    h = torch.cat([torch.zeros(1, 5, dtype=torch.float64), outputs[:-1]])
    r, u, c = gate_values(layer, x, h)
    torch.testing.assert_close((1 - u) * h + u * c, outputs)


def test_corollary_1_bounds_alpha_and_beta(x):
    torch.manual_seed(0)
    layer = GRU(3, 8).double()
    found, U = gate_bound(layer, x), layer.matrices()
    norm = {name: torch.linalg.matrix_norm(W, 2).item() for name, W in U.items()}
    assert (found.alpha <= norm["update_l0"] / 2 + 1).all()
    assert (found.beta <= norm["reset_l0"] / 4 + 1).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_corollary_3_saturated_gates_bound_gain_by_one(sign, x):
    torch.manual_seed(0)
    layer = NCGRU(3, 8, orthogonal="rc").double()
    with torch.no_grad():
        layer.weight_ih_l0.zero_()
        layer.bias_ih_l0.fill_(sign * 40.0)
    found = gate_bound(layer, x)
    assert (found.alpha + found.beta).max() == pytest.approx(1, abs=1e-6)
    assert found.candidate_norm == pytest.approx(1, abs=1e-6)
    assert (found.true <= 1 + 1e-6).all()


def test_corollary_2_units_saturated_one_by_one_bound_alpha_plus_beta(x):
    torch.manual_seed(0)
    layer = GRU(3, 8).double()
    with torch.no_grad():
        layer.bias_ih_l0[:16] = 40.0 * torch.randn(16).sign()
    found = gate_bound(layer, x)
    assert (found.undecided < 1e-12).all()
    assert (found.alpha + found.beta).max() == pytest.approx(2)
    assert float(gate_bound(GRU(3, 8).double(), x).undecided.max()) > 0.3


def test_gate_bound_rejects_other_modules(x):
    for module in (LSTM(3, 4), nn.GRU(3, 4), GRU(3, 4, num_layers=2), GRU(3, 4, reset="after"), GORU(3, 4)):
        with pytest.raises(ValueError, match="expects a GRU of one level"):
            gate_bound(module.double(), x)
