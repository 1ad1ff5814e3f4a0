"""Every layer is measured beside torch's, on the same update."""

import pytest
import torch

from benchmarks import language
from benchmarks.timing import interleave


def test_rows_have_speed_ratios_and_bounds_apply_at_their_size(monkeypatch):
    monkeypatch.setattr("benchmarks.language.interleave", lambda who, seconds: interleave(who, 0, least=1, turn=0))
    result = language.measured(["nnrnn", "lstm"], hidden=[6], batch=3, window=4, seconds=0.0)
    assert [row["layer"] for row in result["rows"]] == ["nnrnn", "lstm", "torch.nn.RNN", "torch.nn.LSTM"]
    own = result["rows"][0]
    assert own["characters_per_second"] == 3 * 4 / (own["ms"] / 1e3)
    assert result["holds"] == {}  # the bounds are for another size
    monkeypatch.setattr(language, "AT", ([6], 3, 4))
    result = language.measured(["nnrnn", "lstm"], hidden=[6], batch=3, window=4, seconds=0.0)
    own = result["rows"][0]
    assert result["holds"] == {peer: own["faster"][peer]["median"] >= language.BOUNDS[peer] for peer in language.TORCH}
    assert all(len(line) == len(language.HEADER) for line in language.lines(result))


def test_an_update_moves_every_weight_and_carries_the_state(monkeypatch):
    for make in (
        lambda: language.LanguageModel(language.LAYERS["nnrnn"], language.SYMBOLS, sizes=[6]),
        lambda: language.TorchLanguageModel(torch.nn.LSTM, [6]),
        lambda: language.TorchLanguageModel(torch.nn.LSTM, [6, 5]),
        lambda: language.TorchLanguageModel(torch.nn.RNN, [6, 5]),
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


def test_torch_language_model_state_continues_the_sequence():
    torch.manual_seed(0)
    model = language.TorchLanguageModel(torch.nn.LSTM, [6, 5])
    tokens = torch.randint(language.SYMBOLS, (3, 8))
    whole, _ = model.walk(tokens, None)
    _, state = model.walk(tokens[:, :3], None)
    torch.testing.assert_close(model.walk(tokens[:, 3:], state)[0], whole[:, 3:])


@pytest.mark.parametrize("text", ["0", "430,", "a", "-3", "4,x"])
def test_invalid_hidden_sizes_exit_with_message(text, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["language.py", f"--hidden={text}"])
    with pytest.raises(SystemExit) as stop:
        language.main()
    assert stop.value.code == 2
    assert f"expects integers as in 430,1000,430; got {text!r}" in capsys.readouterr().err
