"""Speech files in NIST SPHERE and RIFF format, and the log-magnitude spectra that the papers use."""

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
#: Log-magnitude of every bin in a silent frame, also used for frames after the end.
SILENCE = -50.0

_SPHERE = b"NIST_1A"
_CONVERT = "Convert it first: sph2pipe -p -f wav IN OUT, or w_decode -o pcm IN OUT."


def read_speech(name: str, content: bytes) -> tuple[npt.NDArray[np.int16], int]:
    """Read the samples and the sampling rate of a NIST SPHERE or RIFF file with one uncompressed 16-bit channel.

    Raises:
        DataError: If the file has another format.
    """
    return _read_sphere(name, content) if content.startswith(_SPHERE) else _read_riff(name, content)


def _read_sphere(name: str, content: bytes) -> tuple[npt.NDArray[np.int16], int]:
    # The header is text of 1024 bytes or a multiple; its second line is its size.
    lines = content[:1024].decode("ascii", errors="replace").split("\n")
    fields = {}
    for line in lines[2:]:
        # "NAME -TYPE VALUE"
        field, *type_and_value = line.split(None, 2)
        if field == "end_head":
            break
        if len(type_and_value) == 2:
            fields[field] = type_and_value[1]
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
    # Byte order of the samples: 01 is little-endian.
    byte_order = {"01": "<", "10": ">"}.get(fields.get("sample_byte_format", "01"))
    if byte_order is None:
        raise errors.DataError(
            f"'{name}' must have the sample_byte_format 01 or 10, got {fields['sample_byte_format']}. {_CONVERT}"
        )
    body = content[start : start + 2 * count]
    if len(body) < 2 * count:
        raise errors.DataError(f"'{name}' is truncated: its header says {count} samples, it has {len(body) // 2}.")
    return np.frombuffer(body, f"{byte_order}i2").astype(np.int16), rate


def _read_riff(name: str, content: bytes) -> tuple[npt.NDArray[np.int16], int]:
    try:
        with wave.open(BytesIO(content)) as file:
            channels, width, rate, count = file.getparams()[:4]
            body = file.readframes(count)
    except (wave.Error, EOFError) as error:
        reason = str(error) or "it is truncated"
        raise errors.DataError(
            f"'{name}' is neither a NIST SPHERE nor a RIFF file of pcm samples ({reason}). Convert it first."
        ) from error
    if channels != 1 or width != 2:
        raise errors.DataError(
            f"'{name}' must be one channel of samples of 2 bytes, got {channels} of {width}. Convert it first."
        )
    if len(body) < 2 * count:
        raise errors.DataError(f"'{name}' is truncated: its header says {count} samples, it has {len(body) // 2}.")
    return np.frombuffer(body, "<i2").astype(np.int16), rate


def scale_samples(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    """Scale 16-bit samples to the range -1 to 1."""
    return samples / 32768


def log_magnitudes(samples: npt.NDArray[np.int16], rate: int) -> Float32Array:
    """Compute the short-time spectrum in decibels: 129 bins, frames of 256 samples every 128 samples, at 8 kHz.

    The window is a periodic Hann window. 256 zeros are added before and after the samples, so the first frame is
    silent. Other sampling rates are converted to 8 kHz by scipy's polyphase filter.
    """
    signal = scale_samples(samples)
    if rate != RATE:
        # scipy is slow to import and only needed here.
        from scipy.signal import resample_poly

        divisor = gcd(rate, RATE)
        signal = resample_poly(signal, RATE // divisor, rate // divisor)
    padded = np.pad(signal, WINDOW)
    # (frames, 256)
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    return (10 * np.log10(_FLOOR + power)).astype(np.float32)
