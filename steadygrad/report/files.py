"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Where to write: it takes the target's name once all is there, and leaves nothing behind otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    name = f".{target.stem}.{os.getpid()}.part{target.suffix}"  # a figure's format is what its name ends in
    partial = target.with_name(name)
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
