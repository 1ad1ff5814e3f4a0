"""Attention along a sequence and the gradients through it, against lists in plain Python and cut sequences."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from steadygrad.diagnostics import attention_map, diagnose, flow, gradient_norms, observe, portrait
from steadygrad.diagnostics.flow import attends
from steadygrad.diagnostics.gradients import growth_back
from steadygrad.layers import GRU, LAYERS, LSTM, SAB, URNN, MemLSTM, MemRNN, RelLSTM, RelRNN
from steadygrad.layers.memory import Everything
from steadygrad.layers.stack import Stack
from tests.rounding import rounding

SIZES = {"memrnn": (math.inf, 0), "relrnn": (3, 2), "short only": (3, 0), "one of each": (1, 1)}
"""of S and R"""


def sharp_attention_layer(short, relevant, units=4):
    """tanh units, in double precision, with weights that make attention choose."""
    layer = MemRNN(3, units) if short == math.inf else RelRNN(3, units, short=short, relevant=relevant)
    layer.weight_score_l0.data *= 40
    layer.weight_key_l0.data *= 3
    return layer.double()


def load_level(layer, whole, level):
    """Give a layer of one level the weights of one level of another."""
    end = f"_l{level}"
    layer.load_state_dict({k.replace(end, "_l0"): v for k, v in whole.state_dict().items() if end in k})


def sequence(time=14, inputs=3):
    return torch.randn(time, inputs, generator=torch.Generator().manual_seed(7)).double()


def reference_in_plain_lists(layer, x, short, relevant, pushes=None):
    """Outputs, α as {state: weight} and the states in R of each step; ``pushes[t]`` moves what step t − 1 hands on."""
    pushes = pushes or {}
    names = ("weight_ih", "weight_hh", "bias_ih", "weight_query", "weight_key", "weight_score")
    U, W, b, A, B, (v,) = (getattr(layer, f"{name}_l0").detach().numpy() for name in names)
    h, s, S, R = pushes.get(0, 0) + np.zeros(len(W)), np.zeros(len(W)), [], []
    outputs, looks, kept = [], [], []
    for t, x_t in enumerate(x.numpy()):
        members = [*S, *R]
        logits = [v @ np.tanh(A @ s + B @ member["state"]) for member in members]
        alpha = np.exp(logits) / np.exp(logits).sum()
        attended = sum(a * member["state"] for a, member in zip(alpha, members, strict=True))
        s = (h + attended) / 2 if members else h
        outputs.append(np.tanh(U @ x_t + W @ s + b))
        looks.append({member["time"]: a for a, member in zip(alpha, members, strict=True)})
        kept.append([member["time"] for member in R])
        for a, member in zip(alpha, S, strict=False):
            member["score"] += a
        h = outputs[-1] + pushes.get(t + 1, 0)
        S.append({"time": t, "state": h, "score": 0.0})
        if len(S) > short:
            leaving = S.pop(0)
            lowest = min(R, key=lambda member: member["score"], default=None)
            if len(R) < relevant:
                R.append(leaving)
            elif lowest and leaving["score"] > lowest["score"]:
                R[R.index(lowest)] = leaving
    return np.array(outputs), looks, kept, [member["time"] for member in R]


# attention


@pytest.mark.parametrize(("short", "relevant"), SIZES.values(), ids=SIZES)
def test_attention_map_matches_plain_python_reference(short, relevant):
    layer, x = sharp_attention_layer(short, relevant), sequence()
    (found,) = attention_map(layer, x)
    outputs, looks, kept, at_end = reference_in_plain_lists(layer, x, short, relevant)
    np.testing.assert_allclose(layer(x)[0].detach(), outputs, atol=1e-12)
    expected = np.zeros((14, 14))
    for t, look in enumerate(looks):
        expected[t, list(look)] = list(look.values())
    np.testing.assert_allclose(found.weights, expected, atol=1e-12)
    assert found.kept.tolist() == [states + [-1] * (relevant - len(states)) for states in kept]
    assert found.kept_at_end.tolist() == at_end
    distances = [(t - i) * a for t, look in enumerate(looks) for i, a in look.items()]
    assert found.reach == pytest.approx(sum(distances) / 13)  # all but the first attend
    to_kept = [a for look, states in zip(looks, kept, strict=True) for i, a in look.items() if i in states]
    assert found.share_of_kept == (pytest.approx(sum(to_kept) / 13) if relevant else None)
    assert found.summary()["kept_at_end"] == sorted(at_end)


def test_reference_sequence_changes_relevant_states():
    """Which would be the first ones only, if attention did not choose."""
    *_, kept, at_end = reference_in_plain_lists(sharp_attention_layer(3, 2), sequence(), 3, 2)
    assert at_end != [0, 1]
    assert len({tuple(states) for states in kept}) > 4


def test_uniform_attention_reach_matches_closed_form():
    """All past states alike: a step at t looks (t + 1)/2 back on average, all steps together (T + 2)/4."""
    layer = MemRNN(3, 4).double()
    layer.weight_score_l0.data.zero_()
    (found,) = attention_map(layer, sequence(10))
    assert found.reach == pytest.approx(12 / 4)
    torch.testing.assert_close(found.weights[9, :9], torch.full((9,), 1 / 9, dtype=torch.float64))


def test_uniform_attention_share_of_kept_matches_closed_form():
    layer = RelRNN(3, 4, short=3, relevant=2).double()
    layer.weight_score_l0.data.zero_()
    (found,) = attention_map(layer, sequence(10))
    kept = [min(max(t - 3, 0), 2) for t in range(1, 10)]
    assert found.share_of_kept == pytest.approx(sum(r / (min(t, 3) + r) for t, r in enumerate(kept, 1)) / 9)


def test_sab_attends_only_to_top_k_of_every_nth_state():
    layer = SAB(3, 4, every=3, top=3).double()
    (found,) = attention_map(layer, sequence(20))
    assert not found.weights[:, [i for i in range(20) if i % 3 != 2]].any()  # the third, the sixth, …
    looked = (found.weights != 0).sum(dim=1)
    assert looked[:9].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]  # with the zero state no more than three: all
    assert looked[9:].max() == 2
    assert (found.weights[9:] >= 0).all()
    assert (found.weights[9:].sum(dim=1) < 1 + rounding(torch.float64, 3)).all()


def test_reach_uses_absolute_value_of_negative_weights():
    """Raw scores of −1 to every kept state: as far back as scores of 1."""
    layer = SAB(3, 4, every=1, top=30).double()
    (cell,) = layer.cells
    cell.normalise = lambda scores, taken: -taken.to(scores.dtype)
    x = sequence(10)
    (found,) = attention_map(layer, x)
    assert found.reach == pytest.approx(sum(t * (t + 1) / 2 for t in range(10)) / 45)
    assert portrait(layer, x)["attention"][0]["map"][5][:6] == [0.0] * 5 + [None]


def test_attention_map_has_one_map_per_level():
    two = RelLSTM(3, 4, num_layers=2, dropout=0.5, short=3, relevant=2).double()
    x, one, other = sequence(), *(RelLSTM(n, 4, short=3, relevant=2).double() for n in (3, 4))
    for level, layer in enumerate((one, other)):
        load_level(layer, two, level)
    found = attention_map(two, x)
    for level, (layer, inputs) in enumerate(((one, x), (other, one(x)[0]))):
        torch.testing.assert_close(found[level].weights, attention_map(layer, inputs)[0].weights)
    assert two.training


@pytest.mark.parametrize("make", [partial(RelRNN, short=2, relevant=3), partial(RelLSTM, short=2, relevant=3), MemRNN])
def test_stack_diagnostics_match_multi_level_layer(make):
    torch.manual_seed(0)
    whole = make(3, 5, 2).double()
    stack = Stack([make(3, 5).double(), make(5, 5).double()])
    for level, layer in enumerate(stack):
        load_level(layer, whole, level)
    x = torch.randn(14, 3, dtype=torch.float64)
    for found, expected in zip(attention_map(stack, x), attention_map(whole, x), strict=True):
        torch.testing.assert_close(found.weights, expected.weights)
    torch.testing.assert_close(gradient_norms(stack, x), gradient_norms(whole, x))
    (_, state), (_, of_stack) = whole(x[:, None]), stack(x[:, None])
    torch.testing.assert_close(gradient_norms(stack, x, state=of_stack), gradient_norms(whole, x, state=state))
    assert portrait(stack, x)["attention"] == portrait(whole, x)["attention"]
    assert observe(stack, x)["attention"] == observe(whole, x)["attention"]
    assert diagnose(stack, x).numbers["exponent"] == pytest.approx(diagnose(whole, x).numbers["exponent"])


def test_attention_map_of_one_step_is_zero():
    (found,) = attention_map(RelRNN(3, 4), torch.randn(1, 3))
    assert found.weights.tolist() == [[0.0]]
    assert found.summary() == {"reach": 0.0, "share_of_kept": 0.0, "kept_at_end": []}


def test_a_layer_that_does_not_attend_is_refused():
    with pytest.raises(ValueError, match=r"a layer that attends to its past states.* got GRU"):
        attention_map(GRU(3, 4), torch.randn(5, 3))
    with pytest.raises(ValueError, match="one direction"):
        attention_map(RelRNN(3, 4, bidirectional=True), torch.randn(5, 3))
    with pytest.raises(ValueError, match="one sequence"):
        attention_map(RelRNN(3, 4), torch.randn(2, 5, 3))


# gradients


@pytest.mark.parametrize(("short", "relevant"), SIZES.values(), ids=SIZES)
def test_gradient_norms_match_finite_differences_of_reference(short, relevant):
    """By finite differences: h_t is moved for the next step, for attention and for the memory, but not as an output."""
    layer, x, size = sharp_attention_layer(short, relevant, units=2), sequence(9), 1e-6
    weight = np.random.default_rng(0).normal(size=(9, 2))

    def pushed(t, push):
        outputs, _, kept, _ = reference_in_plain_lists(layer, x, short, relevant, {t: push})
        assert kept == reference_in_plain_lists(layer, x, short, relevant)[2]  # no other choice was made
        return np.sin(outputs * weight).sum()

    expected = [
        np.linalg.norm([(pushed(t, push) - pushed(t, -push)) / (2 * size) for push in size * np.eye(2)])
        for t in range(9)
    ]
    found = gradient_norms(layer, x, lambda outputs: (outputs * torch.from_numpy(weight)).sin().sum())
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


ATTENTION_LAYERS = {
    "memrnn": lambda: MemRNN(3, 4),
    "memlstm": lambda: MemLSTM(3, 4),
    "sab": lambda: SAB(3, 4, every=3, top=4),
    "sab, truncated": lambda: SAB(3, 4, every=1, top=20, truncate=5),
    "sab, two levels": lambda: SAB(3, 4, num_layers=2, every=3, top=4),
    "relrnn": lambda: RelRNN(3, 4, short=3, relevant=2),
    "rellstm": lambda: RelLSTM(3, 4, short=3, relevant=2),
    "two levels": lambda: RelLSTM(3, 4, num_layers=2, short=3, relevant=2),
    "batch first": lambda: RelRNN(3, 4, short=3, relevant=2, batch_first=True),
    "gru": lambda: GRU(3, 4, attention={"short": 3, "relevant": 2, "score": "learned", "combine": "concatenate"}),
    "sum": lambda: RelRNN(3, 4, short=3, relevant=2, combine="add"),
    "complex": lambda: URNN(3, 4, attention={"short": 3, "alignment": "dot"}),
    "lstm": lambda: LSTM(3, 4, attention={"short": None}),
}


def perturbed_state(layer, state, pushes):
    """The state with a push on h, in its own tensor and where it is the newest in the memory, and one on c."""
    memory, own = layer.cells[0].memory, len(layer.state_sizes)
    parts, (states, *counters, age) = state[:own], state[own:]
    if not isinstance(memory, Everything) or (age % memory.every == 0).all():
        newest = (states.shape[2] if isinstance(memory, Everything) else memory.short) - 1
        states = states + torch.nn.functional.pad(pushes[0][:, :, None], (0, 0, newest, states.shape[2] - newest - 1))
    pushed = (part + push for part, push in zip(parts, pushes, strict=False))
    return (*pushed, *parts[len(pushes) :], states, *counters, age)


@pytest.mark.parametrize("make", ATTENTION_LAYERS.values(), ids=ATTENTION_LAYERS)
@pytest.mark.parametrize("of_last", [True, False])
def test_gradient_norms_match_autograd_of_split_sequence(make, of_last):
    """Walk to t with the layer itself, push the state in every place where it stands, walk on, and ask autograd."""
    layer, x = make().double(), sequence(12)
    next(p for name, p in layer.named_parameters() if name.startswith(("weight_score", "weight_query"))).data *= 3
    own, width, levels = len(layer.cells[0].cell.state_sizes), layer.output_size, layer.num_layers
    units = layer.state_sizes[0]
    weight = torch.randn(12, width, dtype=torch.float64)

    def loss(outputs):
        return outputs[-1].sum() if of_last else (outputs * weight).sin().sum()

    def walk(part, state=None):
        outputs, state = layer(part[None] if layer.batch_first else part[:, None], state)
        return outputs.flatten(0, 1), state

    expected = []
    for t in range(12):
        pushes = [torch.zeros(levels, 1, units, dtype=torch.float64, requires_grad=True) for _ in range(own)]
        if t:
            before, state = walk(x[:t])
            state = perturbed_state(layer, tuple(part.detach() for part in state), pushes)
        else:
            before, state = x.new_zeros(0, width), (*pushes, *layer.default_states(1, x)[own:])
        after, _ = walk(x[t:], state)
        gradients = torch.autograd.grad(loss(torch.cat([before.detach(), after])), pushes)
        expected.append(float(torch.stack(gradients).norm()))
    assert gradient_norms(layer, x, loss).tolist() == pytest.approx(expected, rel=1e-8)
    assert min(expected) > 0


@pytest.mark.parametrize("kept", [5, 6])  # of every second state the newest is one, or is not
@pytest.mark.parametrize("make", [RelRNN, MemLSTM, partial(SAB, every=2)])
def test_gradient_norms_continue_from_given_state(make, kept):
    layer, x = make(3, 4).double(), sequence(12)
    with torch.no_grad():
        _, state = layer(x[:kept, None])
    torch.testing.assert_close(gradient_norms(layer, x[kept:], state=state), gradient_norms(layer, x)[kept:])


def test_saved_tensors_grow_linearly_with_sequence_length():
    """Tensors that autograd keeps for one more step are as many at the end as in the middle."""
    layer = RelRNN(3, 4, short=3, relevant=2)
    kept = []
    for time in (40, 80, 120):
        count = 0

        def pack(tensor):
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            gradient_norms(layer, torch.randn(time, 3))
        kept.append(count)
    assert kept[2] - kept[1] == kept[1] - kept[0]


# doctor, observations, portraits


@pytest.mark.parametrize("make", ATTENTION_LAYERS.values(), ids=ATTENTION_LAYERS)
def test_diagnose_observe_and_portrait_of_every_attention_layer(make):
    torch.set_num_threads(1)
    layer, x = make(), sequence().float()
    before, random = {key: value.clone() for key, value in layer.state_dict().items()}, torch.get_rng_state()
    diagnosis, seen, drawn = diagnose(layer, x), observe(layer, x), portrait(layer, x, torch.sum)
    maps = attention_map(layer, x)
    assert diagnosis.numbers["exponent"] == pytest.approx(growth_back(gradient_norms(layer, x)))
    for level, one in enumerate(maps):
        assert diagnosis.numbers[f"attention_reach cells.{level}"] == pytest.approx(one.reach)
        assert diagnosis.numbers.get(f"attention_to_kept cells.{level}") == one.share_of_kept
        assert f"cells.{level} attends to states {one.reach:.3g} steps back" in str(diagnosis)
    assert seen["attention"] == [one.summary() for one in maps]
    assert not drawn.keys() & {"input_maps", "exponents", "gates"}
    assert len(drawn["output_gradients"]) == len(drawn["loss_gradients"]) == len(x)
    assert len(drawn["attention"]) == len(maps)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[key], value) for key, value in layer.state_dict().items())


def test_diagnosis_of_attention_layer_refers_to_mean_of_states():
    layer = RelLSTM(3, 8, short=2, relevant=1)
    said = str(diagnose(layer, torch.randn(100, 3, generator=torch.Generator().manual_seed(0))))
    assert "Gradients shrink tenfold" in said
    assert "the mean of all states, and those that are attended to lose less" in said
    assert "keep more states (relevant)" in said
    assert "half of what it knew" not in said


@pytest.mark.parametrize("name", LAYERS)
def test_an_attention_part_exactly_for_layers_that_attend(name):
    layer, x = LAYERS[name](3, 4), sequence(5).float()
    assert ("attention" in portrait(layer, x)) == ("attention" in observe(layer, x)) == attends(layer)


def test_portrait_contains_attention_map_and_kept_intervals():
    layer, x = sharp_attention_layer(3, 2), sequence()
    (found,), (drawn,) = attention_map(layer, x), portrait(layer, x)["attention"]
    for t, row in enumerate(drawn["map"]):
        expected = found.weights[t, : t + 1]
        assert [value is None for value in row] == (expected == 0).tolist()
        known = [value for value in row if value is not None]
        assert known == pytest.approx(expected[expected > 0].log10().tolist(), abs=0.006)
    stays = {(state, t) for state, first, last in drawn["kept"] for t in range(first, last + 1)}
    assert stays == {(i, t) for t, states in enumerate(found.kept.tolist()) for i in states if i >= 0}
    assert len(drawn["kept"]) == len({state for state, _ in stays})  # none comes back
    assert {key: drawn[key] for key in found.summary()} == found.summary()


def test_subsampled_attention_map_preserves_total_weight():
    layer, x = RelRNN(3, 4, short=3, relevant=2), sequence(250).float()
    drawn = portrait(layer, x)
    (found,) = attention_map(layer, x)
    assert drawn["every"] == 3
    rows = [[0 if value is None else 10**value for value in row] for row in drawn["attention"][0]["map"]]
    assert len(rows) == 84
    assert sum(rows[0]) == pytest.approx(2 / 3, rel=0.02)  # the first of three steps had nothing to look at
    assert [sum(row) for row in rows[1:]] == pytest.approx([1.0] * 83, rel=0.02)
    assert rows[10][5] == pytest.approx(found.weights[30:33, 15:18].sum().item() / 3, rel=0.02)
    assert rows[83][0] == pytest.approx(found.weights[249, :3].sum().item(), rel=0.02)  # one step is left for the last


def test_portrait_shortens_sequence_when_memory_exceeds_limit(monkeypatch):
    layer, x = MemRNN(3, 4), sequence(40).float()
    numbers = sum(part.numel() for part in layer(x)[1])
    monkeypatch.setattr(flow, "REMEMBERED", 40 * numbers // 4)
    drawn = portrait(layer, x, torch.sum)
    assert (drawn["steps"], drawn["of_steps"]) == (20, 40)
    assert len(drawn["output_gradients"]) == len(drawn["attention"][0]["map"]) == 20
    assert "loss_gradients" not in drawn  # a loss is of the whole sequence
    monkeypatch.setattr(flow, "REMEMBERED", 40 * numbers)
    assert len(portrait(layer, x, torch.sum)["loss_gradients"]) == 40


def test_bidirectional_attention_layer_is_not_diagnosed():
    layer, x = RelRNN(3, 4, bidirectional=True), sequence().float()
    assert "attention" not in observe(layer, x)
    with pytest.raises(ValueError, match="one direction"):
        diagnose(layer, x)
