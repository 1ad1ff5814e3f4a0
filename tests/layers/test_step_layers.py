"""Cells that are given by one step: coRNN, LEM, AntisymmetricRNN, and one of a user's own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from steadygrad import diagnose
from steadygrad.layers import LEM, AntisymmetricRNN, CoRNN, RecurrentLayer, StepCell
from tests.rounding import assert_same, rounding

ORACLES = Path(__file__).parents[1] / "oracles"


def load(name):
    return {key: torch.from_numpy(value) for key, value in np.load(ORACLES / f"{name}.npz").items()}


def cornn(known, kind):
    V, W_z, W = known[f"{kind}_i2h.weight"].split([2, 5, 5], dim=1)
    return {"weight_ih": V, "weight_hh": W, "weight_velocity": W_z, "bias_ih": known[f"{kind}_i2h.bias"]}


def lem(known, kind):
    """Their rows are in the order time scale of y, time scale of z, y, z for inputs and …, z for states."""
    V, b = (known[f"{kind}_inp2hid.{part}"].chunk(4) for part in ("weight", "bias"))
    W, more = (known[f"{kind}_hid2hid.{part}"].chunk(3) for part in ("weight", "bias"))
    last, last_bias = known[f"{kind}_transform_z.weight"], known[f"{kind}_transform_z.bias"]
    biases = [b[1] + more[1], b[0] + more[0], b[3] + more[2], b[2] + last_bias]
    if kind == "g":  # both of their biases have the gradient of the one that ours is
        biases = [b[1], b[0], b[3], b[2]]
    V = torch.cat([V[1], V[0], V[3], V[2]])
    return {"weight_ih": V, "weight_hh": torch.cat([W[1], W[0], W[2], last]), "bias_ih": torch.cat(biases)}


def antisymmetric(known, kind):
    """Their gate comes before the drive, and the bias of the state belongs to the drive."""
    b = known[f"{kind}_bias_ih"].split(5)[::-1]
    V = torch.cat(known[f"{kind}_weight_ih"].split(5)[::-1])
    drive = b[0] + known["w_bias_hh"] if kind == "w" else b[0]
    return {"weight_ih": V, "weight_hh": known[f"{kind}_weight_hh"], "bias_ih": torch.cat([drive, *b[1:]])}


@pytest.mark.parametrize(
    ("name", "make", "translate"),
    [
        ("cornn", lambda *sizes: CoRNN(*sizes, dt=0.3, gamma=1.7, epsilon=0.9), cornn),
        ("lem", lambda *sizes: LEM(*sizes, dt=0.7), lem),
        ("antisymmetric", lambda *sizes: AntisymmetricRNN(*sizes, epsilon=0.3, gamma=0.2), antisymmetric),
        (
            "antisymmetric_gated",
            lambda *sizes: AntisymmetricRNN(*sizes, epsilon=0.3, gamma=0.2, gated=True),
            antisymmetric,
        ),
    ],
)
def test_step_layer_matches_published_outputs_and_gradients(name, make, translate):
    """The authors' programs for coRNN and LEM, torchrecurrent 0.2.5 for AntisymmetricRNN: outputs and gradients."""
    known = load(name)
    layer = make(2, 5).double()
    (cell,) = layer.cells
    with torch.no_grad():
        for key, value in translate(known, "w").items():
            getattr(cell, key).copy_(value)
    outputs = layer(known["x"])[0]
    bound = rounding(torch.float64, size=5 + 2, operations=4 * len(outputs))
    assert_same([outputs], [known["outputs"]], bound)
    expected = translate(known, "g")
    gradients = torch.autograd.grad(outputs.square().sum(), [getattr(cell, key) for key in expected])
    assert_same(list(gradients), list(expected.values()), 2 * bound)


class LeakyCell(StepCell):
    """h_t = a∘h_{t−1} + (1 − a)∘x_t, and a count of steps: no matrix at all."""

    def __init__(self, size):
        super().__init__()
        self.a = torch.nn.Parameter(torch.linspace(0.1, 0.9, size))

    def initial_state(self):
        return torch.ones_like(self.a), self.a.new_zeros(1)

    def step(self, input, state):
        h, count = state
        return self.a * h + (1 - self.a) * input, count + 1


class Leaky(RecurrentLayer):
    """h_t = a∘h_{t−1} + (1 − a)∘x_t."""

    def __init__(self, size, **common):
        super().__init__(LeakyCell, size, size, **common)


def test_custom_step_cell_makes_a_layer():
    layer, x = Leaky(3), torch.randn(6, 2, 3)
    a = layer.cells[0].a
    expected, h = [], torch.ones(2, 3)
    for step in x:
        h = a * h + (1 - a) * step
        expected.append(h)
    output, (last, count) = layer(x)
    torch.testing.assert_close(output, torch.stack(expected))
    torch.testing.assert_close(last[0], expected[-1])
    assert count.eq(6).all()
    assert layer.matrices() == {}
    packed, (_, count) = layer(pack_sequence([x[:2, 0], x[:, 1]], enforce_sorted=False))
    assert count.flatten().tolist() == [2, 6]
    torch.testing.assert_close(packed.data[-1], output[-1, 1])
    both = Leaky(3, bidirectional=True)
    torch.testing.assert_close(both(x)[0][..., 3:].flip(0), both(x.flip(0))[0][..., :3])


@pytest.mark.parametrize("make", [CoRNN, LEM, AntisymmetricRNN])
def test_step_layers_support_attention_and_diagnosis(make):
    layer, x = make(3, 4, attention={"short": 2, "relevant": 2}), torch.randn(7, 2, 3)
    output, state = layer(x)
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    torch.testing.assert_close(torch.cat([layer(x[:3])[0], layer(x[3:], layer(x[:3])[1])[0]]), output)
    assert diagnose(make(3, 4), x)
