"""Where data sets are found that the package does not ship, and how they get there."""

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import wrap_file

VARIABLE = "STEADYGRAD_DATA"
"""names a folder with one folder for each data set"""
PIECE = 1 << 20
WAIT = 30.0
"""seconds for a server that says nothing"""


def data_set(name: str) -> Path | None:
    """The folder of a data set, if it is there."""
    root = os.environ.get(VARIABLE)
    folder = Path(root, name) if root else None
    return folder if folder is not None and folder.is_dir() else None


def needed_data_set(who: str, name: str) -> Path:
    folder = data_set(name)
    if folder is None:
        root = os.environ.get(VARIABLE)
        raise ValueError(f"{who} expects a folder {name} in the one that ${VARIABLE} names; got {root or 'nothing'}")
    return folder


def cache_folder() -> Path:
    """Where downloads are kept for the next time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "steadygrad")


@dataclass(frozen=True)
class DataSet:
    """Files that are looked for in $STEADYGRAD_DATA/name, then in the cache, then at their public source.

    ``files``  what is accepted by file: SHA-256 of the file, or of what it unpacks to, as gzip keeps a time of packing
    ``source`` a URL: of the folder that has the files if it ends in /, else of a .tgz that has them somewhere inside
               and that may itself be in $STEADYGRAD_DATA/name
    """

    name: str
    source: str
    files: dict[str, tuple[str, ...]]

    def read(self, who: str, file: str) -> bytes:
        """What is in a file, unpacked; a file that is not what it should be is refused."""
        if own := self.find(file):
            return self.checked(who, file, own.read_bytes(), own)
        content = self.kept(who, file)
        return self.fetch(who, file) if content is None else content

    def find(self, file: str) -> Path | None:
        """In the user's folder."""
        folder = data_set(self.name)
        return folder / file if folder is not None and (folder / file).is_file() else None

    def kept(self, who: str, file: str) -> bytes | None:
        """What is in the cache, if it is there and whole."""
        path = cache_folder() / self.name / file
        try:
            return self.checked(who, file, path.read_bytes(), path)
        except (FileNotFoundError, ValueError):
            return None

    def checked(self, who: str, file: str, raw: bytes, where: Path | str) -> bytes:
        try:
            content = gzip.decompress(raw) if file.endswith(".gz") else raw
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{who} expects {where} to be packed by gzip; got {error}") from None
        found = [hashlib.sha256(data).hexdigest() for data in (content, raw)]
        if not set(found) & set(self.files[file]):
            wanted = " or ".join(self.files[file])
            raise ValueError(f"{who} expects {where} with SHA-256 {wanted}; got {found[0]}")
        return content

    def fetch(self, who: str, file: str) -> bytes:
        """From the source into the cache, one process at a time. What was half there is completed."""
        folder = cache_folder() / self.name
        folder.mkdir(parents=True, exist_ok=True)
        with alone(who, folder.with_name(f"{self.name}.lock")):
            if (content := self.kept(who, file)) is not None:  # another process was faster
                return content
            packed = not self.source.endswith("/")
            name = self.source.rpartition("/")[2] or file
            own = self.find(name)
            path = own or folder / name
            if own is None and packed and path.exists():
                try:
                    self.opened(who, file, path, packed)
                except ValueError:
                    path.unlink()  # as any other file that is spoilt in the cache
            if own is None and not (packed and path.exists()):
                download(who, self.source if packed else self.source + file, path)
            try:
                raw, content = self.opened(who, file, path, packed)
            except ValueError:
                if own is None:
                    path.unlink()  # the next attempt starts anew
                raise
            if packed:
                part = part_of(folder / file)
                part.write_bytes(raw)
                part.replace(folder / file)
            return content

    def opened(self, who: str, file: str, path: Path, packed: bool) -> tuple[bytes, bytes]:
        """A file as it is, by itself or in an archive, and what it unpacks to."""
        raw = member(who, path, file) if packed else path.read_bytes()
        return raw, self.checked(who, file, raw, f"{file} in {path}" if packed else path)


@contextmanager
def alone(who: str, lock: Path) -> Iterator[None]:
    """Other processes wait meanwhile. The system lets go of the lock when a process dies, however it dies."""
    try:
        import fcntl
    except ImportError:  # not on this system: the honour system
        yield
        return
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            Console(stderr=True).print(f"{who}: another process downloads {lock.stem}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def part_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def download(who: str, url: str, target: Path) -> None:
    """With progress; goes on where an earlier attempt ended."""
    part = part_of(target)
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
                raise IncompleteRead(b"", total - came)  # which a response that is read in pieces does not say itself
    except HTTPError as error:
        if error.code != 416:  # there is nothing beyond what is here already
            raise ValueError(f"{who} cannot download {url}: {error}; {advice(target)}") from None
    except (IncompleteRead, ConnectionError, TimeoutError):
        have = part.stat().st_size if part.exists() else 0
        raise ValueError(f"{who}: the connection ended after {have} bytes of {url}; run again to go on") from None
    except (HTTPException, OSError) as error:
        raise ValueError(f"{who} cannot download {url}: {error}; {advice(target)}") from None
    part.replace(target)


def advice(target: Path) -> str:
    return f"where ${VARIABLE} names a folder, {target.parent.name}/{target.name} is taken from there"


def member(who: str, archive: Path, file: str) -> bytes:
    """The one of a .tgz with this name, whichever folder it is in."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [member for member in tar.getmembers() if member.isfile() and Path(member.name).name == file]
            content = tar.extractfile(members[0]) if members else None
            if content is None:
                raise ValueError(f"{who} expects {file} in {archive}; got none")
            return content.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{who} expects {archive} to be a .tgz; got {error}") from None
