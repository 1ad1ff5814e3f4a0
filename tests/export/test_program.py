"""Programs of torch.export load where steadygrad cannot be imported."""

import subprocess
import sys

import pytest
import torch

from steadygrad.export import export, exported_program
from steadygrad.kernels import has_operator, portable
from steadygrad.layers import LAYERS
from steadygrad.layers.recurrent import as_tuple

I, N, B, T = 3, 6, 3, 40
NAMES = ("lstm", "gru", "nnrnn", "ncgru", "urnn", "lem", "relrnn")

LOAD = """
import sys
sys.modules["steadygrad"] = None
import torch
for path in sys.argv[1:]:
    x, state, expected = torch.load(path + ".pt")
    run = torch.export.load(path).module()
    whole = run(x, *state)
    parts = []
    for row in x[:5].split(1):
        y, *state = run(row, *state)
        parts.append(y)
    for a, b in [*zip(whole, expected), (torch.cat(parts), whole[0][:5])]:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * max(1e-3, float(b.abs().max())))
"""


@torch.no_grad()
def test_saved_programs_run_without_steadygrad_whole_and_step_by_step(tmp_path):
    """Traced at 7 steps and batch 2, run at 40 steps and batch 3."""
    paths = []
    for name in NAMES:
        layer, path = LAYERS[name](I, N), tmp_path / f"{name}.pt2"
        export(layer, path)
        baked, x = layer.baked(), torch.randn(T, B, I)
        output, final = baked(x)
        torch.save((x, baked.default_states(B, x), (output, *as_tuple(final))), f"{path}.pt")
        paths.append(str(path))
    code = [sys.executable, "-W", "ignore", "-c", LOAD, *paths]
    run = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_program_has_no_operators_of_steadygrad():
    graph = exported_program(LAYERS["gru"](I, N)).program.graph
    assert not [node for node in graph.nodes if "steadygrad" in str(node.target)]
    kept = exported_program(LAYERS["gru"](I, N), kept=("tanh",)).program.graph
    assert [str(node.target) for node in kept.nodes if "steadygrad" in str(node.target)] == [
        "steadygrad.gru_forward.default"
    ]


def test_portable_holds_only_inside(monkeypatch):
    monkeypatch.setattr("steadygrad.kernels.plain.traced", lambda: True)
    assert has_operator("modrelu", 7)
    with portable("tanh"):
        assert has_operator("tanh", 7)
        assert not has_operator("tanh", 1)
        assert not has_operator("modrelu", 7)
    assert has_operator("modrelu", 7)


def test_other_endings_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"the ending of the file to be one of .onnx, .pt2, .c; got '.pt'"):
        export(LAYERS["gru"](I, N), tmp_path / "layer.pt")
    assert not list(tmp_path.iterdir())
