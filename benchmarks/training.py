"""Time the parts of a training update: the layer, the batch, the optimizer, and the rest.

    python benchmarks/training.py                 one row of each task, about a minute
    python benchmarks/training.py --seconds 30

The parts are timed in turns within one run, so their shares are reliable on a noisy machine too.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import Contender, interleave
from steadygrad.experiments import select
from steadygrad.report.tables import markdown
from steadygrad.training import RunDirectory, Trainer

ROWS = (
    "nnrnn-2019/copy/nnrnn",
    "ncgru-2022/adding/ncgru-c-200",
    "ncgru-2022/denoise/ncgru-c-200",
    "ncgru-2022/parenthesis/scornn-100",
)
HEADER = ["row", "update, ms", "layer, forward + backward", "batch", "optimizer", "loss, readout and the rest"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=12.0, help="time for each row (default 12)")
    parser.add_argument("--threads", type=int, help="default: the number that torch uses")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(markdown(HEADER, [shares(name, options.seconds) for name in ROWS]))


def shares(name: str, seconds: float) -> list[str]:
    """Return the median time of an update and the share of each part."""
    settings = select(name)[0].settings("paper")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(settings, RunDirectory(folder), (), "cpu")
    timings = interleave(contenders(trainer), seconds=seconds)
    parts = [timings.ratio(part, "update").median for part in ("layer", "batch", "optimizer")]
    rest = 1 - sum(parts)
    return [name, f"{1e3 * timings.spread('update').median:.2f}", *(f"{100 * part:.1f} %" for part in (*parts, rest))]


def contenders(trainer: Trainer) -> list[Contender]:
    for group in trainer.optimizer.param_groups:
        group["lr"] = 1e-12  # same work, but random gradients must not change the weights
    inputs, _, _ = trainer.batches(0)
    x = inputs.transpose(0, 1).contiguous()
    gradient = torch.randn(len(x), x.shape[1], trainer.model.layer.output_size)

    def update() -> None:
        trainer.forward_and_backward(logs=False)
        trainer.optimizer.step()
        trainer.step += 1  # use another batch next time

    def layer() -> None:
        trainer.model.layer(x)[0].backward(gradient)

    return [
        Contender("update", update),
        Contender("layer", layer, prepare=trainer.optimizer.zero_grad),
        Contender("batch", lambda: trainer.batches(trainer.step), prepare=trainer.batches.sequences.cache_clear),
        Contender("optimizer", trainer.optimizer.step),
    ]


if __name__ == "__main__":
    main()
