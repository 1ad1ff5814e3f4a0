"""How far an exported ONNX model is from the layer, measured in onnxruntime."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.export.onnx import onnx_model
from steadygrad.export.program import layers_of, streamed
from steadygrad.layers.baked import baked


class Session:
    """An ONNX model of a layer or model in onnxruntime, on one thread: called with (x, *state), it returns a list.

    Raise ValueError if the package onnxruntime is missing, or as `onnx_model` does.
    """

    def __init__(self, module: nn.Module, *, state: bool = True) -> None:
        self.model: Any = onnx_model(module, state=state)
        try:
            onnxruntime = import_module("onnxruntime")
        except ImportError:
            raise ValueError(
                "running an ONNX model needs the package onnxruntime: pip install steadygrad[export]"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session: Any = onnxruntime.InferenceSession(
            self.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.names = [value.name for value in self.session.get_inputs()]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the outputs and the final state, in the order of the model's outputs."""
        given = {name: value.contiguous().numpy() for name, value in zip(self.names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in self.session.run(None, given)]


@torch.no_grad()
def onnx_difference(layer: nn.Module, steps: int = 5000, batch: int = 3, seed: int = 0) -> float:
    """Return the largest difference of a layer's outputs in onnxruntime, divided by the largest |output| of the layer.

    The layer's ONNX model was traced with 7 steps. It runs on ``steps`` steps of ``batch`` random sequences, N(0, 1),
    and is compared with the baked layer in float32. Layers, a `Stack` and models with floating-point inputs are
    accepted. Raise ValueError as `Session` does.
    """
    run = Session(layer)
    module = baked(layer).float().cpu()
    given = streamed(module)
    sizes = {"time": steps, "batch": batch}
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(*(sizes[axis] for axis in given.axes), given.example.shape[2], generator=random)
    start = [part for one in layers_of(given.layer) for part in one.default_states(batch, x)]
    expected, _ = given.run(x, None)
    found, *_ = run(x, *start)
    return float((found - expected).abs().max() / expected.abs().max())
