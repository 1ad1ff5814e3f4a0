"""SHA-256 digests of the files of a run, in ``manifest.json``: they reveal a changed byte. Nothing here needs torch.

Files are listed before they are written. Until the next write, the manifest accepts their new content and the one that
it replaces. A process that is killed between the two writes therefore leaves a valid run. Logs grow by rows, which
are listed after they are written: the digest is that of the rows so far, and later rows are not checked.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from steadygrad import files
from steadygrad.files import RunError

MANIFEST = "manifest.json"


class Digest(NamedTuple):
    """Number of bytes and SHA-256 of a file, or of the first bytes of a log."""

    bytes: int
    sha256: str


class RunningDigest:
    """The number of bytes and the SHA-256 of a log, updated as rows are appended, without reading the log again.

    ``content`` is what the log holds at the start. `digest` returns the `Digest` of all content so far.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.bytes, self.sum = 0, hashlib.sha256()
        self.update(content)

    def update(self, content: bytes) -> None:
        """Add content at the end."""
        self.bytes += len(content)
        self.sum.update(content)

    def digest(self) -> Digest:
        """Return the digest of the content so far."""
        return Digest(self.bytes, self.sum.hexdigest())


class Manifest:
    """Reads and writes ``manifest.json`` of a run. One process at a time may write it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.present: dict[str, Digest] = {}
        """digests of the files that this object has written"""

    def read(self) -> dict[str, list[Digest]]:
        """Return a dict of lists: the accepted digests of each file by name. It is empty without a manifest.

        Raise RunError if the manifest is damaged.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_bytes())
            entries = {str(name): [Digest(*one) for one in some] for name, some in content["files"].items()}
            if content["sha256"] != checksum(entries):
                raise ValueError("its own SHA-256 does not match")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RunError(
                f"{path} was altered ({error}): restore it from a copy, or remove it to use the run without checks"
            ) from None
        return entries

    def write(self, contents: Mapping[str, bytes], logs: dict[str, Digest]) -> None:
        """List files, given as a dict of contents by name, and the rows of ``logs`` so far, then write the files.

        The manifest is written once, and each write is atomic.
        """
        written = {other: [digest] for other, digest in (self.present | logs).items()}  # these writes are complete
        entries = {**self.read(), **written}
        digests = {name: digest_of(content) for name, content in contents.items()}
        for name, digest in digests.items():
            if is_log(name):
                entries[name] = [digest]  # the log now begins with this content, and later is this content
            else:
                present = self.present.get(name) or self.digest_on_disk(name)
                entries[name] = [digest, *([present] if present and present != digest else [])]
        text = json.dumps({"files": entries, "sha256": checksum(entries)}, indent=1)
        files.write(self.folder / MANIFEST, text + "\n")
        files.write_all({self.folder / name: content for name, content in contents.items()})
        self.present |= digests

    def digest_on_disk(self, name: str) -> Digest | None:
        """Return the digest of a file of the run, or None if there is no such file."""
        path = self.folder / name
        return digest_of(path.read_bytes()) if path.is_file() else None

    def fault(self, name: str) -> str:
        """Return a sentence that says how a file differs from the manifest; an empty string if it does not.

        A file that is not listed or does not exist is no fault. The rows of a log must exist.
        """
        entries = self.read()
        while (accepted := entries.get(name)) is not None and not fits(self.folder / name, accepted):
            before, entries = entries, self.read()
            if entries == before:  # otherwise a running process has replaced the file
                return (
                    f"{self.folder / name} was altered: its SHA-256 differs from {MANIFEST}. "
                    f"Restore the file from a copy, or remove {MANIFEST} to use the run as it is"
                )
        return ""


def verify(folder: Path, names: Iterable[str] | None = None) -> list[str]:
    """Return a sentence for each file of a run that differs from its manifest; an empty list if there is no manifest.

    ``names`` are the files to check; default: all that are listed. A missing file is no fault, unless it is a log. If
    the manifest is damaged or a file cannot be read, the list has a single sentence on that.
    """
    manifest = Manifest(folder)
    try:
        listed = manifest.read() if names is None else names
        return [fault for name in listed if (fault := manifest.fault(name))]
    except RunError as error:
        return [str(error)]
    except OSError as error:
        return [f"{error.filename or folder} could not be read: {error.strerror or error}"]


def is_log(name: str) -> bool:
    """Return whether a file of a run is a log, to which rows are appended: whether its name ends in .jsonl."""
    return name.endswith(".jsonl")


def digest_of(content: bytes) -> Digest:
    """Return the `Digest` of the content of a file."""
    return Digest(len(content), hashlib.sha256(content).hexdigest())


def fits(path: Path, accepted: Iterable[Digest]) -> bool:
    """Return whether a file has one of the accepted digests. A log may have more rows than were digested.

    A missing file fits, unless it is a log that had rows.
    """
    if not path.exists():
        return not is_log(path.name) or any(digest.bytes == 0 for digest in accepted)
    if not path.is_file():
        return False
    content = path.read_bytes()
    return any(digest_of(content[: one.bytes] if is_log(path.name) else content) == one for one in accepted)


def checksum(entries: Mapping[str, Any]) -> str:
    """Return the SHA-256, as hexadecimal digits, of a manifest's ``entries``: the accepted digests of files by name."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
