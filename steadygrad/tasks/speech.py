"""Read speech, and convert it to spectrograms and back. Used by the TIMIT task.

Signals (samples,) have 8 kHz, and full scale is 1. Filter, windows and decibels follow the code of Wisdom et al.
(2016).
"""

import io
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from steadygrad.tasks.data import whole_file

RATE = 8000
"""Samples per second."""
HIGHEST_RATE = 24 * RATE
"""Highest sampling rate of a file. Only damaged files have a higher one."""
WINDOW, HOP = 256, 128
"""Frame length and hop length in samples: 32 and 16 ms."""
BINS = WINDOW // 2 + 1
"""Number of frequencies of a frame."""
FLOOR = 1e-5
"""Power that is added before the logarithm. Power below it counts as silence."""
FULL_SCALE = 2**15
SPHERE = b"NIST_1A\n"


# files


def read_speech(who: str, path: Path) -> Tensor:
    """Return a recording as a signal (samples,) at 8 kHz, full scale 1. Raise ValueError for an invalid file.

    The file is RIFF or NIST SPHERE, with one channel of 16-bit PCM at a multiple of 8 kHz. A recording at a higher rate
    passes a low-pass filter, which can overshoot ±1 a little. ``who`` is the task's name in messages.
    """
    content = path.read_bytes()
    if content.startswith(SPHERE):
        samples, rate = parse_sphere(who, path, content)
    elif content.startswith(b"RIFF"):
        samples, rate = parse_riff(who, path, content)
    else:
        raise ValueError(f"{who} expects {path} to be a RIFF or NIST SPHERE file; got {content[:8]!r} at its beginning")
    if not len(samples):
        raise ValueError(f"{who} expects sound in {path}; got no samples")
    if not RATE <= rate <= HIGHEST_RATE or rate % RATE:
        raise ValueError(f"{who} expects {path} at a multiple of {RATE} Hz up to {HIGHEST_RATE}; got {rate}")
    return decimate(torch.from_numpy(samples / FULL_SCALE), rate // RATE)


def parse_riff(who: str, path: Path, content: bytes) -> tuple[np.ndarray, int]:
    """Return the pair of samples (as `pcm` does) and sampling rate in Hz of a RIFF file.

    ``content`` is the whole file as bytes. ``who`` and ``path`` are the names of the task and of the file in messages.
    Raise ValueError if the file is invalid.
    """
    with whole_file(who, path, "a whole RIFF file of PCM samples"), wave.open(io.BytesIO(content)) as file:
        check_format(who, path, file.getnchannels(), file.getsampwidth())
        return pcm(who, path, file.readframes(file.getnframes()), file.getnframes(), "<i2"), file.getframerate()


def parse_sphere(who: str, path: Path, content: bytes) -> tuple[np.ndarray, int]:
    """Return the pair of samples (as `pcm` does) and sampling rate in Hz of a NIST SPHERE file.

    ``content`` is the whole file as bytes. ``who`` and ``path`` are the names of the task and of the file in messages.
    Raise ValueError if the file is invalid.

    The header begins with a line that names the format and a line with the length of the header in bytes. The lines up
    to ``end_head`` have the form ``name -type value``.
    """
    head, end, _ = content.partition(b"end_head")
    try:
        first, length, *lines = head.decode("ascii").splitlines()
        fields = {name: value for name, _, value in (line.split(None, 2) for line in lines if line.strip())}
        begin, count, rate = int(length), int(fields["sample_count"]), int(fields["sample_rate"])
        channels, width = int(fields.get("channel_count", 1)), int(fields.get("sample_n_bytes", 2))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{who} expects {path} to have a SPHERE header; got {error!r}") from None
    if not end:
        raise ValueError(f"{who} expects {path} to have a SPHERE header; got no end_head")
    if begin < len(head) + len(end) or count < 0:
        raise ValueError(f"{who} expects {path} to have a SPHERE header; got a length of {begin}, {count} samples")
    if (coding := fields.get("sample_coding", "pcm")) != "pcm":
        raise ValueError(f"{who} expects {path} in plain PCM; got {coding}: sph2pipe unpacks it")
    check_format(who, path, channels, width)
    order = ">i2" if fields.get("sample_byte_format") == "10" else "<i2"
    return pcm(who, path, content[begin : begin + width * count], count, order), rate


def check_format(who: str, path: Path, channels: int, width: int) -> None:
    """Raise ValueError unless a sound file has one channel of 16 bits.

    ``who`` and ``path`` are the names of the task and of the file in the message. ``width`` is the number of bytes of a
    sample.
    """
    if (channels, width) != (1, 2):
        raise ValueError(f"{who} expects {path} with one channel of 16 bits; got {channels} of {8 * width}")


def pcm(who: str, path: Path, content: bytes, count: int, order: str) -> np.ndarray:
    """Return the 16-bit samples in ``content``, as an array of floats from −32768 to 32767.

    ``order`` is NumPy's dtype of the samples, "<i2" or ">i2". Raise ValueError if there are not ``count`` samples.
    ``who`` and ``path`` are the names of the task and of the file in the message.
    """
    if len(content) != 2 * count:
        raise ValueError(f"{who} expects {count} samples in {path}; got {len(content) // 2}: it is cut off")
    return np.frombuffer(content, order).astype(np.float64)


def wav_file(signal: Tensor) -> bytes:
    """Return a signal as the content of a RIFF file, 16-bit PCM at 8 kHz. A signal out of range is scaled down."""
    loudest = max(1.0, signal.abs().max().item() * FULL_SCALE / (FULL_SCALE - 1))
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((signal * (FULL_SCALE / loudest)).round().numpy().astype("<i2").tobytes())
    return content.getvalue()


# spectrograms


def decimate(signal: Tensor, factor: int) -> Tensor:
    """Return every factor-th sample of a signal after a low-pass filter.

    The filter is sinc(n / factor) times a Kaiser window, |n| ≤ 10 factor, β = 5. Matlab's ``resample`` uses the same
    filter. The filter halves the amplitude at the new Nyquist frequency.
    """
    if factor == 1:
        return signal
    reach = 10 * factor
    n = torch.arange(-reach, reach + 1, dtype=signal.dtype)
    taps = torch.sinc(n / factor) * torch.kaiser_window(len(n), periodic=False, beta=5.0, dtype=signal.dtype)
    return F.pad(signal, (reach, reach)).unfold(0, len(n), factor) @ (taps / taps.sum())


def hann(like: Tensor) -> Tensor:
    """Return a Hann window of 256 samples, on the default device, with the dtype of ``like``.

    For a complex ``like`` the dtype is the real one of the same precision.
    """
    return torch.hann_window(WINDOW, dtype=like.real.dtype if like.is_complex() else like.dtype)


def stft(signal: Tensor) -> Tensor:
    """Return the short-time Fourier transform of a signal, (frames, 129), complex.

    X_t(f) = Σ_n w(n) x(128 t + n − 256) e^{−2πi f n / 256},  w(n) = sin²(π n / 256)

    x is the signal, t the number of a frame and f that of a frequency. The signal is padded with zeros, which fill the
    first and the last frame and half of the frames next to them.
    """
    filled = -len(signal) % HOP
    padded = F.pad(signal, (HOP, HOP + filled))  # torch.stft pads each side by another HOP
    return torch.stft(padded, WINDOW, HOP, window=hann(signal), pad_mode="constant", return_complex=True).mT


def istft(spectrum: Tensor, length: int) -> Tensor:
    """Return the signal of ``length`` samples whose `stft` is nearest to the spectrum (frames, 129).

    x = Σ_t w_t x_t / Σ_t w_t², where x_t is the signal of frame t alone and w_t the Hann window at frame t.
    """
    return torch.istft(spectrum.mT, WINDOW, HOP, window=hann(spectrum))[HOP : HOP + length]


def log_magnitude(spectrum: Tensor) -> Tensor:
    """Return the log power 10 log₁₀(10⁻⁵ + |X|²) of a spectrum X in dB; −50 is silence."""
    return 10 * torch.log10(FLOOR + spectrum.abs().square())


def magnitude(decibels: Tensor) -> Tensor:
    """Return the magnitude |X| of a spectrum from its log power in dB: the inverse of `log_magnitude`."""
    return (10 ** (decibels / 10) - FLOOR).clamp(min=0).sqrt()


def rebuild(decibels: Tensor, original: Tensor) -> Tensor:
    """Return the signal with magnitudes in dB (frames, 129) and the phases and length of the original signal."""
    spectrum = stft(original)
    phases = spectrum.angle()
    return istft(torch.polar(magnitude(decibels.to(phases)), phases), len(original))
