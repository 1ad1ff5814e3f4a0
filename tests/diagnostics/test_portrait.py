"""A network in numbers: each against numpy, autograd or a closed form, and all of them fit into JSON."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from steadygrad.diagnostics import flow, gradient_norms, input_map, observe, portrait, recurrent_matrices, state_blocks
from steadygrad.diagnostics.flow import STEPS
from steadygrad.diagnostics.portrait import CELLS, digits, relation_portrait, triangle
from steadygrad.files import finite
from steadygrad.layers import ENRNN, GRU, LAYERS, LSTM, NNRNN, RNN
from steadygrad.matrices import LongShort, init
from steadygrad.models import MODELS
from steadygrad.tasks import TASKS
from steadygrad.tasks.relational.shapes import ShapeTask

TORCH_LAYERS = {"nn.RNN": (nn.RNN, 1), "nn.GRU": (nn.GRU, 3), "nn.LSTM": (nn.LSTM, 4)}
"""and how many matrices are stacked in weight_hh"""
MODULES = {**LAYERS, **{name: layer for name, (layer, _) in TORCH_LAYERS.items()}}
every_module = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


class UserModule(nn.Module):
    """A user's own: nothing but the call."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, h_0=None):
        return self.inner(x, h_0)


class UserLoop(nn.Module):
    """A user's own loop around torch's cell, which any parametrisation can be put on."""

    def __init__(self):
        super().__init__()
        self.cell = nn.RNNCell(3, 4)

    def forward(self, x, h_0=None):
        h = x.new_zeros(x.shape[1], 4) if h_0 is None else h_0[0]
        states = []
        for x_t in x:
            h = self.cell(x_t, h)
            states.append(h)
        return torch.stack(states), h[None]


@pytest.fixture(autouse=True)
def one_thread(same_start):
    """Networks this small gain nothing from a second."""
    torch.set_num_threads(1)


def sequence(time=6, inputs=3):
    return torch.randn(time, inputs, generator=torch.Generator().manual_seed(1))


def equal_to_five_digits(found, expected):
    """Numbers in a portrait have five digits."""
    return found == pytest.approx(expected, rel=1e-4, abs=1e-7)


def assert_eigenvalues_match(seen, W):
    """Against numpy: all of a complex matrix, of a real one those with Im ≥ 0."""
    wide = torch.complex128 if W.is_complex() else torch.float64
    expected = np.linalg.eigvals(W.detach().to(wide).numpy())
    if not W.is_complex():
        assert min(seen["eigenvalues"][1]) >= 0
        expected = expected[expected.imag >= 0]
    found = np.array(seen["eigenvalues"][0]) + 1j * np.array(seen["eigenvalues"][1])
    assert len(found) == len(expected)
    distances = abs(found[:, None] - expected)
    assert distances.min(axis=0).max() < 1e-4
    assert distances.min(axis=1).max() < 1e-4


# matrices


@pytest.mark.parametrize("name", LAYERS)
def test_portrait_eigenvalues_match_layer_matrices(name):
    layer = LAYERS[name](3, 5)
    own = {key: W.detach() for key, W in layer.matrices().items()}
    assert own
    for found in (observe(layer, sequence()), portrait(layer, sequence())):
        assert found["matrices"].keys() == own.keys()
        for key, W in own.items():
            seen, size = found["matrices"][key], np.linalg.norm(W.numpy(), 2)
            assert_eigenvalues_match(seen, W)
            error = np.linalg.norm(W.numpy().conj().T @ W.numpy() - np.eye(len(W)))
            assert seen["orthogonality_error"] == pytest.approx(error, rel=1e-4, abs=1e-5)
            assert seen.get("powers", [1, size])[:2] == pytest.approx([1, size], rel=1e-4)
            assert max(seen.get("singular_values", [size])) == pytest.approx(size, rel=1e-4)


@pytest.mark.parametrize("name", TORCH_LAYERS)
def test_portrait_eigenvalues_match_blocks_of_torch_weights(name):
    make, count = TORCH_LAYERS[name]
    layer = make(3, 5, num_layers=2)
    found = portrait(layer, sequence())["matrices"]
    assert len(found) == 2 * count
    for level in range(2):
        whole = f"weight_hh_l{level}"
        blocks = getattr(layer, whole).detach().chunk(count)
        names = [whole] if count == 1 else [f"{whole}[{i}]" for i in range(count)]
        for key, W in zip(names, blocks, strict=True):
            assert_eigenvalues_match(found[key], W)
            assert torch.equal(recurrent_matrices(layer)[key], W)
    inside = portrait(UserModule(layer), sequence())["matrices"]
    assert inside == {f"inner.{key}": seen for key, seen in found.items()}


def test_matrix_numbers_match_hand_computed_example():
    W = torch.tensor([[0.9, 1.0], [0.0, 0.5]])
    layer = RNN(3, 2)
    layer.weight_hh_l0.data = W
    for found in (observe(layer, sequence()), portrait(layer, sequence())):
        seen = found["matrices"]["recurrent_l0"]
        assert sorted(seen["eigenvalues"][0]) == [0.5, 0.9]
        assert seen["eigenvalues"][1] == [0.0, 0.0]
        assert seen["radius"] == pytest.approx(0.9)
        assert seen["departure"] == pytest.approx(1.0)  # ‖W‖² is 0.81 + 1 + 0.25, of which the eigenvalues have 1.06
        assert seen["orthogonality_error"] == pytest.approx(float((W.T @ W - torch.eye(2)).norm()))
    assert equal_to_five_digits(seen["singular_values"], np.linalg.svd(W.numpy())[1].tolist())
    powers = [np.linalg.norm(np.linalg.matrix_power(W.double().numpy(), k), 2) for k in range(101)]
    assert equal_to_five_digits(seen["powers"], powers)
    assert seen["powers"][0] == 1


def test_recurrent_matrices_uses_overridden_matrices_method():
    class Mine(GRU):
        def matrices(self):
            return {"mine": super().matrices()["candidate_l0"]}

    layer = Mine(3, 4)
    found = recurrent_matrices(layer)
    assert found.keys() == {"mine"}
    assert torch.equal(found["mine"], layer.matrices()["mine"])
    assert not found["mine"].requires_grad

    class Theirs(nn.GRU):
        pass

    assert list(recurrent_matrices(Theirs(3, 4))) == [f"weight_hh_l0[{i}]" for i in range(3)]


def test_portrait_of_module_without_recurrent_matrices():
    class Leaky(nn.Module):
        def forward(self, x, h_0=None):
            h = torch.zeros_like(x[0]) if h_0 is None else h_0[0]
            states = []
            for x_t in x:
                h = 0.5 * h + x_t
                states.append(h)
            return torch.stack(states), h[None]

    assert recurrent_matrices(nn.Linear(3, 3)) == recurrent_matrices(Leaky()) == {}
    assert observe(Leaky(), sequence()) == {"matrices": {}}
    found = portrait(Leaky(), sequence())
    assert found["matrices"] == {}
    assert equal_to_five_digits(found["exponents"], [math.log(0.5)] * 3)
    log = [[round((tau - t) * math.log10(0.5), 2) for t in range(tau + 1)] for tau in range(6)]
    assert found["input_maps"] == {"state": log}


def test_lstm_with_projection_has_no_recurrent_matrices():
    """torch.nn.LSTM's weight_hh is then (4 · hidden, proj): how many rows it has does not make its pieces square."""
    assert recurrent_matrices(nn.LSTM(3, 4, proj_size=2)) == {}


def test_recurrent_matrices_returns_parametrized_weight():
    """Not the free tensor that it is made from."""
    module = UserLoop()
    parametrizations.orthogonal(module.cell, "weight_hh")
    (W,) = recurrent_matrices(module).values()
    torch.testing.assert_close(W, module.cell.weight_hh.detach())
    (seen,) = observe(module, sequence())["matrices"].values()
    assert_eigenvalues_match(seen, module.cell.weight_hh)


# the parts that only some layers have

SCHUR_LAYERS = {
    **{name: (lambda layer=layer: layer(3, 4), name == "nnrnn") for name, layer in LAYERS.items()},
    "rnn of schur": (lambda: RNN(3, 5, recurrent="schur"), True),
    "lstm of schur": (lambda: LSTM(3, 4, recurrent="schur"), True),
    "gru with one schur": (lambda: GRU(3, 4, recurrent={"candidate": "schur"}), True),
    "two levels": (lambda: NNRNN(3, 4, num_layers=2), True),
    "own": (lambda: UserModule(NNRNN(3, 4)), True),
    "nn.GRU": (lambda: nn.GRU(3, 4), False),
}


@pytest.mark.parametrize(("make", "has"), SCHUR_LAYERS.values(), ids=SCHUR_LAYERS)
def test_a_schur_part_exactly_where_there_is_a_schur_form(make, has):
    layer = make()
    assert ("schur" in observe(layer, sequence())) == has
    assert ("schur" in portrait(layer, sequence())) == has


def test_every_schur_form_has_a_name():
    layer = LSTM(3, 4, recurrent="schur")
    assert len(portrait(layer, sequence())["schur"]) == len(observe(layer, sequence())["schur"]) == 4


@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.filterwarnings("ignore:.* was overwritten after it was built")
def test_schur_entry_matches_eigenvalues_of_matrix(size):
    layer = NNRNN(3, size)
    _, _, gamma, transients = layer.weight_hh_l0.free
    gamma.data.uniform_(0.5, 1.5)
    transients.data.normal_()
    seen, drawn = observe(layer, sequence()), portrait(layer, sequence())
    ((name, found),) = drawn["schur"].items()
    assert seen["schur"] == {name: {"angles": found["angles"], "transient_share": found["transient_share"]}}
    assert [len(row) for row in found["T"]] == list(range(1, size + 1))
    assert all(0 <= angle < 2 * math.pi for angle in found["angles"])
    W = next(iter(layer.matrices().values())).detach().double().numpy()
    assert len(found["moduli"]) == (size + 1) // 2
    pairs = [r * np.exp(1j * s * a) for r, a in zip(found["moduli"], found["angles"], strict=False) for s in (1, -1)]
    pairs += found["moduli"][-1:] if size % 2 else []
    values = np.linalg.eigvals(W)
    assert max(abs(values - pair).min() for pair in pairs) < 1e-3  # eigenvalues, whatever T is
    squares = sum(abs(v) ** 2 for v in pairs)
    transients = sum(v**2 for row in found["T"] for v in row)
    assert found["transient_share"] == pytest.approx(math.sqrt(transients / (transients + squares)), rel=1e-2)
    assert np.linalg.norm(W) ** 2 == pytest.approx(transients + squares, rel=1e-2)
    means = [np.mean([abs(found["T"][i][i - k]) for i in range(k, size)]) for k in range(1, size)]
    assert found["mean_by_subdiagonal"] == pytest.approx(means, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("name", MODULES)
def test_a_gates_part_exactly_for_gru_and_ncgru(name):
    layer, has = MODULES[name](3, 4), name in ("gru", "ncgru")
    assert ("gates" in observe(layer, sequence())) == has
    assert ("gates" in portrait(layer, sequence())) == has


def test_no_gates_part_where_the_theorem_does_not_apply():
    assert "gates" not in portrait(GRU(3, 4, num_layers=2), sequence())
    assert "gates" not in observe(GRU(3, 4, bidirectional=True), sequence())


@pytest.mark.parametrize("name", ["gru", "ncgru"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_gates_entry_has_step_jacobian_norms_and_bounds(name, batch_first):
    layer, x = LAYERS[name](3, 4, batch_first=batch_first), sequence()
    found, seen = portrait(layer, x)["gates"], observe(layer, x)["gates"]
    assert found.keys() == {"true", "bound", "alpha", "beta"}
    gains, h = [], torch.zeros(1, 1, 4)
    for x_t in x:
        J = torch.autograd.functional.jacobian(lambda h, x_t=x_t: layer(x_t[None, None], h)[1], h).view(4, 4)
        gains.append(float(torch.linalg.matrix_norm(J, 2)))
        h = layer(x_t[None, None], h)[1].detach()
    assert equal_to_five_digits(found["true"], gains)
    U = torch.linalg.matrix_norm(layer.matrices()["candidate_l0"].detach(), 2)
    assert equal_to_five_digits(
        found["bound"], [a + b * float(U) for a, b in zip(found["alpha"], found["beta"], strict=True)]
    )
    assert all(true <= bound for true, bound in zip(found["true"], found["bound"], strict=True))
    assert (seen["steps"], seen["holds"]) == (6, True)
    assert equal_to_five_digits([seen["largest"], seen["largest_bound"]], [max(found["true"]), max(found["bound"])])
    assert equal_to_five_digits(
        seen["nearest"], max(true / bound for true, bound in zip(found["true"], found["bound"], strict=True))
    )


@every_module
def test_batch_first_makes_no_difference(make):
    one, other = make(3, 4), make(3, 4, batch_first=True)
    other.load_state_dict(one.state_dict())
    assert portrait(one, sequence()) == portrait(other, sequence())
    assert observe(one, sequence()) == observe(other, sequence())


# maps


def assert_log_map_matches(found, norms):
    """Row by row up to the diagonal, logarithms to two decimals."""
    assert [len(row) for row in found] == list(range(1, len(norms) + 1))
    for i, row in enumerate(found):
        expected = norms[i, : i + 1].double()
        assert [value is None for value in row] == (expected == 0).tolist()
        known = [value for value in row if value is not None]
        assert known == pytest.approx(expected[expected > 0].log10().tolist(), abs=0.006)


def test_input_map_of_long_sequence_is_subsampled():
    layer, x = RNN(2, 3, recurrent="cayley"), sequence(300, 2)
    found = portrait(layer, x)
    assert (found["steps"], found["of_steps"], found["every"]) == (300, 300, 3)
    assert_log_map_matches(found["input_maps"]["state"], input_map(layer, x)[::3, ::3])
    assert len(found["input_maps"]["state"]) == 100


@pytest.mark.parametrize(("time", "every"), [(1, 1), (2, 1), (120, 1), (121, 2)])
def test_input_map_is_subsampled_only_above_120_steps(time, every):
    layer, x = RNN(2, 2), sequence(time, 2)
    found = portrait(layer, x)
    assert found["every"] == every
    assert_log_map_matches(found["input_maps"]["state"], input_map(layer, x)[::every, ::every])


@pytest.mark.parametrize(
    ("make", "blocks"),
    [
        (lambda: ENRNN(3, 5, short_size=2), {"long": slice(0, 3), "short": slice(3, 5)}),
        (lambda: ENRNN(3, 5, short_size=0), {"long": slice(0, 5)}),
        (lambda: ENRNN(3, 5, short_size=5), {"short": slice(0, 5)}),
        (lambda: ENRNN(3, 4, num_layers=2), {"state": slice(0, 8)}),  # each level has its own
        (lambda: RNN(3, 5, recurrent="longshort"), {"long": slice(0, 3), "short": slice(3, 5)}),
        (lambda: LSTM(3, 4), {"h": slice(0, 4), "c": slice(4, 8)}),
        (lambda: LSTM(3, 4, num_layers=2), {"h": slice(0, 8), "c": slice(8, 16)}),
        (lambda: nn.LSTM(3, 4), {"h": slice(0, 4), "c": slice(4, 8)}),
        (lambda: GRU(3, 4), {"state": slice(0, 4)}),
        (lambda: nn.RNN(3, 4), {"state": slice(0, 4)}),
    ],
)
def test_portrait_has_one_input_map_per_state_block(make, blocks):
    layer, x = make(), sequence()
    found = portrait(layer, x)["input_maps"]
    assert list(found) == list(blocks)
    for name, block in blocks.items():
        assert_log_map_matches(found[name], input_map(layer, x, block))


def test_longshort_blocks_omit_empty_blocks():
    assert LongShort(4, 2).blocks == {"long": slice(0, 4), "short": slice(4, 6)}
    assert LongShort(4, 0).blocks == {"long": slice(0, 4)}
    assert LongShort(0, 2).blocks == {"short": slice(0, 2)}


def test_user_attribute_named_blocks_is_ignored():
    class Mine(UserModule):
        def __init__(self):
            super().__init__(None)
            self.blocks = nn.ModuleList([nn.GRU(3, 4)])

        def forward(self, x, h_0=None):
            return self.blocks[0](x, h_0)

    assert state_blocks(Mine(), (4,)) == {}
    assert list(portrait(Mine(), sequence())["input_maps"]) == ["state"]


def linear_rnn(W, inputs=2):
    layer = RNN(inputs, len(W), activation="identity", bias=False)
    layer.weight_hh_l0.data = W.float()
    return layer


def test_input_map_is_none_where_influence_is_zero():
    layer = linear_rnn(torch.zeros(3, 3))
    found = portrait(layer, sequence(4, 2))
    gain = round(math.log10(torch.linalg.matrix_norm(layer.weight_ih_l0.detach(), 2)), 2)
    assert found["input_maps"]["state"] == [[None] * i + [gain] for i in range(4)]
    assert found["output_gradients"] == [0.0] * 4


@pytest.mark.parametrize("inputs", [2, 5])
def test_input_map_of_exploding_network_stays_finite(inputs):
    """1.5³⁰⁰ is too much for single precision, and just what somebody wants to see who asks why training fails.

    In a map None says that there is no influence, the very opposite.
    """
    layer, x = linear_rnn(1.5 * init.haar(3), inputs), torch.zeros(300, inputs)
    found = finite(portrait(layer, x))
    assert equal_to_five_digits(found["exponents"], [math.log(1.5)] * 3)
    gain = math.log10(torch.linalg.matrix_norm(layer.weight_ih_l0.detach(), 2))
    for i, row in enumerate(found["input_maps"]["state"]):
        assert None not in row
        assert row == pytest.approx([gain + 3 * (i - j) * math.log10(1.5) for j in range(i + 1)], abs=0.01)


# gradients


@pytest.mark.parametrize("make", [RNN, LSTM, nn.GRU, nn.LSTM])
def test_gradient_norms_match_autograd_of_split_sequence(make):
    """Cut the sequence at t and ask autograd what the loss of all outputs makes of the state in between."""
    module, x = make(3, 4).double(), sequence().double()
    weight = torch.randn(6, 4, dtype=torch.float64)

    def loss(outputs):
        return (outputs * weight).sum().sin()

    expected, outputs = [], torch.zeros(0, 1, 4, dtype=torch.float64)
    for t in range(6):
        state = module(x[:t, None])[1] if t else torch.zeros(1, 1, 4, dtype=torch.float64)
        if not t and isinstance(module, LSTM | nn.LSTM):
            state = state, state
        parts = [part.detach().clone().requires_grad_() for part in (state if isinstance(state, tuple) else (state,))]
        before = module(x[:t, None])[0].detach() if t else outputs
        after = module(x[t:, None], tuple(parts) if len(parts) > 1 else parts[0])[0]
        gradients = torch.autograd.grad(loss(torch.cat([before, after])[:, 0]), parts)
        expected.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
    assert gradient_norms(module, x, loss).tolist() == pytest.approx(expected)
    assert equal_to_five_digits(portrait(module, x, loss)["loss_gradients"], expected)


def test_first_gradient_norm_matches_finite_differences():
    module, x, size = RNN(3, 4).double(), sequence().double(), 1e-5
    weight = torch.randn(6, 4, dtype=torch.float64)

    def loss(outputs):
        return (outputs * weight).square().sum()

    def at(h_0):
        with torch.no_grad():
            return float(loss(module(x[:, None], h_0.view(1, 1, 4))[0][:, 0]))

    pushes = size * torch.eye(4, dtype=torch.float64)
    slopes = [(at(push) - at(-push)) / (2 * size) for push in pushes]
    assert gradient_norms(module, x, loss)[0].item() == pytest.approx(np.linalg.norm(slopes), rel=1e-6)


@pytest.mark.parametrize("batch_first", [False, True])
def test_gradient_norms_default_to_sum_of_last_output(batch_first):
    module, x = nn.GRU(3, 4, batch_first=batch_first), sequence()
    expected = gradient_norms(module, x, lambda outputs: outputs[-1].sum()).tolist()
    assert gradient_norms(module, x).tolist() == expected
    found = portrait(module, x)
    assert equal_to_five_digits(found["output_gradients"], expected)
    assert "loss_gradients" not in found
    both = portrait(module, x, lambda outputs: 2 * outputs[-1].sum())
    assert both["output_gradients"] == found["output_gradients"]
    assert equal_to_five_digits(both["loss_gradients"], [2 * norm for norm in expected])


# what it may cost, and that it leaves no trace


def test_portrait_measures_at_most_400_steps():
    x = sequence(STEPS + 7, 2)
    found = portrait(RNN(2, 2), x, torch.sum)
    assert (found["steps"], found["of_steps"]) == (STEPS, STEPS + 7) == (400, 407)
    assert (found["numbers"]["steps"], found["numbers"]["of_steps"]) == (400, 407)
    assert "as measured on the first 400 of 407 steps" in found["findings"][0]["what"]
    for key in ("output_gradients", "loss_gradients"):
        assert len(found[key]) == 407  # of the whole sequence: what counts is at its end
    assert found["every"] * len(found["input_maps"]["state"]) == 400
    assert len(found["input_maps"]["state"]) <= CELLS


@pytest.mark.parametrize(("limit", "value"), [("ENTRIES", 8 * (8 + 3) * 5), ("WORK", 8 * 8 * 8 * 5)])
def test_large_states_reduce_measured_steps(monkeypatch, limit, value):
    monkeypatch.setattr(flow, limit, value)
    x = sequence(20)
    assert portrait(LSTM(3, 4), x)["steps"] == 5  # h and c: eight numbers
    assert portrait(LSTM(3, 4, batch_first=True), x)["steps"] == 5
    assert portrait(LSTM(3, 4, num_layers=2), x)["steps"] == 2  # never fewer
    assert portrait(GRU(3, 2), x)["steps"] == 20
    assert len(portrait(GRU(3, 8), x)["gates"]["true"]) == observe(GRU(3, 8), x)["gates"]["steps"] == 5


@every_module
def test_observation_and_portrait_round_trip_through_json(make):
    for found in (observe(make(3, 4), sequence()), portrait(make(3, 4), sequence())):
        assert json.loads(json.dumps(finite(found), allow_nan=False)) == finite(found)


def test_infinite_half_life_becomes_null_in_json():
    found = portrait(linear_rnn(1.01 * init.haar(4)), sequence(40, 2))
    assert found["numbers"]["half_life"] == math.inf
    with pytest.raises(ValueError, match="Out of range"):
        json.dumps(found, allow_nan=False)
    assert json.loads(json.dumps(finite(found), allow_nan=False))["numbers"]["half_life"] is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: LSTM(3, 4, num_layers=2, dropout=0.5),
        lambda: nn.GRU(3, 4, num_layers=2, dropout=0.5),
        lambda: RNN(3, 4, recurrent={"name": "exponential", "rebase_every": 2}),
        lambda: NNRNN(3, 4),
    ],
    ids=["lstm, dropout", "nn.GRU, dropout", "dtriv", "nnrnn"],
)
@pytest.mark.parametrize("training", [True, False])
def test_portrait_is_deterministic_and_leaves_module_unchanged(make, training):
    """Neither weights, nor gradients, nor random numbers, nor what dropout would draw."""
    module = make().train(training)
    before, random = {key: value.clone() for key, value in module.state_dict().items()}, torch.get_rng_state()
    assert observe(module, sequence()) == observe(module, sequence())
    assert portrait(module, sequence()) == portrait(module, sequence())
    assert torch.equal(torch.get_rng_state(), random)
    assert module.training == training
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_portrait_rejects_bidirectional_layer():
    layer = GRU(3, 4, bidirectional=True)
    assert observe(layer, sequence())["matrices"].keys() == layer.matrices().keys()
    with pytest.raises(ValueError, match="one direction"):
        portrait(layer, sequence())


# a problem as a relational network sees it


def network_and_problem(name, task):
    model = MODELS[name](task.problem)
    images, answers = task.sample_unseen(1, torch.Generator().manual_seed(2))
    return model, images[0], int(answers)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["corelnet", "corelnet-mix", "esbn"])
def test_relation_portrait_has_matrix_and_both_answers(name, training):
    model, images, answer = network_and_problem(name, TASKS["rmts"](glyphs="own"))
    model.train(training)
    found = relation_portrait(model, images, answer)["similarity"]
    assert all(part.training == training for part in model.modules())
    assert found == relation_portrait(model, images, answer)["similarity"]  # without the noise of training
    model.eval()
    z = model.encode(images[None])
    assert (found["answer"], found["answered"]) == (answer, int(model(images[None]).argmax()))
    torch.testing.assert_close(torch.tensor(found["matrix"]), model.relate(z)[0].detach(), rtol=5e-3, atol=0)
    assert [len(channels) for channels in found["images"]] == [1] * 6  # grey


def test_relation_portrait_is_empty_without_relation_matrix():
    assert relation_portrait(*network_and_problem("transformer", TASKS["rmts"](glyphs="own"))) == {}


def test_digits_encode_pixels_as_hex():
    grey = torch.tensor([[[0.0, 1.0], [0.5, 0.99]]])
    assert digits(grey) == digits(grey.expand(3, -1, -1)) == [["0f", "8f"]]
    assert digits(torch.cat([grey, 1 - grey, grey])) == [["0f", "8f"], ["f0", "80"], ["0f", "8f"]]


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if issubclass(task, ShapeTask)])
def test_relation_portrait_in_colour_is_below_64_kb(name):
    """Thirteen objects are the most that a problem has."""
    found = relation_portrait(*network_and_problem("corelnet", TASKS[name](glyphs="own", colour=True)))
    assert {len(channels) for channels in found["similarity"]["images"]} == {3}
    assert len(json.dumps(found)) < 64_000


# T


def test_large_triangle_is_reduced_by_block_maximum():
    T = torch.randn(600, 600).tril(-1)
    found = triangle(T)
    assert found["T_every"] == 3
    assert [len(row) for row in found["T"]] == list(range(1, 201))
    for i, j in ((0, 0), (3, 3), (7, 2), (199, 198)):
        expected = float(T[3 * i : 3 * i + 3, 3 * j : 3 * j + 3].abs().max())
        assert found["T"][i][j] == pytest.approx(expected, rel=5e-3)
    assert triangle(T[:5, :5])["T"][4][:4] == pytest.approx(T[4, :4].tolist(), rel=5e-3)
