"""Streams and their peers are timed and compared, and bounds that are missed are named."""

import pytest
import torch

from benchmarks import streaming
from benchmarks.peers import MissingError
from benchmarks.timing import interleave
from tests.backends import needs_c

pytestmark = needs_c


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(streaming, "UNITS_IN_A_RUN", 16)
    monkeypatch.setattr("benchmarks.streaming.interleave", lambda who, *_, **__: interleave(who, 0, least=1, turn=0))


def test_all_contenders_compute_and_are_timed(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setitem(streaming.BOUNDS, ("lstm", 8), {streaming.STREAM: 0, streaming.TORCH: 1e9})
    row = streaming.measured("lstm", 8, 0)
    assert list(row["microseconds"]) == ["stream", "out=", "call", "torch.nn", "onnxruntime", "its node"]
    assert row["missed"] == ["0 µs", "1e+09 × torch.nn"]
    assert len(streaming.line(row)) == len(streaming.HEADER)


def test_missing_onnxruntime_is_left_out(monkeypatch):
    def missing(name):
        raise MissingError(f"{name} is not installed")

    monkeypatch.setattr(streaming, "optional", missing)
    row = streaming.measured("ncgru", 8, 0)
    assert row["missing"] == {"onnxruntime": "onnxruntime is not installed", "its node": "onnx is not installed"}
    assert streaming.line(row)[6:8] == ["–", "–"]


@pytest.mark.parametrize("peer", [streaming.PLAIN, streaming.GATED, streaming.LONG])
def test_exported_peer_and_stream_compute_the_same(peer):
    pytest.importorskip("onnxruntime")
    layer = peer.ours(1, 8)
    call, stream = streaming.session(streaming.onnx_model(layer)), layer.stream()
    for _ in range(3):  # the state goes from call to call
        found, expected = torch.as_tensor(call()), stream(torch.zeros(1, 1))
        torch.testing.assert_close(found.view(1, 8), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", streaming.PEERS)
def test_outputs_are_compared(name):
    found = streaming.compared(name, 8, 50)
    assert found["within bounds"]
    assert 0 <= found["float64"] < found["float32"] < 1
