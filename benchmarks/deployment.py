"""Measure exported C files of trained networks: their outputs beside Python's, their size, and the time of a step.

    python benchmarks/deployment.py                               trains five networks; about fifteen minutes
    python benchmarks/deployment.py --runs FOLDER --json deployment.json      keeps the networks, and reads them again

Each network with 128 units is trained briefly on the adding or the copy task. Its C file is compiled by every compiler
that is installed: gcc, clang, and gcc for aarch64 and 32-bit ARM, whose programs run in qemu. The inputs are two
sequences of the task of 10,000 steps each, side by side. Times are processor times of one thread, minima and medians of
many rounds in turns.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import MissingError, optional
from benchmarks.timing import Contender, Spread, interleave
from steadygrad.cli.common import Parser
from steadygrad.export import c_source
from steadygrad.export.verify import Session
from steadygrad.models.model import Model
from steadygrad.report.tables import markdown
from steadygrad.training import RunDirectory, Settings, load_model, train
from steadygrad.training.provenance import commit

HIDDEN = 128
STEPS = 10_000
COPY = {"name": "copy", "delay": 50, "recall": "after"}
ADDING = {"name": "adding", "length": 50}
LONG = {"copy": {"delay": STEPS - 20}, "adding": {"length": STEPS}}
"""settings of the tasks with which a sequence has as many steps"""
RMSPROP = {"optimizer": "rmsprop", "smoothing": 0.99}


class Network(NamedTuple):
    """A task, options of a layer, settings of its training, and the layer of torch.nn with as many gates."""

    task: dict[str, Any]
    layer: dict[str, Any]
    training: dict[str, Any]
    peer: type[nn.RNNBase]


NETWORKS = {
    "ncgru": Network(ADDING, {}, {"lr": 1e-3, "lr_constrained": 1e-4}, nn.GRU),
    "nnrnn": Network(ADDING, {"init": "henaff"}, {"lr": 2e-3, "lr_constrained": 1e-4, "clip": 1.0}, nn.RNN),
    "exprnn": Network(COPY, {"init": "henaff"}, {"lr": 1e-3, "lr_constrained": 1e-4, **RMSPROP}, nn.RNN),
    "lstm": Network(ADDING, {}, {"lr": 1e-2, "clip": 1.0}, nn.LSTM),
    "rellstm": Network(ADDING, {"short": 10, "relevant": 10}, {"lr": 5e-3, "clip": 1.0}, nn.LSTM),
}
GROWING = ("nnrnn", "exprnn")
"""layers whose rounding errors grow with time, as their largest eigenvalues are near 1"""
BOUND, BOUND_GROWING, EARLY = 1e-5, 1e-4, 1000
"""largest difference, of the largest |y|; that of growing ones during the first steps, after which it is twice the
difference of single and double precision in Python"""


class Target(NamedTuple):
    """A compiler and a processor. ``runner`` is the program that runs the result, if it is another processor's."""

    name: str
    compiler: str
    options: tuple[str, ...]
    runner: str | None
    steps: int
    is_timed: bool


TARGETS = (
    Target("gcc -O3 -march=native", "gcc", ("-O3", "-march=native"), None, STEPS, True),
    Target("gcc -O2", "gcc", ("-O2",), None, STEPS, True),
    Target("clang -O3 -march=native", "clang", ("-O3", "-march=native"), None, STEPS, True),
    Target("aarch64", "aarch64-linux-gnu-gcc", ("-O3", "-static"), "qemu-aarch64", 5000, False),
    Target("32-bit ARM", "arm-linux-gnueabihf-gcc", ("-O3", "-static"), "qemu-arm", 5000, False),
)
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
DRIVER = """\
#define MODEL_DECLARATIONS
#include "model.c"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* driver STEPS < x > y: two sequences side by side, each step of the first, then of the second. */
/* driver ROUNDS time < x: microseconds a step in rounds of 500 steps of the first sequence. */
int main(int count, char **words)
{
    static model_state states[2];
    static float x[2][10000 * MODEL_INPUTS], y[2][10000 * MODEL_OUTPUTS];
    const int steps = atoi(words[1]);
    if (fread(x, sizeof x, 1, stdin) != 1)
        return 1;
    model_init(&states[0]);
    model_init(&states[1]);
    if (count == 2) {
        for (int t = 0; t < steps; t++)
            for (int i = 0; i < 2; i++)
                model_step(&states[i], x[i] + t * MODEL_INPUTS, y[i] + t * MODEL_OUTPUTS);
        fprintf(stderr, "%lu\\n", (unsigned long)sizeof(model_state));
        return fwrite(y, sizeof y, 1, stdout) != 1;
    }
    for (int round = 0; round < steps; round++) {
        model_reset(&states[0]);
        const clock_t begun = clock();
        for (int t = 0; t < 500; t++)
            model_step(&states[0], x[0] + t * MODEL_INPUTS, y[0] + t * MODEL_OUTPUTS);
        printf("%.4f\\n", (double)(clock() - begun) / CLOCKS_PER_SEC * 1e6 / 500);
    }
    return 0;
}
"""


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", metavar="FOLDER", help="of the trained networks, which are kept and used again")
    parser.add_argument("--updates", type=int, default=800, help="of each network (default 800)")
    parser.add_argument("--layers", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(options.runs or folder)
        rows = [measured(name, trained(name, runs, options.updates), Path(folder)) for name in options.layers]
    print(markdown(HEADER, [line(row) for row in rows], right_from=1))
    print()
    print(markdown(["layer", *TIMED], [times(row) for row in rows], right_from=1))
    if options.json:
        setting = {
            "processor": processor(),
            "torch": torch.__version__,
            "commit": commit(),
            "hidden_size": HIDDEN,
            "updates": options.updates,
            "compilers": {target.compiler: version(target.compiler) for target in present()},
        }
        Path(options.json).write_text(json.dumps({**setting, "rows": rows}, indent=1) + "\n")
    if wrong := [row["layer"] for row in rows if not all(one["holds"] for one in row["targets"].values())]:
        sys.exit(f"the outputs of {', '.join(wrong)} differ by more than the bound")


HEADER = [
    "layer",
    "task",
    "guessing → loss",
    "file, KB",
    "weights, KB",
    "state, KB",
    *(target.name for target in TARGETS),
]
TIMED = [*(target.name for target in TARGETS if target.is_timed), "baked layer", "torch.nn", "onnxruntime"]


def present() -> list[Target]:
    """Return the targets whose compiler and runner are installed."""
    return [one for one in TARGETS if shutil.which(one.compiler) and (one.runner is None or shutil.which(one.runner))]


def version(compiler: str) -> str:
    """Return the first line that a compiler prints about itself."""
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def processor() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def trained(name: str, folder: Path, updates: int) -> RunDirectory:
    """Return the run of a layer in a folder. Train it if it is not there."""
    network = NETWORKS[name]
    directory = RunDirectory(folder / name)
    if not directory.exists():
        tables = {
            "layer": {"name": name, "hidden_size": HIDDEN, **network.layer},
            "task": network.task,
            "train": {"steps": updates, "batch": 20, "optimizer": "adam", "evaluate_every": 100, **network.training},
        }
        train(Settings.from_tables(tables), folder / name)
    return directory


def measured(name: str, run: RunDirectory, folder: Path) -> dict[str, Any]:
    """Return the differences, sizes and times of a trained network's C file."""
    model, _, _ = load_model(run)
    result = run.result() or {}
    source = c_source(model)
    (folder / "model.c").write_text(source)
    (folder / "driver.c").write_text(DRIVER)
    tables = {"task": {**NETWORKS[name].task, **LONG[NETWORKS[name].task["name"]]}}
    long = Settings.from_tables({"layer": {"name": name}, **tables}).build_task()
    x = long.sample(2, torch.Generator().manual_seed(1))[0][:, :STEPS].contiguous()
    single, double = outputs(model, x, torch.float32), outputs(model, x, torch.float64)
    row: dict[str, Any] = {
        "layer": name,
        "task": NETWORKS[name].task["name"],
        "guessing": result["guessing_loss"],
        "loss": result["final"]["loss"],
        "parameters": sum(part.numel() for part in model.parameters()),
        "file": len(source.encode()),
        "weights": int(source.partition(" bytes of constants")[0].split()[-1].replace(",", "")),
        "float32 and float64 in Python": differences(single.double(), double, STEPS),
        "targets": {},
    }
    for target in present():
        program = compiled(target, folder)
        done = subprocess.run([*program, str(target.steps)], input=x.numpy().tobytes(), capture_output=True, check=True)
        y = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(2, STEPS, -1)[:, : target.steps]
        row["state"] = int(done.stderr)
        found = differences(y.double(), single[:, : target.steps].double(), target.steps)
        found["holds"] = holds(name, found, differences(single.double(), double, target.steps))
        row["targets"][target.name] = found
    row["microseconds"] = stepped(model, name, x, folder)
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


@torch.no_grad()
def outputs(model: Model, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the outputs at all steps of a baked model, which otherwise may return that of the last step alone."""
    baked = model.baked().to(dtype)
    inside: Any = baked
    hidden, _ = inside.layer(x.to(dtype).transpose(0, 1))
    found: Tensor = inside.readout(hidden).transpose(0, 1)
    return found


def differences(a: Tensor, b: Tensor, steps: int) -> dict[str, Any]:
    """Return the largest difference of the first steps and of all, divided by the largest |b|."""
    largest = float(b.abs().max())
    return {
        "steps": steps,
        "largest": largest,
        "early": float((a - b)[:, :EARLY].abs().max()) / float(b[:, :EARLY].abs().max()),
        "all": float((a - b).abs().max()) / largest,
    }


def holds(name: str, found: dict[str, Any], precision: dict[str, Any]) -> bool:
    """Return whether the differences are within the bounds."""
    if name not in GROWING:
        return bool(found["all"] <= BOUND)
    return bool(found["early"] <= BOUND_GROWING and found["all"] <= max(BOUND_GROWING, 2 * precision["all"]))


def compiled(target: Target, folder: Path) -> list[str]:
    """Compile the driver and the model for a target, without warnings, and return the command that runs them."""
    program = str(folder / target.name.replace(" ", "_"))
    command = [target.compiler, *WARNINGS, *target.options, "driver.c", "model.c", "-lm", "-o", program]
    subprocess.run(command, cwd=folder, check=True)
    return [program] if target.runner is None else [target.runner, program]


@torch.no_grad()
def stepped(model: Any, name: str, x: Tensor, folder: Path) -> dict[str, Any]:
    """Return the microseconds of a step of the C file, of the baked model, of torch.nn's layer and of onnxruntime."""
    found: dict[str, list[float]] = {}
    programs = {one.name: compiled(one, folder) for one in present() if one.is_timed}
    baked = model.baked()
    peer = NETWORKS[name].peer(x.shape[2], HIDDEN).eval()
    calls = {"baked layer": stepper(baked.walk, x), "torch.nn": stepper(peer, x)}
    try:
        optional("onnxruntime")
        calls["onnxruntime"] = session_stepper(model, x)
    except MissingError:
        pass
    content = x.numpy().tobytes()
    for _ in range(6):  # in turns
        for key, program in programs.items():
            done = subprocess.run([*program, "40", "time"], input=content, capture_output=True, text=False, check=True)
            found.setdefault(key, []).extend(map(float, done.stdout.split()))
        timings = interleave([Contender(*one) for one in calls.items()], 2.0, clock=time.process_time)
        for key in calls:
            found.setdefault(key, []).extend(seconds * 1e6 / 50 for seconds in timings.seconds[key].values())
    return {key: {"least": min(values), "median": Spread.of(values).median} for key, values in found.items()}


def stepper(call: Callable[..., tuple[Tensor, Any]], x: Tensor) -> Callable[[], None]:
    """Return a function that runs 50 steps, one call each, and keeps the state."""
    rows = [row[None, None] for row in x[0, :50]]
    state: Any = None

    def run() -> None:
        nonlocal state
        with torch.no_grad():
            for row in rows:
                _, state = call(row, state)

    return run


def session_stepper(model: Any, x: Tensor) -> Callable[[], None]:
    """Return a function that runs 50 steps in onnxruntime, one call each, without conversions to tensors of torch."""
    session = Session(model)
    rows = [row[None, None].numpy() for row in x[0, :50]]
    state = [part.contiguous().numpy() for part in model.baked().layer.default_states(1, x)]

    def run() -> None:
        nonlocal state
        for row in rows:
            _, *state = session.session.run(None, dict(zip(session.names, [row, *state], strict=True)))

    return run


def line(row: dict[str, Any]) -> list[str]:
    """Return the sizes and differences of a layer as cells of a table."""
    kilobytes = [f"{row[key] / 1000:.0f}" for key in ("file", "weights", "state")]
    found = [row["targets"].get(target.name) for target in TARGETS]
    cells = ["–" if one is None else f"{one['early']:.1e} / {one['all']:.1e}" for one in found]
    return [row["layer"], row["task"], f"{row['guessing']:.3f} → {row['loss']:.4f}", *kilobytes, *cells]


def times(row: dict[str, Any]) -> list[str]:
    """Return the times of a layer as cells of a table: least and median."""
    found = [row["microseconds"].get(name) for name in TIMED]
    return [row["layer"], *("–" if one is None else f"{one['least']:.1f} ({one['median']:.1f})" for one in found)]


if __name__ == "__main__":
    main()
