"""Layers of complex units: an independent loop in numpy, both ways to step, their sizes, errors and learning rates."""

import math

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from steadygrad.layers import EURNN, GRU, LSTM, NNRNN, RNN, URNN, FullCapacityURNN, ScuRNN, elman
from steadygrad.matrices import COMPLEX, MATRICES, Givens, Matrix, UnitaryEvolution
from steadygrad.training.optimizers import train_groups
from steadygrad.training.options import Train
from tests.rounding import rounding

pytestmark = pytest.mark.filterwarnings("ignore:.* was overwritten after it was built")  # on purpose

I, N = 3, 6
MAKE_LAYER = {
    "urnn": URNN,
    "full-urnn": FullCapacityURNN,
    "scurnn": ScuRNN,
    "eurnn": EURNN,
    "eurnn, full": lambda *size, **options: EURNN(*size, style="full", **options),
    "eurnn, fft": lambda *size, **options: EURNN(*size, style="fft", **options),
    "nnrnn": lambda *size, **options: NNRNN(*size, complex=True, **options),
}
UNITARY = [name for name in MAKE_LAYER if name != "nnrnn"]
OPERATOR_LAYERS = {"urnn": UnitaryEvolution, "eurnn": Givens, "eurnn, full": Givens, "eurnn, fft": Givens}
every_layer = pytest.mark.parametrize("make", MAKE_LAYER.values(), ids=MAKE_LAYER)
FORMS = {"plain": {}, "deep, both ways": {"num_layers": 2, "bidirectional": True}}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def perturb_parameters(layer: torch.nn.Module) -> torch.nn.Module:
    """Away from its start, with biases that matter: some silence their units, some do not."""
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if "bias" in name:
                p.normal_(-0.8, 0.6)
            elif "weight_hh" in name:
                p += 0.2 * torch.randn_like(p)
    return layer


@pytest.fixture(autouse=True)
def one_thread(same_start):
    """Layers this small lose time to a second one; kernels are tested with more."""
    torch.set_num_threads(1)


@pytest.fixture
def x():
    return torch.randn(7, 4, I, dtype=torch.float64)


def complex_loop(cell, W: np.ndarray, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """h_t = z/|z| · max(|z| + b, 0), z = U x_t + W h_{t−1}: sequence by sequence, column by column."""
    n = len(W)
    U = cell.weight_ih.detach().numpy()
    U = U[:n] + 1j * U[n:]
    b = cell.bias_modrelu.detach().numpy()
    time, batch, _ = x.shape
    outputs = np.zeros((time, batch, 2 * n))
    for s in range(batch):
        state = h[s, :n] + 1j * h[s, n:]
        for t in range(time):
            z = U @ x[t, s] + W @ state
            state = np.array([zk / abs(zk) * max(abs(zk) + bk, 0) if zk else 0 for zk, bk in zip(z, b, strict=True)])
            outputs[t, s] = np.concatenate([state.real, state.imag])
    return outputs


@every_layer
@every_form
def test_outputs_match_complex_numpy_loop(make, form, x):
    layer = perturb_parameters(make(I, N, dtype=torch.float64, **form))
    start = torch.randn(len(layer.cells), 4, 2 * N, dtype=torch.float64)
    output, end = layer(x, start)
    matrices = layer.matrices()
    directions = layer.directions
    below = x.numpy()
    # seven steps at each of two levels, each a sum over inputs and complex units, of states below 10
    atol = rounding(torch.float64, 4 * N, operations=2 * 7 * layer.num_layers, scale=10)
    for level in range(layer.num_layers):
        parts = []
        for direction in range(directions):
            index = level * directions + direction
            W = matrices[f"recurrent_l{level}{'_reverse' if direction else ''}"].detach().numpy()
            assert W.shape == (N, N)
            assert np.iscomplexobj(W)
            turn = slice(None, None, -1 if direction else 1)
            parts.append(complex_loop(layer.cells[index], W, below[turn], start[index].numpy())[turn])
            np.testing.assert_allclose(
                end[index].detach().numpy(), parts[-1][0 if direction else -1], rtol=0, atol=atol
            )
        below = np.concatenate(parts, axis=2)
    np.testing.assert_allclose(output.detach().numpy(), below, rtol=0, atol=atol)
    assert (output == 0).any()  # some units were silent


@every_layer
def test_default_initial_state_is_zero(make, x):
    layer = perturb_parameters(make(I, N, dtype=torch.float64))
    zero = torch.zeros(1, 4, 2 * N, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], layer(x, zero)[0])


@pytest.mark.parametrize("matrix", ["cayley", "exponential", "schur", "free"])
def test_complex_units_take_real_matrices(matrix, x):
    layer = perturb_parameters(RNN(I, N, complex=True, activation="modrelu", recurrent=matrix, dtype=torch.float64))
    W = layer.matrices()["recurrent_l0"].detach()
    assert not W.is_complex()
    start = torch.randn(1, 4, 2 * N, dtype=torch.float64)
    expected = complex_loop(layer.cells[0], W.numpy(), x.numpy(), start[0].numpy())
    np.testing.assert_allclose(
        layer(x, start)[0].detach().numpy(), expected, rtol=0, atol=rounding(torch.float64, 4 * N, 2 * 7, scale=10)
    )


@every_layer
def test_sizes_count_complex_units(make):
    for options, features, cells in (({}, 2 * N, 1), ({"num_layers": 2, "bidirectional": True}, 4 * N, 4)):
        layer = make(I, N, **options)
        assert layer.hidden_size == N
        assert layer.output_size == features
        assert layer.state_sizes == (2 * N,)
        output, end = layer(torch.randn(5, 2, I))
        assert output.shape == (5, 2, features)
        assert end.shape == (cells, 2, 2 * N)
        assert output.dtype == end.dtype == torch.float32
        assert all(p.dtype == torch.float32 for p in layer.parameters())
        assert {W.shape for W in layer.matrices().values()} == {(N, N)}


@pytest.mark.parametrize(
    ("make", "recurrent"),
    [
        (URNN, 7 * N),
        (FullCapacityURNN, N**2),
        (ScuRNN, N**2 + N),
        (EURNN, 2 * 5 + N),
        (MAKE_LAYER["eurnn, full"], N**2),
        (MAKE_LAYER["eurnn, fft"], 2 * (3 + 2 + 2) + N),
        (MAKE_LAYER["nnrnn"], N**2 + 2 * N + N * (N - 1)),
    ],
)
def test_parameter_counts_match_formulas(make, recurrent):
    """U of a complex unit has two real numbers an input, its bias is one."""
    layer = make(I, N)
    assert sum(p.numel() for p in layer.parameters()) == 2 * N * I + N + recurrent


@pytest.mark.parametrize("name", UNITARY)
def test_bias_false_removes_bias_parameters(name, x):
    layer = MAKE_LAYER[name](I, N, bias=False, dtype=torch.float64)
    assert layer.cells[0].bias_modrelu is None
    assert not any(key.endswith(".b") for key in layer.state_dict())
    layer(x)[0].sum().backward()


@pytest.mark.parametrize("name", UNITARY)
def test_state_and_gradient_norms_are_preserved_over_300_steps(name):
    """Without bias and input h_T = W^T h_0: the norm of the state, and of its gradient, for 300 steps."""
    layer = MAKE_LAYER[name](I, N, bias=False, dtype=torch.float64)
    start = torch.randn(1, 2, 2 * N, dtype=torch.float64, requires_grad=True)
    output, end = layer(torch.zeros(300, 2, I, dtype=torch.float64), start)
    norms, rtol = output.norm(dim=2), rounding(torch.float64, 2 * N, operations=300)
    torch.testing.assert_close(norms, start.norm(dim=2).expand(300, 2), rtol=rtol, atol=0)
    direction = torch.randn_like(end)
    (gradient,) = torch.autograd.grad(end, start, direction)
    torch.testing.assert_close(gradient.norm(dim=2), direction.norm(dim=2), rtol=rtol, atol=0)


@every_layer
def test_zero_input_gives_zero_output_and_finite_gradients(make):
    """h_0 = 0 and x = 0: |z| = 0 has no direction, but zeros and finite gradients come out."""
    layer = make(I, N)
    output, _ = layer(torch.zeros(4, 2, I))
    assert not output.any()
    output.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


class TestOperator:
    """Stepping without W, where a layer is large; here forced on small ones."""

    @pytest.fixture(params=OPERATOR_LAYERS)
    def both(self, request, monkeypatch):
        """A function that runs a layer densely, then by its operator; it counts the calls of the latter."""
        calls = []
        original = elman.operator_unroll
        monkeypatch.setattr(elman, "operator_unroll", lambda *args: calls.append(1) or original(*args))

        def run(form, work):
            layer = perturb_parameters(MAKE_LAYER[request.param](I, N, dtype=torch.float64, **form))
            dense = work(layer)
            assert not calls
            with monkeypatch.context() as patch:
                patch.setattr(OPERATOR_LAYERS[request.param], "operator_from", 1)
                operated = work(layer)
            assert len(calls) == len(layer.cells)
            return dense, operated

        return run

    @every_form
    @pytest.mark.parametrize("lengths", [[6, 6, 6], [6, 4, 4, 1]], ids=["even", "packed"])
    def test_operator_path_matches_dense_path(self, both, form, lengths):
        sequences = [torch.randn(length, I, dtype=torch.float64) for length in lengths]
        cells = 1 if not form else 4
        start = torch.randn(cells, len(lengths), 2 * N, dtype=torch.float64)

        def work(layer):
            layer.zero_grad()
            leaves = [s.clone().requires_grad_() for s in sequences]
            h_0 = start.clone().requires_grad_()
            output, end = layer(pack_sequence(leaves), h_0)
            generator = torch.Generator().manual_seed(3)
            loss = (output.data * torch.randn(output.data.shape, generator=generator, dtype=torch.float64)).sum()
            (loss + end.pow(3).sum()).backward()
            gradients = [p.grad.clone() for p in layer.parameters()]
            return [output.data.detach(), end.detach(), h_0.grad, *(leaf.grad for leaf in leaves), *gradients]

        dense, operated = both(form, work)
        for a, b in zip(operated, dense, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)

    def test_operator_path_matches_dense_path_under_no_grad(self, both, x):
        def work(layer):
            with torch.no_grad():
                return layer.eval()(x)[0].clone()

        dense, operated = both({}, work)
        torch.testing.assert_close(operated, dense, rtol=0, atol=1e-12)

    def test_large_layer_uses_operator_automatically(self, monkeypatch):
        calls = []
        original = elman.operator_unroll
        monkeypatch.setattr(elman, "operator_unroll", lambda *args: calls.append(1) or original(*args))
        layer = URNN(I, 512)
        x = torch.randn(3, 2, I)
        by_operator = layer(x)[0]
        assert calls == [1]
        monkeypatch.setattr(UnitaryEvolution, "operator_from", math.inf)
        torch.testing.assert_close(layer(x)[0], by_operator, rtol=1e-4, atol=1e-5)
        assert calls == [1]


class TestPenalty:
    def test_complex_nnrnn_penalty_pulls_moduli_to_one(self):
        layer = NNRNN(I, N, 2, complex=True, spectrum_pull=0.3, dtype=torch.float64)
        assert layer.penalty().item() == 0
        gammas = [cell.weight_hh.modulus for cell in layer.cells]
        with torch.no_grad():
            for k, gamma in enumerate(gammas):
                gamma += 0.1 * (k + 1) * torch.arange(N)
        expected = 0.3 * sum((0.1 * (k + 1) * j) ** 2 for k in range(2) for j in range(N))
        assert layer.penalty().item() == pytest.approx(expected)
        layer.penalty().backward()
        for gamma in gammas:
            torch.testing.assert_close(gamma.grad, 0.6 * (gamma.detach() - 1))
        assert [name for name, p in layer.named_parameters() if p.grad is not None] == [
            "weight_hh_l0.modulus",
            "weight_hh_l1.modulus",
        ]

    def test_modulus_parameters_match_eigenvalue_moduli(self):
        layer = perturb_parameters(NNRNN(I, N, complex=True, dtype=torch.float64))
        found = torch.linalg.eigvals(layer.matrices()["recurrent_l0"]).abs().log().sum()
        torch.testing.assert_close(found, layer.cells[0].weight_hh.modulus.abs().log().sum())
        assert layer.penalty().item() > 0

    @pytest.mark.parametrize("name", UNITARY)
    def test_unitary_layers_have_zero_penalty(self, name):
        assert perturb_parameters(MAKE_LAYER[name](I, N)).penalty() == 0


class TestErrors:
    @pytest.mark.parametrize("activation", ["tanh", "relu", "identity", "wrong"])
    def test_complex_units_reject_activations_other_than_modrelu(self, activation):
        with pytest.raises(ValueError, match=f"expects activation modrelu.* for complex units; got '{activation}'"):
            RNN(I, N, complex=True, activation=activation)
        with pytest.raises(ValueError, match=f"expects activation modrelu.* for complex units; got '{activation}'"):
            NNRNN(I, N, complex=True, activation=activation)

    def test_complex_rnn_rejects_default_tanh(self):
        with pytest.raises(ValueError, match="modrelu for complex units; got 'tanh'"):
            RNN(I, N, complex=True)

    def test_complex_nnrnn_rejects_in_block(self):
        with pytest.raises(ValueError, match="NNRNN expects in_block=False for complex units"):
            NNRNN(I, N, complex=True, in_block=True)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: EURNN(I, N, capacity=0), "capacity to be at least 1"),
            (lambda: EURNN(I, N, style="wavelet"), "tunable, full or fft; got 'wavelet'"),
            (lambda: ScuRNN(I, N, init="wrong"), "henaff, cayley, haar; got 'wrong'"),
            (lambda: NNRNN(I, N, complex=True, init="wrong"), "henaff, cayley; got 'wrong'"),
            (lambda: RNN(I, N, complex=True, activation="modrelu", recurrent="wrong"), "no matrix 'wrong'"),
        ],
    )
    def test_invalid_options_raise_value_error(self, make, words):
        with pytest.raises(ValueError, match=words):
            make()


class TestComplexMatricesBetweenRealUnits:
    @pytest.mark.parametrize("name", COMPLEX)
    @pytest.mark.parametrize("make", [RNN, GRU, LSTM])
    def test_real_cells_accept_complex_matrices_of_even_size(self, make, name, x):
        layer = make(I, 6, recurrent=name, dtype=torch.float64)
        output, _ = layer(x)
        assert output.shape == (7, 4, 6)
        output.sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
        matrices = layer.matrices()
        assert {W.shape for W in matrices.values()} == {(6, 6)}
        start = rounding(torch.float32, 6, operations=2)  # matrices start in single precision
        for W in matrices.values():
            assert not W.is_complex()
            torch.testing.assert_close(W.mT @ W, torch.eye(6, dtype=torch.float64), rtol=0, atol=start)
        with pytest.raises(ValueError, match=f"'{name}' is complex.*even number of them; got 5"):
            make(I, 5, recurrent=name)

    @pytest.mark.parametrize("name", COMPLEX)
    def test_real_and_complex_modrelu_agree_only_without_bias(self, name, x):
        """The same W, but a real unit has its own sign and bias, a complex one a direction in the plane."""
        real = RNN(I, 2 * N, recurrent=name, activation="modrelu", dtype=torch.float64)
        twin = RNN(I, N, recurrent=name, activation="modrelu", complex=True, dtype=torch.float64)
        cell, other = real.cells[0], twin.cells[0]
        with torch.no_grad():
            other.weight_ih.copy_(cell.weight_ih)
            for f, g in zip(other.weight_hh.free, cell.weight_hh.free, strict=True):
                f.copy_(g)
            for a, b in zip(other.weight_hh.map.buffers(), cell.weight_hh.map.inner.buffers(), strict=True):
                a.copy_(b)
            cell.bias_modrelu.zero_()
            other.bias_modrelu.zero_()
            torch.testing.assert_close(twin(x)[0], real(x)[0])  # without a bias both are linear
            cell.bias_modrelu.fill_(-0.3)
            other.bias_modrelu.fill_(-0.3)
            assert not torch.allclose(twin(x)[0], real(x)[0])


@every_layer
def test_autocast_does_not_touch_the_recurrence(make):
    layer, x = perturb_parameters(make(I, N)), torch.randn(5, 2, I)
    expected = layer(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)[0]
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize(("make", "hidden"), [*((make, N) for make in MAKE_LAYER.values()), (URNN, 512)])
def test_bfloat16_output_is_close_and_gradients_are_finite(make, hidden):
    """Coarse, but the same network: W is still complex, and its parameters learn."""
    layer, x = make(I, hidden), torch.randn(3, 2, I)
    expected = layer(x)[0]
    output = layer.bfloat16()(x.bfloat16())[0]
    assert output.dtype == torch.bfloat16
    # angles up to 2π and inputs are rounded by half of eps, and each of three steps turns by the angles
    bound = 2 * 3 * math.pi * torch.finfo(torch.bfloat16).eps * max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=bound)
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


class TestLearningRates:
    TRAIN = Train(lr=0.5, lr_constrained=0.25, decay_transients=0.125, weight_decay=0.0625)

    @pytest.mark.parametrize(
        ("name", "slow", "transient"),
        [
            ("urnn", [1], []),  # the reflectors, whose length means nothing; phases go as all others
            ("full-urnn", [0], []),
            ("scurnn", [0], []),  # A
            ("eurnn", [], []),
            ("eurnn, fft", [], []),
            ("nnrnn", [0], [3]),  # A of P; T
        ],
    )
    def test_parameter_groups_depend_on_parameter_kind(self, name, slow, transient):
        layer = MAKE_LAYER[name](I, N, 2)
        names = {parameter: key for key, parameter in layer.named_parameters()}
        found = {}
        for group in train_groups(layer, self.TRAIN):
            for parameter in group["params"]:
                assert names[parameter] not in found
                found[names[parameter]] = (group.get("lr", self.TRAIN.lr), group["weight_decay"])
        assert found.keys() == set(names.values())

        def free(which):
            return {f"weight_hh_l{level}.{layer.cells[0].weight_hh.names[k]}" for level in range(2) for k in which}

        assert {key for key, rates in found.items() if rates == (0.25, 0.0)} == free(slow)
        assert {key for key, rates in found.items() if rates == (0.5, 0.125)} == free(transient)
        rest = found.keys() - free(slow) - free(transient)
        assert {found[key] for key in rest} == {(0.5, 0.0625)}

    def test_parameter_groups_of_complex_matrix_in_real_form(self):
        layer = RNN(I, 2 * N, recurrent="complex-schur")
        slow, transient, *_ = train_groups(layer, self.TRAIN)
        assert [p is layer.weight_hh_l0.free[0] for p in slow["params"]] == [True]
        assert slow["lr"] == 0.25
        assert [p is layer.weight_hh_l0.free[3] for p in transient["params"]] == [True]

    def test_skew_and_reflector_parameters_use_constrained_lr(self):
        """Whatever is called skew or a reflector, in MATRICES and COMPLEX."""
        for name in [*MATRICES, *COMPLEX]:
            layer = RNN(I, 2 * N, recurrent=name)
            matrices = [part for part in layer.modules() if isinstance(part, Matrix)]  # none if it is free
            kinds = {f: kind for part in matrices for f, kind in zip(part.free, part.kinds, strict=True)}
            slow = {f for f, kind in kinds.items() if kind in ("skew", "reflector")}
            groups = train_groups(layer, self.TRAIN)
            assert {p for group in groups if group.get("lr") == 0.25 for p in group["params"]} == slow
