"""ONNX nodes RNN, GRU and LSTM for the loops over time that are exactly these."""

from typing import Any

import torch
from torch import Tensor

from steadygrad.export.graph import Converter, Graph, Last, Name, Value

NATIVE = {"tanh": "Tanh", "relu": "Relu"}
"""activations that ONNX's RNN and GRU have, by our names"""


def loop(
    graph: Graph,
    kind: str,
    x: Value,
    weights: tuple[Tensor, Tensor, Tensor | None],
    initial: tuple[Value, ...],
    reverse: bool,
    bias_hn: Tensor | None = None,
    **attributes: Any,
) -> tuple[Name, ...]:
    """Add an RNN, GRU or LSTM node and return its outputs: all states (rows, units), and the final ones.

    x is (rows, inputs). ``weights`` are W, U and the bias, with the gates in ONNX's order. ``initial`` are the initial
    states (batch, units). ``bias_hn`` is the part of ONNX's second bias that belongs to U_c; the rest of it is 0.
    """
    W, U, bias = weights
    units = U.shape[1]
    batch = graph.node("Shape", initial[0], start=0, end=1)
    steps = graph.node("Reshape", x, graph.shape([-1, batch, W.shape[1]]))
    both = None
    if bias is not None or bias_hn is not None:
        first, second = W.new_zeros(len(W)) if bias is None else bias, W.new_zeros(len(W))
        if bias_hn is not None:
            second[-units:] = bias_hn
        both = torch.cat([first, second])[None]
    start = [graph.node("Unsqueeze", state, [0]) for state in initial]
    found = graph.node(
        kind,
        steps,
        W[None],
        U[None],
        both,
        None,
        *start,
        outputs=1 + len(start),
        hidden_size=units,
        direction="reverse" if reverse else "forward",
        **attributes,
    )
    return graph.node("Reshape", found[0], [-1, units]), *found[1:]


def elman(
    graph: Graph, node: Any, x: Value, U: Any, W: Any, bias: Any, initial: Value, sizes: None, *settings: Any
) -> Name:
    """Convert `steadygrad::elman_forward`."""
    activation, reverse = settings
    return loop(graph, "RNN", x, (U, W, bias), (initial,), reverse, activations=[NATIVE[activation]])[0]


def lstm(graph: Graph, node: Any, x: Value, *rest: Any) -> tuple[Value, ...]:
    """Convert `steadygrad::lstm_forward`. ONNX's order of the gates is i, o, f, g; ours is i, f, g, o."""
    W, U, bias, initial, cells, _, _, reverse = rest

    def turned(rows: Tensor) -> Tensor:
        i, f, g, o = rows.chunk(4)
        return torch.cat([i, o, f, g])

    weights = turned(W), turned(U), None if bias is None else turned(bias)
    states, _, final = loop(graph, "LSTM", x, weights, (initial, cells), reverse)
    return states, Last(final), None


def gru(graph: Graph, node: Any, x: Value, *rest: Any) -> tuple[Value, ...]:
    """Convert `steadygrad::gru_forward`. ONNX's gates are z, r, c, and z = 1 − u keeps the state; ours are r, u, c."""
    W, U, bias, _, bias_hn, initial, _, activation, reset, reverse = rest

    def turned(rows: Tensor) -> Tensor:
        r, u, c = rows.chunk(3)
        return torch.cat([-u, r, c])

    weights = turned(W), turned(U), None if bias is None else turned(bias)
    options = {"activations": ["Sigmoid", NATIVE[activation]], "linear_before_reset": int(reset == "after")}
    states, _ = loop(graph, "GRU", x, weights, (initial,), reverse, bias_hn, **options)
    return states, None, None


CONVERTERS: dict[str, Converter] = {"elman_forward": elman, "lstm_forward": lstm, "gru_forward": gru}
"""converters of steadygrad's operators, by name"""
