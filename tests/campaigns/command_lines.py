"""Give random command lines to `steadygrad`: typos, odd values, missing words, contradictions.

A command succeeds, or prints one line and exits with 2. It never ends in a traceback, prints no terminal commands and
takes less than 20 s. Commands run inside this process, at the smallest sizes. `bench` is left out, because it starts
another program.
"""

import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from random import Random
from types import FrameType
from unittest.mock import patch

import torch

from steadygrad.cli.common import UNSAFE
from steadygrad.cli.main import VERBS, main
from steadygrad.experiments import names, observer
from steadygrad.layers import LAYERS
from steadygrad.matrices import COMPLEX, MATRICES
from steadygrad.tasks import TASKS
from steadygrad.training import Train
from steadygrad.training.typed import layer_options
from tests.campaigns.campaign import Campaign

SECONDS = 20
SIZES = ["--layer.hidden_size=4", "--train.steps=2", "--train.batch=2", "--train.evaluate_examples=2", "--threads=1"]
"""end every command that trains, so that it is short whatever precedes them"""
NUMBERS = [
    *("0", "-1", "1", "2", "3", "0.5", "1.5", "1e-9", "-0", "1e-400", "1e400", "nan", "inf", "-inf", "none", "true"),
    *("1000000000000", "1000000000000000000", "9" * 30, "9" * 5000, "0x10", "1_0", "0o7"),
]
ODD = [
    *NUMBERS,
    *("", " ", "false", "1979-05-27", "12:00:00"),
    *("[1, 2]", "[]", "{}", "{ name = 'free' }", "{ name = 3 }", "[" * 2000, "{a=" * 2000, "'", '"', "'''", "a = 1"),
    *(
        "ü",
        "漢字",
        "\u202e",
        "\x1b[2J",
        "\x00",
        "\udcff",
        "\n",
        "\t",
        "a\rb",
        "🙂",
        "--",
        "-",
        "-o",
        "--json",
        "=",
        "==",
    ),
    *("/", ".", "..", "~", "*", "a" * 300, "nowhere", "run", "run/settings.toml", "/dev/null", "x.png", "x.html"),
    *("cpu", "cuda", "meta", "adam", "lstm", "copy", "demo", "1,2", "1,,2", ",", "4,[[", "haar", "schur", "dtriv"),
]


class HangingError(BaseException):
    """Raised in a command that takes too long."""


def run(campaign: Campaign) -> None:
    """Run one command in each try."""
    torch.set_num_threads(1)
    few = patch.object(observer, "SEQUENCES", 2)
    with tempfile.TemporaryDirectory() as folder, inside(Path(folder)), memory_limit(), few:
        started = output_of(["train", "rnn", "copy", "--task.delay=3", "--out=run", *SIZES])
        assert started[0] == 0, started
        for random in campaign.tries():
            words = command(random)
            campaign.count("commands")
            shown = " ".join(word if word and len(word) < 40 else f"{word[:20]!r}…" for word in words)
            try:
                code, text, error = output_of(words)
            except HangingError:
                campaign.fail(f"{shown}: longer than {SECONDS} s")
            except Exception as error:
                campaign.fail(f"{shown}: {type(error).__name__}: {str(error)[:300]}")
            else:
                campaign.count(f"exit {code}")
                judge(campaign, shown, code, text, error)


def judge(campaign: Campaign, shown: str, code: object, text: str, error: str) -> None:
    """Record a failure if exit code and output of a command are not as promised."""
    if code not in (0, 1, 2):
        campaign.fail(f"{shown}: exit code {code}")
    if code == 2 and not (error.startswith("steadygrad: ") and error.count("\n") == 1):
        campaign.fail(f"{shown}: exit code 2 and not one line, but {error[:300]!r}")
    if UNSAFE.search(text + error):
        campaign.fail(f"{shown}: prints terminal commands")


def output_of(words: list[str]) -> tuple[object, str, str]:
    """Run a command. Return its exit code and what it printed to stdout and stderr."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), time_limit():
        try:
            code: object = main(words)
        except SystemExit as ended:  # argparse
            code = ended.code
    return code, out.getvalue(), err.getvalue()


@contextmanager
def time_limit() -> Iterator[None]:
    """Context manager: raise HangingError after `SECONDS`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangingError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def memory_limit(more: int = 4 << 30) -> Iterator[None]:
    """Context manager: give this process at most ``more`` bytes of address space beyond what it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = has + more
    resource.setrlimit(resource.RLIMIT_AS, (limit if soft == resource.RLIM_INFINITY else min(soft, limit), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Context manager: work in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def command(random: Random) -> list[str]:
    """Return a random command line with zero to three faults."""
    words, end = random.choice([show, train, train, evaluate, generate, reproduce, diagnose, theory, report])(random)
    for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
        kept = random.choice([0, *[1] * 9])  # the verb seldom has a fault
        fault = random.choice([dropped, doubled, typed_wrong, replaced, inserted, swapped])
        words = words[:kept] + fault(random, words[kept:])
    if words[:1] == ["bench"] or (words[:1] != ["train"] and any(word.startswith("train") for word in words[:2])):
        words = words[1:]
    if words[:1] in (["train"], ["reproduce"]):  # a fault may have made it another verb
        end = [*end, *(SIZES if words[0] == "train" else ["--seeds=0"])]
    return [*words, *end]


Words = tuple[list[str], list[str]]
"""words that may get faults, and words that end the command"""


def show(random: Random) -> Words:
    name = random.choice([*LAYERS, *TASKS, *names(), "train", "kernels"])
    return ["show", name, *random.choice([[], [], ["--bibtex"], ["--picture", "x.png"]])], []


def train(random: Random) -> Words:
    task = random.choice(["copy", "adding"])
    fields = [field for field in Train.__dataclass_fields__ if field not in ("steps", "epochs", "frames")]
    layer = random.choice(list(LAYERS))
    keys = [*(f"layer.{key}" for key in layer_options(LAYERS[layer])), *(f"train.{key}" for key in fields)]
    key = random.choice([*keys, "layer.name", "task.symbols", "task.recall", "task.name"])
    value = random.choice(random.choice([ODD, NUMBERS, [*MATRICES, *COMPLEX]]))
    words = ["train", layer, task, *random.choice([[], [f"--{key}", value]])]
    words += random.choice([[], ["--seed", random.choice(NUMBERS)], ["--device", random.choice(ODD)], ["--resume"]])
    small = ["--task.delay=3", "--task.length=2"] if task == "copy" else ["--task.length=4"]
    return words, [f"--out=out{random.randrange(10**9)}", *small]


def evaluate(random: Random) -> Words:
    words = ["evaluate", "run", *random.choice([[], ["--task.delay", "2,3"], ["--task.symbols", random.choice(ODD)]])]
    return [*words, *random.choice([[], ["--json"], ["--split", "valid"], ["--weights", "last"]])], ["--examples=2"]


def generate(random: Random) -> Words:
    verb = random.choice(["generate", "listen"])
    return [verb, "run", *random.choice([[], ["--weights", "last"], ["--prompt", random.choice(ODD)]])], []


def reproduce(random: Random) -> Words:
    paper = random.choice([*names(), "all", "demo/copy/rnn", "demo/*", "demo/copy/[", "demo//", random.choice(ODD)])
    options = [["--scale", "smoke"], ["--missing"], ["--missing", "--dry-run"], ["--jobs", random.choice(ODD)]]
    return ["reproduce", paper, *random.choice(options)], []


def diagnose(random: Random) -> Words:
    words = ["diagnose", random.choice([*LAYERS, "run", "mine.py:make"]), "--inputs", random.choice(["2", "3"])]
    return [*words, *random.choice([[], ["--json"], ["--layer.recurrent", random.choice(ODD)]])], [
        *random.choice([[], ["--layer.hidden_size=4"]]),
        "--steps=5",
    ]


def theory(random: Random) -> Words:
    what = random.choice(["fisher", "transients", "powers", "attention"])
    sizes = {
        "fisher": ["--size", "4"],
        "transients": ["--size", "4", "--samples", "2"],
        "powers": ["--size", "3", "--steps", "20"],
        "attention": ["--kappa", "2", "--depth", "1", "--steps", "40"],
    }
    return ["theory", what, *sizes[what], *random.choice([[], ["--json"], ["-o", random.choice(ODD)]])], []


def report(random: Random) -> Words:
    options = [[], ["-o", "x.html"], ["-o", random.choice(ODD)], ["--title", random.choice(ODD), "-o", "y.html"]]
    return ["report", random.choice(["run", ".", random.choice(ODD)]), *random.choice(options)], []


# faults


def dropped(random: Random, words: list[str]) -> list[str]:
    at = random.randrange(len(words) + 1)
    return words[:at] + words[at + 1 :]


def doubled(random: Random, words: list[str]) -> list[str]:
    at = random.randrange(len(words) + 1)
    return words[:at] + words[at : at + 2] + words[at:]


def swapped(random: Random, words: list[str]) -> list[str]:
    mixed = list(words)
    with suppress(ValueError):
        one, other = random.sample(range(len(mixed)), 2)
        mixed[one], mixed[other] = mixed[other], mixed[one]
    return mixed


def typed_wrong(random: Random, words: list[str]) -> list[str]:
    at = random.randrange(len(words)) if words else 0
    word = words[at] if words else ""
    place = random.randrange(len(word) + 1)
    letter = random.choice([*"abc-=.,[]'0 ", "ü", "\x1b", "\n", ""])
    wrong = word[:place] + letter + word[place + random.randrange(2) :]
    return [*words[:at], wrong, *words[at + 1 :]]


def replaced(random: Random, words: list[str]) -> list[str]:
    at = random.randrange(len(words)) if words else 0
    return [*words[:at], random.choice(ODD), *words[at + 1 :]]


def inserted(random: Random, words: list[str]) -> list[str]:
    at = random.randrange(len(words) + 1)
    options = ["--json", "--threads", "--out", "-o", "--help", "--version", "--seed", "--layer.", "--task.delay", "-x"]
    return [*words[:at], random.choice([*options, *ODD, *VERBS]), *words[at:]]
