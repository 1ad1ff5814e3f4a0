"""A run's directory: settings, metrics, result, weights, and what it takes to go on. Written whole or not at all."""

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from steadygrad.training import toml
from steadygrad.training.settings import Settings, with_current_names

SETTINGS, METRICS, RESULT, LOCK = "settings.toml", "metrics.jsonl", "result.json", ".lock"
BEST, LAST, CHECKPOINT = "model.safetensors", "last.safetensors", "checkpoint.safetensors"
REVISIONS = "revisions"
"""table of ``settings.toml`` beside the settings, written if a revision is above 1"""
LENGTHS = ("train.steps", "train.epochs", "train.frames")


class RunError(ValueError):
    """A run directory that cannot be used as asked."""


class InUseError(RunError):
    """Another process has the directory."""


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    """the rest, as JSON"""


class RunDirectory:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        return self.path / name

    def exists(self) -> bool:
        return self.file(SETTINGS).exists()

    def trained(self) -> bool:
        """Whether a run got as far as its first row of metrics: before, there is nothing to go on from or to lose."""
        return any(self.file(name).exists() for name in (METRICS, CHECKPOINT, RESULT))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains in here meanwhile. The system lets go of the lock when a process dies, however it dies."""
        try:
            import fcntl
        except ImportError:  # not on this system: the honour system
            yield
            return
        with self.file(LOCK).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUseError(f"{self} is in use: another process trains in it") from None
            yield

    def begin(self, settings: Settings, resume: bool) -> None:
        """Take the directory for this run, which holds the lock, or refuse it with the reason."""
        self.refuse(settings, resume)
        self.path.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob(".*.tmp"):  # of a run that was killed while it wrote
            leftover.unlink(missing_ok=True)
        tables = with_revisions(settings.resolved(), settings.revisions())
        self.write(SETTINGS, toml.dumps(tables))  # when resumed: the number of updates may have grown

    def refuse(self, settings: Settings, resume: bool) -> None:
        """Touches nothing; an error if the directory is not for this run."""
        wanted = settings.resolved()
        toml.dumps(wanted)  # what cannot be written down cannot be resumed
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self} expects to be a directory; it is a file")
        if not self.path.exists() or all(is_own(entry.name) for entry in self.path.iterdir()):
            return
        if not self.exists():
            raise RunError(f"{self} expects to be a run's directory or empty; it has files but no {SETTINGS}")
        if not resume:
            if self.trained():
                raise RunError(f"{self} holds a run already: go on with --resume, or choose another --out")
            return
        found = with_revisions(self.settings().resolved(), self.revisions())
        if other := differences(found, with_revisions(wanted, settings.revisions())):
            raise RunError(f"{self} belongs to other settings: {'; '.join(other)}")

    def settings(self) -> Settings:
        tables = {key: value for key, value in self.tables().items() if key != REVISIONS}
        return Settings.from_tables(with_current_names(tables), str(self.file(SETTINGS)))

    def revisions(self) -> dict[str, int]:
        """Return the revisions above 1 with which the run was trained."""
        return dict(self.tables().get(REVISIONS, {}))

    def tables(self) -> dict[str, Any]:
        """Return the content of ``settings.toml``."""
        path = self.file(SETTINGS)
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self} is no run's directory: it has no {SETTINGS}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is not readable: {error}") from None

    def result(self) -> dict[str, Any] | None:
        path = self.file(RESULT)
        if not path.exists():
            return None
        try:
            result = json.loads(path.read_text("utf-8"))
            _ = result["status"], result["steps"], result["train"]["steps"], result["score"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not a run's result: {error!r}") from None
        return result

    def write(self, name: str, content: str | bytes) -> None:
        write_whole(self.file(name), content.encode() if isinstance(content, str) else content)

    def settle(self, name: str) -> None:
        """What was appended reaches the disk."""
        if not self.file(name).exists():
            return
        try:
            with self.file(name).open("ab") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{self.file(name)} could not be written: {error.strerror or error}") from error

    def write_result(self, result: Mapping[str, Any]) -> None:
        self.write(RESULT, json.dumps(finite(result), indent=2) + "\n")

    def drop(self, name: str) -> None:
        self.file(name).unlink(missing_ok=True)

    # metrics, and what others log: a row each time

    def log(self, row: Mapping[str, Any], name: str = METRICS) -> None:
        try:
            with self.file(name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(finite(row)) + "\n")
        except OSError as error:
            raise RunError(f"{self.file(name)} could not be written: {error.strerror or error}") from error

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        path = self.file(name)
        return list(read_rows(path.read_text("utf-8").splitlines())) if path.exists() else []

    def keep_rows(self, count: int) -> None:
        """Forget what was logged after the checkpoint: it will be logged again."""
        rows = self.rows()
        if len(rows) < count:
            raise RunError(f"{self.file(METRICS)} expects at least {count} rows; got {len(rows)}: it was altered")
        self.write(METRICS, "".join(json.dumps(row) + "\n" for row in rows[:count]))

    # weights and checkpoints

    def save_weights(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.write(name, save(apart(tensors)))

    def load_weights(self, name: str) -> dict[str, Tensor]:
        return read_tensors(self.file(name))[0]

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self.settle(METRICS)  # the checkpoint counts its rows
        whole = apart(tensors)
        text = json.dumps(state)
        self.write(CHECKPOINT, save(whole, {"state": text, "digest": digest(whole, text)}))

    def checkpoint(self) -> Checkpoint | None:
        path = self.file(CHECKPOINT)
        if not path.exists():
            return None
        tensors, metadata = read_tensors(path)
        text = metadata.get("state", "")
        if metadata.get("digest") != digest(tensors, text):
            raise RunError(f"{path} was altered: its digest does not match. Remove it to start again")
        return Checkpoint(tensors, json.loads(text))


def is_own(name: str) -> bool:
    """A lock, or what is left of a file that was not written to its end."""
    return name == LOCK or (name.startswith(".") and name.endswith(".tmp"))


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same without shared memory, which safetensors refuses: of tied weights each name has its own."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for key, value in tensors.items():
        value = value.detach().contiguous()
        found[key] = value.clone() if value.numel() and value.data_ptr() in places else value
        places.add(value.data_ptr())
    return found


def finite(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """In words; more updates, epochs or frames than before are none, unless the learning rate goes by the length."""
    flat_found, flat_wanted = flat(found), flat(wanted)
    cosine = flat_found.get("train.schedule") == "cosine"
    why = dict.fromkeys(LENGTHS, " (a cosine is made for its length)") if cosine else {}
    for length in () if cosine else LENGTHS:
        if length in flat_found and flat_found[length] <= flat_wanted.get(length, 0):
            flat_found[length] = flat_wanted[length]
    return [
        f"{key} {flat_found.get(key, 'not given')!r}, asked {flat_wanted.get(key, 'not given')!r}{why.get(key, '')}"
        for key in sorted(flat_found.keys() | flat_wanted.keys())
        if flat_found.get(key) != flat_wanted.get(key)
    ]


def with_revisions(tables: Mapping[str, Any], revisions: Mapping[str, int]) -> dict[str, Any]:
    return {**tables, **({REVISIONS: dict(revisions)} if revisions else {})}


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in tables.items():
        result |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return result


def read_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Up to the first line that was not written to its end."""
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            return
        if not isinstance(row, dict):
            return
        yield row


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is truncated or altered: {error}") from None


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    sum = hashlib.blake2b(text.encode(), digest_size=16)
    for key in sorted(tensors):
        tensor = tensors[key].detach().cpu().contiguous()
        sum.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sum.update(tensor.flatten().view(torch.uint8).numpy().data)
    return sum.hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Under another name first: whoever looks sees the old content or the new, also after a crash or on a full disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"{path} could not be written: {error.strerror or error}") from error
