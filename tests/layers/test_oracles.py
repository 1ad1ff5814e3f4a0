"""One number a layer that somebody else computed: torch, the authors' code, or a closed form."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from steadygrad import layers
from steadygrad.layers import orthogonal
from steadygrad.matrices import (
    MATRICES,
    Exponential,
    Householder,
    Matrix,
    RealSchur,
    ScaledCayley,
    build,
    measures,
    nearest_orthogonal,
    skew_free,
)
from tests.backends import every_backend
from tests.rounding import rounding

pytestmark = pytest.mark.filterwarnings("ignore:.* was overwritten after it was built")  # on purpose

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
def test_rnn_matches_torch_rnn(x, activation):
    """Two levels, both directions; the identity start of IRNN with ReLU included."""
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    make = layers.IRNN if activation == "relu" else layers.RNN
    ours, theirs = make(3, 6, **options), torch.nn.RNN(3, 6, nonlinearity=activation, **options)
    for index, cell in enumerate(ours.cells):
        copy_to_torch(
            cell, theirs, index // 2, "_reverse" if index % 2 else "", (cell.weight_ih, cell.weight_hh), cell.bias
        )
    for a, b in zip(ours(x), theirs(x), strict=True):
        torch.testing.assert_close(a, b)


def test_orthogonal_rnn_starts_orthogonal_and_matches_torch_rnn(x):
    ours, theirs = layers.OrthogonalRNN(3, 6, dtype=torch.float64), torch.nn.RNN(3, 6, dtype=torch.float64)
    cell = ours.cells[0]
    assert measures.orthogonality_error(cell.weight_hh) < rounding(torch.float32, 6)  # it starts in single precision
    copy_to_torch(cell, theirs, 0, "", (cell.weight_ih, cell.weight_hh), cell.bias)
    torch.testing.assert_close(ours(x)[0], theirs(x)[0])


def test_lstm_matches_torch_lstm(x):
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    ours, theirs = layers.LSTM(3, 6, **options), torch.nn.LSTM(3, 6, **options)
    for index, cell in enumerate(ours.cells):
        U = cell.stacked()
        copy_to_torch(cell, theirs, index // 2, "_reverse" if index % 2 else "", (cell.weight_ih, U), cell.bias_ih)
    (output, (h, c)), (their_output, (their_h, their_c)) = ours(x), theirs(x)
    for a, b in ((output, their_output), (h, their_h), (c, their_c)):
        torch.testing.assert_close(a, b)


def test_gru_with_diagonal_candidate_matches_torch_gru(x):
    """With a diagonal U_c the reset may stand before or after the product; z of torch is 1 − u, so its sign turns."""
    ours, theirs = layers.GRU(3, 6, dtype=torch.float64), torch.nn.GRU(3, 6, dtype=torch.float64)
    cell = ours.cells[0]
    with torch.no_grad():
        cell.gates()["candidate"].copy_(torch.randn(6, dtype=torch.float64).diag())
    reset, update, candidate = cell.matrices().values()
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).repeat_interleave(6)
    U = torch.cat([reset, -update, candidate])
    copy_to_torch(cell, theirs, 0, "", (cell.weight_ih * sign[:, None], U), cell.bias_ih * sign)
    for a, b in zip(ours(x), theirs(x), strict=True):
        torch.testing.assert_close(a, b)


def test_gru_with_reset_after_matches_torch_gru(x):
    """Values and the gradients of all weights, b_hn among them."""
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    ours, theirs = layers.GRU(3, 6, reset="after", **options), torch.nn.GRU(3, 6, **options)
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64).repeat_interleave(6)
    ends = [f"l{level}{suffix}" for level in range(2) for suffix in ("", "_reverse")]
    for cell, end in zip(ours.cells, ends, strict=True):
        U = cell.stacked()
        copy_to_torch(
            cell, theirs, int(end[1]), end[2:], (cell.weight_ih * sign[:, None], U * sign[:, None]), cell.bias_ih * sign
        )
        with torch.no_grad():
            getattr(theirs, f"bias_hh_{end}")[12:] = cell.bias_hn
    h_0 = torch.randn(4, 4, 6, dtype=torch.float64)
    (output, h), (their_output, their_h) = ours(x, h_0), theirs(x, h_0)
    torch.testing.assert_close(output, their_output)
    torch.testing.assert_close(h, their_h)
    output.square().sum().backward()
    their_output.square().sum().backward()
    for cell, end in zip(ours.cells, ends, strict=True):
        torch.testing.assert_close(cell.weight_ih.grad * sign[:, None], getattr(theirs, f"weight_ih_{end}").grad)
        torch.testing.assert_close(cell.bias_ih.grad * sign, getattr(theirs, f"bias_ih_{end}").grad)
        torch.testing.assert_close(cell.bias_hn.grad, getattr(theirs, f"bias_hh_{end}").grad[12:])
        U_grad = cell.weight_hh.grad
        torch.testing.assert_close(U_grad * sign[:, None], getattr(theirs, f"weight_hh_{end}").grad)


def loss_and_gradients(layer, o, h_0=None):
    output, _ = layer(o["x"], h_0)
    (output * o["G"]).sum().backward()
    return output


def assert_close_to_oracle(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_scornn_matches_helfrich_oracle():
    o = load("scornn.npz")
    layer = layers.ScoRNN(4, 10, reflections=3, dtype=torch.float64)
    cell = layer.cells[0]
    set_free(cell.weight_hh, skew_free(o["A"]))
    with torch.no_grad():
        cell.weight_ih.copy_(o["U"]), cell.bias.copy_(o["b"])
    h_0 = o["h0"][None] if "h0" in o else None
    output = loss_and_gradients(layer, o, h_0)
    assert_close_to_oracle(cell.weight_hh(), o["W"])
    assert_close_to_oracle(output, o["h"])
    assert_close_to_oracle(cell.weight_hh.free[0].grad[0], skew_free(o["grad_A"]))
    assert_close_to_oracle(cell.weight_ih.grad, o["grad_U"])
    assert_close_to_oracle(cell.bias.grad, o["grad_b"])


def test_exprnn_matches_lezcano_oracle():
    o = load("exprnn_exact.npz")
    layer = layers.ExpRNN(4, 11, dtype=torch.float64)
    cell = layer.cells[0]
    upper = o["A_raw"].triu(1)
    set_free(cell.weight_hh, skew_free(-(upper - upper.mT)))  # V = exp(−A) in our column form
    with torch.no_grad():
        cell.weight_ih.copy_(o["U"]), cell.bias.copy_(o["b"])
    h_0 = o["h0"][None] if "h0" in o else None
    output = loss_and_gradients(layer, o, h_0)
    assert_close_to_oracle(output, o["h"])
    # d/dA_raw[i, j] (i < j) is d/d(free of A)[j, i] turned twice: by the triangle and by V = exp(−A)
    assert_close_to_oracle(cell.weight_hh.free[0].grad[0], skew_free(o["grad_A_raw"].mT))
    assert_close_to_oracle(cell.weight_ih.grad, o["grad_U"])
    assert_close_to_oracle(cell.bias.grad, o["grad_b"])


def test_nnrnn_matches_kerg_oracle():
    o = load("nnrnn.npz")
    layer = layers.NNRNN(5, 12, in_block=True, dtype=torch.float64)
    cell = layer.cells[0]
    upper = o["log_P"].triu(1)
    lower = torch.tril_indices(12, 12, -1)
    set_free(cell.weight_hh, skew_free(upper - upper.mT), -o["theta"], o["gamma"], o["T"][lower[0], lower[1]])
    with torch.no_grad():
        cell.weight_ih.copy_(o["U"]), cell.bias.copy_(o["b"])
    output = loss_and_gradients(layer, o, o["h0"][None])
    assert_close_to_oracle(cell.weight_hh(), o["V"])
    assert_close_to_oracle(output, o["h"])
    assert_close_to_oracle(cell.weight_ih.grad, o["grad_U"])
    assert_close_to_oracle(cell.bias.grad, o["grad_b"])
    assert_close_to_oracle(cell.weight_hh.free[0].grad[0], -skew_free(o["grad_log_P"].mT))
    assert_close_to_oracle(cell.weight_hh.free[2].grad[0], o["grad_gamma"])
    assert_close_to_oracle(cell.weight_hh.free[3].grad[0], o["grad_T"][lower[0], lower[1]])


def test_nnrnn_penalty_equals_pull_times_squared_distance():
    layer = layers.NNRNN(2, 6, spectrum_pull=0.5, bidirectional=True)
    with torch.no_grad():
        for cell in layer.cells:
            cell.weight_hh.packed()[2].fill_(1.2)
    # (1.2 − 1)² of a 1.2 in single precision
    assert layer.penalty().item() == pytest.approx(
        0.5 * 2 * 3 * 0.04, rel=rounding(torch.float32, 6, scale=2 * 1.2 / 0.2)
    )


def test_nnrnn_penalty_works_with_functional_call():
    layer = layers.NNRNN(3, 8, spectrum_pull=1.0)
    moved = {name: value.detach() + name.endswith("modulus") for name, value in layer.named_parameters()}
    bound = torch.func.functional_call(Penalty(layer), {f"layer.{name}": value for name, value in moved.items()}, ())
    assert bound.item() == pytest.approx(4)
    assert layers.NNRNN(3, 8, spectrum_pull=1.0, modulus=0.9).penalty() == 0


class Penalty(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return self.layer.penalty()


@pytest.mark.parametrize("activation", ["relu", "tanh", "modrelu"])
def test_henaff_rnn_matches_numpy_values_and_gradients(activation):
    """Values and gradients in numpy, of packed sequences that resume from a state."""
    layer = layers.HenaffRNN(2, 5, activation=activation, dtype=torch.float64)
    cell = layer.cells[0]
    with torch.no_grad():
        cell.bias.normal_(std=0.3)
    U, V, b = (value.detach().numpy() for value in (cell.weight_ih, layer.matrices()["recurrent_l0"], cell.bias))
    sequences = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (6, 4, 1)]
    h_0, G = torch.randn(1, 3, 5, dtype=torch.float64, requires_grad=True), np.random.default_rng(0).normal(size=(6, 5))
    output, end = layer(torch.nn.utils.rnn.pack_sequence(sequences), h_0)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(output)
    (padded * torch.from_numpy(G)[:, None]).sum().backward()
    functions = {
        "relu": (lambda z: np.maximum(z + b, 0), lambda z: (z + b > 0).astype(float)),
        "tanh": (lambda z: np.tanh(z + b), lambda z: 1 - np.tanh(z + b) ** 2),
        "modrelu": (lambda z: np.sign(z) * np.maximum(np.abs(z) + b, 0), lambda z: (np.abs(z) + b > 0).astype(float)),
    }
    phi, slope = functions[activation]
    d_U, d_V = np.zeros_like(U), np.zeros_like(V)
    bound = rounding(torch.float64, 5, operations=6, scale=100)
    for i, sequence in enumerate(sequences):
        x, states = sequence.detach().numpy(), [h_0[0, i].detach().numpy()]
        for x_t in x:
            states.append(phi(U @ x_t) + V @ states[-1])
        np.testing.assert_allclose(padded[: len(x), i].detach().numpy(), states[1:], rtol=0, atol=bound)
        np.testing.assert_allclose(end[0, i].detach().numpy(), states[-1], rtol=0, atol=bound)
        delta, d_x = np.zeros(5), np.zeros_like(x)
        for t in reversed(range(len(x))):
            delta = G[t] + delta
            inner = delta * slope(U @ x[t])
            d_x[t] = U.T @ inner
            d_U += np.outer(inner, x[t])
            d_V += np.outer(delta, states[t])
            delta = V.T @ delta
        np.testing.assert_allclose(sequence.grad.numpy(), d_x, rtol=0, atol=bound)
        np.testing.assert_allclose(h_0.grad[0, i].numpy(), delta, rtol=0, atol=bound)
    np.testing.assert_allclose(cell.weight_ih.grad.numpy(), d_U, rtol=0, atol=bound)
    np.testing.assert_allclose(cell.weight_hh.grad.numpy(), d_V, rtol=0, atol=bound)


def test_henaff_rnn_starts_orthogonal_and_identity_solves_adding():
    """The adding problem's solution: V = 1, U = (1, K), b = −K lets the marked values through and sums them."""
    assert measures.orthogonality_error(layers.HenaffRNN(3, 6).cells[0].weight_hh) < rounding(
        torch.float32, 6, operations=6
    )
    layer = layers.HenaffRNN(2, 1, recurrent={"name": "free", "init": "identity"})
    with torch.no_grad():
        layer.cells[0].weight_ih.copy_(torch.tensor([[1.0, 2.0]]))
        layer.cells[0].bias.fill_(-2)
    x = torch.rand(50, 4, 2)
    x[..., 1] = 0
    x[7, :, 1] = x[31, :, 1] = 1
    torch.testing.assert_close(layer(x)[1][0, :, 0], x[7, :, 0] + x[31, :, 0])


def test_enrnn_matches_equation_3():
    """By hand, Eq. 3 of Helfrich & Ye: the long state from the long and short ones, the short from itself."""

    def modrelu(z, b):
        return z.sign() * (z.abs() + b).clamp_min(0)

    layer = layers.ENRNN(2, 7, short_size=3, dtype=torch.float64)
    cell = layer.cells[0]
    W = layer.matrices()["recurrent_l0"]
    long, short, coupling = W[:4, :4], W[4:, 4:], W[:4, 4:]
    assert not W[4:, :4].any()
    assert coupling.any()
    torch.testing.assert_close(long, ScaledCayley(4, reflections=1).double()(cell.weight_hh.packed()[0]))
    x = torch.randn(5, 1, 2, dtype=torch.float64)
    h_long, h_short = torch.zeros(4, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        cell.bias.normal_(std=0.01)
    b_long, b_short = cell.bias.split([4, 3])
    for x_t in x[:, 0]:
        u_long, u_short = (cell.weight_ih @ x_t).split([4, 3])
        h_long, h_short = (
            modrelu(u_long + long @ h_long + coupling @ h_short, b_long),
            modrelu(u_short + short @ h_short, b_short),
        )
    torch.testing.assert_close(layer(x)[1].flatten(), torch.cat([h_long, h_short]))


def test_enrnn_with_identity_input_has_no_input_matrix():
    """h_t = max(x_t + W h_{t−1} + b, 0), section 5.4 of Helfrich & Ye: U is the identity and no parameter."""
    options = {"short_size": 3, "activation": "relu", "coupling_init": "orthogonal", "identity_input": True}
    layer = layers.ENRNN(7, 7, num_layers=2, **options, dtype=torch.float64)
    plain = layers.ENRNN(7, 7, num_layers=2, short_size=3)
    count, whole = (sum(p.numel() for p in one.parameters()) for one in (layer, plain))
    assert count == whole - 2 * 7 * 7
    x = torch.randn(5, 2, 7, dtype=torch.float64)
    states = x
    for cell, W in zip(layer.cells, layer.matrices().values(), strict=True):
        with torch.no_grad():
            cell.bias.normal_(std=0.1)
        h, inputs, states = torch.zeros(2, 7, dtype=torch.float64), states, []
        for x_t in inputs:
            h = (x_t + h @ W.mT + cell.bias).relu()
            states.append(h)
    torch.testing.assert_close(layer(x)[0], torch.stack(states))
    other = layers.ENRNN(7, 7, num_layers=2, **options, device="meta").to_empty(device="cpu").double()
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x)[0], layer(x)[0])
    with pytest.raises(ValueError, match="identity_input expects as many inputs as units; got 3 and 7"):
        layers.ENRNN(3, 7, identity_input=True)
    attending = layers.ENRNN(7, 7, identity_input=True, attention={"short": 2, "relevant": 1})
    assert torch.equal(attending.cells[0].cell.weight_ih, torch.eye(7))


@pytest.mark.parametrize("orthogonal", ["c", "rc", "ruc"])
def test_ncgru_matches_equation_19(orthogonal):
    """Eq. 19 of the paper, one sequence, written out; and orthogonal is what was asked to be."""
    layer = layers.NCGRU(2, 5, orthogonal=orthogonal, dtype=torch.float64)
    cell = layer.cells[0]
    matrices = layer.matrices()
    for name, W in matrices.items():
        is_orthogonal = measures.orthogonality_error(W) < rounding(
            torch.float64, 5, operations=2, scale=100
        )  # ‖A‖ < 100
        assert is_orthogonal == (name[0] in orthogonal)
    with torch.no_grad():
        cell.bias_modrelu.normal_(std=0.1)
    x, h = torch.randn(6, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    for x_t in x:
        z_r, z_u, z_c = (cell.weight_ih @ x_t).split(5)
        r = torch.sigmoid(z_r + matrices["reset_l0"] @ h + cell.bias_ih[:5])
        u = torch.sigmoid(z_u + matrices["update_l0"] @ h + cell.bias_ih[5:])
        z = z_c + matrices["candidate_l0"] @ (r * h)
        h = (1 - u) * h + u * z.sign() * (z.abs() + cell.bias_modrelu).clamp_min(0)
    torch.testing.assert_close(layer(x)[1][0], h)


@pytest.mark.parametrize("recurrent", ["exponential", {"name": "cayley", "reflections": 2}, "free"], ids=str)
def test_goru_matches_numpy_reference(recurrent):
    """Section 3 of Jing et al., in numpy, one sequence after the other: g keeps, 1 − g renews."""
    layer = layers.GORU(2, 5, recurrent=recurrent, dtype=torch.float64)
    cell = layer.cells[0]
    with torch.no_grad():
        for parameter in (cell.weight_ih, cell.bias_ih, cell.bias_modrelu, *cell.free_gates().values()):
            parameter.normal_(std=0.5)
    Q = layer.matrices()["candidate_l0"].detach()
    is_orthogonal = measures.orthogonality_error(Q) < rounding(torch.float64, 5, operations=10)
    assert is_orthogonal == (recurrent != "free")
    U_r, U_g, Q = (W.detach().numpy() for W in layer.matrices().values())
    W_r, W_g, W_c = np.split(cell.weight_ih.detach().numpy(), 3)
    b_r, b_g = np.split(cell.bias_ih.detach().numpy(), 2)
    b = cell.bias_modrelu.detach().numpy()
    x = np.random.default_rng(0).normal(size=(6, 3, 2))
    states = np.zeros((6, 3, 5))
    for i in range(3):
        h = np.zeros(5)
        for t in range(6):
            r = 1 / (1 + np.exp(-(W_r @ x[t, i] + U_r @ h + b_r)))
            g = 1 / (1 + np.exp(-(W_g @ x[t, i] + U_g @ h + b_g)))
            z = r * (Q @ h) + W_c @ x[t, i]
            h = g * h + (1 - g) * np.sign(z) * np.maximum(np.abs(z) + b, 0)
            states[t, i] = h
    bound = rounding(torch.float64, 2 + 5, operations=2 * 6, scale=max(1.0, np.abs(states).max()))
    np.testing.assert_allclose(layer(torch.from_numpy(x))[0].detach().numpy(), states, rtol=0, atol=bound)


def test_goru_initialisation_matches_authors_code():
    layer = layers.GORU(3, 40)
    cell = layer.cells[0]
    assert (cell.bias_ih[:40] == 2).all()
    assert 0.2 < cell.bias_ih[40:].abs().max() <= (3 / 40) ** 0.5
    torch.testing.assert_close(cell.bias_modrelu.detach(), torch.full((40,), 0.011))  # they add 0.001 to 0.01
    for small in (cell.weight_ih, *cell.free_gates().values()):
        assert 0.0095 < small.abs().max() <= 0.01
    assert (layers.GORU(3, 40, reset_bias=-1.0).cells[0].bias_ih[:40] == -1).all()
    N, I = 40, 3
    assert sum(p.numel() for p in layer.parameters()) == 3 * N * I + 2 * N * N + 2 * (N - 1) + 3 * N


def h_detach_loop(cell, x, state, detached):
    """One sequence x (time, inputs) as the authors' code walks it: h is detached or not before it goes into a step."""
    U = cell.stacked()
    h, c = state
    states = []
    for x_t, stop in zip(x, detached, strict=True):
        h = h.detach() if stop else h
        i, f, g, o = (cell.weight_ih @ x_t + U @ h + cell.bias_ih).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states), h, c


def gradients_of(output, weights, *leaves):
    return torch.autograd.grad((output * weights).sum(), leaves, materialize_grads=True)


@every_backend
def test_h_detach_with_probability_1_matches_authors_loop(backend, monkeypatch):
    monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
    layer = layers.HDetachLSTM(3, 6, detach_probability=1.0, dtype=torch.float64)
    x, *state = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((7, 3), (1, 6), (1, 6)))
    weights = torch.randn(7, 6, dtype=torch.float64)
    leaves = (x, *state, *layer.parameters())
    output, (h, c) = layer(x, tuple(state))
    expected, last_h, last_c = h_detach_loop(layer.cells[0], x, [s[0] for s in state], [True] * 7)
    for a, b in ((output, expected), (h[0], last_h), (c[0], last_c)):
        torch.testing.assert_close(a, b)
    ours, theirs = gradients_of(output, weights, *leaves), gradients_of(expected, weights, *leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert not ours[1].any()  # nothing gets back to h_0,
    assert ours[2].all()  # all to c_0


@every_backend
def test_h_detach_draws_a_step_for_the_whole_batch(backend, monkeypatch):
    """Two directions, sequences of unequal length: the same seed tells the authors' loop when to detach."""
    monkeypatch.setenv("STEADYGRAD_KERNELS", backend)
    layer = layers.HDetachLSTM(3, 6, detach_probability=0.5, bidirectional=True, dtype=torch.float64)
    sequences = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (9, 5, 5, 2)]
    weights = torch.randn(sum(map(len, sequences)), 12, dtype=torch.float64)
    torch.manual_seed(3)
    packed, _ = layer(torch.nn.utils.rnn.pack_sequence(sequences))
    output = torch.cat(torch.nn.utils.rnn.unpack_sequence(packed))
    torch.manual_seed(3)
    detached = [(torch.rand(9) < 0.5).tolist() for _ in range(2)]
    assert {True, False} == set(detached[0]) == set(detached[1])
    assert detached[0] != detached[1]
    start = (torch.zeros(6, dtype=torch.float64),) * 2
    both = []
    for x in sequences:
        n = len(x)
        ahead, *_ = h_detach_loop(layer.cells[0], x, start, detached[0][:n])
        back, *_ = h_detach_loop(layer.cells[1], x.flip(0), start, detached[1][:n][::-1])
        both.append(torch.cat([ahead, back.flip(0)], dim=1))
    expected = torch.cat(both)
    torch.testing.assert_close(output, expected)
    leaves = (*sequences, *layer.parameters())
    for a, b in zip(gradients_of(output, weights, *leaves), gradients_of(expected, weights, *leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("probability", "training"), [(0.0, True), (0.25, False)], ids=["never", "in evaluation"])
def test_h_detach_without_detaching_is_bitwise_equal_to_lstm(x, probability, training):
    options = {"num_layers": 2, "bidirectional": True, "dtype": torch.float64}
    layer, lstm = layers.HDetachLSTM(3, 6, detach_probability=probability, **options), layers.LSTM(3, 6, **options)
    lstm.load_state_dict(layer.state_dict())
    layer.train(training)
    before = torch.get_rng_state()
    found = []
    for one in (layer, lstm):
        leaf = x.clone().requires_grad_()
        output, (h, c) = one(leaf)
        (output.square().sum() + h.sum() + c.sum()).backward()
        found.append([output, h, c, leaf.grad, *(p.grad for p in one.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert torch.equal(before, torch.get_rng_state()) == (not training)


def test_h_detach_changes_gradients_only(x):
    layer, lstm = layers.HDetachLSTM(3, 6, dtype=torch.float64), layers.LSTM(3, 6, dtype=torch.float64)
    lstm.load_state_dict(layer.state_dict())
    outputs = [one(x)[0] for one in (layer, lstm)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.sum().backward()
    assert not torch.allclose(layer.cells[0].weight_ih.grad, lstm.cells[0].weight_ih.grad)


def test_h_detach_under_no_grad_draws_no_random_numbers(x):
    layer = layers.HDetachLSTM(3, 6, dtype=torch.float64)
    before = torch.get_rng_state()
    with torch.no_grad():
        layer(x)
    assert torch.equal(before, torch.get_rng_state())


def test_h_detach_mask_has_given_probability():
    cell = layers.HDetachLSTM(3, 6, detach_probability=0.25).cells[0]
    draws = torch.stack([cell.detached(100) for _ in range(1000)]).double()
    spread = (0.25 * 0.75 / draws.numel()) ** 0.5
    assert abs(draws.mean() - 0.25) < 4 * spread
    assert ((draws.mean(0) - 0.25).abs() < 4.5 * spread * 10).all()  # at every step alike
    together = (draws[:, 1:] * draws[:, :-1]).mean()  # and whatever the step before drew
    assert abs(together - 0.25**2) < 4 * (0.0625 * 0.9375 / draws.numel()) ** 0.5 * 1.5


def reflections_in_numpy(free, size):
    """The product of the reflections whose vectors are packed in ``free``, by what each does to the identity."""
    vectors, free = [], free.detach().numpy()
    while len(free):
        u, free = np.split(free, [size - len(vectors)])
        vectors.append(u)
    W = np.eye(size)
    for i, u in reversed(list(enumerate(vectors))):  # the last acts first
        W[i:] -= 2 * np.outer(u, u @ W[i:]) / (u @ u)
    return W


def modrelu_rnn_in_numpy(cell, W, x):
    """h_t = modReLU(U x_t + W h_{t−1}; b) for one sequence."""
    U, b, h, states = cell.weight_ih.detach().numpy(), cell.bias.detach().numpy(), np.zeros(len(W)), []
    for x_t in x:
        z = U @ x_t + W @ h
        h = np.sign(z) * np.maximum(np.abs(z) + b, 0)
        states.append(h)
    return np.stack(states)


def numpy_tolerance(states):
    """Rounding of up to ten reflections, two products and six steps of two inputs and five units, done twice."""
    return rounding(torch.float64, 2 + 5, operations=2 * (10 + 2 + 6), scale=max(1.0, np.abs(states).max()))


@pytest.mark.parametrize("reflections", [None, 1, 3])
def test_ornn_matches_numpy_reference(reflections):
    """Mhammedi et al. in numpy, reflection by reflection."""
    layer = layers.ORNN(2, 5, reflections=reflections, dtype=torch.float64)
    cell = layer.cells[0]
    with torch.no_grad():
        cell.bias.normal_(std=0.1)
        cell.weight_hh.packed()[0].normal_()
    x = np.random.default_rng(0).normal(size=(6, 2))
    expected = modrelu_rnn_in_numpy(cell, reflections_in_numpy(cell.weight_hh.packed()[0], 5), x)
    np.testing.assert_allclose(
        layer(torch.from_numpy(x))[0].detach().numpy(), expected, rtol=0, atol=numpy_tolerance(expected)
    )


@pytest.mark.parametrize("reflections", [None, 2])
def test_spectral_rnn_matches_numpy_reference(reflections):
    """Zhang, Lei & Dhillon in numpy: the singular values by their sigmoid, the bases reflection by reflection."""
    layer = layers.SpectralRNN(2, 5, margin=0.3, reflections=reflections, dtype=torch.float64)
    cell = layer.cells[0]
    with torch.no_grad():
        for parameter in (cell.bias, *cell.weight_hh.packed()):
            parameter.normal_()
    left, right, p = cell.weight_hh.packed()
    sigma = 1 + 2 * 0.3 * (1 / (1 + np.exp(-p.detach().numpy())) - 0.5)
    W = reflections_in_numpy(left, 5) @ np.diag(sigma) @ reflections_in_numpy(right, 5).T
    x = np.random.default_rng(0).normal(size=(6, 2))
    expected = modrelu_rnn_in_numpy(cell, W, x)
    np.testing.assert_allclose(
        layer(torch.from_numpy(x))[0].detach().numpy(), expected, rtol=0, atol=numpy_tolerance(expected)
    )


def test_default_reflections_are_16_or_number_of_units():
    for make, parts in ((layers.ORNN, 1), (layers.SpectralRNN, 2)):
        for hidden, count in ((64, 904), (16, 136), (5, 15)):
            assert [f.numel() for f in make(3, hidden).cells[0].weight_hh.packed()[:parts]] == [count] * parts
    assert layers.SpectralRNN(3, 64, bases="exponential").cells[0].weight_hh.packed()[0].numel() == 2016


def test_spectral_pull_matches_singular_values():
    """‖WᵀW − I‖₂ = max |σ² − 1|: values and gradients by svdvals, whichever end of the spectrum is the worst."""
    layer = layers.OrthogonalRNN(2, 6, 2, bidirectional=True, pull=0.5, pull_norm="spectral", dtype=torch.float64)
    with torch.no_grad():
        for index, cell in enumerate(layer.cells):
            W = cell.weight_hh
            W += 0.1 * torch.randn_like(W)
            W *= 0.5 if index % 2 else 2.0  # the smallest or the largest singular value is furthest from 1
    free = [cell.weight_hh for cell in layer.cells]
    expected = 0.5 * sum((torch.linalg.svdvals(W).square() - 1).abs().max().square() for W in free)
    bound = rounding(torch.float64, 6, operations=4, scale=100)
    torch.testing.assert_close(layer.penalty(), expected, rtol=bound, atol=0)
    ours, theirs = torch.autograd.grad(layer.penalty(), free), torch.autograd.grad(expected, free)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=10 * bound)
    torch.autograd.gradcheck(lambda W: orthogonal.distance(W, "spectral"), free[0])


def test_spectral_pull_trains_matrix_to_orthogonal():
    layer = layers.OrthogonalRNN(2, 6, pull=1.0, pull_norm="spectral")
    assert layer.penalty() < rounding(torch.float32, 6, operations=2) ** 2
    with torch.no_grad():
        layer.cells[0].weight_hh.mul_(1.3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        layer.penalty().backward()
        optimizer.step()
    assert layer.penalty() < 1e-2
    with pytest.raises(ValueError, match="pull_norm to be one of frobenius, spectral; got 'nuclear'"):
        layers.OrthogonalRNN(3, 6, pull_norm="nuclear")


def test_frobenius_pull_matches_formula_and_gradient():
    """λ Σ ‖WᵀW − I‖_F² over all levels and directions, with its gradient 4 λ W (WᵀW − I)."""
    layer = layers.OrthogonalRNN(2, 6, 2, bidirectional=True, pull=0.5, dtype=torch.float64)
    assert layer.penalty().item() < 0.5 * 4 * rounding(torch.float32, 6) ** 2  # they start in single precision
    with torch.no_grad():
        for cell in layer.cells:
            cell.weight_hh.copy_(1.1 * nearest_orthogonal(cell.weight_hh))
    layer.penalty().backward()
    assert layer.penalty().item() == pytest.approx(0.5 * 4 * 6 * (1.1**2 - 1) ** 2)
    W = layer.cells[3].weight_hh
    torch.testing.assert_close(W.grad, 4 * 0.5 * W.detach() * (1.1**2 - 1))
    assert layers.OrthogonalRNN(2, 6).penalty() == 0.0


def count(layer, outputs):
    """Parameters of the layer and a linear read-out."""
    return sum(p.numel() for p in layer.parameters()) + (layer.output_size + 1) * outputs


def test_any_cell_takes_any_matrix(x):
    for recurrent in MATRICES:
        for layer in (
            layers.RNN(3, 6, recurrent=recurrent, dtype=torch.float64),
            layers.GRU(3, 6, recurrent=recurrent, dtype=torch.float64),
            layers.LSTM(3, 6, recurrent=recurrent, dtype=torch.float64),
            layers.GORU(3, 6, recurrent=recurrent, dtype=torch.float64),
        ):
            layer(x)[0].sum().backward()
            assert all(p.grad is not None for p in layer.parameters())


def test_recurrent_accepts_gate_dict_table_function_and_matrix():
    gru = layers.GRU(3, 6, recurrent={"candidate": "neumann", "reset": {"name": "cayley", "reflections": 2}})
    kinds = [type(getattr(W, "map", W)).__name__ for W in gru.cells[0].gates().values()]
    assert kinds == ["ScaledCayley", "Parameter", "NeumannCayley"]
    lstm = layers.LSTM(3, 6, recurrent="cayley")
    assert all(isinstance(matrix.map, ScaledCayley) for matrix in lstm.cells[0].gates().values())
    own = layers.RNN(3, 6, recurrent=lambda size: Matrix(Exponential(size), torch.zeros(size * (size - 1) // 2)))
    torch.testing.assert_close(own.matrices()["recurrent_l0"], torch.eye(6))
    given = build("schur", 6)
    assert layers.RNN(3, 6, recurrent=given).weight_hh_l0 is given
    assert isinstance(given.map, RealSchur)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layers.RNN(3, 6, activation="gelu"),
            "expects an activation out of modrelu, tanh, relu, identity; got",
        ),
        (lambda: layers.GRU(3, 6, activation="gelu"), "expects an activation"),
        (lambda: layers.RNN(3, 6, recurrent="unitary"), "no matrix 'unitary'; choose from cayley"),
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
        (lambda: layers.ORNN(3, 6, reflections=7), r"reflections.*1 … 6; got 7"),
        (lambda: layers.ORNN(3, 6, init="nonsense"), "no initialiser 'nonsense' of reflections; choose from"),
        (lambda: layers.SpectralRNN(3, 6, margin=2), "margin between 0 and 1; got 2"),
        (lambda: layers.SpectralRNN(3, 6, bases="givens"), "bases to be one of householder, exponential; got 'givens'"),
        (
            lambda: layers.OrthogonalRNN(3, 6, pull=-1),
            "OrthogonalRNN expects pull to be a number of at least 0; got -1",
        ),
        (lambda: layers.NCGRU(3, 6, orthogonal="u"), "NCGRU expects orthogonal to be one of c, rc, ruc; got 'u'"),
        (lambda: layers.NCGRU(3, 6, order=4), "order"),
        (lambda: layers.LSTM(3, 6, bias=False, forget_bias=1.0), "forget_bias"),
        (lambda: layers.ENRNN(3, 6, short_size=7), "short_size|short"),
        (lambda: layers.GRU(3, 6, reset="between"), "GRU expects reset to be before or after.*; got 'between'"),
        (lambda: layers.GORU(3, 6, recurrent="unknown"), "no matrix 'unknown'"),
        (
            lambda: layers.HDetachLSTM(3, 6, detach_probability=1.5),
            "HDetachLSTM expects detach_probability between 0 and 1; got 1.5",
        ),
        (lambda: layers.HDetachLSTM(3, 6, detach_probability=float("nan")), "between 0 and 1; got nan"),
    ],
)
def test_invalid_settings_raise_value_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_forget_bias_sets_forget_gate_bias():
    assert (layers.LSTM(3, 4, forget_bias=2.0).cells[0].bias_ih[4:8] == 2).all()


@pytest.mark.parametrize("reflections", [1, 3])
def test_ornn_operator_path_matches_dense_path(reflections, monkeypatch):
    """Values and gradients; real rows, no W."""
    torch.manual_seed(0)
    layer = layers.ORNN(3, 6, reflections=reflections, dtype=torch.float64)
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    results = []
    for smallest in (math.inf, 1):
        monkeypatch.setattr(Householder, "operator_from", smallest)
        assert (layer.weight_hh_l0.operator() is None) == (smallest == math.inf)
        layer.zero_grad()
        output, _ = layer(x)
        output.pow(3).sum().backward()
        results.append([output.detach(), *(p.grad.clone() for p in layer.parameters())])
    for dense, stepped in zip(*results, strict=True):
        torch.testing.assert_close(dense, stepped)
