"""Write a trained run or a layer as an ONNX model or a program of torch.export.

steadygrad export runs/nnrnn-copy-0 -o model.onnx              the run's whole model, with its state as input and output
steadygrad export RUN -o model.pt2                             for torch.export.load; needs no steadygrad to run
steadygrad export nnrnn -o layer.onnx --layer.hidden_size 64   an untrained layer

Matrices are evaluated and stored as plain weights. Both formats are dynamic in time and batch.
"""

import argparse
from pathlib import Path

from steadygrad.cli import known
from steadygrad.cli.common import add_threads, check_target, new_layer, note, set_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad export` to its parser."""
    parser.add_argument("what", metavar="RUN|LAYER")
    parser.add_argument("-o", "--output", metavar="FILE.onnx|FILE.pt2", required=True)
    parser.add_argument("--inputs", type=int, metavar="N", help="number of features of a LAYER's inputs (default 10)")
    parser.add_argument("--weights", choices=("best", "last"), help="of a RUN (default: best)")
    parser.add_argument(
        "--no-state",
        dest="state",
        action="store_false",
        help="take no initial state as input: start from the layer's own",
    )
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Write a run's model, or an untrained layer, to the file of -o in the format of its ending. Return 0."""
    given = known.settings(options, known.of_layer(options.what)).get("layer", {})
    is_layer = options.what in known.names("layers")
    if not (is_layer or known.is_run(options.what)):
        raise known.no_layer("export expects a run's directory or", options.what)
    from steadygrad.export import export
    from steadygrad.training import RunDirectory, load_model

    set_threads(options)
    check_target("export", options.output, [".onnx", ".pt2"])
    if is_layer:
        if options.weights is not None:
            raise ValueError("--weights goes with a run; got the name of a layer")
        module = new_layer(options.what, given, options.inputs)
    else:
        if given or options.inputs is not None:
            raise ValueError("--layer.KEY and --inputs go with the name of a layer; got a run, which has its own")
        module, _, _ = load_model(RunDirectory(options.what), weights=options.weights or "best")
    export(module, Path(options.output), state=options.state)
    note(f"written to {options.output}")
    return 0
