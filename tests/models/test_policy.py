"""The agent: against one written out, its state, padding, and what it refuses."""

import pytest
import torch
from torch.nn import functional as F

from steadygrad.layers import GRU, LAYERS, LSTM, RNN
from steadygrad.layers.recurrent import as_tuple
from steadygrad.models import PolicyModel

OBSERVATION = (7, (5, 3), 4, 6)
"""squares, kinds, other inputs, actions"""
LENGTHS = (5, 2, 7)


def model(make=GRU, **options):
    return PolicyModel(lambda inputs: make(inputs, 8), *OBSERVATION, **{"embedding_size": 5, "head_size": 6} | options)


def random_observations(batch=3, time=7):
    kinds = torch.stack([torch.randint(count, (batch, time, 49)) for count in OBSERVATION[1]], dim=-1)
    return torch.cat([kinds.flatten(2).float(), torch.randn(batch, time, OBSERVATION[2])], dim=-1)


def pad_with_nan(x, lengths=LENGTHS):
    behind = torch.arange(x.shape[1]) >= torch.tensor(lengths)[:, None]
    return x.masked_fill(behind[..., None], torch.nan), ~behind


def test_outputs_match_embedding_convolutions_layer_and_heads():
    ours = model(lambda inputs, units: RNN(inputs, units, activation="tanh"))
    x = random_observations()
    first, second = (x[..., k : 2 * 49 : 2].long() for k in (0, 1))
    squares = ours.embedding.weight[first] + ours.embedding.weight[5 + second]
    image = squares.view(21, 7, 7, 5).permute(0, 3, 1, 2)
    for number, convolution in enumerate(part for part in ours.see if isinstance(part, torch.nn.Conv2d)):
        image = F.conv2d(image, convolution.weight, convolution.bias).relu()
        image = F.max_pool2d(image, 2) if number == 0 else image
    assert image.shape == (21, 64, 1, 1)
    seen = torch.cat([image.view(3, 7, 64), x[..., 98:]], dim=-1)
    W, cell, h, states = ours.layer.matrices()["recurrent_l0"], ours.layer.cells[0], torch.zeros(3, 8), []
    for t in range(7):
        h = torch.tanh(seen[:, t] @ cell.weight_ih.T + h @ W.T + cell.bias_ih)
        states.append(h)
    h = torch.stack(states, dim=1)
    said = [
        torch.tanh(h @ a.weight.T + a.bias) @ b.weight.T + b.bias for a, _, b in (tuple(ours.actor), tuple(ours.critic))
    ]
    torch.testing.assert_close(ours(x), torch.cat(said, dim=-1))


@pytest.mark.parametrize("layer", LAYERS)
def test_stepwise_outputs_match_whole_sequence(layer):
    """With any layer as memory, of which the states of sequences that go on can be picked out at any time."""
    ours = model(LAYERS[layer]).eval()
    x, real = pad_with_nan(random_observations())
    with torch.no_grad():
        whole, _ = ours.walk(x)
        state, going = None, torch.arange(3)
        for t in range(7):
            outputs, state = ours.walk(x[going, t : t + 1], state)
            torch.testing.assert_close(outputs[:, 0], whole[going, t])
            stay = torch.tensor([t + 1 < LENGTHS[i] for i in going.tolist()])
            going, state = going[stay], ours.rows(state, stay)
    assert not whole[~real].any()


@pytest.mark.parametrize("make", [GRU, LSTM, LAYERS["rellstm"], LAYERS["memlstm"]])
def test_padding_does_not_change_gradients(make):
    ours = model(make)
    x, _ = pad_with_nan(random_observations())
    weights = torch.randn(3, 7, 7)

    def gradients(parts):
        ours.zero_grad()
        sum((ours(x[i : i + 1, :length]) * weights[i, :length]).sum() for i, length in parts).backward()
        return [parameter.grad.clone() for parameter in ours.parameters()]

    alone = gradients(enumerate(LENGTHS))
    ours.zero_grad()
    (ours(x) * weights).sum().backward()
    for together, own in zip(ours.parameters(), alone, strict=True):
        torch.testing.assert_close(together.grad, own, rtol=1e-4, atol=1e-5)


def test_final_states_are_those_at_sequence_ends():
    ours = model(LSTM)
    x, _ = pad_with_nan(random_observations())
    _, ends = ours.walk(x)
    for i, length in enumerate(LENGTHS):
        _, own = ours.walk(x[i : i + 1, :length])
        for all_ends, end in zip(as_tuple(ends), as_tuple(own), strict=True):
            torch.testing.assert_close(all_ends[:, i : i + 1], end)


def test_initial_policy_is_almost_uniform():
    outputs = model()(random_observations())
    assert outputs[..., :-1].softmax(-1).sub(1 / 6).abs().max() < 0.01
    assert outputs[..., -1].abs().max() < 0.05


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ((1, 3, 5), "got 1 NaN of 102 features at step 3 of sequence 1"),
        ((1, 3, 0), "got 1 NaN of 102 features at step 3 of sequence 1"),
        ((2, 1, slice(None)), "got 102 NaN of 102 features at step 1 of sequence 2"),
        ((0, slice(None), slice(None)), "got 102 NaN of 102 features at step 0 of sequence 0"),
    ],
    ids=["one feature", "the first feature", "a step in between", "no step"],
)
def test_nan_before_end_of_sequence_raises_value_error(places, words):
    """The end is where all features are NaN: a NaN in the first alone is no end."""
    x = random_observations()
    x[places] = torch.nan
    with pytest.raises(ValueError, match=f"PolicyModel expects at least one step, then NaN in all features .*{words}"):
        model()(x)


def test_invalid_arguments_raise_value_error():
    with pytest.raises(ValueError, match=r"PolicyModel expects 102 features per step; got x of shape \(3, 7, 101\)"):
        model()(random_observations()[..., 1:])
    with pytest.raises(ValueError, match="PolicyModel expects head_size to be an integer of at least 1; got 0"):
        model(head_size=0)
    with pytest.raises(ValueError, match="PolicyModel expects a view of at least 7 squares; got 5"):
        PolicyModel(lambda inputs: GRU(inputs, 8), 5, (5, 3), 4, 6)
    with pytest.raises(ValueError, match=r"PolicyModel expects a unidirectional layer .* got bidirectional=True and"):
        model(lambda inputs, units: GRU(inputs, units, bidirectional=True))
