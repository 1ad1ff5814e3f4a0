"""Write a trained run or a layer as an ONNX model, a program of torch.export, or a C file.

steadygrad export runs/nnrnn-copy-0 -o model.onnx              the run's whole model, with its state as input and output
steadygrad export RUN -o model.pt2                             for torch.export.load; needs no steadygrad to run
steadygrad export RUN -o model.c --prefix filter               a C99 file that needs only libm: filter_step(&state, …)
steadygrad export nnrnn -o layer.onnx --layer.hidden_size 64   an untrained layer

Matrices are evaluated and stored as plain weights. ONNX and torch.export are dynamic in time and batch. The C file
computes one time step of one sequence: cc -std=c99 -O3 -DFILTER_MAIN model.c -lm makes a program of it.
"""

import argparse
from pathlib import Path

from steadygrad.cli import known
from steadygrad.cli.common import add_threads, check_target, new_layer, note, set_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `steadygrad export` to its parser."""
    parser.add_argument("what", metavar="RUN|LAYER")
    parser.add_argument("-o", "--output", metavar="FILE.onnx|FILE.pt2|FILE.c", required=True)
    parser.add_argument("--inputs", type=int, metavar="N", help="number of features of a LAYER's inputs (default 10)")
    parser.add_argument("--weights", choices=("best", "last"), help="of a RUN (default: best)")
    parser.add_argument(
        "--no-state",
        dest="state",
        action="store_false",
        help="take no initial state as input: start from the layer's own",
    )
    parser.add_argument("--prefix", metavar="NAME", help="of the names in a C file (default model)")
    parser.add_argument("--double", action="store_true", help="double instead of float in a C file")
    add_threads(parser)


def run(options: argparse.Namespace) -> int:
    """Write the model of a trained run, or an untrained layer, to the file of -o. Return the exit code 0.

    The ending of the file selects the format: .onnx for ONNX, .pt2 for torch.export, .c for a C file. ``options`` are
    the parsed arguments of the command line. Raise ValueError if the arguments do not fit together.
    """
    given = known.settings(options, known.of_layer(options.what)).get("layer", {})
    is_layer = options.what in known.names("layers")
    if not (is_layer or known.is_run(options.what)):
        raise known.no_layer("export expects a run's directory or", options.what)
    from steadygrad.export import export
    from steadygrad.training import RunDirectory, load_model
    from steadygrad.training.provenance import commit

    set_threads(options)
    check_target("export", options.output, [".onnx", ".pt2", ".c"])
    if is_layer:
        if options.weights is not None:
            raise ValueError("--weights goes with a run; got the name of a layer")
        module = new_layer(options.what, given, options.inputs)
    else:
        if given or options.inputs is not None:
            raise ValueError("--layer.KEY and --inputs go with the name of a layer; got a run, which has its own")
        module, _, _ = load_model(RunDirectory(options.what), weights=options.weights or "best")
    source = commit()
    about = f"commit {source}" if source else ""
    target = Path(options.output)
    export(module, target, state=options.state, prefix=options.prefix, double=options.double, about=about)
    note(f"written to {options.output}")
    return 0
