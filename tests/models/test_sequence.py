"""A layer and a readout are a layer and a readout."""

import math

import pytest
import torch
from torch.nn import functional as F

from steadygrad.layers import LAYERS, LSTM, NNRNN
from steadygrad.models import SequenceModel

I, N, OUT = 3, 6, 4
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def build(make, last_only=False, **options):
    return SequenceModel(make(I, N, dtype=torch.float64, **options), OUT, last_only=last_only).double()


def parts(state):
    return state if isinstance(state, tuple) else (state,)


@pytest.fixture
def x():
    return torch.randn(2, 7, I, dtype=torch.float64)


@every_layer
def test_shapes(make, x):
    assert build(make)(x).shape == (2, 7, OUT)
    assert build(make, last_only=True)(x).shape == (2, OUT)


@every_layer
@pytest.mark.parametrize("form", [{}, {"num_layers": 2, "bidirectional": True}], ids=["plain", "deep, both ways"])
def test_model_matches_layer_followed_by_readout(make, form, x):
    model = build(make, **form)
    torch.nn.init.normal_(model.readout.bias)
    hidden, end = model.layer(x.transpose(0, 1))
    by_hand = F.linear(hidden, model.readout.weight, model.readout.bias).transpose(0, 1)
    outputs, state = model.walk(x)
    torch.testing.assert_close(outputs, by_hand)
    torch.testing.assert_close(model(x), by_hand)
    for a, b in zip(parts(state), parts(end), strict=True):
        torch.testing.assert_close(a, b)


@every_layer
def test_last_only_is_the_last_step(make, x):
    model, other = build(make), build(make, last_only=True)
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x)[:, -1])


@every_layer
def test_split_sequence_matches_whole_sequence(make, x):
    model = build(make)
    whole, end = model.walk(x)
    first, state = model.walk(x[:, :3])
    second, state = model.walk(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    for a, b in zip(parts(state), parts(end), strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.allclose(model(x[:, 3:]), second)  # the state matters


@every_layer
def test_every_parameter_learns(make, x):
    model = build(make)
    (model(x).square().sum() + model.penalty()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@every_layer
def test_batch_first_layers_are_refused(make):
    with pytest.raises(ValueError, match="SequenceModel expects a layer with time first; got batch_first=True"):
        build(make, batch_first=True)


def test_penalty_equals_layer_penalty():
    model = build(NNRNN, spectrum_pull=0.3)
    with torch.no_grad():
        for parameter in model.layer.parameters():
            parameter.add_(0.1)
    assert model.penalty() > 0
    assert model.penalty() == model.layer.penalty()
    assert build(LSTM).penalty() == 0


def test_readout_initialisation_matches_nnrnn_program():
    """Xavier normal, no bias."""
    model = SequenceModel(LSTM(2, 200), 100)
    assert model.readout.weight.shape == (100, 200)
    deviation = model.readout.weight.std().item()
    assert deviation == pytest.approx(math.sqrt(2 / 300), rel=0.03)
    assert model.readout.weight.abs().max() > 2.5 * deviation  # uniform numbers would end at 1.7
    assert not model.readout.bias.any()


def test_last_only_uses_final_state_of_both_directions():
    torch.manual_seed(0)
    model = SequenceModel(LAYERS["rnn"](3, 4, bidirectional=True), 2, last_only=True)
    x = torch.randn(1, 5, 3, requires_grad=True)
    forward, backward = model.readout.weight.split(4, dim=1)
    hidden = model.layer(x.transpose(0, 1))[0]
    expected = hidden[-1, :, :4] @ forward.mT + hidden[0, :, 4:] @ backward.mT + model.readout.bias
    torch.testing.assert_close(model(x), expected)
