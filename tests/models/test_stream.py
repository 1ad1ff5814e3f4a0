"""Streams of whole models: one input or token a call, through layers and readout."""

import pytest
import torch

from steadygrad.layers import LSTM, NCGRU, MemRNN, RelLSTM
from steadygrad.models import LanguageModel, SequenceModel, TokenStream
from tests.rounding import assert_same, rounding

WORDS, STEPS = 11, 30
every_layer = pytest.mark.parametrize("make", [LSTM, NCGRU, RelLSTM, MemRNN])


def parts(state):
    return list(state) if isinstance(state, tuple) else [state]


@every_layer
@pytest.mark.parametrize("batch", [1, 3])
def test_sequence_model_matches_whole_walk(make, batch):
    model = SequenceModel(make(3, 8, 2), 5).eval()
    x = torch.randn(batch, STEPS, 3)
    with torch.no_grad():
        expected, end = model.walk(x)
    stream = model.stream(batch)
    found = torch.stack([stream(row.contiguous()) for row in x.unbind(1)], dim=1)
    assert stream.output_size == 5
    assert_same([found, *parts(stream.state)], [expected, *parts(end)], rounding(torch.float32, 11, 4 * 3 * STEPS))


def test_last_only_model_gives_the_output_after_each_step():
    model = SequenceModel(LSTM(3, 8), 5, last_only=True).eval()
    x, stream = torch.randn(1, STEPS, 3), model.stream()
    for t in range(4):
        with torch.no_grad():
            expected = model(x[:, : t + 1])
        assert_same([stream(x[:, t])], [expected], rounding(torch.float32, 11, 4 * 2 * 4))


@every_layer
@pytest.mark.parametrize("tied", [False, True])
def test_language_model_matches_whole_walk(make, tied):
    model = LanguageModel(make, WORDS, embedding_size=6, sizes=[8, 6], tied=tied, layer_dropout=0.5)
    tokens = torch.randint(WORDS, (2, STEPS))
    stream = model.stream(2)
    assert isinstance(stream, TokenStream)
    model.eval()
    with torch.no_grad():
        expected, end = model.walk_on(tokens)
    found = torch.stack([stream(step) for step in tokens.T], dim=1)
    limit = rounding(torch.float32, 14, 4 * 3 * STEPS)
    assert_same([found, *parts(stream.state)], [expected, *parts(end)], limit)


def test_token_may_be_an_integer():
    model = LanguageModel(LSTM, WORDS, sizes=[8])
    stream, other = model.stream(), model.stream()
    for token in range(WORDS):
        as_integer, as_tensor = stream(token), other(torch.tensor([token], dtype=torch.int32))
        assert as_integer.shape == (WORDS,)
        assert torch.equal(as_tensor, as_integer[None])
    out = torch.empty(WORDS)
    assert stream(3, out=out) is out
    assert torch.equal(out, other(torch.tensor([3]))[0])


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (WORDS, "expects tokens from 0 to 10, as its vocabulary is 11; got 11"),
        (-1, "expects tokens from 0 to 10, as its vocabulary is 11; got -1"),
        (torch.tensor([WORDS]), "expects tokens from 0 to 10"),
        (True, r"expects tokens, an integer or a tensor of shape \(1,\); got True"),
        ("a", "got 'a'"),
        (torch.tensor([1, 2]), r"got shape \(2,\)"),
        (torch.tensor([1.0]), "expects tokens of type int64 or int32 on cpu; got torch.float32"),
    ],
)
def test_wrong_tokens_are_refused(token, message):
    with pytest.raises(ValueError, match=f"a stream of LanguageModel .*{message}"):
        LanguageModel(LSTM, WORDS, sizes=[8]).stream()(token)


def test_refresh_takes_over_embedding_and_readout():
    model = LanguageModel(LSTM, WORDS, sizes=[8])
    stream, other = model.stream(), model.stream()
    with torch.no_grad():
        model.embedding.weight.mul_(2)
        model.readout.bias.add_(1)
    stream.refresh()
    model.eval()
    with torch.no_grad():
        expected = model(torch.tensor([[4]]))[0, 0]
    assert_same([stream(4)], [expected], rounding(torch.float32, 208, 8))
    assert (other(4) - expected).abs().max() > 0.5


def test_bidirectional_model_is_refused():
    model = SequenceModel(LSTM(3, 8, bidirectional=True), 5)
    with pytest.raises(ValueError, match="a stream of SequenceModel expects unidirectional layers"):
        model.stream()
