"""Print the table of docs/export.md: each layer in onnxruntime and in torch.

python docs/export.py
"""

import torch

from steadygrad.export.verify import Session, onnx_difference
from steadygrad.layers import LAYERS

NODES = ("RNN", "GRU", "LSTM", "Scan")


def row(name: str) -> str:
    """Return the row of a layer: its name, the ONNX node of its loop, and the largest difference."""
    torch.manual_seed(0)
    layer = LAYERS[name](10, 64)
    try:
        model = Session(layer).model
    except ValueError:
        return f"| {name} | not supported | – |"
    (node,) = (node.op_type for node in model.graph.node if node.op_type in NODES)
    return f"| {name} | {node} | {onnx_difference(layer, steps=5000):.1e} |"


if __name__ == "__main__":
    print("| layer | ONNX node | largest difference |\n|---|---|---|")
    for name in LAYERS:
        print(row(name), flush=True)
