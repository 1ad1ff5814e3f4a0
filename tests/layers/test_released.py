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
from steadygrad.matrices import Givens, Matrix, ReleasedNeumannCayley, complexify, realify, skew, skew_free
from steadygrad.models import SequenceModel
from steadygrad.training import Train, make_optimizer
from tests.backends import every_backend

pytestmark = pytest.mark.filterwarnings("ignore:.* was overwritten after it was built")  # on purpose

ORACLES = Path(__file__).parents[1] / "oracles"


@pytest.fixture(autouse=True)
def one_thread(same_start):
    """Layers this small gain nothing from a second thread."""
    torch.set_num_threads(1)


def load(name):
    with np.load(ORACLES / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files if file[key].dtype.kind in "fic"}


def assert_close_to_oracle(ours, theirs):
    """Compare at 1e-9 of the largest entry."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * float(theirs.abs().max()))


# full-capacity uRNN (stwisdom/urnn)

AS_RELEASED = {"full_diagonal": True, "activation": "smoothed-modrelu", "trained_state": True}


def urnn_parameters(model):
    """The parameters under the authors' names, and whether theirs is the transpose."""
    cell = model.layer.cells[0]
    return {
        "V": (cell.weight_ih, True),
        "U": (model.readout.weight, True),
        "hidden_bias": (cell.bias_modrelu, False),
        "out_bias": (model.readout.bias, False),
        "h_0": (model.layer.initial_state[0], False),
    }


def test_full_urnn_updates_match_released_program():
    """Two updates: RMSprop from 0.001 for everything, the raw gradient along the manifold for W.

    The authors' step of W reads G_used, the part of the gradient that comes from Re h. The layer has the whole
    gradient, G_true; the test puts G_used in its place.
    """
    o = load("full_urnn_steps")
    model = SequenceModel(layers.FullCapacityURNN(5, 8, dtype=torch.float64, **AS_RELEASED), 4).double()
    matrix, parameters = model.layer.weight_hh_l0, urnn_parameters(model)
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
            assert_close_to_oracle(parameter.detach().mT if transposed else parameter.detach(), o[step + name])
        hidden, _ = model.layer(x)
        loss = cross_entropy(model.readout(hidden).flatten(0, 1), o["y"].flatten())
        W = assembled[-1]
        assert_close_to_oracle(realify(W.detach()).mT, o[step + "Waug"])
        assert_close_to_oracle(hidden.detach(), o[step + "h"])
        assert_close_to_oracle(loss.detach(), o[step + "loss"])
        if step + "G_true" not in o:
            return
        optimizer.zero_grad()
        W.retain_grad()
        loss.backward()
        for name, (parameter, transposed) in parameters.items():
            assert_close_to_oracle(parameter.grad.mT if transposed else parameter.grad, o[f"{step}grad_{name}"])
        assert_close_to_oracle(W.grad, o[step + "G_true"])
        (matrix.skew.grad,) = torch.autograd.grad(matrix(), matrix.skew, o[step + "G_used"])
        optimizer.step()
    raise AssertionError("the last step has a gradient")


def test_full_urnn_starts_as_released():
    """Mean, spread, range and kurtosis of 20 starts for copying memory: 128 units, 10 inputs, 9 answers."""
    theirs = {key.split("|", 1)[1]: value for key, value in load("start_urnn").items() if "|" in key}
    drawn = {name: [] for name in ("V", "U", "hidden_bias", "out_bias", "h_0", "Waug", "angles of eig(W)", "|W|")}
    for seed in range(20):
        torch.manual_seed(seed)
        layer = layers.FullCapacityURNN(10, 128, **AS_RELEASED)
        model = SequenceModel(layer, 9, readout="urnn")
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
def test_smoothed_modrelu_matches_torch_complex_arithmetic(backend, smallest, monkeypatch):
    """z/(m + ε) · max(m + b, 0), m = √(|z|² + ε), with torch's complex numbers: every backend, values and gradients."""
    monkeypatch.setenv(VARIABLE, backend)
    monkeypatch.setattr(Givens, "operator_from", smallest)
    options = {"recurrent": "givens", "activation": "smoothed-modrelu", "complex": True, "dtype": torch.float64}
    layer = layers.RNN(3, 6, **options)
    cell = layer.cells[0]
    torch.nn.init.normal_(cell.bias_modrelu, std=0.5)
    sequences = [torch.randn(n, 3, dtype=torch.float64) for n in (5, 3, 3)]
    W, U = cell.weight_hh(), torch.complex(*cell.weight_ih.chunk(2))
    expected = []
    for sequence in sequences:
        h = torch.zeros(6, dtype=torch.complex128)
        for x_t in sequence:
            z = W @ h + U @ x_t.to(h)
            size = (z.real**2 + z.imag**2 + 1e-5).sqrt()
            h = z * (size + cell.bias_modrelu).relu() / (size + 1e-5)
            expected.append(torch.cat([h.real, h.imag]))
    expected = torch.stack(expected)
    found = torch.cat(unpack_sequence(layer(pack_sequence(sequences))[0]))
    torch.testing.assert_close(found, expected)
    G = torch.randn_like(found)
    gradients = (torch.autograd.grad((states * G).sum(), list(layer.parameters())) for states in (found, expected))
    torch.testing.assert_close(*gradients)


# the programs of NC-GRU (emucllari1/NC-GRU) and TensorFlow's cells: x and h are (batch, time, features), rows times W


def copy_blocks_into(parameter, *blocks):
    with torch.no_grad():
        parameter.copy_(torch.cat(blocks))


def outputs_and_gradients(layer, o):
    """Compare the states, and return the gradient of the loss for the recurrent matrix of each gate."""
    assembled = {}

    def keep(matrix, given, W):
        W.retain_grad()
        assembled[matrix] = W

    hooks = [module.register_forward_hook(keep) for module in layer.modules() if isinstance(module, Matrix)]
    h, _ = layer(o["x"])
    (h * o["G"]).sum().backward()
    for hook in hooks:
        hook.remove()
    assert_close_to_oracle(h.detach(), o["h"])
    assert_close_to_oracle((h * o["G"]).sum().detach(), o["loss"])
    cell = layer.cells[0]
    if isinstance(cell.weight_hh, torch.nn.Parameter):
        return list(cell.weight_hh.grad.split(cell.output_size))
    return [assembled.get(weight, weight).grad for weight in cell.gates().values()]


def set_orthogonal(matrix, A, W):
    """Set a matrix to the program's A and W, which were stored in single precision: W is orthogonal to 6e-8 only.

    The program's W = (I + A)⁻¹ (I − A) D acts on rows. Algorithm 1 on columns has −D A D in the place of A.
    """
    map, released = matrix.map, isinstance(matrix.map, ReleasedNeumannCayley)
    own = A if released else -map.D[:, None] * A * map.D
    copy_blocks_into(matrix.packed()[0], skew_free(own))
    torch.testing.assert_close(matrix().detach().mT, W, rtol=0, atol=1e-7)
    J = torch.eye(len(A), dtype=A.dtype) - own
    map.inverse = torch.linalg.solve(J, (W if released else W.mT) * map.D, left=False)  # of exactly this W
    assert_close_to_oracle(matrix().detach().mT, W)


@pytest.mark.parametrize("released_lr", [None, 1e-3], ids=["algorithm 1", "released"])
def test_ncgru_with_one_orthogonal_matrix_matches_released_cell(released_lr):
    """The program's u keeps the state, so our u, which lets the candidate in, has the opposite signs."""
    o = load("ncgru_released_c")
    layer = layers.NCGRU(4, 10, reflections=4, released_lr=released_lr, batch_first=True, dtype=torch.float64)
    cell = layer.cells[0]
    (x_r, x_u), (h_r, h_u) = (part.mT.chunk(2) for part in o["gate_kernel"].split([4, 10]))
    b_r, b_u = o["gate_bias"].chunk(2)
    copy_blocks_into(cell.weight_ih, x_r, -x_u, o["weight_UC"].mT)
    copy_blocks_into(cell.weight_hh.reset, h_r), copy_blocks_into(cell.weight_hh.update, -h_u)
    set_orthogonal(cell.weight_hh.candidate, o["weight_A"], o["weight_WC"])
    copy_blocks_into(cell.bias_ih, b_r, -b_u), copy_blocks_into(cell.bias_modrelu, o["bias_C"])
    gradients = outputs_and_gradients(layer, o)
    g_r, g_u, g_c = cell.weight_ih.grad.split(10)
    of_x, of_h = torch.cat([g_r, -g_u]).mT, torch.cat([gradients[0], -gradients[1]]).mT
    assert_close_to_oracle(torch.cat([of_x, of_h]), o["grad_gate_kernel"])
    assert_close_to_oracle(g_c.mT, o["grad_weight_UC"])
    assert_close_to_oracle(gradients[2].mT, o["grad_weight_WC"])
    g_r, g_u = cell.bias_ih.grad.chunk(2)
    assert_close_to_oracle(torch.cat([g_r, -g_u]), o["grad_gate_bias"])
    assert_close_to_oracle(cell.bias_modrelu.grad, o["grad_bias_C"])


@pytest.mark.parametrize("released_lr", [None, 1e-3], ids=["algorithm 1", "released"])
def test_ncgru_with_two_orthogonal_matrices_matches_released_cell(released_lr):
    o = load("ncgru_released_rc")
    options = {"orthogonal": "rc", "reflections": 4, "released_lr": released_lr}
    layer = layers.NCGRU(4, 10, **options, batch_first=True, dtype=torch.float64)
    cell = layer.cells[0]
    copy_blocks_into(cell.weight_ih, o["UC_gate_kernel_one"].mT, -o["UC_gate_kernel_two"].mT, o["weight_UC"].mT)
    set_orthogonal(cell.weight_hh.reset, o["weight_A_w_one"], o["WC_gate_kernel_one"])
    copy_blocks_into(cell.weight_hh.update, -o["WC_gate_kernel_two"].mT)
    set_orthogonal(cell.weight_hh.candidate, o["weight_A"], o["weight_WC"])
    (
        copy_blocks_into(cell.bias_ih, o["gate_bias_one"], -o["gate_bias_two"]),
        copy_blocks_into(cell.bias_modrelu, o["bias_C"]),
    )
    gradients = outputs_and_gradients(layer, o)
    g_r, g_u, g_c = cell.weight_ih.grad.split(10)
    assert_close_to_oracle(g_r.mT, o["grad_UC_gate_kernel_one"])
    assert_close_to_oracle(-g_u.mT, o["grad_UC_gate_kernel_two"])
    assert_close_to_oracle(g_c.mT, o["grad_weight_UC"])
    assert_close_to_oracle(gradients[0].mT, o["grad_WC_gate_kernel_one"])
    assert_close_to_oracle(-gradients[1].mT, o["grad_WC_gate_kernel_two"])
    # the released program trains A of U_c by the gradient of U_r
    assert_close_to_oracle(gradients[2].mT, o["grad_weight_WC" if released_lr is None else "grad_WC_gate_kernel_one"])
    assert_close_to_oracle(cell.bias_ih.grad, torch.cat([o["grad_gate_bias_one"], -o["grad_gate_bias_two"]]))
    assert_close_to_oracle(cell.bias_modrelu.grad, o["grad_bias_C"])


def test_released_defect_with_two_orthogonal_matrices_matches_numpy():
    """60 updates in numpy: both A follow dL/dW_one, and the series of W_one starts from the inverse of the other.

    A moves by plain descent with another rate than the one in the series, so that the two can be told apart. Exact
    inverses come after updates 1 and 50. Evaluations in between must change nothing.
    """
    lr, released_lr = 3e-3, 1e-3
    options = {"orthogonal": "rc", "reflections": 2, "reset_every": 49, "released_lr": released_lr}
    layer = layers.NCGRU(3, 5, **options, dtype=torch.float64)
    cell = layer.cells[0]
    one, other = cell.weight_hh["reset"], cell.weight_hh["candidate"]
    parameters = [one.skew, other.skew]
    I, D = np.eye(5), np.diag([1.0, 1, 1, -1, -1])
    A_one, A = (skew(free.detach()[0]).numpy().copy() for free in parameters)
    inverse_one, inverse = np.linalg.inv(I + A_one), np.linalg.inv(I + A)
    W_one, W = inverse_one @ (I - A_one) @ D, inverse @ (I - A) @ D

    def derivative(G, inverse, W):
        V = inverse.T @ G @ (D + W.T)
        return V.T - V

    def followed(A, start, DFA, exact):
        X = start @ (released_lr * DFA)
        return np.linalg.inv(I + A) if exact else (I + X + X @ X) @ start

    gaps, assembled = [], []
    for k in range(60):
        x = torch.randn(6, 2, 3, dtype=torch.float64)
        hook = one.register_forward_hook(lambda matrix, given, U: U.retain_grad() or assembled.append(U))
        for free in parameters:
            free.grad = None
        layer(x)[0].square().sum().backward()
        hook.remove()
        np.testing.assert_allclose(layer.matrices()["reset_l0"].detach().numpy().T, W_one, rtol=0, atol=1e-9)
        np.testing.assert_allclose(layer.matrices()["candidate_l0"].detach().numpy().T, W, rtol=0, atol=1e-9)
        G = assembled.pop().grad.numpy().T
        DFA = derivative(G, inverse, W)
        A = A - lr * DFA
        inverse = followed(A, inverse, DFA, k % 49 == 0)
        W = inverse @ (I - A) @ D
        DFA_one = derivative(G, inverse_one, W_one)
        A_one = A_one - lr * DFA_one
        inverse_one = followed(A_one, inverse, DFA_one, k % 49 == 0)
        W_one = inverse_one @ (I - A_one) @ D
        with torch.no_grad():
            for free in parameters:
                free -= lr * free.grad
        if k % 3 == 0:
            with torch.no_grad():
                layer.eval()(x)
            layer.train()
        gaps.append(np.abs(W_one.T @ W_one - I).max())
    assert max(gaps[0], gaps[49]) < 1e-12 < 0.1 < min(gaps[1], gaps[48])


def rotations(angles, first):
    """The rotation of rows in the planes (first, first + 1), (first + 2, first + 3), …"""
    Q = torch.eye(10, dtype=torch.float64)
    for i, angle in zip(range(first, 9, 2), angles, strict=True):
        plane = torch.eye(10, dtype=torch.float64)
        plane[i, i] = plane[i + 1, i + 1] = angle.cos()
        plane[i, i + 1], plane[i + 1, i] = angle.sin(), -angle.sin()
        Q = Q @ plane
    return Q


def test_goru_matches_released_cell():
    """Its modReLU adds 0.001 to the modulus, which our bias takes in. Q is four layers of plane rotations."""
    o = load("goru_released")
    thetas = [o["theta_A"].requires_grad_(), o["theta_B"].requires_grad_()]
    Q = torch.eye(10, dtype=torch.float64)
    for angles_a, angles_b in zip(*thetas, strict=True):
        Q = Q @ rotations(angles_a, 0) @ rotations(angles_b, 1)
    assert_close_to_oracle(Q.detach(), o["Q"])
    layer = layers.GORU(4, 10, recurrent="free", batch_first=True, dtype=torch.float64)
    cell = layer.cells[0]
    x_c, x_r, x_g = o["U"].mT.split(10)
    copy_blocks_into(cell.weight_ih, x_r, x_g, x_c)
    for matrix, rows in zip(cell.gates().values(), (o["W_r"], o["W_g"], o["Q"]), strict=True):
        copy_blocks_into(matrix, rows.mT)
    copy_blocks_into(cell.bias_ih, o["bias_r"], o["bias_g"]), copy_blocks_into(cell.bias_modrelu, o["bias_c"] + 0.001)
    gradients = [G.mT for G in outputs_and_gradients(layer, o)]
    assert_close_to_oracle(gradients[0], o["grad_W_r"])
    assert_close_to_oracle(gradients[1], o["grad_W_g"])
    of_angles = torch.autograd.grad(Q, thetas, gradients[2])
    assert_close_to_oracle(of_angles[0], o["grad_theta_A"])
    assert_close_to_oracle(of_angles[1], o["grad_theta_B"])
    g_r, g_g, g_c = cell.weight_ih.grad.split(10)
    assert_close_to_oracle(torch.cat([g_c, g_r, g_g]).mT, o["grad_U"])
    assert_close_to_oracle(cell.bias_ih.grad, torch.cat([o["grad_bias_r"], o["grad_bias_g"]]))
    assert_close_to_oracle(cell.bias_modrelu.grad, o["grad_bias_c"])


def test_lstm_matches_tensorflow_basic_lstm_cell():
    """BasicLSTMCell: gates i, j, f, o, and a forget bias of 1 that is added at every step."""
    o = load("tf_lstm")
    layer = layers.LSTM(4, 10, batch_first=True, dtype=torch.float64)
    cell = layer.cells[0]

    def ours(columns):
        i, j, f, out = columns.mT.split(10)
        return torch.cat([i, f, j, out])

    of_x, of_h = o["basic_lstm_cell_kernel"].split([4, 10])
    copy_blocks_into(cell.weight_ih, ours(of_x))
    for matrix, rows in zip(cell.gates().values(), ours(of_h).split(10), strict=True):
        copy_blocks_into(matrix, rows)
    forget = torch.zeros(40, dtype=torch.float64)
    forget[20:30] = 1
    copy_blocks_into(cell.bias_ih, ours((o["basic_lstm_cell_bias"] + forget)[None])[:, 0])
    gradients = torch.cat(outputs_and_gradients(layer, o))
    expected = o["grad_basic_lstm_cell_kernel"].split([4, 10])
    assert_close_to_oracle(cell.weight_ih.grad, ours(expected[0]))
    assert_close_to_oracle(gradients, ours(expected[1]))
    assert_close_to_oracle(cell.bias_ih.grad, ours(o["grad_basic_lstm_cell_bias"][None])[:, 0])


def test_gru_matches_tensorflow_gru_cell():
    """GRUCell: gates r, u, of which u keeps the state; the reset acts before the product."""
    o = load("tf_gru")
    layer = layers.GRU(4, 10, batch_first=True, dtype=torch.float64)
    cell = layer.cells[0]

    def ours(gates, candidate):
        r, u = gates.mT.split(10)
        return torch.cat([r, -u, candidate.mT])

    def both(prefix):
        return [o[f"{prefix}{name}"].split([4, 10]) for name in ("gates_kernel", "candidate_kernel")]

    (gates_x, gates_h), (candidate_x, candidate_h) = both("")
    copy_blocks_into(cell.weight_ih, ours(gates_x, candidate_x))
    for matrix, rows in zip(cell.gates().values(), ours(gates_h, candidate_h).split(10), strict=True):
        copy_blocks_into(matrix, rows)
    copy_blocks_into(cell.bias_ih, ours(o["gates_bias"][None], o["candidate_bias"][None])[:, 0])
    gradients = torch.cat(outputs_and_gradients(layer, o))
    (gates_x, gates_h), (candidate_x, candidate_h) = both("grad_")
    assert_close_to_oracle(cell.weight_ih.grad, ours(gates_x, candidate_x))
    assert_close_to_oracle(gradients, ours(gates_h, candidate_h))
    assert_close_to_oracle(cell.bias_ih.grad, ours(o["grad_gates_bias"][None], o["grad_candidate_bias"][None])[:, 0])


def test_ncgru_accepts_and_validates_neumann_options():
    layer = layers.NCGRU(3, 6, exact_above=math.inf, max_drift=math.inf, order=3)
    map = layer.weight_hh_l0.candidate.map
    assert (map.exact_above, map.max_drift, map.order) == (math.inf, math.inf, 3)
    with pytest.raises(ValueError, match=r"NCGRU expects orthogonal to be c or rc with released_lr.*; got 'ruc'"):
        layers.NCGRU(3, 6, orthogonal="ruc", released_lr=1e-3)
    with pytest.raises(ValueError, match=r"ReleasedNeumannCayley expects released_lr of at least 0; got -1\.0"):
        layers.NCGRU(3, 6, released_lr=-1.0)
    with pytest.raises(ValueError, match="exact_above in 0 … 1, for convergence, or inf for no check; got 2"):
        layers.NCGRU(3, 6, exact_above=2)
