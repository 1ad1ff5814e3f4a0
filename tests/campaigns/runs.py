"""Very short runs for campaigns, and a server that forks a process for each command of the command line.

The server imports the package once, so a process starts within milliseconds. It is started as ``python -m
tests.campaigns.runs`` and reads jobs as lines of JSON.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.faults import Operations

ROOT = Path(__file__).parents[2]
TIMES = ("seconds", "wall_seconds")
WITHOUT = (".lock", "manifest.json", "checkpoint.safetensors")
"""files that depend on times"""
QUICK = {"batch": 2, "evaluate_every": 8, "evaluate_examples": 4, "log_every": 1}
TASKS = {"copy": {"delay": 2, "length": 1}, "adding": {"length": 4}}


def scratch() -> "tempfile.TemporaryDirectory[str]":
    """Return a temporary folder, in memory if possible: disks take milliseconds for every flush."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)


def train_words(layer: str, task: str, steps: int, out: Path) -> list[str]:
    """Return the words of a command that trains a tiny network for a few updates."""
    options = {
        **{f"task.{key}": value for key, value in TASKS[task].items()},
        **{f"train.{key}": value for key, value in {**QUICK, "steps": steps}.items()},
        "layer.hidden_size": 4,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    return ["train", layer, task, *words, "--threads", "1", "--out", str(out)]


def outcome(folder: Path) -> dict[str, Any]:
    """Return the content of each file of a run by name, without times."""
    found: dict[str, Any] = {}
    for path in folder.iterdir():
        content: Any = path.read_bytes()
        if path.suffix == ".jsonl":
            content = [timeless(json.loads(line)) for line in content.splitlines()]
        elif path.name == "result.json":
            content = timeless(json.loads(content))
        found[path.name] = "" if path.name in WITHOUT else content
    return found


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the values that depend on times."""
    return {key: value for key, value in row.items() if key not in TIMES}


def different(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Return the names of the files that differ, as text."""
    return ", ".join(sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)))


class Server:
    """Starts processes that run the command line ``steadygrad``. Use it as a context manager."""

    def __enter__(self) -> "Server":
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.runs"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def start(self, words: Sequence[str], log: Path, kill_at: int | None = None) -> int:
        """Start a process and return its id. With ``kill_at`` it kills itself in that file operation."""
        assert self.process.stdin is not None
        job = {"words": list(words), "log": str(log), "kill_at": kill_at}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def wait(self) -> int:
        """Wait until the process ends, and return its exit code; −N after signal N."""
        return self.answer()

    def answer(self) -> int:
        """Return the next number that the server prints."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


def prepare() -> None:
    """Make runs quick: a checkpoint every 20 ms, a portrait of two sequences, and no question to git."""
    import torch

    from steadygrad.cli.main import main
    from steadygrad.experiments import defaults, observer
    from steadygrad.training import loop
    from tests import cached

    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = 0.02
    observer.SEQUENCES = 2
    loop.commit = lambda: None
    defaults.work = cached.work
    with scratch() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for task in TASKS:  # loads whatever a run needs
            main(train_words("nnrnn", task, 8, Path(folder, task)))


def serve() -> None:
    """Read jobs from stdin. For each, fork a process, print its id, and at its end its exit code."""
    prepare()
    for line in sys.stdin:
        job = json.loads(line)
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # until the child can report it
        process = os.fork()
        if not process:
            child(**job)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        print(process, flush=True)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def child(words: list[str], log: str, kill_at: int | None) -> None:
    """Run the command line in this process and end the process."""
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        from steadygrad.cli.main import main

        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(output, number)
        if kill_at is None:
            code = main(words)
        else:
            folder = Path(words[words.index("--out") + 1])
            with Operations(folder, kill_at, lambda: os.kill(os.getpid(), signal.SIGKILL)).watched():
                code = main(words)
    except KeyboardInterrupt:  # before the command line has begun
        code = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
