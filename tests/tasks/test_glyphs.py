"""The hundred glyphs: all different, reproducible, and read from files if these are available."""

import numpy as np
import pytest
import torch
from PIL import Image

from steadygrad.tasks import RMTS
from steadygrad.tasks.data import VARIABLE
from steadygrad.tasks.relational import glyphs
from steadygrad.training import Settings, train


@pytest.fixture
def without_data(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Write a hundred random glyphs to a data folder and return them."""
    pixels = np.random.default_rng(0).integers(0, 256, (100, 32, 32), dtype=np.uint8)
    (tmp_path / "glyphs").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "glyphs" / f"{number}.png")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return torch.from_numpy(pixels) / 255


def test_own_glyphs_differ_by_a_minimum_distance():
    own = glyphs.draw_glyphs()
    assert own.shape == (100, 32, 32)
    distance = torch.cdist(own.flatten(1), own.flatten(1), p=1) / 32**2
    assert distance[~torch.eye(100, dtype=torch.bool)].min() > 0.1


def test_own_glyphs_are_black_on_white():
    own = glyphs.draw_glyphs()
    assert (own.amin((1, 2)) == 0).all()
    assert (own.amax((1, 2)) == 1).all()
    ink = (1 - own).mean((1, 2))
    assert 0.02 < ink.min() < ink.max() < 0.6


def test_own_glyphs_are_reproducible():
    assert torch.equal(glyphs.draw_glyphs.__wrapped__(), glyphs.draw_glyphs())
    assert not torch.equal(glyphs.draw_glyphs(1), glyphs.draw_glyphs())


def test_files_are_read_in_the_order_of_their_numbers(data):
    task = RMTS(glyphs="data")
    torch.testing.assert_close(task.images, data)
    images, _ = task.sample(2, torch.Generator().manual_seed(0))
    assert (images[0, 0, 0] == task.images).all((1, 2)).any()


def test_auto_is_data_if_files_are_available(data):
    assert RMTS().glyphs == "data"
    assert RMTS(glyphs="own").glyphs == "own"


def test_auto_is_own_without_files(without_data):
    assert RMTS().glyphs == "own"
    assert torch.equal(RMTS().images, glyphs.draw_glyphs())


def test_settings_of_a_run_record_the_source_of_its_glyphs(data, monkeypatch, tmp_path):
    settings = Settings.from_tables({"layer": {"name": "corelnet"}, "task": {"name": "rmts"}})
    recorded = settings.resolved()
    assert recorded["task"]["glyphs"] == "data"
    monkeypatch.delenv(VARIABLE)
    assert settings.resolved()["task"]["glyphs"] == "own"  # differs from the recorded settings
    again = Settings.from_tables(recorded)
    assert again.resolved() == recorded
    with pytest.raises(
        ValueError, match=r"RMTS expects a folder glyphs in the one that \$STEADYGRAD_DATA names; got no"
    ):
        train(again, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_glyph_files_are_reported(tmp_path, monkeypatch, without_data):
    task = RMTS(glyphs="data")  # settings of a run can be read without its data
    with pytest.raises(ValueError, match=r"RMTS expects a folder glyphs .* names; got nothing"):
        task.sample(1, torch.Generator())
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ValueError, match=f"RMTS expects a folder glyphs .* names; got {tmp_path}"):
        task.sample(1, torch.Generator())
    with pytest.raises(ValueError, match="RMTS expects glyphs to be one of auto, own, data; got 'fonts'"):
        RMTS(glyphs="fonts")


def test_files_of_the_wrong_size_or_in_colour_are_refused(data, tmp_path):
    wrong = tmp_path / "glyphs" / "7.png"
    for shape in ((16, 16), (32, 32, 3)):
        Image.fromarray(np.zeros(shape, np.uint8)).save(wrong)
        glyphs.read_glyphs.cache_clear()
        with pytest.raises(ValueError, match=r"glyphs expects .*7.png to be grey, 32 × 32; got "):
            RMTS(glyphs="data").sample(1, torch.Generator())


def test_damaged_files_raise_value_error_with_name(data, tmp_path):
    damaged = tmp_path / "glyphs" / "7.png"
    whole = damaged.read_bytes()
    for content in (b"", b"not an image", whole[:40], whole[:-60], whole.replace(b"IDAT", b"IDAZ")):
        damaged.write_bytes(content)
        glyphs.read_glyphs.cache_clear()
        with pytest.raises(ValueError, match=r"glyphs expects .*7.png to be a whole PNG file; got "):
            RMTS(glyphs="data").sample(1, torch.Generator())


def test_changed_pixel_in_file_cut_off_before_checksum_raises_value_error(data, tmp_path):
    damaged = tmp_path / "glyphs" / "7.png"
    content = bytearray(damaged.read_bytes())
    content[179] ^= 1  # a pixel: random bytes are stored as they are
    damaged.write_bytes(content[:-20])  # without the checksums of zlib and PNG, which end the file
    glyphs.read_glyphs.cache_clear()
    with pytest.raises(ValueError, match=r"glyphs expects .*7.png to be a whole PNG file; got "):
        RMTS(glyphs="data").sample(1, torch.Generator())
