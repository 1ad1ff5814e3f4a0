"""Run directories: settings, metrics, result, weights and checkpoint.

Files are replaced atomically. Rows of metrics are appended, and an incomplete last row is ignored.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from steadygrad import files, records
from steadygrad.files import METRICS, RESULT, SETTINGS, RunError
from steadygrad.records import Result
from steadygrad.training.settings import Settings, with_current_names

LOCK = ".lock"
BEST, LAST, CHECKPOINT = "model.safetensors", "last.safetensors", "checkpoint.safetensors"
REVISIONS = "revisions"
"""table of ``settings.toml`` in addition to the settings, written if a revision is above 1"""
LENGTHS = ("train.steps", "train.epochs", "train.frames")
"""settings that give the length of a run"""


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

        with files.locked(self.file(LOCK), refuse):
            yield

    def begin(self, settings: Settings, resume: bool) -> None:
        """Prepare the directory for this run and write its settings, or raise RunError. The caller holds the lock."""
        self.refuse(settings, resume)
        self.path.mkdir(parents=True, exist_ok=True)
        files.remove_temporary(self.path)
        tables = with_revisions(settings.resolved(), settings.revisions())
        self.write(SETTINGS, files.toml_text(tables))  # also when resumed: the run may be longer now

    def refuse(self, settings: Settings, resume: bool) -> None:
        """Raise RunError if the directory cannot be used for this run. Change no files.

        It can be used if it does not exist, is empty, holds a run that has not begun or, with ``resume``, one with the
        same settings, which may be shorter. Raise ValueError if TOML cannot represent a setting.
        """
        wanted = settings.resolved()
        files.toml_text(wanted)  # raises ValueError if a setting has no TOML: such a run could not be resumed
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self} expects to be a directory; it is a file")
        entries = self.path.iterdir() if self.path.exists() else []
        if all(entry.name == LOCK or files.is_temporary(entry) for entry in entries):
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
        """Return the settings of the run from ``settings.toml``, under the names that settings have now.

        Raise RunError if the file is missing or not readable, ValueError if a setting is invalid.
        """
        tables = {key: value for key, value in self.tables().items() if key != REVISIONS}
        return Settings.from_tables(with_current_names(tables), str(self.file(SETTINGS)))

    def revisions(self) -> dict[str, int]:
        """Return the revisions above 1 of layer, model and task with which the run was trained, by name."""
        return dict(self.tables().get(REVISIONS, {}))

    def tables(self) -> dict[str, Any]:
        """Return the content of ``settings.toml`` as a dict. Raise RunError if it is missing or not readable."""
        path = self.file(SETTINGS)
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise RunError(f"{self} is no run's directory: it has no {SETTINGS}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is not readable: {error}") from None

    def result(self) -> Result | None:
        """Return the content of ``result.json``, a dict, or None if the run has none yet. Raise RunError if invalid."""
        path = self.file(RESULT)
        return records.read_result(path) if path.exists() else None

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Context manager: yield the path of a file, and turn an OSError while it is written into a RunError."""
        path = self.file(name)
        try:
            yield path
        except OSError as error:
            raise RunError(f"{path} could not be written: {error.strerror or error}") from error

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the directory atomically. Raise RunError if that fails."""
        with self.writing(name) as path:
            files.write(path, content)

    def settle(self, name: str) -> None:
        """Flush the rows appended to a file of the directory to the disk."""
        if not self.file(name).exists():
            return
        with self.writing(name) as path, path.open("ab") as file:
            os.fsync(file.fileno())

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write ``result.json``."""
        self.write(RESULT, files.json_text(result, indent=2) + "\n")

    def drop(self, name: str) -> None:
        """Delete a file of the directory, if it exists."""
        self.file(name).unlink(missing_ok=True)

    # metrics and other logs: one row of JSON per line

    def log(self, row: Mapping[str, Any], name: str = METRICS) -> None:
        """Append a row, as a line of JSON, to a log file; by default ``metrics.jsonl``."""
        with self.writing(name) as path, path.open("a", encoding="utf-8") as file:
            file.write(files.json_lines([row]))

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        """Return the complete rows of a log file, by default ``metrics.jsonl``; an empty list if there is none."""
        return files.read_rows(self.file(name))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the complete rows of ``metrics.jsonl``. Raise RunError if they are not those of a run."""
        return records.read_metrics(self.file(METRICS))

    def keep_rows(self, count: int) -> None:
        """Keep only the first ``count`` rows of metrics, those before the checkpoint: the run logs the later again.

        Raise RunError if there are fewer.
        """
        rows = self.rows()
        if len(rows) < count:
            raise RunError(f"{self.file(METRICS)} expects at least {count} rows; got {len(rows)}: it was altered")
        self.write(METRICS, files.json_lines(rows[:count]))

    # weights and checkpoints

    def save_weights(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write tensors by name to a safetensors file of the directory."""
        self.write(name, save(apart(tensors)))

    def load_weights(self, name: str) -> dict[str, Tensor]:
        """Return the tensors by name of a safetensors file of the directory. Raise RunError if it is missing."""
        return read_tensors(self.file(name))[0]

    def save_checkpoint(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write the checkpoint: tensors, and a state of JSON values, with a digest that reveals changes."""
        self.settle(METRICS)  # the checkpoint stores the number of its rows
        whole = apart(tensors)
        text = json.dumps(state)
        self.write(CHECKPOINT, save(whole, {"state": text, "digest": digest(whole, text)}))

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, or None if there is none. Raise RunError if the file was altered."""
        path = self.file(CHECKPOINT)
        if not path.exists():
            return None
        tensors, metadata = read_tensors(path)
        text = metadata.get("state", "")
        if metadata.get("digest") != digest(tensors, text):
            raise RunError(f"{path} was altered: its digest does not match. Remove it to start again")
        return Checkpoint(tensors, json.loads(text))


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by name without shared memory, as safetensors needs: tied weights are copied for each name."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for key, value in tensors.items():
        value = value.detach().contiguous()
        found[key] = value.clone() if value.numel() and value.data_ptr() in places else value
        places.add(value.data_ptr())
    return found


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return a list of texts, one for each setting in which ``wanted`` differs from the saved run ``found``.

    More updates, epochs or frames are no difference: they extend the run. The exception is the cosine schedule, because
    its learning rates depend on the length.
    """
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
    """Return settings tables with the table of revisions added, if there are any."""
    return {**tables, **({REVISIONS: dict(revisions)} if revisions else {})}


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables as one dict with keys TABLE.KEY."""
    result: dict[str, Any] = {}
    for key, value in tables.items():
        result |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return result


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file. Raise RunError if it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise RunError(f"{path} does not exist") from None
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is truncated or altered: {error}") from None


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Return a hash of a text and of names, dtypes, shapes and values of tensors, to notice changes of a file."""
    sum = hashlib.blake2b(text.encode(), digest_size=16)
    for key in sorted(tensors):
        tensor = tensors[key].detach().cpu().contiguous()
        sum.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sum.update(tensor.flatten().view(torch.uint8).numpy().data)
    return sum.hexdigest()
