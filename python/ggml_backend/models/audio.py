"""Audio for Whisper: WAV files, resampling, and the mel spectrogram."""

from __future__ import annotations

import os
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from .._base.errors import FileError, InvalidArgumentError

__all__ = ["LEAST_RATE", "MOST_RATE", "RATE", "log_mel", "mel_filters", "read_wav", "resample"]

FloatArray = npt.NDArray[np.float32]

RATE = 16000
"""Samples a second that Whisper expects."""

N_FFT, HOP = 400, 160
LEAST_RATE, MOST_RATE = 100, 768000
_MAX_CHANNELS = 64
_UNKNOWN_SIZE = 0x7FFF0000  # programs that write to a pipe give 0, or a size from here to the largest number
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


def read_wav(path: str | os.PathLike[str]) -> tuple[FloatArray, int]:
    """The samples of a WAV file and their rate: float32 between -1 and 1, the mean of all channels.

    PCM of 8, 16, 24 and 32 bits, and floats of 32 and 64 bits. FileError: another format, or an incomplete file.
    """
    with open(path, "rb") as file:
        data = file.read()
    name = os.fspath(path)
    if data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        hint = "; convert it: ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav"
        raise FileError(f"{name} is no WAV file" + (hint if len(data) else ": it is empty"))
    form, body, at = None, None, 12
    while at + 8 <= len(data) and body is None:
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        chunk = memoryview(data)[at + 8 : at + 8 + size]
        if kind == b"fmt ":
            form = bytes(chunk)
        elif kind == b"data":
            body, left = chunk, len(data) - at - 8
            if size == 0 or _UNKNOWN_SIZE <= size > left:
                body = memoryview(data)[at + 8 :]
            elif size > left:
                raise FileError(
                    f"{name}: the WAV file is incomplete: its header promises {size} bytes of data, {left} are there"
                )
        at += 8 + size + size % 2
    if form is None or len(form) < 16 or body is None:
        raise FileError(f"{name}: the WAV file is incomplete: it has no {'format' if form is None else 'samples'}")
    return _samples(name, form, body)


def _samples(name: str, form: bytes, body: memoryview) -> tuple[FloatArray, int]:
    code, channels = int.from_bytes(form[:2], "little"), int.from_bytes(form[2:4], "little")
    rate, bits = int.from_bytes(form[4:8], "little"), int.from_bytes(form[14:16], "little")
    if code == _EXTENSIBLE and len(form) >= 26:
        code = int.from_bytes(form[24:26], "little")
    if not 1 <= channels <= _MAX_CHANNELS or not LEAST_RATE <= rate <= MOST_RATE:
        raise FileError(f"{name}: {channels} channels with {rate} samples a second are not possible")
    width = bits // 8
    if (code, bits) not in ((_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32), (_FLOAT, 64)):
        raise FileError(f"{name}: the WAV file has samples of format {code} with {bits} bits; PCM and floats are read")
    frames = len(body) // (width * channels)
    raw = np.frombuffer(body, np.uint8, frames * width * channels)
    x: Any
    if code == _FLOAT:
        x = raw.view(f"<f{width}").astype(np.float32)
        if not np.isfinite(x).all():
            raise FileError(f"{name}: the WAV file has samples that are no numbers")
    elif width == 1:
        x = (raw.astype(np.float32) - 128) / 128
    elif width == 3:
        parts = raw.reshape(-1, 3).astype(np.int32)
        x = ((parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8).astype(np.float32) / (1 << 23)
    else:
        x = raw.view(f"<i{width}").astype(np.float32) / np.float32(1 << (bits - 1))
    mono: FloatArray = x.reshape(frames, channels).mean(1, dtype=np.float32)
    return mono, rate


def resample(x: FloatArray, rate: int, target: int = RATE) -> FloatArray:
    """Samples at another rate, by a sinc filter with a Kaiser window of 32 zero crossings (Smith, "Digital Audio
    Resampling")."""
    if rate == target or not len(x):
        return x
    if rate < 1 or target < 1:
        raise InvalidArgumentError(f"the rates {rate} and {target} must be at least 1")
    divisor = gcd(rate, target)
    up, down = target // divisor, rate // divisor
    cut = min(1.0, target / rate)
    half = int(np.ceil(16 / cut))
    n = -(-len(x) * up // down)
    padded = np.concatenate([np.zeros(half, np.float32), x, np.zeros(half + 1, np.float32)])
    places = np.arange(-half + 1, half + 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half)
    out = np.empty(n, np.float32)
    for phase in range(min(up, n)):
        begin, fraction = divmod(phase * down, up)
        t = places - fraction / up
        inside = np.clip(1 - (t / half) ** 2, 0, 1)
        taps = (cut * np.sinc(cut * t) * np.i0(9.0 * np.sqrt(inside)) / np.i0(9.0)).astype(np.float32)
        rows = windows[begin + 1 :: down]
        found = out[phase::up]
        found[:] = rows[: len(found)] @ taps
    return out


def _mel_of(hz: Any) -> Any:
    """Slaney's scale: linear below 1000 Hz, then 27 steps for a factor of 6.4."""
    return np.where(hz < 1000, hz * 3 / 200, 15 + 27 * np.log(np.maximum(hz, 1e-9) / 1000) / np.log(6.4))


def _hz_of(mel: Any) -> Any:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


def mel_filters(n_mels: int) -> FloatArray:
    """Triangular filters (n_mels, 201) of equal area on Slaney's mel scale up to 8000 Hz."""
    edges = _hz_of(np.linspace(0, _mel_of(np.float64(RATE / 2)), n_mels + 2))
    bins = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles = np.maximum(0, np.minimum(rise, fall)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    filters: FloatArray = triangles.astype(np.float32)
    return filters


def log_mel(x: FloatArray, n_mels: int = 80, padding: int = 0) -> FloatArray:
    """The spectrogram (n_mels, frames) of samples at 16,000 a second, as Whisper defines it (Radford et al. 2022,
    arXiv:2212.04356).

    Frames of 25 ms, one each 10 ms, with Hann's window; the logarithm of the power in mel bands, at most 8 decades
    below the largest, shifted and scaled. padding: samples of silence behind it.
    """
    filters = mel_filters(n_mels)
    padded = np.concatenate([x, np.zeros(padding, np.float32)])
    if len(padded) <= N_FFT // 2:
        padded = np.concatenate([padded, np.zeros(N_FFT // 2 + 1 - len(padded), np.float32)])
    edge = N_FFT // 2
    padded = np.concatenate([padded[edge:0:-1], padded, padded[-2 : -edge - 2 : -1]])
    frames = (len(padded) - N_FFT) // HOP
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)
    mel = np.empty((n_mels, frames), np.float32)
    views = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
    for i in range(0, frames, 1000):
        spectrum = np.fft.rfft(views[i : min(i + 1000, frames)] * window)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        mel[:, i : i + 1000] = filters @ power.T
    logs = np.log10(np.maximum(mel, 1e-10))
    scaled: FloatArray = (np.maximum(logs, logs.max(initial=-10.0) - 8) + 4) / 4
    return scaled.astype(np.float32)
