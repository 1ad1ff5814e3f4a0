"""Every layer is measured beside torch's, on the same update."""

import torch

from benchmarks import language
from benchmarks.timing import interleave


def test_every_row_has_its_ratios(monkeypatch):
    monkeypatch.setattr("benchmarks.language.interleave", lambda who, seconds: interleave(who, 0, least=1, turn=0))
    result = language.measured(["nnrnn", "lstm"], hidden=6, batch=3, window=4, seconds=0.0)
    assert [row["layer"] for row in result["rows"]] == ["nnrnn", "lstm", "torch.nn.RNN", "torch.nn.LSTM"]
    own = result["rows"][0]
    assert own["characters_per_second"] == 3 * 4 / (own["ms"] / 1e3)
    assert result["holds"] == {}  # the bounds are for another size
    monkeypatch.setattr(language, "AT", (6, 3, 4))
    result = language.measured(["nnrnn", "lstm"], hidden=6, batch=3, window=4, seconds=0.0)
    own = result["rows"][0]
    assert result["holds"] == {peer: own["faster"][peer]["median"] >= language.BOUNDS[peer] for peer in language.TORCH}
    assert all(len(line) == len(language.HEADER) for line in language.lines(result))


def test_an_update_moves_every_weight_and_carries_the_state(monkeypatch):
    for make in (
        lambda: language.LanguageModel(language.LAYERS["nnrnn"], language.SYMBOLS, sizes=[6]),
        lambda: language.TorchLanguageModel(torch.nn.LSTM, 6),
    ):
        model, seen = make(), []
        walk = model.walk
        monkeypatch.setattr(
            model, "walk", lambda x, state, walk=walk, seen=seen: (seen.append(state), walk(x, state))[1]
        )
        before = [parameter.clone() for parameter in model.parameters()]
        run = language.update(lambda model=model: model, 4, 5)
        run()
        run()
        assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert seen[0] is None
        assert seen[1] is not None
