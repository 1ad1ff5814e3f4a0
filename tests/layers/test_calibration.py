"""Outputs of a chosen size: `calibrate` over the registry."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from steadygrad.layers import IRNN, LAYERS, LSTM, RNN, ExpRNN, RecurrentLayer, Stack, StepCell, calibrate
from steadygrad.layers.calibration import default_input

SATURATING = {"lstm": 0.3, "h-detach": 0.3, "memlstm": 0.3, "rellstm": 0.3, "sab": 0.6, "cornn": 0.033}
SATURATING |= {"antisymmetric": 0.05, "rnn": 0.8, "rnn-orth": 0.8, "memrnn": 0.8, "relrnn": 0.8, "gru": 0.8, "lem": 0.8}
"""layers whose outputs are bounded, and a scale that they reach"""
every_layer = pytest.mark.parametrize("name", LAYERS)


def rms(output):
    return float(output.detach().double().square().mean().sqrt())


@every_layer
def test_outputs_have_the_scale(name):
    torch.manual_seed(0)
    layer = LAYERS[name](5, 16)
    scale = SATURATING.get(name, 1.0)
    before = {key: p.detach().clone() for key, p in layer.named_parameters()}
    (gain,) = calibrate(layer, scale=scale)
    assert rms(layer.eval()(default_input(layer))[0]) == pytest.approx(scale, rel=2e-3)
    for key, p in layer.named_parameters():
        assert torch.equal(p, before[key] * gain if key == "weight_ih_l0" else before[key])


@every_layer
def test_unreachable_scale_raises_value_error_and_changes_nothing(name):
    """A bounded activation stays below its bound; without one, a scale near the smallest number is out of reach."""
    torch.manual_seed(0)
    layer = LAYERS[name](5, 16)
    scale, word = (3.0, "largest") if name in SATURATING else (1e-14, "smallest")
    before = {key: p.detach().clone() for key, p in layer.named_parameters()}
    with pytest.raises(ValueError, match=f"level 0, can reach; got {scale:g}, but the {word} one is") as error:
        calibrate(layer, scale=scale)
    limit = float(str(error.value).rsplit(" ", 1)[1])
    assert limit < scale if name in SATURATING else limit > scale
    assert all(torch.equal(p, before[key]) for key, p in layer.named_parameters())
    assert all(part.training for part in layer.modules())


@pytest.mark.parametrize(
    "options", [{"bidirectional": True}, {"batch_first": True}, {"dropout": 0.5}, {"trained_state": True}], ids=str
)
@pytest.mark.parametrize("kind", [ExpRNN, IRNN, RNN])
def test_every_level_has_the_scale(kind, options):
    torch.manual_seed(0)
    layer = kind(5, 16, num_layers=3, dtype=torch.float64, **options)
    gains = calibrate(layer, scale=0.5)
    assert len(gains) == 3
    x = default_input(layer)
    layer.eval()
    assert rms(layer(x)[0]) == pytest.approx(0.5, rel=2e-3)
    torch.manual_seed(0)
    lower = kind(5, 16, num_layers=2, dtype=torch.float64, **options)  # the first two levels alone
    lower.load_state_dict(
        {key: value[: len(lower.cells)] if "initial_state" in key else value
         for key, value in layer.state_dict().items() if "_l2" not in key}
    )  # fmt: skip
    assert rms(lower.eval()(x)[0]) == pytest.approx(0.5, rel=2e-3)


def test_given_inputs_are_used():
    layer = ExpRNN(3, 8)
    x = 100 * torch.rand(30, 4, 3)
    calibrate(layer, x, 2.0)
    assert rms(layer(x)[0]) == pytest.approx(2.0, rel=2e-3)
    packed = pack_sequence([x[:20, 0], x[:7, 1]])
    calibrate(layer, packed, 0.7)
    assert rms(layer(packed)[0].data) == pytest.approx(0.7, rel=2e-3)
    calibrate(layer, x[:, 0], 0.7)  # without a batch
    assert rms(layer(x[:, 0])[0]) == pytest.approx(0.7, rel=2e-3)


def test_layers_of_a_stack_are_calibrated_one_by_one():
    stack = Stack([ExpRNN(3, 8), LSTM(8, 4)])
    x = torch.randn(30, 4, 3)
    for layer in stack:
        calibrate(layer, x, 0.3)
        x = layer(x)[0].detach()
    assert rms(x) == pytest.approx(0.3, rel=2e-3)


class Still(StepCell):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(2))

    def initial_state(self):
        return (torch.zeros_like(self.a),)

    def step(self, input, state):
        return (self.a * state[0] + input,)


def test_invalid_arguments_raise_value_error():
    for scale in (0, -1.0, float("inf"), "x"):
        with pytest.raises(ValueError, match="calibrate expects a scale above 0; got"):
            calibrate(RNN(3, 4), scale=scale)
    with pytest.raises(ValueError, match="RecurrentLayer to have the parameter weight_ih_l0; it has none"):
        calibrate(RecurrentLayer(lambda size: Still(), 2, 2))
