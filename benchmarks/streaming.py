"""Time one step a call: streams beside torch.nn's layers and onnxruntime, and check what they compute.

    python benchmarks/streaming.py                     about three minutes
    python benchmarks/streaming.py --json results/speed/streaming.json

Batch 1, one input, one thread, float32. All contenders of a size take turns within one run: our stream, with a new
tensor a call and with ``out``; our layer's own call; torch.nn's layer; onnxruntime on the exported layer of the same
kind, and on a model of its node alone. Each passes the state from call to call. A ratio above 1 means that the stream
is faster. The second table compares the outputs of a stream with those of the layer's walk over the whole sequence.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import MissingError, optional
from benchmarks.timing import Contender, Spread, Timings, interleave
from benchmarks.versions import processor
from steadygrad.cli.common import Parser
from steadygrad.export import onnx_model
from steadygrad.layers import GRU, LAYERS, LSTM, RNN
from steadygrad.report.tables import markdown


class Peer(NamedTuple):
    """What a layer is compared with: torch's class, our layer of the same kind, and the operator of ONNX."""

    theirs: Callable[[int, int], nn.Module]
    ours: Callable[[int, int], nn.Module]
    node: str
    gates: int


PLAIN = Peer(nn.RNN, RNN, "RNN", 1)
GATED = Peer(nn.GRU, lambda inputs, units: GRU(inputs, units, reset="after"), "GRU", 3)
LONG = Peer(nn.LSTM, LSTM, "LSTM", 4)
PEERS = {"exprnn": PLAIN, "nnrnn": PLAIN, "ncgru": GATED, "lstm": LONG, "rellstm": LONG}
UNITS = (64, 128, 256, 1024)
STREAM, OUT, CALL, TORCH, EXPORTED, NODE = "stream", "out=", "call", "torch.nn", "onnxruntime", "its node"
BOUNDS: dict[tuple[str, int], dict[str, float]] = {
    **{(name, 128): {STREAM: 6, TORCH: 8, EXPORTED: 3} for name in ("exprnn", "nnrnn", "ncgru", "lstm")},
    **{(name, 256): {TORCH: 4 if name == "ncgru" else 5} for name in ("exprnn", "nnrnn", "ncgru", "lstm")},
    **{(name, 1024): {TORCH: 1} for name in ("exprnn", "nnrnn", "ncgru", "lstm")},
    ("rellstm", 128): {STREAM: 25},
}
"""by layer and size: the most microseconds of a stream, and the least ratio of another's time to that of the stream"""
HEADER = ["units", "layer", "stream, µs", "out=", "call", "torch.nn", "onnxruntime", "its node", "torch.nn / stream"]
HEADER += ["onnxruntime / stream", "its node / stream", "missed"]
UNITS_IN_A_RUN = 20_000
STEPS, EARLY = 10_000, 1_000
DIFFERENCES = {"ncgru": 1e-5, "lstm": 1e-5, "rellstm": 1e-5, "exprnn": 1e-4, "nnrnn": 1e-4}
"""largest difference in float32, of the largest output; for the last two within the first 1,000 steps"""
IN_DOUBLE = 1e-9


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each size and layer (default 8)")
    parser.add_argument("--units", default=",".join(map(str, UNITS)), help="sizes, separated by commas")
    parser.add_argument("--layers", default=",".join(PEERS), help="layers, separated by commas")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the comparison of outputs (default 10,000)")
    parser.add_argument("--busy", action="store_true", help="count processor time: on a busy machine")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names, sizes = options.layers.split(","), [int(size) for size in options.units.split(",")]
    rows = [measured(name, units, options.seconds, options.busy) for units in sizes for name in names]
    print(markdown(HEADER, [line(row) for row in rows], right_from=2))
    outputs = [compared(name, min(128, max(sizes)), options.steps) for name in names]
    print()
    print(markdown(["layer", *list(outputs[0])[1:]], [[format_cell(cell) for cell in row.values()] for row in outputs]))
    if options.json:
        clock = "processor" if options.busy else "wall"
        setting = {
            "processor": processor(),
            "clock": clock,
            "torch": torch.__version__,
            "threads": 1,
            "batch": 1,
            "inputs": 1,
        }
        result = {**setting, "rows": rows, "outputs": outputs}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measured(name: str, units: int, seconds: float, busy: bool = False) -> dict[str, Any]:
    """Return the times of all contenders of one size, in microseconds, and the ratios to that of the stream."""
    number = max(2, UNITS_IN_A_RUN // units)  # calls in a run, so that reading the clock does not count
    turns, missing = [], {}
    with torch.no_grad():
        for contender, build in contenders(name, units):
            try:
                turns.append(Contender(contender, repeated(build(), number)))
            except MissingError as reason:
                missing[contender] = str(reason)
        timings = interleave(turns, seconds, turn=0.02, clock=time.process_time if busy else time.perf_counter)
    row: dict[str, Any] = {"layer": name, "units": units, "calls": number, "missing": missing}
    row["microseconds"] = {key: scaled(timings.spread(key), 1e6 / number) for key in timings.seconds}
    row["ratios"] = {key: timings.ratio(key, STREAM).as_dict() for key in timings.seconds if key != STREAM}
    row["missed"] = missed(row, timings)
    return row


def missed(row: dict[str, Any], timings: Timings) -> list[str]:
    """Return the bounds that the medians do not keep."""
    bounds = BOUNDS.get((row["layer"], row["units"]), {})
    found = []
    for key, bound in bounds.items():
        if key == STREAM and row["microseconds"][STREAM]["median"] > bound:
            found.append(f"{bound:g} µs")
        if key != STREAM and key in timings and row["ratios"][key]["median"] < bound:
            found.append(f"{bound:g} × {key}")
    return found


def repeated(call: Callable[[], object], number: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(number):
            call()

    return run


def scaled(spread: Spread, by: float) -> dict[str, float]:
    return {key: value if key == "rounds" else by * value for key, value in spread.as_dict().items()}


def contenders(name: str, units: int) -> Iterator[tuple[str, Callable[[], Callable[[], object]]]]:
    """Yield the name of each contender and a function that builds its call of one step."""
    peer = PEERS[name]
    torch.manual_seed(0)
    layer = LAYERS[name](1, units).eval()
    stream, x, out = layer.stream(), torch.randn(1, 1), torch.empty(1, units)
    other = layer.stream()
    yield STREAM, lambda: partial(stream, x)  # which costs less than a function of Python around it
    yield OUT, lambda: partial(other, x, out)
    yield CALL, lambda: stepping(layer)
    yield TORCH, lambda: stepping(peer.theirs(1, units))
    yield EXPORTED, lambda: session(onnx_model(peer.ours(1, units)))
    yield NODE, lambda: session(node_model(peer, units))


def stepping(layer: nn.Module) -> Callable[[], object]:
    """Return a call of one step of a layer, from the state after the previous call."""
    x, state = torch.randn(1, 1, 1), None

    def call() -> Tensor:
        nonlocal state
        output, state = layer(x, state)
        return output

    return call


def session(model: Any) -> Callable[[], object]:
    """Return a call of one step of an ONNX model in onnxruntime, from the state after the previous call."""
    runtime = optional("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    runs = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {}
    for value in runs.get_inputs():
        sizes = [size if isinstance(size, int) else 1 for size in value.shape]
        given[value.name] = torch.zeros(sizes).numpy()
    states = list(given)[1:]

    def call() -> object:
        output, *after = runs.run(None, given)
        given.update(zip(states, after, strict=True))
        return output

    return call


def node_model(peer: Peer, units: int) -> Any:
    """Return an ONNX model of one step that is nothing but the RNN, GRU or LSTM node."""
    onnx = optional("onnx")
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    shapes = {"W": (1, peer.gates * units, 1), "R": (1, peer.gates * units, units)}
    weights = [onnx.numpy_helper.from_array((torch.randn(s) / units**0.5).numpy(), key) for key, s in shapes.items()]
    states = ["h", "c"][: 1 + (peer.node == "LSTM")]
    after = [f"{state}_n" for state in states]
    extra = {"linear_before_reset": 1} if peer.node == "GRU" else {}
    inputs = ["x", *shapes, "", "", *states]
    node = helper.make_node(peer.node, inputs, ["y", *after], hidden_size=units, **extra)

    def described(names: list[str], *leading: int) -> list[Any]:
        return [helper.make_tensor_value_info(key, real, (*leading, 1, units)) for key in names]

    given = [helper.make_tensor_value_info("x", real, (1, 1, 1)), *described(states, 1)]
    graph = helper.make_graph([node], "step", given, [*described(["y"], 1, 1), *described(after, 1)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def compared(name: str, units: int, steps: int) -> dict[str, Any]:
    """Return how far the outputs of a stream are from those of the walk, as shares of the largest output.

    ``rounding`` is the difference of the walks in single and double precision, which no order of sums can avoid.
    """
    torch.manual_seed(0)
    layer, x = LAYERS[name](1, units).eval(), torch.randn(steps, 1, 1)
    single, walk = both(layer, x)
    double, exact = both(layer.double(), x.double())
    largest = float(exact.abs().max())

    def apart(a: Tensor, b: Tensor) -> float:
        return float((a.double() - b.double()).abs().max()) / largest

    found = {"float32": apart(single, walk), "float64": apart(double, exact)}
    found |= {"float32, first 1,000": apart(single[:EARLY], walk[:EARLY]), "rounding": apart(walk, exact)}
    grows = name in ("exprnn", "nnrnn")
    kept = found["float32, first 1,000" if grows else "float32"] <= DIFFERENCES[name]
    kept = kept and (not grows or found["float32"] <= 2 * found["rounding"]) and found["float64"] <= IN_DOUBLE
    return {"layer": name, **found, "within bounds": kept}


@torch.no_grad()
def both(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of a stream and of the walk."""
    stream = layer.stream()
    return torch.stack([stream(row) for row in x]), layer(x)[0]


def line(row: dict[str, Any]) -> list[str]:
    times = ["{median:.2f} ({low:.2f} to {high:.2f})".format(**row["microseconds"][STREAM])]
    medians = {key: f"{spread['median']:.2f}" for key, spread in row["microseconds"].items()}
    times += [medians.get(key, "–") for key in (OUT, CALL, TORCH, EXPORTED, NODE)]
    ratios = [
        "{median:.1f} ({low:.1f} to {high:.1f})".format(**row["ratios"][key]) if key in row["ratios"] else "–"
        for key in (TORCH, EXPORTED, NODE)
    ]
    return [str(row["units"]), row["layer"], *times, *ratios, ", ".join(row["missed"]) or "none"]


def format_cell(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.1e}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    main()
