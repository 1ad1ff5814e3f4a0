"""Stopping a run by Ctrl-C or SIGTERM at a moment when nothing is lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def graceful_stop() -> Iterator[threading.Event]:
    """Context manager: yield an event that Ctrl-C and SIGTERM set, so that a run can stop between two updates.

    A second signal raises KeyboardInterrupt. Outside the main thread the signals are not caught.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(number: int, frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
