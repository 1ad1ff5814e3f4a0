"""Damaged files of one run among good ones: `report` draws the good runs and names the damaged file."""

import copy
import io
import json
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from steadygrad.cli.main import main
from steadygrad.records import Result
from steadygrad.report import portrait_figures, runs
from tests.campaigns.campaign import Campaign

GOOD = ("good-a", "good-b", "good-c")
FIGURES = 0.002
"""share of tries that also draw figures, which takes a second or two"""
MEMORY = Path("/dev/shm")
"""where files need no disk: `report` waits until its page is on the disk"""
METRICS, OBSERVATIONS = "metrics.jsonl", "observations.jsonl"
ODD: list[Any] = [None, True, -1, 0, 3, 0.5, 1e308, -1e308, 1e-320, 10**25, 10**400, "", "x", "\ud800", [], {}]
ODD += [[[]], [None], ["x"], [1, 2, 3], {"name": "x"}, {"": None}, [[1.0], [2.0, 3.0]], "\x1b[2J", "<script>"]


def contents() -> dict[str, Any]:
    """Return the files of a small run by name: rows of JSON Lines as a list, other files as one value."""
    seen = {"eigenvalues": [[0.5, 0.9], [0.0, 0.1]], "radius": 0.9, "orthogonality_error": 0.1, "departure": 0.2}
    level = {"reach": 1.5, "share_of_kept": 0.5, "kept_at_end": [1]}
    gates = {"steps": 3, "holds": True, "largest": 0.9, "largest_bound": 1.5, "nearest": 0.6}
    schur = {"angles": [0.1], "moduli": [1.0], "transient_share": 0.1, "mean_by_subdiagonal": [0.2]}
    last = {"step": 30, "loss": 0.25, "accuracy": 0.5}
    run = {"seed": 0, "status": "done", "value": 0.5, "seconds": 1.0, "score": {"name": "accuracy", "value": 0.5}}
    return {
        "result.json": {
            "layer": {"name": "gru", "hidden_size": 8, "recurrent": {"name": "cayley"}},
            "task": {"name": "copy", "delay": 5, "held_out": 3},
            "train": {"steps": 30, "lr": 0.1},
            "seed": 0,
            "parameters": 100,
            "steps": 30,
            "best": last,
            "final": last,
            "test": {"loss": 0.5},
            "score": "accuracy",
            "guessing_loss": 0.2,
            "wall_seconds": 1.5,
            "status": "done",
            "versions": {"torch": "2"},
            "commit": "abc",
            "threads": 1,
        },
        METRICS: [
            {"step": step, "split": split, "loss": 1 / step, "accuracy": 0.5, "neumann_norm": 0.1}
            for step in (10, 20, 30)
            for split in ("train", "valid")
        ],
        OBSERVATIONS: [
            {"step": step, "matrices": {"W": seen}, "gates": gates, "attention": [level]} for step in (0, 15, 30)
        ],
        "portrait.json": {
            "step": 30,
            "every": 1,
            "output_gradients": [0.5, 1.0],
            "loss_gradients": [0.1, None, 1.0],
            "batch_gradients": [0.1, 0.2, 1.0],
            "exponents": [-0.1, None],
            "numbers": {"half_life": 3.0},
            "input_maps": {"state": [[0.0], [-1.0, None]]},
            "attention": [{**level, "map": [[None], [0.0, -1.0]], "kept": [[1, 0, 1]]}],
            "findings": [{"what": "a", "advice": "b", "sure": "certain"}],
            "matrices": {"W": {**seen, "powers": [1.0, 0.9], "complex": False}},
            "schur": {"W": {**schur, "T": [[0.0], [0.2, 0.0]], "T_every": 1}},
            "gates": {"true": [0.5, 0.6], "bound": [1.0, 1.1]},
            "similarity": {"matrix": [[1.0, 0.1], [0.1, None]], "images": [[["0f"]]] * 2, "answer": 1, "answered": 0},
        },
        "table.json": [
            {
                "paper": "p",
                "table": "t",
                "row": "bad",
                "caption": "Copy",
                "scale": "desk",
                "reduced": "",
                "metric": "loss",
                "attained": "min",
                "counts": "best",
                "printed_parameters": "1K",
                "note": "n",
                "parameters": 100,
                "guessing_loss": 0.2,
                "published": 0.5,
                "trained_on": "delay 5",
                "transfer": [{"name": "delay 9", "published": 0.75}],
                "runs": [{**run, "transfer": [{"name": "delay 9", "value": 0.25, "examples": 20}]}] * 2,
            }
        ],
        "transfer.json": {
            "weights": "best",
            "step": 30,
            "tests": [
                {"task": {"delay": 9}, "examples": 20, "loss": 1.0, "accuracy": 0.5},
                {"task": {"delay": 99}, "examples": 20, "why": "no memory"},
            ],
        },
        "listen.json": {
            "mse": 43.4,
            "segsnr": 4.28,
            "stoi": None,
            "padded_mse": 28.9,
            "sentences": [{"sentence": "a", "mse": 54.8, "segsnr": 3.9}],
        },
    }


def text_of(name: str, value: Any) -> str:
    """Return the content of a file as text."""
    lines = value if name.endswith(".jsonl") and isinstance(value, list) else [value]
    return "".join(json.dumps(line) + "\n" for line in lines)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of every value inside a value."""
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value) if isinstance(value, list) else ())
    )
    return [place for key, item in pairs for place in ((value, key), *places(item))]


# Damage: each function changes the text of a file, and returns whether `report` must name the file.


def wrong_value(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Replace one to three values by odd ones."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        container, key = draw.choice(places(value) or [([0], 0)])
        container[key] = copy.deepcopy(draw.choice(ODD))
    return text_of(name, value).encode(), False


def removed_key(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Remove a key or an item."""
    container, key = draw.choice(places(value))
    del container[key]
    return text_of(
        name, value
    ).encode(), name == "result.json" and container is value and key in Result.__required_keys__


def token(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Write NaN, an infinity, a number beyond a double or very many digits in place of a value."""
    container, key = draw.choice(places(value))
    container[key] = "@token@"
    word = draw.choice(["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
    return text_of(name, value).replace('"@token@"', word).encode(), word not in ("1e999",)


def nested(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Write lists inside each other in place of a value."""
    container, key = draw.choice(places(value))
    container[key] = "@nested@"
    depth = draw.choice([5, 17, 100, 400, 900, 3000, 100_000])
    return text_of(name, value).replace('"@nested@"', "[" * depth + "]" * depth).encode(), depth > 2000


def truncated(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Cut the file anywhere before its last character that counts."""
    text = text_of(name, value).encode()
    return text[: draw.randrange(len(text) - 1)], name != OBSERVATIONS


def flipped_bits(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Flip one to four bits."""
    data = bytearray(text_of(name, value).encode())
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data), False


def not_utf8(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Insert bytes that are not UTF-8."""
    data = text_of(name, value).encode()
    place = draw.randrange(len(data) - 1)  # an incomplete last line would be in order
    return data[:place] + draw.choice([b"\xff", b"\xc3\x28", b"\xed\xa0\x80"]) + data[place:], True


def empty(name: str, value: Any, draw: random.Random) -> tuple[bytes, bool]:
    """Leave nothing, or only spaces."""
    blank = draw.choice([b"", b" ", b"\n"])
    return blank, not (name == OBSERVATIONS and blank in (b"", b" "))


DAMAGE: list[Callable[[str, Any, random.Random], tuple[bytes, bool]]] = [
    *(wrong_value, wrong_value, wrong_value, removed_key, removed_key, token, nested),
    *(truncated, flipped_bits, not_utf8, empty),
]


def write(folder: Path) -> None:
    """Write the files of a run that is whole."""
    folder.mkdir()
    for name, value in contents().items():
        (folder / name).write_text(text_of(name, value))


def damage(folder: Path, draw: random.Random, campaign: Campaign) -> tuple[Path, bool]:
    """Damage a file of the run in ``folder``. Return its path and whether `report` must name it."""
    name = draw.choice(list(contents()))
    path = folder / name
    if draw.random() < 0.04:
        campaign.count("folder in place of a file")
        path.unlink()
        path.mkdir()
        return path, True
    kind = draw.choice(DAMAGE)
    campaign.count(kind.__name__.replace("_", " "))
    data, named = kind(name, contents()[name], draw)
    path.write_bytes(data)
    return path, named


def try_report(campaign: Campaign, folder: Path, path: Path, named: bool) -> None:
    """Run `report` and record what is wrong with its exit code, its output and its page."""
    out, err, page = io.StringIO(), io.StringIO(), folder.parent / "page.html"
    page.unlink(missing_ok=True)
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["report", str(folder), "-o", str(page)])
    if code or err.getvalue():
        campaign.fail(f"{path.name}: exit code {code}: {err.getvalue()}")
        return
    text = page.read_text("utf-8")
    missing = [name for name in GOOD if f"<dd>{folder}/{name}</dd>" not in text]
    if missing:
        campaign.fail(f"{path.name}: {missing} are not on the page")
    if named and not (str(path) in text and str(path) in out.getvalue()):
        campaign.fail(f"{path.name}: the damage is not named")
    if path.name != "table.json" and f"{path.parent}" not in text:
        campaign.fail(f"{path.name}: the damaged run is neither shown nor named")


def draw_figures(folder: Path) -> None:
    """Draw every figure of the damaged run, if it can be read."""
    found = [run for run in runs.find_all([folder]).runs if run.path.name == "bad"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of matplotlib, on huge numbers
            portrait_figures.draw_all(found, folder.parent / "figures", "png") if found else None
    finally:
        plt.close("all")


def run(campaign: Campaign) -> None:
    """Damage one file of one run of four at each try, and report all four."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as temporary:
        folder = Path(temporary) / "runs"
        folder.mkdir()
        for name in GOOD:
            write(folder / name)
        for draw in campaign.tries():
            shutil.rmtree(folder / "bad", ignore_errors=True)
            write(folder / "bad")
            path, named = damage(folder / "bad", draw, campaign)
            with campaign.expecting(f"report with a damaged {path.name}"):
                try_report(campaign, folder, path, named)
            if draw.random() < FIGURES:
                campaign.count("figures")
                with campaign.expecting(f"figures with a damaged {path.name}"):
                    draw_figures(folder)
