"""The queue's side of a worker process: start it, send it jobs, read its messages."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any


class Worker:
    """A subprocess that runs or times jobs of the queue. It ends when this process ends.

    Its messages go to the queue ``events``, as pairs (worker, message); the last message is None. ``verb`` is "run" or
    "probe". Its module is experiments/worker.py.
    """

    def __init__(self, verb: str, events: "SimpleQueue[tuple[Worker, dict | None]]") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "steadygrad.experiments.worker", verb],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
            start_new_session=True,  # Ctrl-C of a terminal reaches only the queue
        )
        self.last_line = ""
        """last line of output that is no message, such as an error"""
        self.outcome: dict[str, Any] | None = None
        self.limit: float | None = None
        self.thread = threading.Thread(target=self.read, args=(events,), daemon=True)
        self.thread.start()

    def read(self, events: "SimpleQueue[tuple[Worker, dict | None]]") -> None:
        """Put the messages of the subprocess into ``events``, and None when it has ended. A thread runs this method."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if isinstance(message, dict):
                events.put((self, message))
            else:
                self.last_line = line.strip() or self.last_line
        self.process.wait()
        events.put((self, None))

    def send(self, job: Mapping[str, Any]) -> None:
        """Send a job to the subprocess, as a line of JSON on its stdin."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended; its last event reports that
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Kill the subprocess at once and close its streams."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):  # a job that the process did not read
                stream.close()

    def reason(self) -> str:
        """Return a text that says why the subprocess ended without an outcome: signal or exit code, last output."""
        code = self.process.returncode
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        return f"the process ended {how}" + (f": {self.last_line}" if self.last_line else "")
