"""The benchmark of relational networks measures updates relative to the encoder, on batches as named."""

import torch

from benchmarks import relational
from benchmarks.timing import interleave


def test_every_row_has_a_ratio_to_the_encoder(monkeypatch):
    monkeypatch.setattr("benchmarks.relational.BATCH", 2)
    monkeypatch.setattr("benchmarks.relational.interleave", lambda who, seconds: interleave(who, 0, least=1, turn=0))
    result = relational.measured(["corelnet", "rn"], 0.0)
    assert [(row["network"], row["images"]) for row in result["rows"]] == [
        (name, kind) for name in ("corelnet", "rn") for kind in ("different", "five glyphs")
    ]
    assert result["holds"] == (result["rows"][0]["ratio"]["median"] <= relational.BOUND)
    assert all(len(line) == len(relational.HEADER) for line in relational.lines(result))


def test_an_update_changes_every_weight(monkeypatch):
    monkeypatch.setattr("benchmarks.relational.BATCH", 2)
    model = relational.build("corelnet")
    with torch.no_grad():
        model.normalisation.gain.fill_(0.1)  # otherwise the softmax saturates and gradients are rounding errors
    monkeypatch.setattr("benchmarks.relational.build", lambda name: model)
    before = [parameter.clone() for parameter in model.parameters()]
    relational.update("corelnet", relational.batch(5))()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_batches_contain_the_named_number_of_different_images():
    for kind, count in relational.GLYPHS.items():
        images = relational.batch(count)
        assert images.shape == (32, 6, 3, 32, 32)
        assert len(torch.unique(images.flatten(0, 1), dim=0)) == count, kind
