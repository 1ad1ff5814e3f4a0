"""The language model: against one written out, its dropouts, its state, and text that it makes up."""

from functools import partial
from itertools import islice

import pytest
import torch
from torch.nn import functional as F

from steadygrad.layers import GRU, LAYERS, LSTM, NNRNN, ORNN, RNN, ExpRNN, RelRNN
from steadygrad.layers.cell import Lookup
from steadygrad.layers.recurrent import as_tuple
from steadygrad.matrices import Exponential
from steadygrad.models import LanguageModel

TOKENS = torch.tensor([[0, 3, 1, 1, 4, 2], [2, 2, 0, 4, 1, 3]])


def model(make=GRU, **options):
    return LanguageModel(make, 5, **{"embedding_size": 6, "sizes": [7, 4]} | options)


def test_outputs_match_embedding_layers_and_readout_by_hand():
    ours = model(lambda inputs, units: RNN(inputs, units, activation="tanh"))
    x = ours.embedding.weight[TOKENS]
    for layer in ours.layers:
        W, cell = layer.matrices()["recurrent_l0"], layer.cells[0]
        h, states = torch.zeros(2, len(W)), []
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ cell.weight_ih.T + h @ W.T + cell.bias_ih)
            states.append(h)
        x = torch.stack(states, dim=1)
    torch.testing.assert_close(ours(TOKENS), x @ ours.readout.weight.T + ours.readout.bias)


@pytest.mark.parametrize("make", [GRU, NNRNN])
@pytest.mark.parametrize("size", [4, 5])  # the second folds E into the input matrix
def test_folded_embedding_matches_plain_embedding(make, size):
    ours = model(make, embedding_size=size)
    assert isinstance(ours.embedded(TOKENS), Lookup) == (size == 5)
    hidden, _ = ours.layers(ours.embedding(TOKENS.t()))
    torch.testing.assert_close(ours(TOKENS), ours.read(hidden))


def test_invalid_tokens_raise_value_error():
    with pytest.raises(ValueError, match=r"tokens of type int64 or int32; got torch.float32"):
        model()(TOKENS.float())
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=rf"LanguageModel expects tokens from 0 to 4.* got .*{wrong}"):
            model()(torch.tensor([[0, wrong]]))


@pytest.mark.parametrize("make", [GRU, LSTM, NNRNN, RNN])
def test_split_sequence_matches_whole_sequence(make):
    ours = model(make)
    whole, end = ours.walk(TOKENS)
    first, state = ours.walk(TOKENS[:, :2])
    second, last = ours.walk(TOKENS[:, 2:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    for a, b in zip(as_tuple(last), as_tuple(end), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_works_in_language_model(layer):
    ours = LanguageModel(lambda inputs, units: LAYERS[layer](inputs, units), 5, embedding_size=6, sizes=[8, 4])
    logits, state = ours.walk(TOKENS)
    assert logits.shape == (2, 6, 5)
    again, _ = ours.walk(TOKENS, state)
    F.cross_entropy(again.flatten(0, 1), TOKENS.flatten()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ours.parameters() if p.numel())


def test_memory_is_cleared_between_windows():
    """And the states themselves go on."""
    ours = model(lambda inputs, units: RelRNN(inputs, units, short=2, relevant=2), sizes=[4])
    _, state = ours.walk(TOKENS)
    h, s, *memory = state
    assert not any(part.any() for part in memory)
    assert h.any()
    assert s.any()
    _, going_on = ours.walk_on(TOKENS)
    assert torch.equal(h, going_on[0])
    assert all(part.any() for part in going_on)


def test_tied_weights_are_one_parameter():
    ours = model(sizes=[7, 6], tied=True)
    assert ours.readout.weight is ours.embedding.weight
    free = model(sizes=[7, 6])
    assert sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in ours.parameters()) == 5 * 6
    with pytest.raises(ValueError, match=r"^LanguageModel with tied weights expects 6 features .*; got 4$"):
        model(tied=True)


@pytest.mark.parametrize("option", ["input_dropout", "layer_dropout", "output_dropout", "word_dropout"])
def test_dropout_is_for_training_alone(option):
    ours = model(**{option: 0.5})
    assert not torch.equal(ours(TOKENS), ours(TOKENS))
    ours.eval()
    assert torch.equal(ours(TOKENS), ours(TOKENS))


def test_dropout_mask_is_constant_over_time_and_keeps_mean():
    ours, x = model(), torch.ones(50, 40, 30)
    dropped = ours.drop(x, 0.25)
    assert torch.equal(dropped, dropped[:1].expand_as(x))
    values, counts = dropped[0].unique(return_counts=True)
    torch.testing.assert_close(values, torch.tensor([0, 4 / 3]))
    assert counts[0] / counts.sum() == pytest.approx(0.25, abs=0.05)
    assert not torch.equal(dropped[:, 0], dropped[:, 1])  # others in each sequence


def test_word_dropout_drops_whole_embedding_rows():
    ours = LanguageModel(GRU, 1000, embedding_size=3, sizes=[2], word_dropout=0.3)
    seen = ours.table().detach()
    gone = ~seen.any(dim=1)
    assert gone.float().mean() == pytest.approx(0.3, abs=0.05)
    torch.testing.assert_close(seen[~gone], ours.embedding.weight.detach()[~gone] / 0.7)
    both = ours(torch.arange(1000).repeat(2, 1))
    torch.testing.assert_close(both[0], both[1])  # one table for all sequences
    assert not torch.allclose(both, ours(torch.arange(1000).repeat(2, 1)))  # another in the next update


@pytest.mark.parametrize("make", [RNN, GRU, LSTM, ORNN])
def test_weights_are_dropped_in_training_alone(make):
    ours = LanguageModel(make, 5, embedding_size=6, sizes=[40], weight_dropout=0.5)
    cell = ours.layers[0].cells[0]
    W, other = cell.weights()[1], cell.weights()[1]
    assert (W == 0).float().mean() == pytest.approx(0.5, abs=0.1)
    assert not torch.equal(W, other)
    kept = torch.cat(list(ours.layers[0].matrices().values()))
    torch.testing.assert_close(W[W != 0], 2 * kept[W != 0])
    ours.eval()
    torch.testing.assert_close(cell.weights()[1], kept)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_dropout": 1.0}, "LanguageModel expects input_dropout of at least 0 and below 1; got 1.0"),
        ({"embedding_size": 0}, "LanguageModel expects embedding_size to be an integer of at least 1; got 0"),
        ({"sizes": []}, r"LanguageModel expects sizes to be a list of units, one a layer; got \[\]"),
        ({"sizes": [0]}, "GRU expects hidden_size to be an integer of at least 1; got 0"),
    ],
)
def test_invalid_options_raise_value_error(options, words):
    with pytest.raises(ValueError, match=words):
        model(**options)


def test_generate_at_temperature_zero_is_greedy():
    ours = model()
    found = list(islice(ours.generate(TOKENS[0], temperature=0), 4))
    text = TOKENS[:1]
    for token in found:
        assert token == ours(text)[0, -1].argmax()
        text = torch.cat([text, torch.tensor([[token]])], dim=1)
    assert ours.training


ATTENTION_LAYERS = ["memrnn", "memlstm", "sab", "relrnn", "rellstm"]


def attention_model(layer):
    """A model whose memory has a say."""
    torch.manual_seed(1)
    options = {"every": 2} if layer == "sab" else {}
    ours = LanguageModel(partial(LAYERS[layer], **options), 5, embedding_size=6, sizes=[8, 7]).double().eval()
    with torch.no_grad():
        ours.readout.weight.mul_(10)
        ours.embedding.weight.mul_(10)
    return ours


@pytest.mark.parametrize("layer", ATTENTION_LAYERS)
def test_generation_with_memory_matches_whole_forward_pass(layer):
    ours, prompt = attention_model(layer), TOKENS[0]
    found = list(islice(ours.generate(prompt, temperature=0), 20))
    text = torch.cat([prompt, torch.tensor(found)])[None]
    assert found == ours(text)[0, len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("layer", ATTENTION_LAYERS)
@pytest.mark.parametrize("window", [1, 4, 6, 9])
def test_generation_clears_memory_at_window_ends(layer, window):
    """Also within the text it begins with: it is read as in training."""
    ours, prompt = attention_model(layer), TOKENS[0]
    found = list(islice(ours.generate(prompt, temperature=0, window=window), 20))
    text = torch.cat([prompt, torch.tensor(found)])[None]
    logits, state = [], None
    for part in text.split(window, dim=1):
        said, state = ours.walk(part, state)
        logits.append(said[0])
    assert found == torch.cat(logits)[len(prompt) - 1 : -1].argmax(-1).tolist()


def test_generation_caches_matrices_between_tokens(monkeypatch):
    ours, made = LanguageModel(ExpRNN, 5, embedding_size=6, sizes=[4]), []
    evaluate = Exponential.forward
    monkeypatch.setattr(Exponential, "forward", lambda self, free: made.append(free) or evaluate(self, free))
    tokens = ours.generate(TOKENS[0], temperature=0)
    list(islice(tokens, 10))
    assert len(made) == 1
    with torch.no_grad():
        ours.layers[0].weight_hh_l0.skew.mul_(2)
    list(islice(tokens, 10))
    assert len(made) == 2


def test_generated_token_frequencies_match_softmax():
    ours = LanguageModel(GRU, 5, embedding_size=6, sizes=[4])
    with torch.no_grad():
        ours.readout.weight.zero_()
        ours.readout.bias.copy_(torch.tensor([0.4, 0.3, 0.2, 0.1, 1e-9]).log())
    generator = torch.Generator().manual_seed(0)
    found = torch.tensor(list(islice(ours.generate(TOKENS[0], 1.0, generator), 2000)))
    shares = found.bincount(minlength=5) / 2000
    torch.testing.assert_close(shares, torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0]), atol=0.04, rtol=0)
    colder = torch.tensor(list(islice(ours.generate(TOKENS[0], 0.5, generator), 2000))).bincount(minlength=5) / 2000
    torch.testing.assert_close(colder, torch.tensor([16, 9, 4, 1, 0]) / 30, atol=0.04, rtol=0)


def test_generate_rejects_invalid_arguments():
    with pytest.raises(ValueError, match=r"generate expects at least one token to go on from; got shape \(0,\)"):
        model().generate(torch.tensor([], dtype=torch.long))
    with pytest.raises(ValueError, match="generate expects a temperature of at least 0; got -1"):
        model().generate(TOKENS[0], temperature=-1)
    with pytest.raises(ValueError, match="generate expects a window of at least 1 token; got 0"):
        model().generate(TOKENS[0], window=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_with_nan_logits_raises_value_error(temperature):
    broken = model()
    with torch.no_grad():
        broken.readout.bias[1] = torch.nan
    with pytest.raises(ValueError, match="generate expects finite logits; got NaN or infinity"):
        next(broken.generate(TOKENS[0], temperature))


@pytest.mark.parametrize("temperature", [1e-20, 1e-40, 5e-324])
def test_tiny_temperature_matches_greedy_generation(temperature):
    ours = model()
    likeliest, found = (list(islice(ours.generate(TOKENS[0], t), 20)) for t in (0, temperature))
    assert found == likeliest


def test_penalty_is_sum_over_layers():
    ours = LanguageModel(lambda inputs, units: NNRNN(inputs, units, spectrum_pull=1.0), 5, sizes=[4, 4])
    for layer in ours.layers:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.1)
    assert ours.penalty().item() == pytest.approx(sum(layer.penalty().item() for layer in ours.layers))
    assert ours.penalty().item() > 0
