"""Speech: NIST SPHERE and RIFF files, and the log-magnitudes that the papers take of them."""

from __future__ import annotations

import wave
from io import BytesIO
from math import gcd

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array

RATE = 8000
WINDOW = 256
HOP = 128
BINS = WINDOW // 2 + 1
_FLOOR = 1e-5
#: What a frame of silence has in every bin, and a frame behind the end.
SILENCE = -50.0

_SPHERE = b"NIST_1A"
_CONVERT = "Convert it first: sph2pipe -p -f wav IN OUT, or w_decode -o pcm IN OUT."


def read_speech(name: str, content: bytes) -> tuple[npt.NDArray[np.int16], int]:
    """Samples and their rate of a NIST SPHERE or RIFF file: one channel of 16 bits, not compressed.

    Raises:
        DataError: If it is anything else.
    """
    return _sphere(name, content) if content.startswith(_SPHERE) else _riff(name, content)


def _sphere(name: str, content: bytes) -> tuple[npt.NDArray[np.int16], int]:
    lines = content[:1024].decode("ascii", errors="replace").split("\n")
    fields = {}
    for line in lines[2:]:
        word, *rest = line.split(None, 2)
        if word == "end_head":
            break
        if len(rest) == 2:
            fields[word] = rest[1]
    try:
        start = int(lines[1])
        count, rate = int(fields["sample_count"]), int(fields["sample_rate"])
        channels, width = int(fields.get("channel_count", "1")), int(fields.get("sample_n_bytes", "2"))
    except (ValueError, IndexError, KeyError) as error:
        raise errors.DataError(f"'{name}' has a NIST SPHERE header that cannot be read ({error}).") from error
    coding = fields.get("sample_coding", "pcm")
    if "shorten" in coding:
        raise errors.DataError(f"'{name}' is compressed by shorten (sample_coding {coding}). {_CONVERT}")
    if coding != "pcm" or channels != 1 or width != 2:
        raise errors.DataError(
            f"'{name}' must be one channel of pcm samples of 2 bytes, got {channels} of {coding} of {width}. {_CONVERT}"
        )
    order = {"01": "<", "10": ">"}.get(fields.get("sample_byte_format", "01"))
    if order is None:
        raise errors.DataError(
            f"'{name}' must have the sample_byte_format 01 or 10, got {fields['sample_byte_format']}. {_CONVERT}"
        )
    body = content[start : start + 2 * count]
    if len(body) < 2 * count:
        raise errors.DataError(f"'{name}' is cut off: {count} samples announced, {len(body) // 2} there.")
    return np.frombuffer(body, f"{order}i2").astype(np.int16), rate


def _riff(name: str, content: bytes) -> tuple[npt.NDArray[np.int16], int]:
    try:
        with wave.open(BytesIO(content)) as file:
            channels, width, rate, count = file.getparams()[:4]
            body = file.readframes(count)
    except (wave.Error, EOFError) as error:
        reason = str(error) or "it is cut off"
        raise errors.DataError(
            f"'{name}' is neither a NIST SPHERE nor a RIFF file of pcm samples ({reason}). Convert it first."
        ) from error
    if channels != 1 or width != 2:
        raise errors.DataError(
            f"'{name}' must be one channel of samples of 2 bytes, got {channels} of {width}. Convert it first."
        )
    if len(body) < 2 * count:
        raise errors.DataError(f"'{name}' is cut off: {count} samples announced, {len(body) // 2} there.")
    return np.frombuffer(body, "<i2").astype(np.int16), rate


def scaled(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    """Samples from -1 to 1."""
    return samples / 32768


def log_magnitudes(samples: npt.NDArray[np.int16], rate: int) -> Float32Array:
    """Decibels of the short-time spectrum: 129 bins, frames of 256 samples every 128, at 8 kHz.

    The window is a periodic Hann; 256 zeros stand before and behind the samples, so the first frame is silent. Other
    rates are brought to 8 kHz by scipy's polyphase filter.
    """
    signal = scaled(samples)
    if rate != RATE:
        # scipy is slow to import and needed here only.
        from scipy.signal import resample_poly

        common = gcd(rate, RATE)
        signal = resample_poly(signal, RATE // common, rate // common)
    padded = np.pad(signal, WINDOW)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    return (10 * np.log10(_FLOOR + power)).astype(np.float32)
