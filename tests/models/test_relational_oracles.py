"""Relational networks agree with independent computations: the authors' code, torch, or loops in NumPy."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steadygrad.models import relational
from steadygrad.models.relational.attention import AttentionLayer
from steadygrad.models.relational.corelnet_diff import Difference
from steadygrad.problem import Problem

ORACLES = Path(__file__).parents[1] / "oracles"
OBJECTS, ANSWERS, BATCH = 4, 3, 2


@pytest.fixture
def z():
    """Return encoded objects, small enough that no softmax saturates. The first and the third object are equal."""
    return 0.2 * torch.randn(BATCH, OBJECTS, 128, dtype=torch.float64)[:, [0, 1, 0, 2]]


@pytest.fixture
def two_views():
    """Return encoded objects like `z` for an asymmetric network, which has two views of every object."""
    return 0.2 * torch.randn(BATCH, OBJECTS, 2, 128, dtype=torch.float64)[:, [0, 1, 0, 2]]


def build(make, **options):
    """Build a network with random biases, so that a test notices if one of them is not used."""
    model = make(Problem(OBJECTS, 8, 1, ANSWERS, ((0, OBJECTS),)), **options).double().eval()
    for key, parameter in model.named_parameters():
        if "bias" in key:
            nn.init.normal_(parameter)
    return model


def weights_in_numpy(module):
    """Return the weights by name, as NumPy arrays."""
    return {key: value.detach().numpy() for key, value in module.state_dict().items()}


def softmax(scores):
    shares = np.exp(scores)
    return shares / shares.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def linear(x, weights, name):
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def perceptron(x, weights, name):
    """Apply the linear layers ``name``.0, ``name``.2, … with a ReLU between successive layers."""
    layers = sorted({int(key.split(".")[1]) for key in weights if key.startswith(f"{name}.")})
    for layer in layers:
        x = linear(np.maximum(x, 0) if layer else x, weights, f"{name}.{layer}")
    return x


def views(z):
    """Return the queries and the keys of the objects."""
    return (z[:, 0], z[:, 1]) if z.ndim == 3 else (z, z)


def similarities(z, full=False):
    """Compute R with two loops. Entries of pairs that are not compared are 0."""
    asked, compared = views(z)
    R = np.zeros((OBJECTS, OBJECTS))
    for i in range(OBJECTS):
        seen = range(OBJECTS if full else i + 1)
        R[i, : len(seen)] = softmax(np.array([asked[i] @ compared[j] for j in seen]))
    return R


def agree(model, z, by_hand):
    expected = np.stack([by_hand(one, weights_in_numpy(model)) for one in z.numpy()])
    torch.testing.assert_close(model.answer(z), torch.from_numpy(expected))
    assert not np.allclose(expected[0], expected[1])


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("sensory", [False, True])
def test_corelnet_matches_numpy_reference(z, two_views, full, asymmetric, sensory):
    def by_hand(z, weights):
        R = similarities(z, full)
        seen = [R[i, j] for i in range(OBJECTS) for j in range(OBJECTS if full else i + 1)]
        shown = [seen, views(z)[0].flatten()] if sensory else [seen]
        return perceptron(np.concatenate(shown), weights, "decoder")

    options = {"full": full, "asymmetric": asymmetric, "sensory": sensory}
    agree(build(relational.CoRelNet, hidden_size=7, **options), two_views if asymmetric else z, by_hand)


def test_corelnet_depends_only_on_which_objects_are_equal():
    """The normalised features of AABC depend on the glyphs; R depends on them very little."""
    model = build(relational.CoRelNet)
    images = torch.rand(6, 3, 1, 8, 8, dtype=torch.float64)
    answers = model(images[:, [0, 0, 1, 2]])
    assert answers.std(dim=0).max() < 1e-3 * (answers[0] - model(images[:, [0, 1, 0, 2]])[0]).abs().max()


def copy_to_torch(layer, theirs):
    pairs = {
        "self_attn.in_proj": [layer.query, layer.key or layer.query, layer.value],
        "self_attn.out_proj.": [layer.merge],
        "linear1.": [layer.feedforward[0]],
        "linear2.": [layer.feedforward[2]],
        "norm1.": [layer.attention_norm],
        "norm2.": [layer.feedforward_norm],
    }
    state = {}
    for name, ours in pairs.items():
        for kind in ("weight", "bias"):
            joint = "_" if name.endswith("proj") else ""
            state[f"{name}{joint}{kind}"] = torch.cat([getattr(module, kind) for module in ours])
    theirs.load_state_dict(state)
    return theirs.eval()


def torch_layer(layer, width, heads, hidden):
    theirs = nn.TransformerEncoderLayer(width, heads, hidden, batch_first=True, dtype=torch.float64)
    return copy_to_torch(layer, theirs)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("sensory", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_corelnet_t_matches_numpy_reference(z, two_views, full, asymmetric, sensory, layers):
    """One query attends to rows of R times the positions, once or twice with the same weights."""

    def by_hand(z, weights):
        tokens = [row @ weights["positions"] for row in similarities(z, full)]
        if sensory:
            tokens = [np.concatenate([token, one]) for token, one in zip(tokens, views(z)[0], strict=True)]
        q = weights["query"]
        for _ in range(layers):
            asked = linear(q, weights, "attention.query").reshape(3, 4)
            keys, values = (
                np.array([linear(token, weights, f"attention.{kind}").reshape(3, 4) for token in tokens])
                for kind in ("key", "value")
            )
            heads = [softmax(keys[:, head] @ asked[head] / 2) @ values[:, head] for head in range(3)]
            q = normalised(q + linear(np.concatenate(heads), weights, "attention.merge"), weights, "attention_norm")
            wide = np.maximum(linear(q, weights, "attention.feedforward.0"), 0)
            q = normalised(q + linear(wide, weights, "attention.feedforward.2"), weights, "feedforward_norm")
        return perceptron(q, weights, "decoder")

    def normalised(q, weights, name):
        q = (q - q.mean()) / np.sqrt(q.var() + 1e-5)
        return q * weights[f"attention.{name}.weight"] + weights[f"attention.{name}.bias"]

    sizes = {"width": 12, "heads": 3, "query_size": 6, "position_size": 5, "feedforward_size": 9, "hidden_size": 7}
    options = {"full": full, "asymmetric": asymmetric, "sensory": sensory, "layers": layers}
    agree(build(relational.CoRelNetT, **sizes, **options), two_views if asymmetric else z, by_hand)


@pytest.mark.parametrize("symmetric", [False, True])
def test_attention_layer_of_other_inner_size_matches_reference(symmetric):
    layer = AttentionLayer(6, 6, 10, 2, hidden_size=7, symmetric=symmetric).double()
    x, y = torch.randn(2, 1, OBJECTS, 6, dtype=torch.float64)
    query, key, value = layer.query(x)[0], (layer.query if symmetric else layer.key)(y)[0], layer.value(y)[0]
    heads = []
    for q, k, v in zip(query.split(5, dim=1), key.split(5, dim=1), value.split(5, dim=1), strict=True):
        heads.append(torch.stack([((k @ q[i]) / math.sqrt(5)).softmax(dim=0) @ v for i in range(OBJECTS)]))
    attended = F.layer_norm(x[0] + layer.merge(torch.cat(heads, dim=1)), (6,))
    expected = F.layer_norm(attended + layer.feedforward[2](layer.feedforward[0](attended).relu()), (6,))
    torch.testing.assert_close(layer(x, y)[0], expected)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_transformer_agrees_with_torchs_encoder_layer(z, positions, symmetric):
    model = build(relational.Transformer, heads=4, hidden_size=9, positions=positions, symmetric=symmetric)
    p = model.positions
    if positions == "sinusoidal":
        wave = [[t / 10000 ** (2 * (i // 2) / 128) for i in range(128)] for t in range(OBJECTS)]
        p = torch.tensor(
            [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in wave], dtype=torch.float64
        )
    encoded = model.norm(torch_layer(model.layers[0], 128, 4, 9)(z + p))
    torch.testing.assert_close(model.answer(z), model.decoder(encoded.sum(dim=1) / OBJECTS))
    assert ("positions" in model.state_dict()) == (positions == "learned")


def test_corelnet_diff_matches_numpy_reference(z):
    def by_hand(z, weights):
        w = weights["difference.direction.weight"][0]
        D = [w @ (z[i] - z[j]) for i in range(OBJECTS) for j in range(OBJECTS)]
        return perceptron(np.array(D), weights, "decoder")

    agree(build(relational.CoRelNetDiff, hidden_size=7), z, by_hand)


def test_differences_are_antisymmetric_and_additive(z):
    D = Difference(128).double()(z)
    torch.testing.assert_close(D, -D.mT, atol=0, rtol=0)
    torch.testing.assert_close(D[:, 0, 3], D[:, 0, 1] + D[:, 1, 3])


@pytest.mark.parametrize("hard", [False, True])
def test_corelnet_mix_matches_numpy_reference(z, hard):
    def by_hand(z, weights):
        question = linear(z.flatten(), weights, "question")
        scores = [signature @ question / math.sqrt(5) for signature in weights["signatures"]]
        shares = np.eye(2)[np.argmax(scores)] if hard else softmax(np.array(scores) / 0.7)
        w = weights["difference.direction.weight"][0]
        D = np.array([[w @ (z[i] - z[j]) for j in range(OBJECTS)] for i in range(OBJECTS)])
        mixed = shares[0] * similarities(z) + shares[1] * D
        return perceptron(mixed.flatten(), weights, "decoder")

    model = build(relational.CoRelNetMix, hidden_size=7, signature_size=5, temperature=0.7, hard=hard)
    agree(model, z, by_hand)
    assert torch.equal(model.answer(z), model.answer(z))  # evaluation is deterministic


def test_rules_are_selected_with_their_softmax_probabilities(z):
    """The argmax of scores with Gumbel noise has these probabilities at every temperature."""
    model = build(relational.CoRelNetMix, signature_size=5, temperature=0.3)
    scores = model.question(z[:1].flatten(1)) @ model.signatures.mT / math.sqrt(5)
    model.train()
    wins = model.shares(z[:1].expand(20000, -1, -1)).detach()
    assert ((wins == 0) | (wins == 1)).all()
    deviation = 0.5 / math.sqrt(20000)
    torch.testing.assert_close(wins.mean(dim=0), scores.softmax(dim=1)[0].detach(), atol=4 * deviation, rtol=0)


THEIR_NAMES = {
    "convolutions.0.": "conv1.",
    "convolutions.2.": "conv2.",
    "convolutions.4.": "conv3.",
    "encoder.hidden.": "encoder.fc1.",
    "encoder.out.": "encoder.fc2.",
    "normalisation.gain": "gamma",
    "normalisation.shift": "beta",
    "lstm.weight_ih": "lstm.weight_ih_l0",
    "lstm.weight_hh": "lstm.weight_hh_l0",
    "lstm.bias_ih": "lstm.bias_ih_l0",
    "lstm.bias_hh": "lstm.bias_hh_l0",
    "key.": "key_w_out.",
    "gate.": "g_out.",
    "readout.": "y_out.",
}


def their_name(name):
    for ours, theirs in THEIR_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def assert_close_to_oracle(ours, theirs):
    torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-9, atol=1e-11)


def test_esbn_agrees_with_its_authors_code():
    """Compare intermediate values and the gradients of all weights and images. Some images occur twice."""
    stored, o = (np.load(ORACLES / f"{name}.npz", allow_pickle=False) for name in ("esbn_weights", "esbn_rmts_full"))
    model = relational.ESBN(Problem(6, 32, 1, 2, ((0, 6),))).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            theirs = their_name(name)
            weight = stored[theirs].astype(np.float64) * 2.0 ** -stored[f"{theirs}__log2scale"]
            parameter.copy_(torch.from_numpy(weight))
    assert {their_name(name) for name, _ in model.named_parameters()} == set(o["param_names"].tolist())

    states, gates, keys = [], [], []
    model.lstm.register_forward_hook(lambda module, args, output: states.append((args[0], *output)))
    model.gate.register_forward_hook(lambda module, args, output: gates.append(output.sigmoid()))
    model.key.register_forward_hook(lambda module, args, output: keys.append(output.relu()))
    x = torch.from_numpy(o["x"]).unsqueeze(2)
    assert_close_to_oracle(model.encoder(x.flatten(0, 1)).view(4, 6, 128), o["encoder_out"])
    assert_close_to_oracle(model.encode(x), o["tcn_out"])
    x.requires_grad_()
    logits = model(x)
    assert_close_to_oracle(logits, o["logits"])
    for part, name in enumerate(("lstm_in", "lstm_out", "lstm_cell")):
        assert_close_to_oracle(torch.stack([state[part] for state in states], dim=1), o[name])
    assert_close_to_oracle(torch.stack(keys, dim=1), o["key_w"])
    assert_close_to_oracle(
        torch.stack(gates, dim=1), o["gate"][:, 1:6]
    )  # our gate is computed only at steps that retrieve keys

    (logits * torch.from_numpy(o["G"])).sum().backward()
    assert_close_to_oracle(x.grad.squeeze(2), o["grad_x"])
    for name, parameter in model.named_parameters():
        theirs, gradient = their_name(name), parameter.grad.flatten()
        if f"grad_{theirs}" in o:
            assert_close_to_oracle(gradient, o[f"grad_{theirs}"].flatten())
        else:
            assert_close_to_oracle(gradient[torch.from_numpy(o[f"gradidx_{theirs}"])], o[f"gradval_{theirs}"])
        assert gradient.norm().item() == pytest.approx(o[f"gradnorm_{theirs}"], rel=1e-9)
        assert gradient.sum().item() == pytest.approx(o[f"gradsum_{theirs}"], rel=1e-7)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("sensory", [False, True])
def test_esbn_options_match_numpy_reference(z, two_views, asymmetric, sensory):
    def by_hand(z, weights):
        asked, compared = views(z)
        h = c = np.zeros(6)
        retrieved, keys = np.zeros(6), []
        for t in range(OBJECTS + 1):
            sight = asked[t - 1] if t else np.zeros(128)
            h, c = lstm(np.concatenate([retrieved, sight]) if sensory else retrieved, h, c, weights)
            if 0 < t < OBJECTS:
                scores = np.array([asked[t] @ compared[k] for k in range(t)])
                sure = sigmoid(weights["confidence_gain"] * scores + weights["confidence_bias"])
                found = sum(a * np.append(keys[k], sure[k]) for k, a in enumerate(softmax(scores)))
                retrieved = sigmoid(linear(h, weights, "gate")) * found
            keys.append(np.maximum(linear(h, weights, "key"), 0))
        return linear(h, weights, "readout")

    model = build(relational.ESBN, hidden_size=6, key_size=5, asymmetric=asymmetric, sensory=sensory)
    nn.init.constant_(model.confidence_gain, 1.3)
    agree(model, two_views if asymmetric else z, by_hand)


def lstm(x, h, c, weights):
    gates = weights["lstm.weight_ih"] @ x + weights["lstm.weight_hh"] @ h
    i, f, g, o = np.split(gates + weights["lstm.bias_ih"] + weights["lstm.bias_hh"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def test_predinet_matches_numpy_reference(z):
    heads, key_size, relations = 3, 4, 5

    def by_hand(z, weights):
        x = [np.append(z[t], t) for t in range(OBJECTS)]
        keys = [weights["key.weight"] @ one for one in x]
        kinds = ("first_query", "second_query")
        queries = np.stack([weights[f"{kind}.weight"] @ np.concatenate(x) for kind in kinds]).reshape(2, heads, -1)
        found = []
        for head in range(heads):
            e1, e2 = (sum(a * one for a, one in zip(softmax(keys @ q), x, strict=True)) for q in queries[:, head])
            difference = weights["relations.weight"] @ e1 - weights["relations.weight"] @ e2
            found.append(np.concatenate([difference, [e1[-1], e2[-1]]]))
        return perceptron(np.concatenate(found), weights, "decoder")

    model = build(relational.PrediNet, key_size=key_size, heads=heads, relations=relations, hidden_size=20)
    agree(model, z, by_hand)


def test_relation_network_matches_numpy_reference(z):
    def by_hand(z, weights):
        x = [np.append(z[t], t) for t in range(OBJECTS)]
        pairs = [perceptron(np.concatenate([a, b]), weights, "g") for a in x for b in x]
        return perceptron(sum(np.maximum(pair, 0) for pair in pairs), weights, "f")

    agree(build(relational.RelationNetwork, pair_size=24, hidden_size=20), z, by_hand)


def test_ntm_matches_numpy_reference(z):
    slots, width = 5, 3

    def head(name, h, M, before, weights):
        beta, gate, gamma = (linear(h, weights, f"{name}.{part}")[0] for part in ("strength", "gate", "sharpness"))
        key, shift = np.tanh(linear(h, weights, f"{name}.key")), softmax(linear(h, weights, f"{name}.shift"))
        cosine = np.array([key @ row / np.linalg.norm(key) / np.linalg.norm(row) for row in M])
        looks = softmax(softplus(beta) * cosine)
        if before is not None:
            looks = sigmoid(gate) * looks + (1 - sigmoid(gate)) * before
        moved = np.zeros(slots)
        for i in range(slots):
            for by, share in zip((-1, 0, 1), shift, strict=True):
                moved[(i + by) % slots] += share * looks[i]
        sharp = moved ** (1 + softplus(gamma))
        return sharp / sharp.sum()

    def by_hand(z, weights):
        M, r, write, read = weights["memory"], np.zeros(width), None, None
        h = c = np.zeros(6)
        for t in range(OBJECTS + 1):
            sight = z[t] if t < OBJECTS else np.zeros(128)
            h, c = lstm(np.concatenate([sight, r]), h, c, weights)
            if t > 0:
                read = head("reader", h, M, read, weights)
                r = sum(w * row for w, row in zip(read, M, strict=True))
            write = head("writer", h, M, write, weights)
            erase, add = sigmoid(linear(h, weights, "erase")), np.tanh(linear(h, weights, "add"))
            M = np.stack([row * (1 - w * erase) + w * add for row, w in zip(M, write, strict=True)])
        return linear(h, weights, "readout")

    agree(build(relational.NTM, hidden_size=6, slots=slots, width=width), z, by_hand)


def test_mnm_matches_numpy_reference(z):
    size, errors = 4, []

    def through(M, key):
        outputs = [key]
        for layer, matrix in enumerate(M):
            outputs.append(matrix @ outputs[-1] if layer == 2 else np.tanh(matrix @ outputs[-1]))
        return outputs

    def by_hand(z, weights):
        M, v = list(weights["memory"]), np.zeros(size)
        h = c = np.zeros(6)
        for t in range(OBJECTS + 1):
            sight = z[t] if t < OBJECTS else np.zeros(128)
            h, c = lstm(np.concatenate([sight, v]), h, c, weights)
            rate, key, value, asked = np.split(np.tanh(linear(h, weights, "access")), 4)
            b = sigmoid(linear(rate, weights, "rate"))
            wanted = np.split(linear(value, weights, "expected"), 3)
            outputs = through(M, key)
            changes = [np.outer(outputs[layer + 1] - wanted[layer], b * outputs[layer]) for layer in range(3)]
            M = [before - 2 / size * change for before, change in zip(M, changes, strict=True)]
            errors.append(np.mean((through(M, key)[-1] - value) ** 2))
            v = through(M, asked)[-1]
        return linear(linear(np.concatenate([h, v]), weights, "merge"), weights, "readout")

    model = build(relational.MNM, hidden_size=6, memory_size=size, memory_layers=3)
    agree(model, z, by_hand)
    assert model.penalty().item() == pytest.approx(sum(errors) / BATCH / OBJECTS)


def test_repeated_writes_bring_the_memory_to_its_target():
    """After repeated writes of one key, the memory of one layer returns E u + c for it."""
    model = build(relational.MNM, hidden_size=6, memory_size=8, memory_layers=1)
    key, value = torch.randn(2, 1, 8, dtype=torch.float64).tanh()
    memory, rate = [model.memory[:1]], torch.full((1, 1), 0.5, dtype=torch.float64)
    distances = []
    for _ in range(100):
        distances.append((relational.mnm.recall(memory, key)[-1] - model.expected(value)).norm().item())
        memory = model.write(memory, key, value, rate)
    assert all(later < earlier for earlier, later in pairwise(distances))
    assert distances[-1] < 0.02 * distances[0]


def test_lstm_agrees_with_torch(z):
    model = build(relational.RelationalLSTM, hidden_size=5)
    layer = model.sequence.layer
    theirs = nn.LSTM(128, 5, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(layer.weight_ih_l0)
        theirs.weight_hh_l0.copy_(layer.weight_hh_l0)
        theirs.bias_ih_l0.copy_(layer.bias_ih_l0)
        theirs.bias_hh_l0.zero_()
    torch.testing.assert_close(model.answer(z), model.sequence.readout(theirs(z)[0][:, -1]))
