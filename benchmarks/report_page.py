"""Measure the page of many long runs: time to read them, size of the page, time to draw it in Chromium.

    python benchmarks/report_page.py                          200 runs of 100,000 rows: several minutes
    python benchmarks/report_page.py --runs 50 --rows 3000    seconds

The runs are synthetic. They differ in their hidden size, so each has a curve, a colour and measurements of its own.
"""

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import steadygrad
from steadygrad.cli.common import Parser
from steadygrad.report import html, runs
from tests.report import browser

DRAWN = (
    "[...document.querySelectorAll('figure')].every(n => n.querySelector('path.line, canvas, circle, rect, .failed'))"
)
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
DRAWS = 5
UNITS = 64
"""hidden size of the measured network in every portrait"""


def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=100_000, help="validation rows of a run (default 100,000)")
    parser.add_argument("--keep", metavar="FILE.html", type=Path, help="also write the page to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), options.runs, options.rows, options.keep)


def measure(folder: Path, count: int, rows: int, keep: Path | None = None) -> dict[str, float]:
    """Write synthetic runs, report them and print the times and sizes, which are also returned by name."""
    say(f"writing {count} runs of {rows:,} rows")
    for number in range(count):
        write_run(folder / "runs" / f"{number:04}", number, rows)
    say("reading them")
    begun, cpu = time.monotonic(), time.process_time()
    found = runs.find_all([folder / "runs"])
    figures = {"seconds to read": time.monotonic() - begun, "of them on the processor": time.process_time() - cpu}
    begun = time.monotonic()
    page = html.report_page(found, steadygrad.__version__)
    figures |= {"seconds to make the page": time.monotonic() - begun, "MB of the page": len(page.encode()) / 1e6}
    target = keep or folder / "page.html"
    html.write(page, target)
    if program := browser.find():
        say("drawing the page")
        times = sorted(draw(program, target) for _ in range(DRAWS))
        for name, place in (("fastest", 0), ("median", DRAWS // 2), ("slowest", -1)):
            figures[f"seconds to draw the page, {name} of {DRAWS}"] = times[place]
    for name, value in figures.items():
        print(f"{name}: {value:.2f}")
    return figures


def draw(program: str, page: Path) -> float:
    """Return the seconds until every chart of the page is on the screen. Raise RuntimeError if a chart failed."""
    with browser.Browser(program) as chromium:
        begun = time.monotonic()
        chromium.call("Page.navigate", url=page.resolve().as_uri())
        chromium.until(lambda: chromium.js("document.readyState") == "complete" and chromium.js(DRAWN), seconds=120)
        chromium.js(PAINTED)
        seconds = time.monotonic() - begun
        if chromium.js("document.querySelectorAll('.failed').length") or chromium.errors():
            raise RuntimeError(f"charts of {page} failed: {chromium.errors()}")
        return seconds


def write_run(folder: Path, number: int, rows: int) -> None:
    """Write the files of a run. All runs of a benchmark share the rows of eight: to write all would take minutes."""
    folder.mkdir(parents=True)
    last = {"step": 10 * rows, "loss": 0.1, "accuracy": 0.9}
    result = {
        "layer": {"name": "nnrnn", "hidden_size": number + 1},
        "task": {"name": "copy", "delay": 200},
        "train": {"steps": 10 * rows, "lr": 1e-3},
        "seed": 0,
        "parameters": 1000 + number,
        "steps": 10 * rows,
        "best": last,
        "final": last,
        "score": "accuracy",
        "guessing_loss": 0.17,
        "wall_seconds": 1000.0,
        "status": "done",
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "portrait.json").write_text(json.dumps(portrait(number)))
    first = folder.with_name(f"{number % 8:04}") / "metrics.jsonl"
    if number < 8:
        draw = random.Random(number)
        with first.open("w") as file:
            for step in range(10, 10 * rows + 1, 10):
                loss = math.exp(-step / (5 * rows)) * (0.5 + 0.1 * number) * draw.uniform(0.8, 1.2)
                row = {"step": step, "split": "valid", "loss": loss, "accuracy": draw.random(), "seconds": step / 100}
                file.write(json.dumps(row) + "\n")
    else:
        os.link(first, folder / "metrics.jsonl")


def portrait(number: int) -> dict[str, object]:
    """Return measurements of the size that those of a network with `UNITS` units on 200 steps have."""
    draw = random.Random(number)
    upper = [round(draw.uniform(0, 0.7), 4) for _ in range(UNITS // 2)]
    triangle = [[round(draw.uniform(-8, 0), 2) for _ in range(row + 1)] for row in range(100)]
    return {
        "step": 10,
        "every": 2,
        "output_gradients": [draw.random() for _ in range(200)],
        "loss_gradients": [draw.random() for _ in range(200)],
        "exponents": [-draw.random() for _ in range(UNITS)],
        "input_maps": {"state": triangle},
        "matrices": {"recurrent_l0": {"eigenvalues": [upper, upper], "powers": [draw.random() for _ in range(101)]}},
    }


def say(text: str) -> None:
    """Print what is done next, at once."""
    print(f"{text} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
