"""Export of layers and models: ONNX graphs, programs of torch.export, packages of AOTInductor, and C files."""

from steadygrad.export.c import c_source as c_source
from steadygrad.export.file import export as export
from steadygrad.export.inductor import aot_package as aot_package
from steadygrad.export.onnx import onnx_model as onnx_model
from steadygrad.export.program import exported_program as exported_program
from steadygrad.export.verify import onnx_difference as onnx_difference
