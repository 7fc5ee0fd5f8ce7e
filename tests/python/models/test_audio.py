"""WAV files, resampling, and the mel spectrogram, against their definitions."""

from __future__ import annotations

import struct
import wave

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.models.audio import RATE, log_mel, mel_filters, read_wav, resample


def wav(path, code, bits, channels, rate, frames, extensible=False):
    """Writes frames (n, channels) between -1 and 1."""
    if code == 3:
        body = frames.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        body = np.round(frames * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(frames * ((1 << (bits - 1)) - 1)).astype("<i4")
        body = b"".join(int(v).to_bytes(bits // 8, "little", signed=True) for v in whole.reshape(-1))
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else code, channels, rate, rate * channels * bits // 8,
                       channels * bits // 8, bits)  # fmt: skip
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 0, code) + b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
    chunks = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # one of an odd size, before the samples
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + chunks + b"data" + struct.pack("<I", len(body)) + body
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("code", "bits"), [(1, 8), (1, 16), (1, 24), (1, 32), (3, 32), (3, 64)])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_every_form_of_samples_is_read(tmp_path, code, bits, channels, extensible):
    frames = np.random.default_rng(0).uniform(-1, 1, (100, channels))
    wav(tmp_path / "a.wav", code, bits, channels, 22050, frames, extensible)
    x, rate = read_wav(tmp_path / "a.wav")
    assert (rate, x.dtype) == (22050, np.float32)
    np.testing.assert_allclose(x, frames.mean(1), atol=2.0 ** (2 - min(bits, 24)))


def test_files_of_the_standard_library_are_read(tmp_path):
    whole = (np.arange(-50, 50) * 300).astype("<i2")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(whole.tobytes())
    np.testing.assert_array_equal(read_wav(tmp_path / "a.wav")[0], whole / np.float32(32768))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: b"", "is empty"),
        (lambda d: b"ID3" + d, "no WAV file; convert it"),
        (lambda d: d[:20], "incomplete"),
        (lambda d: d[:30], "incomplete"),
        (lambda d: d.replace(b"data", b"junk"), "has no samples"),
        (lambda d: d[:20] + b"\x55\x00" + d[22:], "format 85"),
        (lambda d: d[:22] + b"\x00\x00" + d[24:], "0 channels"),
        (lambda d: d[:24] + b"\x00\x00\x00\x00" + d[28:], "0 samples a second"),
        (lambda d: d[:34] + b"\x0c\x00" + d[36:], "12 bits"),
    ],
)
def test_other_files_are_refused(tmp_path, change, words):
    path = tmp_path / "a.wav"
    wav(path, 1, 16, 1, 16000, np.zeros((10, 1)))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(gb.errors.FileError, match=words):
        read_wav(path)


def test_an_unfinished_recording_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.wav"
    wav(path, 1, 16, 1, 16000, np.full((10, 1), 0.5))
    data = path.read_bytes()
    for size in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80"):
        path.write_bytes(data[:-24] + size + data[-20:])
        assert len(read_wav(path)[0]) == 10


@pytest.mark.parametrize("rate", [8000, 11025, 12345, 22050, 44100, 48000, 96000])
def test_tones_keep_their_frequency_at_another_rate(rate):
    t = np.arange(rate) / rate
    found = resample(np.sin(2 * np.pi * 440 * t).astype(np.float32), rate)
    expected = np.sin(2 * np.pi * 440 * np.arange(len(found)) / RATE)
    assert abs(len(found) - RATE) <= 1
    assert np.abs(found - expected)[400:-400].max() < 5e-5
    if rate > RATE:  # frequencies above half of the new rate are removed
        high = resample(np.sin(2 * np.pi * 9500 * t).astype(np.float32), rate)
        assert np.abs(high)[400:-400].max() < 2e-4


def test_short_sounds_have_a_length():
    for n in range(4):
        assert len(resample(np.ones(n, np.float32), 48000)) == -(-n // 3)
        assert log_mel(np.ones(n, np.float32)).shape[0] == 80


@pytest.mark.parametrize("n_mels", [80, 128])
def test_the_spectrogram_follows_its_definition(n_mels):
    rng = np.random.default_rng(1)
    x = (0.3 * np.sin(np.arange(4000) * 0.3) + 0.01 * rng.standard_normal(4000)).astype(np.float32)
    found = log_mel(x, n_mels, padding=800)
    padded = np.concatenate([x, np.zeros(800)]).astype(np.float64)
    padded = np.pad(padded, 200, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    dft = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    power = np.stack([np.abs(dft @ (padded[i : i + 400] * window)) ** 2 for i in range(0, 4800, 160)], 1)
    logs = np.log10(np.maximum(mel_filters(n_mels).astype(np.float64) @ power, 1e-10))
    np.testing.assert_allclose(found, (np.maximum(logs, logs.max() - 8) + 4) / 4, atol=1e-4)


def test_filters_have_equal_areas():
    filters = mel_filters(80)
    assert filters.shape == (80, 201) and (filters >= 0).all()
    np.testing.assert_allclose(filters[20:].sum(1) * 40, 1, atol=0.1)  # bins are 40 Hz apart


def test_missing_samples_are_an_error(tmp_path):
    path = tmp_path / "a.wav"
    wav(path, 1, 16, 1, 16000, np.zeros((100, 1)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(gb.errors.FileError, match="its header promises 200 bytes of data, 198 are there"):
        read_wav(path)
