"""Data sets: where they come from, that they are what they should be, and how a pass through them goes."""

import functools
import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Generator

from steadygrad.tasks import SPLITS, CharPTB, PixelMNIST, WordPTB, pixels, ptb
from steadygrad.tasks.data import DataSet
from tests.data_sets import real_folder

CONTENT = bytes(range(256)) * 5000
FILE = "numbers.bin"


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, also parts of files, and remembers what was asked for. ``ends`` after so many bytes."""

    def do_GET(self):
        begin = self.headers.get("Range")
        self.server.asked.append((self.path, begin))
        path = self.translate_path(self.path)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            return self.send_error(404)
        start = int(begin.removeprefix("bytes=").rstrip("-")) if begin and self.server.parts else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if self.server.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(b"%x\r\n" % (len(content) - start) if self.server.chunked else b"")
        time.sleep(self.server.takes)
        self.wfile.write(content[start:][: self.server.ends])

    def log_message(self, *words):
        pass


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / FILE).write_bytes(CONTENT)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=folder)) as found:
        found.asked, found.parts, found.chunked, found.ends, found.takes = [], True, False, None, 0
        found.url = f"http://127.0.0.1:{found.server_port}/"
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()  # shutdown waits for a poll
        yield found
        found.shutdown()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no folder of the user's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("STEADYGRAD_DATA")
    return tmp_path / "cache" / "steadygrad" / "some"


def of(server, source="", content=CONTENT, file=FILE):
    return DataSet("some", server.url + source, {file: (hashlib.sha256(content).hexdigest(),)})


def test_a_file_is_downloaded_once(server, cache):
    data = of(server)
    assert data.read("Task", FILE) == data.read("Task", FILE) == CONTENT
    assert server.asked == [(f"/{FILE}", None)]
    assert [path.name for path in cache.iterdir()] == [FILE]


def test_partial_download_is_resumed(server, cache):
    cache.mkdir(parents=True)
    (cache / f"{FILE}.part").write_bytes(CONTENT[:1000])
    assert of(server).read("Task", FILE) == CONTENT
    assert server.asked == [(f"/{FILE}", "bytes=1000-")]


def test_download_restarts_if_server_ignores_range(server, cache):
    server.parts = False
    cache.mkdir(parents=True)
    (cache / f"{FILE}.part").write_bytes(CONTENT[:1000])
    assert of(server).read("Task", FILE) == CONTENT


def test_complete_partial_file_is_used(server, cache):
    cache.mkdir(parents=True)
    (cache / f"{FILE}.part").write_bytes(CONTENT)
    assert of(server).read("Task", FILE) == CONTENT
    assert server.asked == [(f"/{FILE}", f"bytes={len(CONTENT)}-")]


def test_complete_partial_file_with_other_content_is_refused_and_removed(server, cache):
    """The server says only that the length is right; the digest tells."""
    cache.mkdir(parents=True)
    (cache / f"{FILE}.part").write_bytes(CONTENT[::-1])
    with pytest.raises(
        ValueError, match=f"^Task expects {FILE} in .* with SHA-256|^Task expects .*{FILE} with SHA-256"
    ):
        of(server).read("Task", FILE)
    assert list(cache.iterdir()) == []
    assert of(server).read("Task", FILE) == CONTENT


def test_partial_file_longer_than_file_is_downloaded_again(server, cache):
    cache.mkdir(parents=True)
    (cache / f"{FILE}.part").write_bytes(CONTENT + b"of another version")
    assert of(server).read("Task", FILE) == CONTENT
    assert [begin for _, begin in server.asked] == [f"bytes={len(CONTENT) + 18}-", None]
    assert [path.name for path in cache.iterdir()] == [FILE]


@pytest.mark.parametrize(("chunked", "have"), [(False, 1_100_000), (True, 1 << 20)], ids=["of a length", "chunked"])
def test_interrupted_connection_raises_and_next_call_resumes(server, cache, chunked, have):
    """Of chunks whole pieces alone are kept."""
    server.ends, server.chunked = 1_100_000, chunked
    words = rf"^Task: the connection ended after {have} bytes of {server.url}{FILE}; run again to go on$"
    with pytest.raises(ValueError, match=words):
        of(server).read("Task", FILE)
    assert [path.name for path in cache.iterdir()] == [f"{FILE}.part"]
    server.ends, server.chunked = None, False
    assert of(server).read("Task", FILE) == CONTENT
    assert [begin for _, begin in server.asked] == [None, f"bytes={have}-"]


def test_concurrent_readers_download_file_once(server, cache):
    server.takes = 0.3
    with ThreadPoolExecutor(2) as both:
        assert list(both.map(of(server).read, ["Task", "Other"], [FILE] * 2)) == [CONTENT] * 2
    assert server.asked == [(f"/{FILE}", None)]


@pytest.mark.parametrize("place", [500, 60_000], ids=["early", "late"])
def test_corrupt_gzip_download_is_rejected_and_removed(server, cache, tmp_path, place):
    """Where the damage is decides which error gzip has for it."""
    content = bytes(np.random.default_rng(0).integers(0, 10, 200_000, np.uint8))
    packed, file = gzip.compress(content), "numbers.gz"
    (tmp_path / "served" / file).write_bytes(packed[:place] + b"\xff" * 100 + packed[place + 100 :])
    data = of(server, content=content, file=file)
    with pytest.raises(ValueError, match=rf"^Task expects .*{file} to be packed by gzip; got "):
        data.read("Task", file)
    assert list(cache.iterdir()) == []
    (tmp_path / "served" / file).write_bytes(packed)
    assert data.read("Task", file) == content


def test_corrupt_cached_file_is_downloaded_again(server, cache):
    data = of(server)
    data.read("Task", FILE)
    (cache / FILE).write_bytes(b"spoilt")
    assert data.read("Task", FILE) == (cache / FILE).read_bytes() == CONTENT


def test_download_with_wrong_checksum_is_rejected_and_removed(server, cache):
    with pytest.raises(ValueError, match=rf"^Task expects .*{FILE} with SHA-256 [0-9a-f]{{64}}; got [0-9a-f]{{64}}$"):
        of(server, content=b"other").read("Task", FILE)
    assert list(cache.iterdir()) == []


def test_failed_download_explains_manual_placement(server, cache):
    data = of(server, "missing/")
    with pytest.raises(ValueError, match=rf"^Task cannot download .*404.*save the file as .*_DATA/some/{FILE}"):
        data.read("Task", FILE)
    server.shutdown()
    server.server_close()
    with pytest.raises(ValueError, match=r"^Task cannot download "):
        data.read("Task", FILE)


def write_archive(path, content=CONTENT):
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo(f"./deep/inside/{FILE}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))


def test_a_file_comes_out_of_an_archive(server, cache, tmp_path):
    write_archive(tmp_path / "served" / "all.tgz")
    assert of(server, "all.tgz").read("Task", FILE) == CONTENT
    with pytest.raises(ValueError, match=r"^Task expects other.bin in .*all.tgz; got none$"):
        of(server, "all.tgz", file="other.bin").read("Task", "other.bin")


def test_invalid_archive_is_rejected_and_removed(server, cache, tmp_path):
    (tmp_path / "served" / "all.tgz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"^Task expects .*all.tgz to be a .tgz; got "):
        of(server, "all.tgz").read("Task", FILE)
    assert list(cache.iterdir()) == []


def test_corrupt_cached_archive_is_downloaded_again(server, cache, tmp_path):
    write_archive(tmp_path / "served" / "all.tgz")
    cache.mkdir(parents=True)
    for spoil in (lambda path: path.write_bytes(b"no archive"), lambda path: write_archive(path, b"other")):
        spoil(cache / "all.tgz")
        (cache / FILE).unlink(missing_ok=True)
        assert of(server, "all.tgz").read("Task", FILE) == CONTENT


def test_download_progress_goes_to_stderr(server, cache, capsys):
    of(server).read("Task", FILE)
    said = capsys.readouterr()
    assert said.out == ""
    assert f"Task: downloading {FILE}" in said.err


def test_archive_with_wrong_checksum_is_rejected_and_removed(server, cache, tmp_path):
    write_archive(tmp_path / "served" / "all.tgz", b"other")
    with pytest.raises(ValueError, match=rf"^Task expects {FILE} in .*all.tgz with SHA-256 "):
        of(server, "all.tgz").read("Task", FILE)
    assert list(cache.iterdir()) == []


def test_archive_in_user_folder_is_used_and_never_deleted(server, cache, tmp_path, monkeypatch):
    """As the error for a download that fails says; and it stays there, whatever is in it."""
    archive = tmp_path / "mine" / "some" / "all.tgz"
    archive.parent.mkdir(parents=True)
    with pytest.raises(ValueError, match=r"instead, save the file as \$STEADYGRAD_DATA/some/all.tgz$"):
        of(server, "all.tgz").read("Task", FILE)
    monkeypatch.setenv("STEADYGRAD_DATA", str(tmp_path / "mine"))
    server.asked.clear()
    for spoil in (lambda: archive.write_bytes(b"no archive"), lambda: write_archive(archive, b"other")):
        spoil()
        with pytest.raises(ValueError, match=r"^Task expects .*mine/some/all.tgz "):
            of(server, "all.tgz").read("Task", FILE)
        assert archive.exists()
    write_archive(archive)
    assert of(server, "all.tgz").read("Task", FILE) == CONTENT
    assert server.asked == []


def test_the_users_folder_comes_first(server, cache, tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "some"
    folder.mkdir(parents=True)
    (folder / FILE).write_bytes(CONTENT)
    monkeypatch.setenv("STEADYGRAD_DATA", str(folder.parent))
    assert of(server).read("Task", FILE) == CONTENT
    assert server.asked == []
    (folder / FILE).write_bytes(CONTENT[:-1])
    with pytest.raises(ValueError, match=r"^Task expects .*SHA-256"):
        of(server).read("Task", FILE)
    assert (folder / FILE).exists()  # it is the user's


# texts


@pytest.fixture(params=[CharPTB, WordPTB])
def text(request):
    return request.param()


@pytest.mark.parametrize(("batch", "window"), [(1, 7), (3, 10), (4, 1000)])
def test_windows_cover_text_in_order(text, batch, window):
    tokens = text.tokens("train")
    epoch = text.epoch("train", batch, window)
    inputs = torch.cat([part.inputs for part in epoch], dim=1)
    targets = torch.cat([part.targets for part in epoch], dim=1)
    used = inputs.numel()
    assert len(tokens) - 1 - batch < used <= len(tokens) - 1
    assert torch.equal(inputs.flatten(), tokens[:used])
    assert torch.equal(targets.flatten(), tokens[1 : used + 1])
    assert [part.goes_on for part in epoch] == [False] + [True] * (len(epoch) - 1)
    assert {part.inputs.shape for part in epoch[:-1]} <= {(batch, window)}


def test_text_epoch_rejects_invalid_window_batch_and_split(text):
    who = type(text).__name__
    with pytest.raises(ValueError, match=rf"^{who} expects a window, the number of steps of an update; got none$"):
        text.epoch("train", 2)
    with pytest.raises(ValueError, match=rf"^{who} expects a batch of at most \d+ for test; got 100000$"):
        text.epoch("test", 100_000, 5)
    with pytest.raises(ValueError, match=rf"^{who} expects a split out of train, valid, test; got 'dev'$"):
        text.epoch("dev", 2, 5)


def test_encode_and_decode_round_trip():
    assert CharPTB().decode(CharPTB().encode("the yen\nrose").tolist()) == "the yen\nrose"
    assert WordPTB().decode(WordPTB().encode("the yen\nrose").tolist()) == "the yen \nrose "
    with pytest.raises(ValueError, match=r"^CharPTB expects text of its vocabulary; got 'Z'$"):
        CharPTB().encode("Zen")
    with pytest.raises(ValueError, match=r"^WordPTB expects text of its vocabulary; got 'dollar'$"):
        WordPTB().encode("the dollar rose")


def test_each_line_ends_with_eos_token(text):
    folder = ptb.PTB.find(text.form.format(split="valid"))
    lines = folder.read_text("ascii").strip().split("\n")
    tokens = text.tokens("valid").tolist()
    assert tokens.count(text.vocabulary.index("<eos>")) == len(lines)
    assert len(tokens) == sum(len(line.split()) + 1 for line in lines)


def test_token_cache_is_rebuilt_if_corrupt(text):
    folder = ptb.cache_folder() / "tokens"
    before = text.tokens("train")
    for spoilt in (b"", b"spoilt"):
        for path in folder.glob("*.npz"):
            path.write_bytes(spoilt)
        ptb.corpus.cache_clear()
        assert torch.equal(text.tokens("train"), before)
    ptb.corpus.cache_clear()
    kept = [np.load(path) for path in folder.glob("*.npz") if path.read_bytes() != b"spoilt"]
    assert any(np.array_equal(file["train"], before.numpy()) for file in kept)
    assert torch.equal(text.tokens("train"), before)


def test_bpc_and_perplexity_are_computed_from_mean_loss():
    assert CharPTB().conclude({"loss": np.log(2.0)})["bpc"] == pytest.approx(1)
    assert WordPTB().conclude({"loss": np.log(100.0)})["perplexity"] == pytest.approx(100)


# pixels


@pytest.mark.parametrize("split", SPLITS)
def test_image_epoch_has_every_image_once_in_seeded_order(split):
    task = PixelMNIST(held_back=20_000)
    assert sum(len(part.targets) for part in task.epoch(split, 1500)) == task.count(split)
    first, other = (task.epoch(split, 64, generator=Generator().manual_seed(seed))[0] for seed in (0, 1))
    again = task.epoch(split, 64, generator=Generator().manual_seed(0))[0]
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.targets, other.targets)
    assert {task.count(split) for split in SPLITS} == {40_000, 20_000, 10_000}


def test_validation_split_is_end_of_training_images():
    images, labels = pixels.images_and_labels(False, False)
    inputs, targets = PixelMNIST(permuted=False, held_back=100).take("valid", torch.tensor([0, 99]))
    assert torch.equal(inputs.squeeze(2), images[[59_900, 59_999]].float() / 255)
    assert torch.equal(targets, labels[[59_900, 59_999]])


def test_pixel_permutation_matches_numpy_random_state():
    which = torch.arange(3)
    plain = PixelMNIST(permuted=False).take("test", which)[0]
    order = np.random.RandomState(92916).permutation(784)
    assert torch.equal(PixelMNIST(permutation_seed=92916).take("test", which)[0], plain[:, order])


def test_fashion_mnist_checksums_are_of_corrected_files():
    """The files since 31 August 2017, packed, as others know them too."""
    known = {file: hashes[0][:16] for file, hashes in pixels.FASHION.files.items()}
    assert known == {
        "train-images-idx3-ubyte.gz": "3aede38d61863908",
        "train-labels-idx1-ubyte.gz": "a04f17134ac03560",
        "t10k-images-idx3-ubyte.gz": "346e55b948d973a9",
        "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5",
    }


def test_held_back_of_all_images_raises_value_error():
    with pytest.raises(ValueError, match=r"^PixelMNIST expects held_back below 60000; got 60000$"):
        PixelMNIST(held_back=60_000)


# the real ones


def real(name):
    folder = real_folder()
    return pytest.mark.skipif(
        folder is None or not (folder / name).is_dir(), reason=f"$STEADYGRAD_DATA has no folder {name}"
    )


@pytest.fixture
def real_data(monkeypatch):
    monkeypatch.setenv("STEADYGRAD_DATA", str(real_folder()))
    caches = ptb.corpus, pixels.images_and_labels
    for made in caches:
        made.cache_clear()
    yield
    for made in caches:
        made.cache_clear()


@real("ptb")
@pytest.mark.parametrize("cls", [CharPTB, WordPTB])
def test_the_penn_treebank_has_its_sizes(cls, real_data):
    task = cls()
    assert {split: len(task.tokens(split)) for split in SPLITS} == task.sizes
    assert len(task.vocabulary) == task.vocabulary_size
    train = task.tokens("train")
    logits = train.bincount(minlength=task.vocabulary_size).double().log()
    shares = logits.softmax(0)
    assert task.guessing_loss == pytest.approx(-(shares * shares.log()).sum().item(), abs=1e-6)


@real("mnist")
def test_mnist_has_its_sizes_and_digits(real_data):
    task = PixelMNIST()
    images, labels = pixels.images_and_labels(False, False)
    assert images.shape == (60_000, 784)
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert len(pixels.images_and_labels(False, True)[1]) == task.count("test") == 10_000
