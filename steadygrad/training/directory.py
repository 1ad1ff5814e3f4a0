"""Run directories: settings, metrics, result, weights and checkpoint.

Files are replaced atomically, and their digests are in ``manifest.json``. Rows of metrics are appended, and an
incomplete last row is ignored. Whatever reads a file checks its digest first.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from safetensors.torch import save
from torch import Tensor

from steadygrad import files, records
from steadygrad.files import METRICS, OBSERVATIONS, PORTRAIT, RESULT, SETTINGS, RunError
from steadygrad.manifest import MANIFEST, Manifest, RunningDigest, verify
from steadygrad.records import Result
from steadygrad.training.compare import differences
from steadygrad.training.settings import Settings, with_current_names
from steadygrad.training.tensors import apart, digest, read_tensors

LOCK = ".lock"
BEST, LAST, CHECKPOINT = "model.safetensors", "last.safetensors", "checkpoint.safetensors"
FILES = (SETTINGS, METRICS, RESULT, OBSERVATIONS, PORTRAIT, BEST, LAST, CHECKPOINT, MANIFEST)
"""files of a run that training writes"""
REVISIONS = "revisions"
"""table of ``settings.toml`` in addition to the settings, written if a revision is above 1"""


class InUseError(RunError):
    """Raised when another process uses the run directory."""


class Checkpoint(NamedTuple):
    """The content of a checkpoint, from which a run resumes: tensors by name, and a state of JSON values."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    """everything that is not a tensor, stored as JSON"""


class RunDirectory:
    """Reads and writes the files of one training run in its directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = Manifest(self.path)
        self.logs: dict[str, RunningDigest] = {}
        """digests of the logs to which this object has appended rows"""
        self.unsettled: set[str] = set()
        """logs with rows that may not be on the disk yet"""

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        """Return the path of a file in the directory."""
        return self.path / name

    def exists(self) -> bool:
        """Return whether the directory has the settings of a run."""
        return self.file(SETTINGS).exists()

    def trained(self) -> bool:
        """Return whether the run has written metrics, a checkpoint or a result.

        Before that there is nothing to resume and nothing to lose.
        """
        return any(self.file(name).exists() for name in (METRICS, CHECKPOINT, RESULT))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager: hold a file lock, so that no other process trains here. Raise InUseError if one does."""

        def refuse() -> NoReturn:
            raise InUseError(f"{self} is in use: another process trains in it") from None

        with ExitStack() as stack:
            with self.writing(LOCK) as path:
                stack.enter_context(files.locked(path, refuse))
            yield

    def set_aside(self) -> Path | None:
        """Rename the directory to DIR.before-1, or the next free number, and return the new path; None if it is empty.

        Raise RunError if it is not the directory of a run, or if another process trains in it.
        """
        if self.is_empty():
            return None
        self.refuse_foreign()
        with self.locked(), self.writing("") as path:
            names = (path.with_name(f"{path.absolute().name}.before-{number}") for number in count(1))
            return path.rename(next(name for name in names if not name.exists()))

    def create(self) -> None:
        """Create the directory, if it does not exist."""
        if not self.path.is_dir():
            with self.writing(""):
                self.path.mkdir(parents=True, exist_ok=True)

    def begin(self, settings: Settings) -> None:
        """Delete temporary files and write ``settings.toml``. The caller holds the lock and has called `refuse`."""
        with self.writing(""):
            files.remove_temporary(self.path)
        tables = with_revisions(settings.resolved(), settings.revisions())
        self.write(SETTINGS, files.toml_text(tables))  # also when resumed: the run may be longer now

    def refuse(self, settings: Settings, resume: bool) -> None:
        """Raise RunError if the directory cannot be used for this run. Change no files.

        It can be used if it does not exist or is empty. With ``resume`` it may also hold a run of the same settings,
        which may be shorter; without, a run that has no metrics, checkpoint or result yet. Raise ValueError if TOML
        cannot represent a setting.
        """
        wanted = settings.resolved()
        files.toml_text(wanted)  # raises ValueError if a setting has no TOML: such a run could not be resumed
        if self.is_empty():
            return
        self.refuse_foreign()
        if not resume:
            if self.trained():
                raise RunError(f"{self} holds a run already: go on with --resume, or choose another --out")
            return
        found = with_revisions(self.settings().resolved(), self.revisions())
        if other := differences(found, with_revisions(wanted, settings.revisions())):
            raise RunError(f"{self} belongs to other settings: {'; '.join(other)}")

    def verify(self) -> None:
        """Raise RunError if a file of the run differs from its digest in ``manifest.json``, or cannot be replaced."""
        for path in map(self.file, FILES):
            if path.exists() and not path.is_file():
                raise RunError(f"{path} expects to be a file; it is something else")
        for fault in verify(self.path):
            raise RunError(fault)

    def is_empty(self) -> bool:
        """Return whether the directory does not exist, or has only what a run writes before its settings."""
        if not self.path.is_dir():
            return not self.path.exists()
        return all(entry.name in (LOCK, MANIFEST) or files.is_temporary(entry) for entry in self.path.iterdir())

    def refuse_foreign(self) -> None:
        """Raise RunError if the path is a file, or a directory without settings."""
        if not self.path.is_dir():
            raise RunError(f"{self} expects to be a directory; it is a file")
        if not self.exists():
            raise RunError(f"{self} expects to be a run's directory or empty; it has files but no {SETTINGS}")

    def settings(self) -> Settings:
        """Return the settings of the run from ``settings.toml``, under the names that settings have now.

        Raise RunError if the file is missing or not readable, ValueError if a setting is invalid.
        """
        tables = {key: value for key, value in self.tables().items() if key != REVISIONS}
        return Settings.from_tables(with_current_names(tables), str(self.file(SETTINGS)))

    def revisions(self) -> dict[str, int]:
        """Return the revisions above 1 with which the run was trained, a dict by role ("layer", "model", "task")."""
        return dict(self.tables().get(REVISIONS, {}))

    def tables(self) -> dict[str, Any]:
        """Return the content of ``settings.toml`` as a dict. Raise RunError if it is missing or not readable."""
        if not self.exists():
            raise RunError(f"{self} is no run's directory: it has no {SETTINGS}")
        with self.reading(SETTINGS) as path:
            try:
                text = path.read_text("utf-8")
            except ValueError as error:
                raise RunError(f"{path} is not readable: {error}") from None
            return files.parse_toml(path, text)

    def result(self) -> Result | None:
        """Return the content of ``result.json``, a dict, or None if there is none. An interrupted run has one too.

        A run that is being extended keeps the result of the shorter run until it ends. That result does not count.
        """
        if not self.file(RESULT).exists():
            return None
        with self.reading(RESULT) as path:
            result = records.read_result(path)
        extended = self.exists() and length(result["train"]) < length(asdict(self.settings().train))
        return None if extended else result

    @contextmanager
    def reading(self, name: str) -> Iterator[Path]:
        """Context manager: yield the path of a file that agrees with the manifest. Otherwise raise RunError.

        An OSError while the file is read becomes a RunError.
        """
        path = self.file(name)
        try:
            if fault := self.manifest.fault(name):
                raise RunError(fault)
            if path.exists() and not path.is_file():
                raise RunError(f"{path} expects to be a file; it is something else")
            yield path
        except OSError as error:
            raise RunError(f"{error.filename or path} could not be read: {error.strerror or error}") from error

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Context manager: yield the path of a file, and turn an OSError while it is written into a RunError."""
        path = self.file(name)
        try:
            yield path
        except OSError as error:
            raise RunError(f"{error.filename or path} could not be written: {error.strerror or error}") from error

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the directory atomically, and its digest to the manifest. Raise RunError if that fails."""
        self.write_all({name: content.encode() if isinstance(content, str) else content})

    def write_all(self, contents: Mapping[str, bytes]) -> None:
        """Write files, given as a dict of contents by name, as `write` does, with one write of the manifest.

        No file is replaced before the new contents of all are complete on the disk.
        """
        self.settle()
        with self.writing(next(iter(contents))):
            self.manifest.write(contents, {log: running.digest() for log, running in self.logs.items()})

    def settle(self) -> None:
        """Flush the rows that were appended to logs to the disk."""
        for name in list(self.unsettled):
            with self.writing(name) as path, path.open("ab") as file:
                os.fsync(file.fileno())
            self.unsettled.discard(name)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write ``result.json``."""
        self.write(RESULT, files.json_text(result, indent=2) + "\n")

    # metrics and other logs: one row of JSON per line

    def log(self, row: Mapping[str, Any], name: str = METRICS) -> None:
        """Append a row, as a line of JSON, to a log file; by default ``metrics.jsonl``."""
        line = files.json_lines([row]).encode()
        with self.writing(name) as path:
            if name not in self.logs:
                self.logs[name] = RunningDigest(path.read_bytes() if path.exists() else b"")
            with path.open("ab") as file:
                self.unsettled.add(name)
                file.write(line)
        self.logs[name].update(line)

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        """Return the complete rows of a log file, by default ``metrics.jsonl``: a list of dicts, maybe empty."""
        with self.reading(name) as path:
            return files.read_rows(path)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the complete rows of ``metrics.jsonl``, a list of dicts. Raise RunError if a row is invalid."""
        with self.reading(METRICS) as path:
            return records.read_metrics(path)

    def check_rows(self, count: int, name: str = METRICS) -> bytes:
        """Return the first ``count`` rows of a log file as bytes. Raise RunError if there are fewer."""
        if (found := len(self.rows(name))) < count:
            raise RunError(f"{self.file(name)} expects at least {count} rows; got {found}: it was altered")
        if not count:
            return b""
        with self.reading(name) as path:
            return b"".join(line + b"\n" for line in path.read_bytes().splitlines()[:count])

    def keep_rows(self, count: int, name: str = METRICS) -> None:
        """Keep only the first ``count`` rows of a log, those before the checkpoint: the run logs the later again."""
        content = self.check_rows(count, name)
        path = self.file(name)
        if path.exists() and path.stat().st_size != len(content):
            self.logs.pop(name, None)
            self.write(name, content)
        self.logs[name] = RunningDigest(content)

    # weights and checkpoints

    def save_weights(self, weights: Mapping[str, Mapping[str, Tensor]], checkpoint: Checkpoint | None = None) -> None:
        """Write tensors by name to safetensors files, given as a dict by file, after the checkpoint if there is one.

        All files are written by one `write_all`.
        """
        before = {} if checkpoint is None else {CHECKPOINT: checkpoint_file(checkpoint)}
        self.write_all(before | {name: save(apart(tensors)) for name, tensors in weights.items()})

    def load_weights(self, name: str) -> dict[str, Tensor]:
        """Return the tensors by name of a safetensors file of the directory. Raise RunError if it is missing."""
        with self.reading(name) as path:
            return read_tensors(path)[0]

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write the checkpoint: tensors, and a state of JSON values, with a digest that reveals changes."""
        self.write(CHECKPOINT, checkpoint_file(Checkpoint(dict(tensors), dict(state))))

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is none. Raise RunError if the file was altered."""
        if not self.file(CHECKPOINT).exists():
            return None
        with self.reading(CHECKPOINT) as path:
            tensors, metadata = read_tensors(path)
        text = metadata.get("state", "")
        if metadata.get("digest") != digest(tensors, text):
            raise RunError(f"{path} was altered: its digest does not match")
        return Checkpoint(tensors, json.loads(text))

    def resumable(self) -> Checkpoint | None:
        """Return the checkpoint from which the run resumes, or None if it was stopped before the first one.

        Raise RunError if there was a checkpoint, and it is missing or damaged.
        """
        advice = f"; begin anew with --restart, which keeps this run as {self.path.name}.before-1"
        try:
            checkpoint = self.checkpoint()
        except RunError as error:
            raise RunError(f"{error}{advice}") from error
        written = [name for name in (RESULT, BEST) if self.file(name).exists()]
        if checkpoint is None and written:
            raise RunError(f"{self} cannot be resumed: it has {written[0]}, but no {CHECKPOINT}{advice}")
        return checkpoint


def checkpoint_file(checkpoint: Checkpoint) -> bytes:
    """Return the content of the file of a checkpoint, with a digest that reveals changes."""
    whole = apart(checkpoint.tensors)
    text = json.dumps(checkpoint.state)
    return save(whole, {"state": text, "digest": digest(whole, text)})


def length(train: Mapping[str, Any]) -> tuple[int, int]:
    """Return the length of training, from its settings as a dict: (epochs or frames, 0) or else (0, updates)."""
    other = train.get("epochs") or train.get("frames") or 0
    return (other, 0 if other else train["steps"])


def with_revisions(tables: Mapping[str, Any], revisions: Mapping[str, int]) -> dict[str, Any]:
    """Return a copy of settings tables to which ``revisions``, if there are any, are added as the table "revisions".

    They are the revision numbers above 1 of layer, model and task, as `Settings.revisions` returns them.
    """
    return {**tables, **({REVISIONS: dict(revisions)} if revisions else {})}
