"""File operations that fail: each operation inside a folder can raise an OSError, by its number."""

import errno
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES)


class Operations:
    """Counts the file operations in ``folder``. Calls ``act`` in operation number ``at``, which may raise or kill."""

    def __init__(self, folder: Path, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        self.folder, self.at, self.act = str(folder), at, act
        self.count = 0
        self.kinds: Counter[str] = Counter()
        self.place = ""
        """operation and path that failed"""

    def happens(self, kind: str, path: Any) -> bool:
        """Count an operation on a path. Return whether it is the one that fails."""
        if not isinstance(path, str | os.PathLike) or not os.path.abspath(path).startswith(self.folder):
            return False
        self.count += 1
        self.kinds[kind] += 1
        if self.count - 1 != self.at:
            return False
        self.place = f"{kind} {path}"
        return True

    @contextmanager
    def watched(self) -> Iterator["Operations"]:
        """Context manager: open, write, fsync, rename, unlink and mkdir are counted, and one of them fails."""
        before = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "mkdir", "open")}
        open_file, files = io.open, dict[int, str]()

        def counted(name: str) -> Callable[..., Any]:
            def call(path: Any, *args: Any, **options: Any) -> Any:
                if self.happens(name, files.get(path) if name == "fsync" else path):
                    self.act()
                return before[name](path, *args, **options)

            return call

        def opened(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if self.happens("open", path):
                self.act()
            file = open_file(path, mode, *args, **options)
            files[file.fileno()] = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            return Written(file, self, path) if set(mode) & set("wax") else file

        try:
            io.open = opened  # pathlib calls it
            for name in before:
                setattr(os, name, counted(name))
            yield self
        finally:
            io.open = open_file
            for name, function in before.items():
                setattr(os, name, function)


class Written:
    """A file that is written. A write that fails leaves the first half of its content on the disk."""

    def __init__(self, file: Any, operations: Operations, path: Any) -> None:
        self.file, self.operations, self.path = file, operations, path

    def write(self, content: Any) -> Any:
        if self.operations.happens("write", self.path):
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            self.operations.act()
        return self.file.write(content)

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def fail(number: int) -> Callable[[], None]:
    """Return a function that raises an OSError."""

    def act() -> None:
        raise OSError(number, os.strerror(number))

    return act
