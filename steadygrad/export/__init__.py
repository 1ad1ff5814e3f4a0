"""Export of layers and models: ONNX graphs, programs of torch.export that load without steadygrad, and C files."""

from steadygrad.export.c import c_source as c_source
from steadygrad.export.file import export as export
from steadygrad.export.onnx import onnx_model as onnx_model
from steadygrad.export.program import exported_program as exported_program
from steadygrad.export.verify import onnx_difference as onnx_difference
