"""The doctor says what is known of networks that are known."""

import copy
import math

import pytest
import torch
from torch import nn

import steadygrad
from steadygrad.diagnostics import diagnose, flow, portrait
from steadygrad.layers import LAYERS, RNN, ExpRNN


def linear_rnn(W):
    layer = RNN(2, len(W), activation="identity", bias=False).double()
    layer.weight_hh_l0.data = W.double()
    return layer


def orthogonal(size=12):
    torch.manual_seed(0)
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q


def findings_text(diagnosis):
    return " ".join(str(finding) for finding in diagnosis.findings)


@pytest.fixture
def x():
    return torch.randn(60, 3, 2, generator=torch.Generator().manual_seed(0)).double()


def test_work_limit_reduces_sequences_and_steps_of_diagnosis(monkeypatch, x):
    module = linear_rnn(orthogonal(8))
    assert diagnose(module, x).numbers["sequences"] == 3
    monkeypatch.setattr(flow, "WORK", 8**3 * 30)
    assert [diagnose(module, x).numbers[key] for key in ("sequences", "steps")] == [2, 30]
    monkeypatch.setattr(flow, "WORK", 8**3 * 10)
    assert [diagnose(module, x).numbers[key] for key in ("sequences", "steps")] == [1, 10]


def test_contracting_linear_network_has_known_half_life(x):
    found = diagnose(linear_rnn(0.9 * orthogonal()), x)
    assert found.numbers["half_life"] == pytest.approx(math.log(0.5) / math.log(0.9), rel=1e-6)
    assert "shrink tenfold every 21.9 steps" in findings_text(found)
    assert "half of what it knew is gone after 6.58" in findings_text(found)


def test_orthogonal_network_has_no_loss_finding(x):
    found = diagnose(linear_rnn(orthogonal()), x)
    assert found.numbers["half_life"] == math.inf or found.numbers["half_life"] > 1e5
    assert "Nothing is lost" in findings_text(found)


def test_expanding_linear_network_has_growth_finding(x):
    assert "grow tenfold every 11.5 steps" in findings_text(diagnose(linear_rnn(math.exp(0.2) * orthogonal()), x))


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [
        (0.996, "For longer memory"),  # tenfold in 575 steps: enough for the 400 that are measured, not for 3000
        (0.9995, "That is enough for sequences of 3000 steps"),
        (0.9998, "Little is lost: over 3000 steps gradients change by a factor of 0.55"),
        (1.0, "Nothing is lost"),
        (1.001, "Gradients grow tenfold every 2.3e+03 steps, by 20 over 3000"),
    ],
)
def test_verdict_extrapolates_from_measured_to_all_steps(scale, verdict):
    found = diagnose(linear_rnn(scale * orthogonal(4)), torch.zeros(3000, 2, 2).double())
    assert verdict in findings_text(found)
    assert "as measured on the first 400 of 3000 steps" in findings_text(found)
    assert [found.numbers[key] for key in ("steps", "of_steps")] == [400, 3000]


def test_confidence_is_likely_only_with_several_agreeing_sequences(x):
    module = linear_rnn(0.9 * orthogonal())
    assert [finding.sure for finding in diagnose(module, x).findings] == ["likely"]
    for one in (x[:, :1], x[:, 0]):
        assert [finding.sure for finding in diagnose(module, one).findings] == ["from one sequence"]
    assert [finding["sure"] for finding in portrait(module, x[:, 0])["findings"]] == ["from one sequence"]
    assert "measured" not in findings_text(diagnose(module, x))  # all of it was


def test_disagreeing_sequences_make_finding_unsure(x):
    loud = nn.RNN(2, 6).double()
    x = torch.stack([torch.zeros(60, 2), 10 * torch.ones(60, 2)], dim=1).double()  # the second saturates it
    assert diagnose(loud, x).findings[0].sure == "unsure"


def test_diagnose_torch_lstm_reports_shrinking_gradients(x):
    torch.manual_seed(0)
    found = steadygrad.diagnose(nn.LSTM(2, 8).double(), x)
    assert found.name == "LSTM"
    assert found.numbers["half_life"] < 20
    assert "shrink" in findings_text(found)
    assert "half_life" in str(found)


class UserGRU(nn.GRU):
    """A user's subclass."""


@pytest.mark.parametrize("make", [*LAYERS.values(), nn.RNN, nn.GRU, UserGRU], ids=lambda make: make.__name__)
def test_every_layer_can_be_diagnosed(make, x):
    torch.manual_seed(0)
    found = diagnose(make(2, 6).double(), x[:20])
    assert found.findings
    assert all(math.isfinite(value) or key == "half_life" for key, value in found.numbers.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["gru", "nnrnn", "relrnn"])
def test_half_precision_diagnosis_agrees_with_float32(name, dtype, x):
    layer = LAYERS[name](2, 8, dtype=dtype)
    fine = copy.deepcopy(layer).float()
    rough = x[:, :1].to(dtype)
    got, expected = diagnose(layer, rough).numbers, diagnose(fine, rough.float()).numbers
    assert got["exponent"] == pytest.approx(expected["exponent"], abs=0.1)
    assert portrait(layer, rough[:, 0])["matrices"].keys() == portrait(fine, rough[:, 0].float())["matrices"].keys()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_is_no_drift(dtype, x):
    assert "orthogonal:" not in findings_text(diagnose(LAYERS["scornn"](2, 8, dtype=dtype), x.to(dtype)))


def test_dropped_weights_are_no_drift(x):
    layer = ExpRNN(2, 6).double()
    layer.drop_weights(0.5)
    found = diagnose(layer, x)
    assert found.numbers["spectral_radius weight_hh_l0"] == pytest.approx(1)
    assert "orthogonal:" not in findings_text(found)
    assert layer.training


def test_non_finite_states_raise_value_error(x):
    broken = nn.LSTM(2, 4).double()
    with torch.no_grad():
        broken.weight_hh_l0[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"LSTM has NaN or infinite states from step 0 of 60 on: .* in weight_hh_l0"):
        diagnose(broken, x)
    with pytest.raises(ValueError, match="RNN has NaN or infinite states from step 1 of 60 on: its parameters are"):
        diagnose(linear_rnn(1e308 * orthogonal()), 1e3 * x)


def test_overflowing_network_is_measured_up_to_overflow(x):
    found = diagnose(linear_rnn(1e20 * orthogonal()), x)
    assert found.numbers["exponent"] == pytest.approx(20 * math.log(10))
    assert "Gradients grow tenfold" in findings_text(found)


def test_input_size_counts_towards_entry_limit(monkeypatch):
    monkeypatch.setattr(flow, "ENTRIES", 6 * (6 + 94) * 20)
    assert diagnose(nn.GRU(94, 6), torch.randn(50, 94)).numbers["steps"] == 20


def test_diagnosis_is_independent_of_batch_layout(x):
    torch.manual_seed(0)
    module = nn.GRU(2, 5).double()
    first = nn.GRU(2, 5, batch_first=True).double()
    first.load_state_dict(module.state_dict())
    assert diagnose(module, x).numbers == pytest.approx(diagnose(first, x.transpose(0, 1)).numbers)
    assert diagnose(module, x[:, 0]).numbers == pytest.approx(diagnose(module, x[:, :1]).numbers)


def test_saturated_and_zero_states_are_reported(x):
    torch.manual_seed(0)
    loud = nn.RNN(2, 6).double()
    with torch.no_grad():
        loud.weight_ih_l0.mul_(100)
    assert "saturated" in findings_text(diagnose(loud, x))
    quiet = RNN(2, 6, activation="relu").double()
    with torch.no_grad():
        quiet.bias_ih_l0.fill_(-100.0)
    assert "100 % of the states are zero" in findings_text(diagnose(quiet, x))


def test_matrix_that_lost_orthogonality_is_reported(x, monkeypatch):
    torch.manual_seed(0)
    layer = ExpRNN(2, 6).double()
    assert "orthogonal:" not in findings_text(diagnose(layer, x))
    monkeypatch.setattr(layer.weight_hh_l0, "map", ScaledMap(layer.weight_hh_l0.map))
    found = diagnose(layer, x)
    assert "weight_hh_l0 is no longer orthogonal" in findings_text(found)
    assert found.numbers["spectral_radius weight_hh_l0"] == pytest.approx(1.01)


class ScaledMap(nn.Module):
    """A map that has lost its way."""

    kinds = ("skew",)

    def __init__(self, map):
        super().__init__()
        self.inner = map

    def forward(self, free):
        return 1.01 * self.inner(free)


def test_invalid_shapes_raise_value_error():
    with pytest.raises(ValueError, match="at least one sequence; got x of shape"):
        diagnose(RNN(2, 3), torch.zeros(5, 0, 2))
    with pytest.raises(ValueError, match="2 or 3 dimensions"):
        diagnose(nn.GRU(2, 3), torch.zeros(2))
