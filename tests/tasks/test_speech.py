"""Sound in, spectrogram, sound out: against what numpy and a pencil say."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steadygrad.tasks import speech, speech_quality
from tests.fakes import babble, riff, sphere

SOUND = babble(3001, seed=0)


def fake_speech(samples=16000, seed=0):
    return torch.from_numpy(babble(samples, seed, rate=8000) / 32768)


def noise(samples, seed=0):
    return torch.randn(samples, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# files


@pytest.fixture
def read(tmp_path):
    def call(content):
        path = tmp_path / "sx1.wav"
        path.write_bytes(content)
        return speech.read_speech("Task", path)

    return call


def test_riff_and_sphere_files_of_both_byte_orders_read_equal(read):
    sounds = [read(content) for content in (riff(SOUND), sphere(SOUND), sphere(SOUND, sample_byte_format="-s2 10"))]
    assert len(sounds[0]) == 1501
    assert sounds[0].abs().max() > 0.1
    assert all(torch.equal(sound, sounds[0]) for sound in sounds)


@pytest.mark.parametrize("form", [riff, sphere])
def test_8_khz_files_are_not_resampled(form, read):
    assert torch.equal(read(form(SOUND, rate=8000)), torch.from_numpy(SOUND / 32768))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "to be a RIFF or NIST SPHERE file; got b'' at its beginning"),
        (b"ID3 something", "to be a RIFF or NIST SPHERE file; got b'ID3 some' at its beginning"),
        (b"RIFF", "to be a whole RIFF file of PCM samples; got EOFError"),
        (riff(SOUND)[:20], "to be a whole RIFF file of PCM samples; got EOFError"),
        (riff(SOUND)[:-3], r"3001 samples in .*; got 2999: it is cut off"),
        (riff(SOUND).replace(b"\1\0\1\0", b"\2\0\1\0", 1), "PCM samples; got Error.'unknown format: 2'"),
        (riff(SOUND[:-1], channels=2), "with one channel of 16 bits; got 2 of 16"),
        (riff(SOUND.astype(np.int32)), "with one channel of 16 bits; got 1 of 32"),
        (riff(SOUND[:0]), "sound in .*; got no samples"),
        (riff(SOUND, rate=11025), "at a multiple of 8000 Hz up to 192000; got 11025"),
        (riff(SOUND, rate=4000), "at a multiple of 8000 Hz up to 192000; got 4000"),
        (riff(SOUND, rate=800_000_000), "at a multiple of 8000 Hz up to 192000; got 800000000"),
        (
            riff(SOUND)[:16] + b"\xf0\xff\xff\xff" + riff(SOUND)[20:],
            "a whole RIFF file of PCM samples; got RuntimeError",
        ),
        (riff(SOUND)[:16] + b"\2\0\0\0" + riff(SOUND)[20:], "a whole RIFF file of PCM samples; got "),
        (sphere(SOUND)[:-2], "3001 samples in .*; got 3000: it is cut off"),
        (sphere(SOUND)[:100], "to have a SPHERE header; got "),
        (sphere(SOUND).replace(b"end_head", b"end_hand"), "to have a SPHERE header; got "),
        (b"NIST_1A\n   1024\nsample_count -i 3\nsample_rate -i 16000\n", "a SPHERE header; got no end_head"),
        (sphere(SOUND).replace(b"   1024", b"  -6002"), "a SPHERE header; got a length of -6002"),
        (sphere(SOUND).replace(b"   1024", b"     20"), "a SPHERE header; got a length of 20"),
        (sphere(SOUND, sample_count="-i -3"), "a SPHERE header; got a length of 1024, -3 samples"),
        (sphere(SOUND, sample_count="-i many"), "a SPHERE header; got ValueError"),
        (sphere(SOUND).replace(b"sample_rate", b"simple_rate"), "a SPHERE header; got KeyError.'sample_rate'"),
        (sphere(SOUND, channel_count="-i 2"), "with one channel of 16 bits; got 2 of 16"),
        (
            sphere(SOUND, sample_coding="-s26 pcm,embedded-shorten-v2.00"),
            "in plain PCM; got pcm,embedded-shorten-v2.00",
        ),
    ],
)
def test_invalid_files_raise_value_error_with_name(content, message, read):
    with pytest.raises(ValueError, match=f"^Task expects .*{message}") as failed:
        read(content)
    assert "sx1.wav" in str(failed.value)


def test_wav_file_round_trips(read):
    content = speech.wav_file(torch.from_numpy(SOUND / 32768))
    assert content == riff(SOUND, rate=8000)
    torch.testing.assert_close(read(content), torch.from_numpy(SOUND / 32768), rtol=0, atol=0)


def test_wav_file_scales_clipping_signals(read):
    wave = torch.tensor([0.5, -3.0, 1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(read(speech.wav_file(wave)), wave / 3, rtol=0, atol=1e-4)


# spectrograms


def test_stft_matches_numpy_definition():
    x = noise(1000).numpy()
    padded = np.concatenate([np.zeros(256), x, np.zeros(24 + 256)])
    n, f = np.arange(256), np.arange(129)
    window = np.sin(np.pi * n / 256) ** 2
    kernel = np.exp(-2j * np.pi * np.outer(f, n) / 256)
    expected = np.stack([kernel @ (window * padded[128 * t : 128 * t + 256]) for t in range(8 + 3)])
    found = speech.stft(torch.from_numpy(x))
    assert found.shape == (11, 129)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)
    assert not expected[0].any()
    assert not expected[-1].any()


@given(st.integers(1, 700), st.integers(0, 100))
def test_istft_and_rebuild_invert_stft(length, seed):
    x = noise(length, seed)
    spectrum = speech.stft(x)
    torch.testing.assert_close(speech.istft(spectrum, length), x)
    torch.testing.assert_close(speech.rebuild(speech.log_magnitude(spectrum), x), x)


def test_log_magnitude_and_magnitude_known_values():
    spectrum = torch.tensor([0, 0.003j, 1, 10j, -100])
    power = [1e-5, 1e-5 + 9e-6, 1 + 1e-5, 100 + 1e-5, 1e4 + 1e-5]
    torch.testing.assert_close(speech.log_magnitude(spectrum), torch.tensor([10 * math.log10(p) for p in power]))
    torch.testing.assert_close(
        speech.magnitude(speech.log_magnitude(spectrum.to(torch.cdouble))), spectrum.abs().double()
    )
    assert speech.magnitude(torch.tensor(-80.0)) == 0  # softer than silence is silence


def test_rebuild_scales_with_magnitude():
    x = fake_speech()
    decibels = 10 * torch.log10(speech.FLOOR + 4 * speech.stft(x).abs().square())
    torch.testing.assert_close(speech.rebuild(decibels, x), 2 * x)


@pytest.mark.parametrize(
    ("frequency", "kept"), [(0, 1), (100, 1), (1000, 1), (3000, 1), (5000, 0), (6000, 0), (7900, 0)]
)
@pytest.mark.parametrize("factor", [2, 3])
def test_decimate_keeps_tones_below_4_khz_only(frequency, kept, factor):
    time = torch.arange(8000 * factor, dtype=torch.float64) / (8000 * factor)
    found = speech.decimate(torch.cos(2 * math.pi * frequency * time), factor)
    assert len(found) == 8000
    inside = found[100:-100]
    expected = torch.cos(2 * math.pi * frequency * torch.arange(8000, dtype=torch.float64) / 8000)[100:-100] * kept
    torch.testing.assert_close(inside, expected, rtol=0, atol=0.004)


@pytest.mark.parametrize(("factor", "length"), [(2, 1001), (3, 1000), (6, 997)])
def test_decimate_matches_scipy_resample_poly(factor, length):
    scipy_signal = pytest.importorskip("scipy.signal", reason="scipy comes with the extra speech")
    x = noise(length)
    np.testing.assert_allclose(speech.decimate(x, factor).numpy(), scipy_signal.resample_poly(x.numpy(), 1, factor))


# scores


def test_segmental_snr_matches_hand_computed_value():
    """Five segments of 10 ms: 20 dB, nothing wrong (35), all wrong (−10), silence (left out), 6.02 dB; and a rest."""
    x = torch.ones(5, 80, dtype=torch.float64)
    error = torch.tensor([0.1, 0.0, 100.0, 0.3, 0.5], dtype=torch.float64)[:, None]
    x[3] = 0.009  # 40.9 dB below the others
    clean, estimate = (
        torch.cat([signal.flatten(), torch.full((79,), v)]) for signal, v in ((x, 1.0), (x + error, 9.0))
    )
    expected = (20 + 35 - 10 + 20 * math.log10(2)) / 4
    assert speech_quality.segmental_snr(clean, estimate) == pytest.approx(expected)


def test_segmental_snr_of_noisy_signal_is_mixing_ratio():
    x = noise(80_000)
    assert speech_quality.segmental_snr(x, x + 0.1 * noise(80_000, 1)) == pytest.approx(20, abs=0.1)


def test_segmental_snr_rejects_unequal_lengths_and_is_nan_for_silence():
    x = fake_speech()
    with pytest.raises(ValueError, match="segmental_snr expects signals of one length; got 16000 and 15999 samples"):
        speech_quality.segmental_snr(x, x[:-1])
    assert math.isnan(speech_quality.segmental_snr(x[:79], x[:79]))
    assert math.isnan(speech_quality.segmental_snr(torch.zeros(800), torch.ones(800)))


@pytest.mark.parametrize(("score", "best"), [("stoi", 1.0), ("pesq", 4.5)])
def test_stoi_and_pesq_decrease_with_noise(score, best):
    pytest.importorskip(speech_quality.PACKAGES[score], reason="needs the extra speech")
    judge, x = getattr(speech_quality, score), fake_speech()
    found = [judge(x, x + level * noise(len(x))) for level in (0, 0.03, 0.3)]
    assert found[0] == pytest.approx(best, abs=0.1)
    assert found[0] > found[1] + 0.02 > found[2] + 0.1


@pytest.mark.parametrize("score", speech_quality.PACKAGES)
def test_scores_of_short_or_silent_signals_are_nan(score):
    pytest.importorskip(speech_quality.PACKAGES[score], reason="needs the extra speech")
    judge, x = getattr(speech_quality, score), fake_speech()
    for samples in (1, 200, 800):
        assert math.isnan(judge(x[:samples], x[:samples]))
    silence = torch.zeros_like(x)
    assert math.isnan(judge(silence, silence))
    if score == "pesq":
        assert math.isnan(judge(x, torch.zeros_like(x)))


@pytest.mark.parametrize("score", speech_quality.PACKAGES)
def test_missing_package_raises_value_error_with_install_hint(score, monkeypatch):
    monkeypatch.setitem(sys.modules, speech_quality.PACKAGES[score], None)
    expected = rf"{score} needs the package {speech_quality.PACKAGES[score]}: pip install steadygrad\[speech\]"
    with pytest.raises(ValueError, match=expected):
        getattr(speech_quality, score)(fake_speech(), fake_speech())
