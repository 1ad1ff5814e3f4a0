"""Files that are written completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path. On success it is renamed to ``target``; on an error it is deleted."""
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f".{target.stem}.{os.getpid()}.part{target.suffix}"  # the suffix stays: it selects a figure's format
    partial = target.with_name(name)
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
