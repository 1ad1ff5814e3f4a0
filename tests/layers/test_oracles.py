"""One number a layer that somebody else computed: torch, the authors' code, or a closed form."""

from pathlib import Path

import numpy as np
import pytest
import torch

from steadygrad import layers
from steadygrad.matrices import Exponential, Matrix, RealSchur, ScaledCayley, build, measures, skew_free

ORACLES = Path(__file__).parents[1] / "oracles"


@pytest.fixture
def x():
    return torch.randn(7, 4, 3, dtype=torch.float64)


def load(name):
    return {
        key: torch.from_numpy(value)
        for key, value in np.load(ORACLES / name, allow_pickle=False).items()
        if value.shape
    }


def set_free(matrix, *values):
    with torch.no_grad():
        for free, value in zip(matrix.free, values, strict=True):
            free.copy_(value)


def copy_to_torch(cell, theirs, level, suffix, weights, bias):
    with torch.no_grad():
        getattr(theirs, f"weight_ih_l{level}{suffix}").copy_(weights[0])
        getattr(theirs, f"weight_hh_l{level}{suffix}").copy_(weights[1])
        getattr(theirs, f"bias_ih_l{level}{suffix}").copy_(bias)
        getattr(theirs, f"bias_hh_l{level}{suffix}").zero_()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_rnn_is_torch_rnn(x, activation):
    """Two levels, both directions; the identity start of IRNN with ReLU included."""
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    make = layers.IRNN if activation == "relu" else layers.RNN
    ours, theirs = make(3, 6, **options), torch.nn.RNN(3, 6, nonlinearity=activation, **options)
    for index, cell in enumerate(ours.cells):
        copy_to_torch(cell, theirs, index // 2, "_reverse" if index % 2 else "", (cell.U, cell.W()), cell.b)
    for a, b in zip(ours(x), theirs(x), strict=True):
        torch.testing.assert_close(a, b)


def test_orthogonal_rnn_is_torch_rnn_with_orthogonal_start(x):
    ours, theirs = layers.OrthogonalRNN(3, 6, dtype=torch.float64), torch.nn.RNN(3, 6, dtype=torch.float64)
    cell = ours.cells[0]
    assert measures.orthogonality_error(cell.W()) < 1e-6
    copy_to_torch(cell, theirs, 0, "", (cell.U, cell.W()), cell.b)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


def test_lstm_is_torch_lstm(x):
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    ours, theirs = layers.LSTM(3, 6, **options), torch.nn.LSTM(3, 6, **options)
    for index, cell in enumerate(ours.cells):
        U = torch.cat([matrix() for matrix in cell.U])
        copy_to_torch(cell, theirs, index // 2, "_reverse" if index % 2 else "", (cell.W, U), cell.b)
    (output, (h, c)), (their_output, (their_h, their_c)) = ours(x), theirs(x)
    for a, b in ((output, their_output), (h, their_h), (c, their_c)):
        torch.testing.assert_close(a, b)


def test_gru_is_torch_gru_where_the_two_definitions_meet(x):
    """With a diagonal U_c the reset may stand before or after the product; z of torch is 1 − u, so its sign turns."""
    ours, theirs = layers.GRU(3, 6, dtype=torch.float64), torch.nn.GRU(3, 6, dtype=torch.float64)
    cell = ours.cells[0]
    with torch.no_grad():
        cell.U[2].free[0].copy_(torch.randn(6, dtype=torch.float64).diag())
    reset, update, candidate = (m() for m in cell.U)
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).repeat_interleave(6)
    U = torch.cat([reset, -update, candidate])
    copy_to_torch(cell, theirs, 0, "", (cell.W * sign[:, None], U), cell.b * sign)
    for a, b in zip(ours(x), theirs(x), strict=True):
        torch.testing.assert_close(a, b)


def loss_and_gradients(layer, o, h_0=None):
    output, _ = layer(o["x"], h_0)
    (output * o["G"]).sum().backward()
    return output


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_scornn_is_helfrichs():
    o = load("scornn.npz")
    layer = layers.ScoRNN(4, 10, reflections=3, dtype=torch.float64)
    cell = layer.cells[0]
    set_free(cell.W, skew_free(o["A"]))
    with torch.no_grad():
        cell.U.copy_(o["U"]), cell.b.copy_(o["b"])
    h_0 = o["h0"][None] if "h0" in o else None
    output = loss_and_gradients(layer, o, h_0)
    close(cell.W(), o["W"])
    close(output, o["h"])
    close(cell.W.free[0].grad, skew_free(o["grad_A"]))
    close(cell.U.grad, o["grad_U"])
    close(cell.b.grad, o["grad_b"])


def test_exprnn_is_lezcanos():
    o = load("exprnn_exact.npz")
    layer = layers.ExpRNN(4, 11, dtype=torch.float64)
    cell = layer.cells[0]
    upper = o["A_raw"].triu(1)
    set_free(cell.W, skew_free(-(upper - upper.mT)))  # V = exp(−A) in our column form
    with torch.no_grad():
        cell.U.copy_(o["U"]), cell.b.copy_(o["b"])
    h_0 = o["h0"][None] if "h0" in o else None
    output = loss_and_gradients(layer, o, h_0)
    close(output, o["h"])
    # d/dA_raw[i, j] (i < j) is d/d(free of A)[j, i] turned twice: by the triangle and by V = exp(−A)
    close(cell.W.free[0].grad, skew_free(o["grad_A_raw"].mT))
    close(cell.U.grad, o["grad_U"])
    close(cell.b.grad, o["grad_b"])


def test_nnrnn_is_kergs():
    o = load("nnrnn.npz")
    layer = layers.NNRNN(5, 12, in_block=True, dtype=torch.float64)
    cell = layer.cells[0]
    upper = o["log_P"].triu(1)
    lower = torch.tril_indices(12, 12, -1)
    set_free(cell.W, skew_free(upper - upper.mT), -o["theta"], o["gamma"], o["T"][lower[0], lower[1]])
    with torch.no_grad():
        cell.U.copy_(o["U"]), cell.b.copy_(o["b"])
    output = loss_and_gradients(layer, o, o["h0"][None])
    close(cell.W(), o["V"])
    close(output, o["h"])
    close(cell.U.grad, o["grad_U"])
    close(cell.b.grad, o["grad_b"])
    close(cell.W.free[0].grad, -skew_free(o["grad_log_P"].mT))
    close(cell.W.free[2].grad, o["grad_gamma"])
    close(cell.W.free[3].grad, o["grad_T"][lower[0], lower[1]])


def test_nnrnn_penalty_is_delta_times_distance():
    layer = layers.NNRNN(2, 6, spectrum_pull=0.5, bidirectional=True)
    with torch.no_grad():
        for cell in layer.cells:
            cell.W.free[2].fill_(1.2)
    assert layer.penalty().item() == pytest.approx(0.5 * 2 * 3 * 0.04)


def test_enrnn_is_a_scornn_beside_a_fading_state():
    """By hand, Eq. 3 of Helfrich & Ye: the long state from the long and short ones, the short from itself."""

    def modrelu(z, b):
        return z.sign() * (z.abs() + b).clamp_min(0)

    layer = layers.ENRNN(2, 7, short_size=3, dtype=torch.float64)
    cell = layer.cells[0]
    W = layer.matrices()["recurrent_l0"]
    long, short, coupling = W[:4, :4], W[4:, 4:], W[:4, 4:]
    assert not W[4:, :4].any()
    assert coupling.any()
    torch.testing.assert_close(long, ScaledCayley(4, reflections=1).double()(cell.W.free[0]))
    x = torch.randn(5, 1, 2, dtype=torch.float64)
    h_long, h_short = torch.zeros(4, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        cell.b.normal_(std=0.01)
    b_long, b_short = cell.b.split([4, 3])
    for x_t in x[:, 0]:
        u_long, u_short = (cell.U @ x_t).split([4, 3])
        h_long, h_short = (
            modrelu(u_long + long @ h_long + coupling @ h_short, b_long),
            modrelu(u_short + short @ h_short, b_short),
        )
    torch.testing.assert_close(layer(x)[1].flatten(), torch.cat([h_long, h_short]))


@pytest.mark.parametrize("orthogonal", ["c", "rc", "ruc"])
def test_ncgru_by_hand(orthogonal):
    """Eq. 19 of the paper, one sequence, written out; and orthogonal is what was asked to be."""
    layer = layers.NCGRU(2, 5, orthogonal=orthogonal, dtype=torch.float64)
    cell = layer.cells[0]
    matrices = layer.matrices()
    for name, W in matrices.items():
        assert (measures.orthogonality_error(W) < 1e-10) == (name[0] in orthogonal)
    with torch.no_grad():
        cell.modulus.normal_(std=0.1)
    x, h = torch.randn(6, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for x_t in x:
        z_r, z_u, z_c = (cell.W @ x_t).split(5)
        r = torch.sigmoid(z_r + matrices["reset_l0"] @ h + cell.b[:5])
        u = torch.sigmoid(z_u + matrices["update_l0"] @ h + cell.b[5:])
        z = z_c + matrices["candidate_l0"] @ (r * h)
        h = (1 - u) * h + u * z.sign() * (z.abs() + cell.modulus).clamp_min(0)
    torch.testing.assert_close(layer(x)[1][0], h)


def count(layer, outputs):
    """Parameters of the layer and a linear read-out."""
    return sum(p.numel() for p in layer.parameters()) + (layer.output_size + 1) * outputs


@pytest.mark.parametrize(
    ("layer", "outputs", "expected"),
    [
        (layers.NNRNN(10, 128, in_block=True), 9, 18_953),
        (layers.NNRNN(10, 128), 9, 18_889),
        (layers.ENRNN(2, 160, short_size=64), 1, 15_441),
        (layers.ENRNN(10, 192, short_size=20), 9, 22_395),
    ],
    ids=["nnRNN copy, printed form", "nnRNN copy", "ENRNN adding", "ENRNN copy"],
)
def test_parameter_counts_of_the_papers(layer, outputs, expected):
    assert count(layer, outputs) == expected


def test_any_cell_takes_any_matrix(x):
    for recurrent in ("free", "exponential", "dtriv", "cayley", "neumann", "schur", "eigenvalue", "longshort"):
        for layer in (
            layers.RNN(3, 6, recurrent=recurrent, dtype=torch.float64),
            layers.GRU(3, 6, recurrent=recurrent, dtype=torch.float64),
            layers.LSTM(3, 6, recurrent=recurrent, dtype=torch.float64),
        ):
            layer(x)[0].sum().backward()
            assert all(p.grad is not None for p in layer.parameters())


def test_matrices_by_gate_by_table_and_by_function():
    gru = layers.GRU(3, 6, recurrent={"candidate": "neumann", "reset": {"name": "cayley", "reflections": 2}})
    kinds = [type(matrix.map).__name__ for matrix in gru.cells[0].U]
    assert kinds == ["ScaledCayley", "Free", "NeumannCayley"]
    lstm = layers.LSTM(3, 6, recurrent="cayley")
    assert all(isinstance(matrix.map, ScaledCayley) for matrix in lstm.cells[0].U)
    own = layers.RNN(3, 6, recurrent=lambda size: Matrix(Exponential(size), torch.zeros(size * (size - 1) // 2)))
    torch.testing.assert_close(own.matrices()["recurrent_l0"], torch.eye(6))
    given = build("schur", 6)
    assert layers.RNN(3, 6, recurrent=given).cells[0].W is given
    assert isinstance(given.map, RealSchur)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layers.RNN(3, 6, activation="gelu"),
            "expects an activation out of modrelu, tanh, relu, identity; got",
        ),
        (lambda: layers.GRU(3, 6, activation="gelu"), "expects an activation"),
        (lambda: layers.RNN(3, 6, recurrent="unitary"), "no matrix 'unitary'; choose from free"),
        (lambda: layers.GRU(3, 6, recurrent={"update": "x"}), "no matrix 'x'"),
        (
            lambda: layers.GRU(3, 6, recurrent={"forget": "free"}),
            "GRU has the gates reset, update, candidate; got .* forget",
        ),
        (lambda: layers.LSTM(3, 6, recurrent={"reset": "free"}), "LSTM has the gates input, forget, cell, output"),
        (lambda: layers.ScoRNN(3, 6, reflections=7), r"reflections.*0 … 6; got 7"),
        (lambda: layers.ScoRNN(3, 6, reflections=-1), r"reflections.*0 … 6; got -1"),
        (lambda: layers.NCGRU(3, 6, reflections=7), r"reflections.*0 … 6; got 7"),
        (lambda: layers.ExpRNN(3, 6, init="nonsense"), "no initialiser 'nonsense'; choose from"),
        (lambda: layers.NCGRU(3, 6, orthogonal="u"), "NCGRU expects orthogonal to be one of c, rc, ruc; got 'u'"),
        (lambda: layers.NCGRU(3, 6, order=4), "order"),
        (lambda: layers.LSTM(3, 6, bias=False, forget_bias=1.0), "forget_bias"),
        (lambda: layers.ENRNN(3, 6, short_size=7), "short_size|short"),
    ],
)
def test_bad_settings_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_forget_bias():
    assert (layers.LSTM(3, 4, forget_bias=2.0).cells[0].b[4:8] == 2).all()
