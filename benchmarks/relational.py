"""Measures the time of a training update of a relational network relative to its encoder's forward and backward pass.

    python benchmarks/relational.py                       CoRelNet, about a minute
    python benchmarks/relational.py --models corelnet,esbn,transformer
    python benchmarks/relational.py --json relational.json

The batch is RMTS: 32 problems of 6 images, 3 × 32 × 32. In "different", all images differ, so encoding equal images
once saves nothing. "Five glyphs" is a training batch with 95 of 100 glyphs held out. The encoder alone encodes every
image. All are timed in turns within one run. Use --threads 1 if other programs use the cores: a second thread that
waits for a core costs more time than it saves.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.timing import Contender, interleave
from steadygrad.cli.common import Parser
from steadygrad.models import MODELS
from steadygrad.report.tables import markdown
from steadygrad.tasks import RMTS

BATCH = 32
PROBLEM = RMTS().problem
OBJECTS, ANSWERS = PROBLEM.objects, PROBLEM.answers
IMAGE = (PROBLEM.channels, PROBLEM.image_size, PROBLEM.image_size)
GLYPHS = {"different": BATCH * OBJECTS, "five glyphs": 5}
ENCODER = "encoder, forward + backward"
BOUND = 1.5  # largest ratio of CoRelNet's update to the encoder alone, images all different
HEADER = ["network", "images", "update, ms", "/ encoder", "10–90 %"]


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="corelnet", help=f"of {', '.join(MODELS)} (default corelnet)")
    parser.add_argument("--seconds", type=float, default=40.0, help="for all together (default 40)")
    parser.add_argument("--threads", type=int, help="default: as many as torch takes")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    names = options.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"no network {', '.join(unknown)}; known: {', '.join(MODELS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    result = measured(names, options.seconds)
    print(markdown(HEADER, [[ENCODER, "different", f"{result['encoder_ms']:.1f}", "1.00", ""], *lines(result)]))
    print(f"\nCoRelNet's update, images all different: at most {BOUND} encoders; holds: {result['holds']}")
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


def measured(names: list[str], seconds: float) -> dict:
    updates = {f"{name}, {kind}": (name, kind) for name in names for kind in GLYPHS}
    contenders = [Contender(key, update(name, batch(GLYPHS[kind]))) for key, (name, kind) in updates.items()]
    timings = interleave([Contender(ENCODER, bare_encoder(batch(GLYPHS["different"]))), *contenders], seconds=seconds)
    rows = []
    for key, (name, kind) in updates.items():
        ratio = timings.ratio(key, ENCODER).as_dict()
        rows.append({"network": name, "images": kind, "ms": 1e3 * timings.spread(key).median, "ratio": ratio})
    judged = [
        row["ratio"]["median"] <= BOUND for row in rows if (row["network"], row["images"]) == ("corelnet", "different")
    ]
    return {
        "batch": BATCH,
        "objects": OBJECTS,
        "image": list(IMAGE),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "encoder_ms": 1e3 * timings.spread(ENCODER).median,
        "bound": BOUND,
        "holds": judged[0] if judged else None,
        "rows": rows,
    }


def lines(result: dict) -> list[list[str]]:
    return [
        [
            row["network"],
            row["images"],
            f"{row['ms']:.1f}",
            f"{row['ratio']['median']:.2f}",
            f"{row['ratio']['low']:.2f} to {row['ratio']['high']:.2f}",
        ]
        for row in result["rows"]
    ]


def batch(glyphs: int) -> Tensor:
    """Return a batch of problems that uses this number of different images."""
    torch.manual_seed(0)
    which = torch.arange(BATCH * OBJECTS) % glyphs
    return torch.rand(glyphs, *IMAGE)[which].view(BATCH, OBJECTS, *IMAGE)


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return MODELS[name](PROBLEM)


def update(name: str, images: Tensor) -> Callable[[], None]:
    model, targets = build(name), torch.arange(BATCH) % ANSWERS
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    def run() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(model(images), targets) + model.penalty()).backward()
        optimizer.step()

    return run


def bare_encoder(images: Tensor) -> Callable[[], None]:
    encoder, flat = build("corelnet").encoder, images.flatten(0, 1)
    gradient = torch.randn(len(flat), encoder.out.out_features)

    def run() -> None:
        encoder.zero_grad()
        encoder(flat).backward(gradient)

    return run


if __name__ == "__main__":
    main()
