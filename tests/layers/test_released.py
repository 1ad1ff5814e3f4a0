"""Layers against the programs that their authors released: values, gradients, updates and starts."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from steadygrad import layers
from steadygrad.kernels.backend import VARIABLE
from steadygrad.matrices import Givens, complexify, realify
from steadygrad.models import SequenceModel
from steadygrad.training import Train, make_optimizer
from tests.backends import every_backend

ORACLES = Path(__file__).parents[1] / "oracles"


@pytest.fixture(autouse=True)
def one_thread(same_start):
    """Layers this small gain nothing from a second thread."""
    torch.set_num_threads(1)


def load(name):
    with np.load(ORACLES / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files if file[key].dtype.kind in "fic"}


def close(ours, theirs):
    """Compare at 1e-9 of the largest entry."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


# full-capacity uRNN (stwisdom/urnn)

AS_RELEASED = {"full_diagonal": True, "activation": "smoothed-modrelu", "trained_state": True}


def urnn_parameters(model):
    """The parameters under the authors' names, and whether theirs is the transpose."""
    cell = model.layer.cells[0]
    return {
        "V": (cell.U, True),
        "U": (model.readout.weight, True),
        "hidden_bias": (cell.b, False),
        "out_bias": (model.readout.bias, False),
        "h_0": (model.layer.initial_state[0], False),
    }


def test_full_urnn_trains_as_released():
    """Two updates: RMSprop from 0.001 for everything, the raw gradient along the manifold for W.

    The authors' step of W reads G_used, the part of the gradient that comes from Re h. The layer has the whole
    gradient, G_true; the test puts G_used in its place.
    """
    o = load("full_urnn_steps")
    model = SequenceModel(layers.FullCapacityURNN(5, 8, dtype=torch.float64, **AS_RELEASED), 4).double()
    matrix, parameters = model.layer.cells[0].W, urnn_parameters(model)
    with torch.no_grad():
        for name, (parameter, transposed) in parameters.items():
            theirs = o[f"step0_{name}"]
            parameter.copy_(theirs.mT if transposed else theirs)
        matrix.map.right_inverse(complexify(o["step0_Waug"].mT))
    optimizer = make_optimizer(model, Train(optimizer="rmsprop-theano", optimizer_constrained="sgd", lr=float(o["lr"])))
    assembled = []
    matrix.register_forward_hook(lambda module, given, W: assembled.append(W))
    x = one_hot(o["x"], 5).double()
    for step in (f"step{k}_" for k in range(3)):
        for name, (parameter, transposed) in parameters.items():
            close(parameter.detach().mT if transposed else parameter.detach(), o[step + name])
        hidden, _ = model.layer(x)
        loss = cross_entropy(model.readout(hidden).flatten(0, 1), o["y"].flatten())
        W = assembled[-1]
        close(realify(W.detach()).mT, o[step + "Waug"])
        close(hidden.detach(), o[step + "h"])
        close(loss.detach(), o[step + "loss"])
        if step + "G_true" not in o:
            return
        optimizer.zero_grad()
        W.retain_grad()
        loss.backward()
        for name, (parameter, transposed) in parameters.items():
            close(parameter.grad.mT if transposed else parameter.grad, o[f"{step}grad_{name}"])
        close(W.grad, o[step + "G_true"])
        (matrix.free[0].grad,) = torch.autograd.grad(matrix(), matrix.free[0], o[step + "G_used"])
        optimizer.step()
    raise AssertionError("the last step has a gradient")


def test_full_urnn_starts_as_released():
    """Mean, spread, range and kurtosis of 20 starts for copying memory: 128 units, 10 inputs, 9 answers."""
    theirs = {key.split("|", 1)[1]: value for key, value in load("start_urnn").items() if "|" in key}
    drawn = {name: [] for name in ("V", "U", "hidden_bias", "out_bias", "h_0", "Waug", "angles of eig(W)", "|W|")}
    for seed in range(20):
        torch.manual_seed(seed)
        layer = layers.FullCapacityURNN(10, 128, **AS_RELEASED)
        model = SequenceModel(layer, 9)
        W = layer.matrices()["recurrent_l0"].detach()
        values = {name: parameter for name, (parameter, _) in urnn_parameters(model).items()}
        values |= {"Waug": realify(W), "angles of eig(W)": torch.linalg.eigvals(W).angle(), "|W|": W.abs()}
        for name, value in values.items():
            drawn[name].append(value.detach().double().flatten())
    for name, values in drawn.items():
        ours = torch.cat(values)
        mean, spread, low, high, kurtosis, entries = theirs[name].tolist()
        assert len(values[0]) == entries, name
        if not spread:
            assert not ours.any(), name
            continue
        error = 5 * spread * (2 / len(ours)) ** 0.5  # theirs are 20 starts too
        assert abs(ours.mean() - mean) < error, name
        assert abs(ours.std() - spread) < error, name
        assert ours.std() ** -4 * (ours - ours.mean()).pow(4).mean() == pytest.approx(kurtosis, rel=0.05), name
        if kurtosis < 2:  # uniform: the range too
            assert ours.min().item() == pytest.approx(low, rel=0.02), name
            assert ours.max().item() == pytest.approx(high, rel=0.02), name


@every_backend
@pytest.mark.parametrize("smallest", [math.inf, 1], ids=["by matrix", "by operator"])
def test_smoothed_modrelu_in_complex_numbers(backend, smallest, monkeypatch):
    """z/(m + ε) · max(m + b, 0), m = √(|z|² + ε), with torch's complex numbers: every backend, values and gradients."""
    monkeypatch.setenv(VARIABLE, backend)
    monkeypatch.setattr(Givens, "operator_from", smallest)
    options = {"recurrent": "givens", "activation": "smoothed-modrelu", "complex": True, "dtype": torch.float64}
    layer = layers.RNN(3, 6, **options)
    cell = layer.cells[0]
    torch.nn.init.normal_(cell.b, std=0.5)
    sequences = [torch.randn(n, 3, dtype=torch.float64) for n in (5, 3, 3)]
    W, U = cell.W(), torch.complex(*cell.U.chunk(2))
    expected = []
    for sequence in sequences:
        h = torch.zeros(6, dtype=torch.complex128)
        for x_t in sequence:
            z = W @ h + U @ x_t.to(h)
            size = (z.real**2 + z.imag**2 + 1e-5).sqrt()
            h = z * (size + cell.b).relu() / (size + 1e-5)
            expected.append(torch.cat([h.real, h.imag]))
    expected = torch.stack(expected)
    found = torch.cat(unpack_sequence(layer(pack_sequence(sequences))[0]))
    torch.testing.assert_close(found, expected)
    G = torch.randn_like(found)
    gradients = (torch.autograd.grad((states * G).sum(), list(layer.parameters())) for states in (found, expected))
    torch.testing.assert_close(*gradients)
