"""`steadygrad export`: ONNX models, programs of torch.export and C files from runs and layers."""

import pytest
import torch

from steadygrad.cli.main import main
from steadygrad.training import RunDirectory, Settings, load_model, train
from tests.export.compiled import Compiled, needs_compiler
from tests.rounding import rounding


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tables = {
        "layer": {"name": "nnrnn", "hidden_size": 6},
        "task": {"name": "copy", "delay": 5},
        "train": {"steps": 2, "batch": 2, "evaluate_every": 1},
    }
    train(Settings.from_tables(tables), folder)
    return folder


@torch.no_grad()
def test_run_is_exported_with_its_readout(run, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(run), "-o", str(tmp_path / "model.onnx"), "--no-state"]) == 0
    assert "written to" in capsys.readouterr().err
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    model, task, _ = load_model(RunDirectory(run))
    x, _ = task.sample(3, torch.Generator().manual_seed(0))
    expected = model.eval()(x)
    found = torch.from_numpy(session.run(["y"], {"x": x.numpy()})[0])
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


def test_layer_is_exported_for_torch(tmp_path):
    path = tmp_path / "layer.pt2"
    assert main(["export", "gru", "-o", str(path), "--layer.hidden_size", "5", "--inputs", "4"]) == 0
    y, h = torch.export.load(path).module()(torch.zeros(9, 3, 4), torch.zeros(1, 3, 5))
    assert y.shape == (9, 3, 5)
    assert h.shape == (1, 3, 5)


@needs_compiler
@torch.no_grad()
def test_run_is_exported_as_c_file(run, tmp_path):
    assert main(["export", str(run), "-o", str(tmp_path / "net.c"), "--prefix", "net", "--double"]) == 0
    source = (tmp_path / "net.c").read_text("utf-8")
    compiled = Compiled(tmp_path / "library", source, "net", double=True)
    model, task, _ = load_model(RunDirectory(run))
    x, _ = task.sample(1, torch.Generator().manual_seed(0))
    expected = model.baked().double()(x.double())[0]
    bound = rounding(torch.float64, 6 + x.shape[2], x.shape[1], max(1.0, float(expected.abs().max())))
    torch.testing.assert_close(compiled(compiled.new(), x[0]), expected, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gru", "-o", "x.txt"], "export expects -o FILE.onnx or FILE.pt2 or FILE.c; got x.txt"),
        (["gru", "-o", "x.c", "--prefix", "3d"], "export to C expects a prefix of letters, digits and _"),
        (["gru", "-o", "x.c", "--no-state"], "export to C expects state=True: the file itself has the state"),
        (["gru", "-o", "x.onnx", "--double"], "prefix and double are options of C files, which end in .c; got x.onnx"),
        (["nothing", "-o", "x.onnx"], "export expects a run's directory or a layer out of"),
        (["memrnn", "-o", "x.onnx"], "MemRNN cannot be exported: its memory of past states grows with time"),
        (["gru", "-o", "x.onnx", "--inputs", "0"], "--inputs expects at least 1; got 0"),
        (["gru", "-o", "x.onnx", "--weights", "last"], "--weights goes with a run"),
    ],
)
def test_invalid_arguments_are_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
