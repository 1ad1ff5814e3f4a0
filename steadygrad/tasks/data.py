"""Where data sets are found that the package does not ship, and how they get there."""

import gzip
import hashlib
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

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
    """

    name: str
    source: str
    files: dict[str, tuple[str, ...]]

    def read(self, who: str, file: str) -> bytes:
        """What is in a file, unpacked; a file that is not what it should be is refused."""
        path = self.find(file) or self.fetch(who, file)
        return self.checked(who, path, file)

    def find(self, file: str) -> Path | None:
        folders = [folder for folder in (data_set(self.name), cache_folder() / self.name) if folder is not None]
        return next((folder / file for folder in folders if (folder / file).is_file()), None)

    def checked(self, who: str, path: Path, file: str) -> bytes:
        raw = path.read_bytes()
        try:
            content = gzip.decompress(raw) if path.suffix == ".gz" else raw
        except (OSError, EOFError) as error:
            raise ValueError(f"{who} expects {path} to be packed by gzip; got {error}") from None
        found = [hashlib.sha256(data).hexdigest() for data in (content, raw)]
        if not set(found) & set(self.files[file]):
            wanted = " or ".join(self.files[file])
            raise ValueError(f"{who} expects {path} with SHA-256 {wanted}; got {found[0]}")
        return content

    def fetch(self, who: str, file: str) -> Path:
        """From the source into the cache. What was half there is completed."""
        folder = cache_folder() / self.name
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / file
        if self.source.endswith("/"):
            download(who, self.source + file, target)
        else:
            archive = folder / self.source.rpartition("/")[2]
            if not archive.exists():
                download(who, self.source, archive)
            extract(who, archive, file, target)
        try:
            self.checked(who, target, file)
        except ValueError:
            target.unlink()  # the next attempt starts anew
            raise
        return target


def download(who: str, url: str, target: Path) -> None:
    """With progress; goes on where an earlier attempt ended."""
    part = target.with_name(f"{target.name}.part")
    have = part.stat().st_size if part.exists() else 0
    request = Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request, timeout=WAIT) as response:
            goes_on = response.status == 206
            total = int(response.headers.get("Content-Length") or 0)
            with (
                wrap_file(response, total, description=f"{who}: {target.name}", transient=True) as source,
                part.open("ab" if goes_on else "wb") as sink,
            ):
                while piece := source.read(PIECE):
                    sink.write(piece)
    except HTTPError as error:
        if error.code != 416:  # there is nothing beyond what is here already
            raise ValueError(f"{who} cannot download {url}: {error}; {advice(target)}") from None
    except (URLError, OSError) as error:
        raise ValueError(f"{who} cannot download {url}: {error}; {advice(target)}") from None
    part.replace(target)


def advice(target: Path) -> str:
    return f"where ${VARIABLE} names a folder, {target.parent.name}/{target.name} is taken from there"


def extract(who: str, archive: Path, file: str, target: Path) -> None:
    """The one member of a .tgz with this name, whichever folder it is in."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [member for member in tar.getmembers() if member.isfile() and Path(member.name).name == file]
            content = tar.extractfile(members[0]) if members else None
            if content is None:
                raise ValueError(f"{who} expects {file} in {archive}; got none")
            part = target.with_name(f"{target.name}.part")
            part.write_bytes(content.read())
            part.replace(target)
    except (tarfile.TarError, OSError, EOFError) as error:
        archive.unlink()
        raise ValueError(f"{who} expects {archive} to be a .tgz; got {error}") from None
