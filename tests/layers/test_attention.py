"""Attention over past states: the authors' numbers, the algorithm written out, and what the options mean."""

import copy
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from steadygrad.kernels import Steps
from steadygrad.layers import GRU, LSTM, NCGRU, NNRNN, RNN, SAB, MemLSTM, MemRNN, RelLSTM, RelRNN, Score
from steadygrad.layers.attentive import AttentiveCell
from steadygrad.layers.sab import sparse
from steadygrad.models import SequenceModel

ORACLE = Path(__file__).parents[1] / "oracles" / "relrnn_tanh_sum.npz"
BACKENDS = ("auto", "python", "reference")
double = {"dtype": torch.float64}


@pytest.fixture(params=BACKENDS)
def backend(request, monkeypatch):
    monkeypatch.setenv("STEADYGRAD_KERNELS", request.param)
    return request.param


def traced(layer, x):
    """What a layer of one level does to a batch x (time, batch, inputs), with what each step attended to."""
    (cell,) = layer.cells
    assert isinstance(cell, AttentiveCell)
    time, batch, _ = x.shape
    state = cell.initial_states(batch, x)
    steps, found = Steps.padded(time, batch), []
    output, _ = cell.step_by_step(cell.weights(), x.flatten(0, 1), steps, state, found)
    return output.view(time, batch, -1), found


def memory_contents(layer, state):
    """The memory that a state of one level ends in, by name."""
    (cell,) = layer.cells
    return dict(zip(cell.memory.parts, (part[0] for part in state[len(cell.state_sizes) :]), strict=True))


class ReferenceAttention:
    """Algorithm 1 of the thesis for one sequence, one item after another: lists, and no cleverness."""

    def __init__(self, layer, short, relevant, factor=0.5):
        (self.cell,) = layer.cells
        self.short, self.relevant, self.factor = short, relevant, factor
        self.weights = self.cell.cell.weights()

    def logit(self, s, m):
        a = self.cell.alignment
        A, B, v = a.weight_query, a.weight_key, a.weight_score
        if v is None:
            return (A @ s) @ (B @ m) / math.sqrt(len(m))
        return v[0] @ torch.tanh(A @ s + B @ m)

    def step(self, x, s, rest):
        state = (s[None], *(part[None] for part in rest))
        _, (h, *rest) = self.cell.cell.walk(self.weights, x[None], Steps((1,)), state)
        return h[0], [part[0] for part in rest]

    def __call__(self, x):
        units = self.cell.output_size
        h = s = x.new_zeros(units)
        rest = [x.new_zeros(size) for size in self.cell.cell.state_sizes[1:]]
        S, R, outputs, attended = [], [], [], []
        for t, x_t in enumerate(x):
            items = S + R
            if items:
                alphas = torch.stack([self.logit(s, item["state"]) for item in items]).softmax(0)
                s = h
                for alpha, item in zip(alphas, items, strict=True):
                    s = s + alpha * item["state"]
                s = self.factor * s
                for alpha, item in zip(alphas, S, strict=False):  # those of S come first
                    item["beta"] += alpha.item()
                attended.append({item["time"]: alpha.item() for alpha, item in zip(alphas, items, strict=True)})
            else:
                s = h
                attended.append({})
            h, rest = self.step(x_t, s, rest)
            S.append({"time": t, "state": h, "beta": 0.0})
            if self.short is not None and len(S) > self.short:
                leaving = S.pop(0)
                if len(R) < self.relevant:
                    R.append(leaving)
                elif R:
                    lowest = min(R, key=lambda item: item["beta"])
                    if leaving["beta"] > lowest["beta"]:
                        R[[item is lowest for item in R].index(True)] = leaving
            outputs.append(h)
        return torch.stack(outputs), attended, R


def test_relrnn_matches_authors_outputs_and_gradients(backend):
    """From the state after their first step, which is their own; values, the relevant set, its scores, gradients."""
    stored = {key: torch.as_tensor(value) for key, value in np.load(ORACLE).items() if key != "meta"}
    nu, rho = int(stored["nu"]), int(stored["rho"])
    layer = RelRNN(4, 8, short=nu, relevant=rho, combine="add", **double)
    (cell,) = layer.cells
    rnn, a = cell.cell, cell.alignment
    parameters = {rnn.weight_ih: "U", rnn.bias_ih: "bU", rnn.weight_hh: "V"}
    parameters |= {a.weight_query: "Va", a.weight_key: "Ua", a.weight_score: "v"}
    with torch.no_grad():
        for parameter, name in parameters.items():
            parameter.copy_(stored[name].view_as(parameter))
    x = stored["x"].clone().requires_grad_()
    z = x[0] @ rnn.weight_ih.mT + rnn.bias_ih
    h = z.tanh()
    batch, places = len(h), nu + rho
    states = torch.cat([h.new_zeros(batch, nu - 1, 8), h[:, None], h.new_zeros(batch, rho, 8)], dim=1)
    _, _, _, *notes, _ = cell.initial_states(batch, h)
    age = torch.ones(batch, dtype=torch.int64)  # one step seen
    start = tuple(part[None] for part in (h, z, states, *notes, age))
    output, end = layer(x[1:], start)
    torch.testing.assert_close(output, stored["h"][1:])
    torch.testing.assert_close(end[1][0], stored["s"][-1])
    memory = memory_contents(layer, end)
    assert torch.equal(memory["times"], stored["rel_ids_after"][-1])
    torch.testing.assert_close(memory["scores"], stored["rel_scores_after"][-1])
    assert memory["states"].shape == (batch, places, 8)
    loss = (output * stored["G"][1:]).sum() + (h * stored["G"][0]).sum()
    torch.testing.assert_close(loss.detach(), stored["loss"])
    loss.backward()
    torch.testing.assert_close(x.grad, stored["grad_x"])
    for parameter, name in parameters.items():
        torch.testing.assert_close(parameter.grad, stored[f"grad_{name}"].view_as(parameter))


@settings(max_examples=25, deadline=None)
@given(
    make=st.sampled_from([RelRNN, RelLSTM, partial(NNRNN, attention={}), partial(NCGRU, attention={})]),
    short=st.integers(1, 6),
    relevant=st.integers(0, 4),
    time=st.integers(1, 24),
    hidden=st.integers(1, 9),
    alignment=st.sampled_from(["additive", "dot"]),
    combine=st.sampled_from(["add", "average"]),
    seed=st.integers(0, 10_000),
)
def test_relevance_screening_matches_plain_reference(make, short, relevant, time, hidden, alignment, combine, seed):
    """Every kept index, every weight, every value and every gradient."""
    torch.manual_seed(seed)
    options = {"short": short, "relevant": relevant, "alignment": alignment, "combine": combine}
    wrapped = isinstance(make, partial)
    layer = make.func(3, hidden, attention=options, **double) if wrapped else make(3, hidden, **options, **double)
    layer.eval()  # in training NC-GRU's matrix counts its updates
    x = torch.randn(time, 2, 3, **double).requires_grad_()
    G = torch.randn(time, 2, hidden, **double)
    written = ReferenceAttention(layer, short, relevant, {"add": 1.0, "average": 0.5}[combine])
    expected, attended, kept = zip(*(written(x[:, b]) for b in range(2)), strict=True)
    output, end = layer(x)
    torch.testing.assert_close(output, torch.stack(expected, dim=1))
    _, trace = traced(layer, x)
    for t, step in enumerate(trace):
        for b in range(2):
            found = dict(zip(step.times[b].long().tolist(), step.weights[b].tolist(), strict=True))
            found.pop(-1, None)
            assert found == pytest.approx(attended[b][t])
    memory = memory_contents(layer, end)
    for b in range(2):
        there = len(kept[b])
        assert memory["times"][b, :there].tolist() == [item["time"] for item in kept[b]]
        torch.testing.assert_close(memory["scores"][b, :there], x.new_tensor([item["beta"] for item in kept[b]]))
        for place, item in enumerate(kept[b]):
            torch.testing.assert_close(memory["states"][b, short + place], item["state"])
    wanted = [x, *layer.parameters()]
    ours = torch.autograd.grad((output * G).sum(), wanted, materialize_grads=True)
    theirs = torch.autograd.grad((torch.stack(expected, dim=1) * G).sum(), wanted, materialize_grads=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", [MemRNN, MemLSTM])
@pytest.mark.parametrize("alignment", ["additive", "dot"])
def test_full_attention_matches_plain_reference(make, alignment, backend):
    layer = make(3, 5, alignment=alignment, **double)
    x = torch.randn(12, 1, 3, **double).requires_grad_()
    expected, _, _ = ReferenceAttention(layer, None, 0)(x[:, 0])
    output, _ = layer(x)
    torch.testing.assert_close(output[:, 0], expected)
    wanted = [x, *layer.parameters()]
    gradients = [torch.autograd.grad(result.square().sum(), wanted) for result in (output[:, 0], expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_full_attention_equals_short_memory_as_long_as_sequence(backend):
    full, screened = MemRNN(3, 5, **double), RelRNN(3, 5, short=30, relevant=2, **double)
    screened.load_state_dict(full.state_dict())
    x = torch.randn(30, 2, 3, **double)
    torch.testing.assert_close(full(x)[0], screened(x)[0])


def test_zero_scores_attend_to_mean_of_past_states():
    """v = 0: every weight is 1/(number of states), and s = h plus their mean."""
    layer = MemRNN(3, 4, activation="identity", bias=False, combine="add", **double)
    (cell,) = layer.cells
    with torch.no_grad():
        cell.alignment.weight_score.zero_()
    x = torch.randn(6, 1, 3, **double)
    states = []
    for x_t in x[:, 0]:
        s = states[-1] + torch.stack(states).mean(0) if states else x.new_zeros(4)
        states.append(cell.cell.weight_ih @ x_t + cell.cell.weight_hh @ s)
    torch.testing.assert_close(layer(x)[0][:, 0], torch.stack(states))


def mixed_thresholds(scores, taken, top):
    """`sparse`, but entry (b, m) of M is compared with the threshold of example (b M + m) mod batch."""
    if scores.shape[1] <= top:
        return scores
    thresholds = scores.topk(top, dim=1).values[:, -1] + 1e-7
    excess = (scores - thresholds.repeat(scores.shape[1]).view_as(scores)).relu()
    return excess / (excess.sum(dim=1, keepdim=True) + 1e-7)


@pytest.mark.parametrize("name", ["sab_trunc5", "sab_full_bptt", "sab_trunc5_mixed_thresholds"])
def test_sab_matches_released_program_outputs_and_gradients(name):
    """States, weights, outputs of the readout and every gradient of the released program."""
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-12)
    stored = {key: torch.as_tensor(value) for key, value in np.load(ORACLE.with_name(f"{name}.npz")).items()}
    top = int(stored["top_k"])
    layer = SAB(2, 12, every=int(stored["every"]), top=top, truncate=int(stored["truncate"]), **double)
    model = SequenceModel(layer, 5).double()
    (cell,) = layer.cells
    if name.endswith("mixed_thresholds"):
        cell.normalise, cell.top = partial(mixed_thresholds, top=top), 25  # more than top − 1 may have a weight
    parameters = {
        cell.alignment.weight_score: "w_t",
        cell.cell.weight_ih: "lstm1.weight_ih",
        cell.cell.weight_hh: "lstm1.weight_hh",
        model.readout.weight: "fc.weight",
        model.readout.bias: "fc.bias",
    }
    with torch.no_grad():
        for parameter, theirs in parameters.items():
            parameter.copy_(stored[theirs].view_as(parameter))
        cell.cell.bias_ih.copy_(stored["lstm1.bias_ih"] + stored["lstm1.bias_hh"])
    x = stored["x"].clone().requires_grad_()
    out = model(x)
    close(out, stored["out"])
    loss = (out * stored["G"]).sum()
    close(loss, stored["loss"])
    loss.backward()
    close(x.grad, stored["grad_x"])
    for parameter, theirs in parameters.items():
        close(parameter.grad, stored[f"grad_{theirs}"].view_as(parameter))
    close(cell.cell.bias_ih.grad, stored["grad_lstm1.bias_ih"])
    output, (h, c, *_) = layer(x.transpose(0, 1))
    close(output[..., :12], stored["h"])
    close((h[0], c[0]), (stored["h"][-1], stored["c"][-1]))
    _, found = traced(layer, x.transpose(0, 1))
    for t, step in enumerate(found):
        expected = stored["weights"][t, :, 1 : 1 + step.weights.shape[1]]
        close(step.weights, expected)
        assert stored["weights"][t, :, 1 + step.weights.shape[1] :].isnan().all()
        assert (step.times == torch.arange(3, 25, 4)[: step.weights.shape[1]]).all()


def test_sab_initialisation_matches_released_program():
    """The standard deviation, kurtosis and range of every tensor, over eight layers."""
    stored = np.load(ORACLE.with_name("start_sab.npz"))
    layers = [SAB(1, 128) for _ in range(8)]
    ours = {
        "w_t": [layer.weight_score_l0 for layer in layers],
        "lstm1.weight_ih": [layer.weight_ih_l0 for layer in layers],
        "lstm1.weight_hh": [layer.weight_hh_l0 for layer in layers],
    }
    for name, tensors in ours.items():
        values = torch.cat([tensor.detach().flatten() for tensor in tensors]).double()
        _, std, low, high, kurtosis, _ = stored[f"copy I=1 N=128|{name}"]
        assert values.std().item() == pytest.approx(std, rel=0.05)
        assert (values / values.std()).pow(4).mean().item() == pytest.approx(kurtosis, rel=0.15)
        if kurtosis < 2:  # uniform
            assert (values.min().item(), values.max().item()) == pytest.approx((low, high), rel=0.01)
    b = torch.cat([layer.bias_ih_l0.detach() for layer in layers]).double()
    both = [stored[f"copy I=1 N=128|lstm1.{name}"][1] for name in ("bias_ih", "bias_hh")]
    assert b.std().item() == pytest.approx(math.hypot(*both), rel=0.05)
    assert b.abs().max() > 1.5 / math.sqrt(128)
    assert (SAB(1, 8, forget_bias=3.0).bias_ih_l0[8:16] == 3).all()
    assert SAB(1, 8, bias=False).cells[0].cell.bias_ih is None


@pytest.mark.parametrize("truncate", [None, 1, 4])
def test_sab_matches_plain_reference(truncate):
    """One sequence, with lists: each third state is kept, and gradients through h and c stop every few steps."""
    layer = SAB(3, 5, every=3, top=3, truncate=truncate, **double)
    (cell,) = layer.cells
    with torch.no_grad():
        cell.alignment.weight_score.mul_(100)  # so that attention matters
    x = torch.randn(20, 1, 3, **double).requires_grad_()
    w, weights = cell.alignment.weight_score[0], cell.cell.weights()
    h = c = x.new_zeros(1, 5)
    kept, outputs = [x.new_zeros(1, 5)], []
    for t in range(20):
        if truncate is not None and (t + 1) % truncate == 0:
            h, c = h.detach(), c.detach()
        g, (_, c) = cell.cell.walk(weights, x[t], Steps((1,)), (h, c))
        alphas = torch.stack([w @ torch.cat([g[0], m[0]]).tanh() for m in kept])
        if len(kept) > 3:
            excess = (alphas - alphas.sort(descending=True).values[2] - 1e-7).clamp_min(0)
            alphas = excess / (excess.sum() + 1e-7)
        s = sum(alpha * m for alpha, m in zip(alphas, kept, strict=True))
        h = g + s
        outputs.append(torch.cat([h, s], dim=1))
        if t % 3 == 2:
            kept.append(h)
    expected = torch.stack(outputs)
    output, (_, _, states, _) = layer(x)
    torch.testing.assert_close(output, expected)
    assert states.shape[2] == len(kept) - 1 == 6
    wanted = [x, *layer.parameters()]
    gradients = [torch.autograd.grad(result.square().sum(), wanted) for result in (output, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sab_truncates_each_sequence_by_its_own_steps():
    """Sequences that resume at different steps, in one batch and alone: the same gradients of the first inputs."""
    layer = SAB(3, 5, every=2, top=3, truncate=4, **double)
    sequences = [torch.randn(n, 3, **double).requires_grad_() for n in (6, 3, 2)]
    more = [torch.randn(n, 3, **double) for n in (5, 5, 3)]
    _, state = layer(pack_sequence(sequences))
    output, _ = layer(pack_sequence(more), state)
    together = torch.autograd.grad(output.data.sin().sum(), [*sequences, *layer.parameters()])
    loss = 0
    for first, second in zip(sequences, more, strict=True):
        loss = loss + layer(torch.cat([first, second]))[0][len(first) :].sin().sum()
    alone = torch.autograd.grad(loss, [*sequences, *layer.parameters()])
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b)


def test_sab_saves_few_states_for_backward():
    """What autograd stores for a step grows by far less than a state for each entry of the memory."""
    layer, stored = SAB(3, 64, every=1, top=4), []
    for time in (100, 200, 300):
        seen = {}  # by storage: a tensor may be saved many times

        def pack(tensor, seen=seen):
            seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = layer(torch.randn(time, 1, 3))[0]
        stored.append(sum(tensor.untyped_storage().nbytes() // 4 for tensor in seen.values()))
        del output
    states = 64 * (300**2 - 200**2) // 2  # with all states of the memory at each step
    assert stored[2] - stored[1] < states / 4


def test_sparse_attention_weights_known_values():
    taken = torch.tensor([[True, True, True, True], [False, True, True, False], [True, True, True, True]])
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.5], [9.0, -1.0, 0.5, 9.0], [1.0, 1.0, 1.0, 1.0]], **double)
    weights = sparse(scores, taken, top=3)
    share = torch.tensor([2 - 1e-7, 0.0, 1 - 1e-7, 0.0], **double)
    torch.testing.assert_close(weights[0], share / (3 - 1e-7))
    torch.testing.assert_close(weights[1], torch.tensor([0.0, -1.0, 0.5, 0.0], **double))  # no more than three: scores
    assert not weights[2].any()  # none stands out
    assert torch.equal(sparse(scores[:, 1:3], taken[:, 1:3], top=3)[1], weights[1, 1:3])


@pytest.mark.parametrize("make", [MemRNN, MemLSTM, partial(SAB, every=2), RelRNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_packed_batch_keeps_each_sequence_s_own_memory(make, bidirectional, backend):
    """As long as that of the longest, with empty places first; going on from it is going on from one's own."""
    layer = make(3, 5, bidirectional=bidirectional, **double)
    sequences = [torch.randn(n, 3, **double) for n in (9, 4, 4, 1)]
    more = [torch.randn(n, 3, **double) for n in (3, 3, 2, 1)]
    _, state = layer(pack_sequence(sequences))
    output, _ = layer(pack_sequence(more), state)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(output)
    for b, (first, second) in enumerate(zip(sequences, more, strict=True)):
        _, own = layer(first)
        torch.testing.assert_close(padded[: len(second), b], layer(second, own)[0])


@pytest.mark.parametrize("make", [RelRNN, RelLSTM, MemRNN, SAB])
def test_streaming_matches_whole_sequence(make, backend):
    """Streaming: one step a call, 40 times, memory and gradients included."""
    layer = make(3, 5, **double)
    x = torch.randn(40, 2, 3, **double).requires_grad_()
    whole, end = layer(x)
    state, outputs = None, []
    for x_t in x:
        output, state = layer(x_t[None], state)
        outputs.append(output)
    streamed = torch.cat(outputs)
    torch.testing.assert_close(streamed, whole)
    for a, b in zip(state, end, strict=True):
        torch.testing.assert_close(a, b)
    G = torch.randn_like(whole)
    wanted = [x, *layer.parameters()]
    gradients = [torch.autograd.grad((o * G).sum(), wanted) for o in (streamed, whole)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", [RelRNN, RelLSTM, MemRNN, partial(RelRNN, alignment="dot", activation="modrelu")])
def test_second_derivatives_match_reference(make, monkeypatch):
    """In both directions, with sequences of unequal length, from a memory that others left and beyond S and R."""
    sizes = {} if make is MemRNN else {"short": 3, "relevant": 2}
    layer = make(2, 4, bidirectional=True, **sizes, **double)
    batch = pack_sequence([torch.randn(n, 2, **double) for n in (9, 6, 1)])
    with torch.no_grad():
        state = layer(pack_sequence([torch.randn(n, 2, **double) for n in (7, 4, 4)]))[1]
    found = []
    for kernels in ("auto", "reference"):
        monkeypatch.setenv("STEADYGRAD_KERNELS", kernels)
        x = batch.data.clone().requires_grad_()
        own = len(layer.state_sizes)
        start = tuple(part.clone().requires_grad_() for part in state[: own + 1])  # with the states in memory
        output, end = layer(batch._replace(data=x), (*start, *state[own + 1 :]))
        loss = output.data.sin().sum() + sum(part.cos().sum() for part in end[:own])
        wanted = [x, *start, *layer.parameters()]
        first = torch.autograd.grad(loss, wanted, create_graph=True)
        second = torch.autograd.grad(sum((part**2).sum() for part in first), wanted, allow_unused=True)
        found.append([*first, *(torch.zeros(()) if part is None else part for part in second)])
    assert any(part.any() for part in found[0][len(first) :])
    torch.testing.assert_close(found[0], found[1], check_dtype=False)


def test_concatenate_starts_as_average_and_gets_gradients():
    layer = RelRNN(3, 5, combine="concatenate", **double)
    plain = RelRNN(3, 5, **double)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "combine" not in k})
    x = torch.randn(30, 2, 3, **double)
    output = layer(x)[0]
    torch.testing.assert_close(output, plain(x)[0])
    output.sum().backward()
    assert layer.weight_combine_l0.grad.ne(0).all()


def test_learned_score_gets_correct_gradients():
    layer = RelRNN(3, 6, short=3, relevant=2, score="learned", **double)
    leaves = [layer.weight_relevance_l0, layer.bias_relevance_l0]
    x = torch.randn(9, 2, 3, **double)  # longer than S and R together
    with torch.no_grad():
        leaves[0].normal_()
    layer(x)[0].square().sum().backward()
    assert all(leaf.grad.ne(0).all() for leaf in leaves)

    def run(w, b):
        names = ("weight_relevance_l0", "bias_relevance_l0")
        return torch.func.functional_call(layer, dict(zip(names, (w, b), strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(run, leaves)


class LargestNormScore(Score):
    """Keeps the states of the largest norm."""

    def __init__(self, units):
        super().__init__()

    def forward(self, states, received):
        return states.norm(dim=1)


def test_custom_score_decides_which_states_are_kept(backend):
    layer = RelRNN(3, 6, short=3, relevant=4, score=LargestNormScore, **double)
    output, state = layer(torch.randn(30, 2, 3, **double))
    memory = memory_contents(layer, state)
    left = output[:-3].norm(dim=2)  # the last three are still in S
    for b in range(2):
        assert set(memory["times"][b].tolist()) == set(left[:, b].topk(4).indices.tolist())


def test_relevant_state_is_kept_and_gets_gradient_after_many_steps(backend):
    """A state that everybody looks at survives a thousand steps, and gradients reach it there: R holds it.

    The loops in Python are slow and take 200 steps.
    """
    options = {"activation": "identity", "bias": False, "recurrent": "free", "combine": "add"}
    layer = RelRNN(2, 4, short=3, relevant=2, **options, **double)
    (cell,) = layer.cells
    with torch.no_grad():
        cell.cell.weight_hh.zero_()  # no recurrence: what gets through is attention's
        cell.cell.weight_ih.copy_(torch.eye(4, 2))
        cell.alignment.weight_query.zero_()
        cell.alignment.weight_key.copy_(torch.eye(4))
        cell.alignment.weight_score.copy_(torch.tensor([[5.0, 0, 0, 0]]))
    x = torch.zeros(1000 if backend == "auto" else 200, 1, 2, **double)
    x[20, 0, 0] = 3.0
    x.requires_grad_()
    _, (h, s, *_) = layer(x)
    s.sum().backward()
    share = x.grad[20, 0, 0].item()
    assert share > 0.5
    _, state = layer(x)
    assert 20 in memory_contents(layer, state)["times"][0].tolist()


@pytest.mark.parametrize("make", [RNN, LSTM, GRU, NNRNN, NCGRU])
def test_every_layer_takes_attention(make):
    plain, attending = make(3, 6), make(3, 6, attention={"short": 2, "relevant": 1})
    assert attending.state_sizes[: len(plain.state_sizes)] == plain.state_sizes
    output, state = attending(torch.randn(9, 2, 3))
    output.sum().backward()
    assert all(p.grad is not None for p in attending.parameters())
    assert len(state) == len(plain.state_sizes) + 1 + len(attending.cells[0].memory.parts)
    assert attending.matrices().keys() == plain.matrices().keys()
    assert torch.as_tensor(attending.penalty()).item() == pytest.approx(torch.as_tensor(plain.penalty()).item())


def test_deepcopy_and_pickle_give_same_outputs(tmp_path):
    layer = SAB(3, 5)
    x = torch.randn(25, 2, 3)
    torch.testing.assert_close(copy.deepcopy(layer)(x)[0], layer(x)[0])
    torch.save(layer, tmp_path / "layer.pt")
    torch.testing.assert_close(torch.load(tmp_path / "layer.pt", weights_only=False)(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short": 0}, "expects short to be an integer of at least 1; got 0"),
        ({"short": True}, "expects short to be an integer of at least 1; got True"),
        ({"relevant": -1}, "expects relevant to be an integer of at least 0; got -1"),
        ({"score": "loud"}, "expects a score out of received, learned, or a function; got 'loud'"),
        ({"alignment": "cosine"}, "expects alignment to be one of additive, dot; got 'cosine'"),
        ({"combine": "times"}, "expects combine to be one of average, add, concatenate; got 'times'"),
        ({"short": None, "relevant": 3, "score": "loud"}, r"\(short=None\) keeps no others; got relevant and score"),
        (True, "attention expects a table of options or a function cell → cell; got True"),
        ({"long": 3}, "attention has the options short, relevant, score, alignment, combine; got long"),
    ],
)
def test_invalid_attention_options_raise_value_error(options, message):
    with pytest.raises(ValueError, match=message):
        RNN(3, 5, attention=options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("pieces", [1, 3])
def test_step_counter_is_exact_in_half_precision(dtype, pieces):
    """2049 is no number of float16, 257 none of bfloat16."""
    length = 2100 if dtype == torch.float16 else 700
    layer, state = RelRNN(3, 4, short=5, relevant=300, dtype=dtype), None
    with torch.no_grad():
        for part in torch.randn(length, 1, 3, dtype=dtype).chunk(pieces):
            _, state = layer(part, state)
    memory = memory_contents(layer, state)
    assert memory["age"].tolist() == [length]
    assert len(set(memory["times"][0].tolist())) == 300  # all full, of 300 different steps
    layer, state = SAB(3, 4, every=300, dtype=dtype), None
    with torch.no_grad():
        for part in torch.randn(700, 1, 3, dtype=dtype).chunk(pieces):
            _, state = layer(part, state)
    memory = memory_contents(layer, state)
    assert (memory["age"].tolist(), layer.cells[0].memory.times(memory).tolist()) == ([700], [[299, 599]])


def test_invalid_sab_options_raise_value_error():
    for wrong in (1, 0, True, 2.5):
        with pytest.raises(ValueError, match=f"SAB expects top to be an integer of at least 2, .*; got {wrong}"):
            SAB(3, 5, top=wrong)
    for wrong in (0, -1, True, 2.5):
        with pytest.raises(
            ValueError, match=f"SAB expects truncate to be an integer of at least 1, or None; got {wrong}"
        ):
            SAB(3, 5, truncate=wrong)
    with pytest.raises(ValueError, match="expects to keep each 1st, 2nd, … state; got every=0"):
        SAB(3, 5, every=0)
    layer = MemRNN(3, 5)
    _, (h, s, states, age) = layer(torch.randn(4, 2, 3))
    for wrong in (states[..., :-1], states[:, :, 0]):
        with pytest.raises(ValueError, match=r"MemRNN expects a hidden state of shape \(1, 2, None, 5\); got"):
            layer(torch.randn(4, 2, 3), (h, s, wrong, age))
    with pytest.raises(ValueError, match=r"MemRNN expects a hidden state of type torch.int64; got torch.float32"):
        layer(torch.randn(4, 2, 3), (h, s, states, age.float()))


def test_nan_state_propagates_within_its_sequence(backend):
    """A diverged run must look diverged: the softmax hides nothing."""
    layer = RelRNN(3, 5, short=4, relevant=2, **double)
    x = torch.randn(12, 2, 3, **double)
    x[5, 0] = float("nan")
    output, _ = layer(x)
    assert output[5:, 0].isnan().all()
    assert output[:, 1].isfinite().all()
