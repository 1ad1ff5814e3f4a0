"""Find, download, verify and cache data sets that are not part of the package."""

import gzip
import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from rich.console import Console
from rich.progress import wrap_file

from steadygrad import files

VARIABLE = "STEADYGRAD_DATA"
"""Environment variable with the path of the data folder, which has one subfolder for each data set."""
PIECE = 1 << 20
"""Bytes per read of a download."""
WAIT = 30.0
"""Timeout in seconds for a server that sends nothing."""


def data_set(name: str) -> Path | None:
    """Return the folder of a data set, $STEADYGRAD_DATA/name, or None if there is none."""
    root = os.environ.get(VARIABLE)
    folder = Path(root, name) if root else None
    return folder if folder is not None and folder.is_dir() else None


def needed_data_set(who: str, name: str) -> Path:
    """Return the folder $STEADYGRAD_DATA/name of a data set. Raise a ValueError that names ``who`` if there is none."""
    folder = data_set(name)
    if folder is None:
        root = os.environ.get(VARIABLE)
        raise ValueError(f"{who} expects a folder {name} in the one that ${VARIABLE} names; got {root or 'nothing'}")
    return folder


@contextmanager
def whole_file(who: str, where: Path | str, kind: str) -> Iterator[None]:
    """Context manager around a parser of files: any error in it means that the file is damaged. Raise ValueError then.

    Parsers of the standard library, numpy and Pillow raise many types of errors for damaged files: OSError, EOFError,
    RuntimeError, struct.error, zlib.error, SyntaxError, MemoryError and others. A ValueError of ours that names
    ``who`` passes, and so does the error of a missing or unreadable file.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(f"{who} "):
            raise
        raise ValueError(f"{who} expects {where} to be {kind}; got {error!r}") from None


def read_npz(who: str, path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return the arrays with these names in a .npz file, as a dict. Raise ValueError if it is damaged or lacks one."""
    with (
        path.open("rb") as source,  # np.load would leave a damaged file open
        whole_file(who, path, f"a whole .npz file with {', '.join(names)}"),
        np.load(source, allow_pickle=False) as file,
    ):
        return {name: file[name] for name in names}


def cache_folder() -> Path:
    """Return the folder in which downloads are cached: $XDG_CACHE_HOME/steadygrad, by default ~/.cache/steadygrad."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "steadygrad")


@dataclass(frozen=True)
class DataSet:
    """A data set of files. Each is searched for in $STEADYGRAD_DATA/name, then in the cache, then at its public source.

    ``files``  a dict: the accepted SHA-256 sums by file name. For a .gz file, a sum may be that of the uncompressed
               content, because the gzip header contains a time stamp.
    ``source`` a URL. If it ends in /, it is a folder that contains the files. Otherwise it is a .tgz archive that
               contains the files in any of its folders. The archive may also be in $STEADYGRAD_DATA/name.
    """

    name: str
    source: str
    files: dict[str, tuple[str, ...]]

    def read(self, who: str, file: str) -> bytes:
        """Return the uncompressed content of a file, downloaded if needed. Raise ValueError for a wrong SHA-256."""
        if own := self.find(file):
            return self.checked(who, file, own.read_bytes(), own)
        content = self.cached(who, file)
        return self.fetch(who, file) if content is None else content

    def find(self, file: str) -> Path | None:
        """Return the path of a file in the user's data folder, or None if it is not there."""
        folder = data_set(self.name)
        return folder / file if folder is not None and (folder / file).is_file() else None

    def cached(self, who: str, file: str) -> bytes | None:
        """Return the uncompressed content of a file in the cache, or None if the file is missing or damaged."""
        path = cache_folder() / self.name / file
        try:
            return self.checked(who, file, path.read_bytes(), path)
        except (FileNotFoundError, ValueError):
            return None

    def checked(self, who: str, file: str, raw: bytes, where: Path | str) -> bytes:
        """Return ``raw``, uncompressed if the file is a .gz. Raise ValueError if no accepted SHA-256 matches."""
        with whole_file(who, where, "packed by gzip"):
            content = gzip.decompress(raw) if file.endswith(".gz") else raw
        found = [hashlib.sha256(data).hexdigest() for data in (content, raw)]
        if not set(found) & set(self.files[file]):
            wanted = " or ".join(self.files[file])
            raise ValueError(f"{who} expects {where} with SHA-256 {wanted}; got {found[0]}")
        return content

    def fetch(self, who: str, file: str) -> bytes:
        """Return the uncompressed content of a file from the public source, and store the file in the cache.

        An archive that is already in $STEADYGRAD_DATA/name or in the cache is not downloaded. Only one process
        downloads at a time. A partial download is resumed. Raise ValueError if the download fails or has a wrong
        SHA-256.
        """
        folder = cache_folder() / self.name
        folder.mkdir(parents=True, exist_ok=True)

        def busy() -> None:
            Console(stderr=True).print(f"{who}: another process downloads {self.name}; waiting for it")

        with files.locked(folder.with_name(f"{self.name}.lock"), busy):
            if (content := self.cached(who, file)) is not None:  # another process has finished the download
                return content
            packed = not self.source.endswith("/")
            name = self.source.rpartition("/")[2] or file
            own = self.find(name)
            path = own or folder / name
            if own is None and packed and path.exists():
                try:
                    self.opened(who, file, path, packed)
                except ValueError:
                    path.unlink()  # a damaged archive in the cache is downloaded again
            if own is None and not (packed and path.exists()):
                download(who, self.source if packed else self.source + file, path)
            try:
                raw, content = self.opened(who, file, path, packed)
            except ValueError:
                if own is None:
                    path.unlink()  # so that the next attempt downloads it again
                raise
            if packed:
                files.write(folder / file, raw)
            return content

    def opened(self, who: str, file: str, path: Path, packed: bool) -> tuple[bytes, bytes]:
        """Return the pair of the raw and the uncompressed content of a file, after the SHA-256 check.

        If ``packed``, ``path`` is an archive that contains the file; otherwise it is the file itself.
        """
        raw = member(who, path, file) if packed else path.read_bytes()
        return raw, self.checked(who, file, raw, f"{file} in {path}" if packed else path)


# pooch would replace this function, but it cannot resume a download
def download(who: str, url: str, target: Path) -> None:
    """Download a URL to ``target``, with a progress bar on a terminal. Resume an earlier partial download.

    The content is not checked here: the caller compares its SHA-256. So a partial download of the right length counts
    as complete, whatever its content. Raise a ValueError that names ``who`` if the download fails.
    """
    part = target.with_name(f"{target.name}.part")
    have = part.stat().st_size if part.exists() else 0
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{who}: downloading {target.name}")
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request, timeout=WAIT) as response:
            goes_on = response.status == 206
            total = int(response.headers.get("Content-Length") or 0)
            with (
                wrap_file(
                    response, total, description=f"{who}: {target.name}", console=console, transient=True
                ) as source,
                part.open("ab" if goes_on else "wb") as sink,
            ):
                came = 0
                while piece := source.read(PIECE):
                    came += sink.write(piece)
            if came < total:
                raise IncompleteRead(b"", total - came)  # response.read(n) does not raise it
    except HTTPError as error:
        if error.code != 416 or not have:
            raise ValueError(f"{who} cannot download {url}: {error}; {advice(target)}") from None
        # 416, range not satisfiable: the file ends before the range that was requested. If the file has as many bytes
        # as the partial download, that is complete.
        if error.headers.get("Content-Range", "").removeprefix("bytes */") != str(have):
            part.unlink()  # it is not a part of this file
            return download(who, url, target)
    except (IncompleteRead, ConnectionError, TimeoutError):
        have = part.stat().st_size if part.exists() else 0
        raise ValueError(f"{who}: the connection ended after {have} bytes of {url}; run again to go on") from None
    except (HTTPException, OSError) as error:
        raise ValueError(f"{who} cannot download {url}: {error}; {advice(target)}") from None
    part.replace(target)


def advice(target: Path) -> str:
    """Return a hint for error messages: where to save the file by hand instead of downloading it."""
    return f"instead, save the file as ${VARIABLE}/{target.parent.name}/{target.name}"


def member(who: str, archive: Path, file: str) -> bytes:
    """Return the content of the file with this name in a .tgz archive, in any folder. Raise ValueError if missing."""
    with whole_file(who, archive, "a .tgz"), tarfile.open(archive, "r:gz") as tar:
        members = [member for member in tar.getmembers() if member.isfile() and Path(member.name).name == file]
        content = tar.extractfile(members[0]) if members else None
        if content is None:
            raise ValueError(f"{who} expects {file} in {archive}; got none")
        return content.read()
