"""The exact inverse and the series are measured on the same update, and drawn."""

from benchmarks import inverse
from benchmarks.timing import interleave


def test_every_inverse_is_timed_and_drawn(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.inverse.interleave", lambda who, seconds: interleave(who, 0, least=1, turn=0))
    monkeypatch.setattr(inverse, "WINDOW", 3)
    result = inverse.measured([5, 4], seconds=0.0)
    assert [row["inverse"] for row in result["rows"]] == list(inverse.LAYERS)
    assert result["rows"][0]["to_exact"]["median"] == 1
    assert all(len(line) == len(inverse.HEADER) for line in inverse.lines(result))
    inverse.draw(result, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")
